"""Rewrites are collected, scored in the form that is learnt, and kept where they are good enough."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from querywright.data.splits import Splits
from querywright.optimize.rewriter.collect import Collected, collect
from querywright.optimize.rewriter.settings import Given, TrainSettings

SETTINGS = TrainSettings(technique="rrr", candidates=2, threads=2)


def rrr(*queries: str, thought: str = "t") -> str:
    return json.dumps({"thought": thought, "queries": list(queries)})


def go(world: Any, lm: Any, size: int = 4, settings: TrainSettings = SETTINGS, **given: Any) -> Collected:
    splits = Splits(given.pop("questions", world.questions[:size]), [], [])
    progress = given.pop("progress", None)
    made: dict[str, Any] = {"splits": splits, "retriever": world, "collection": "small", "teacher": lm, **given}
    return collect(settings, Given(**made), progress=progress)


def queries(found: Collected) -> list[tuple[str, list[str]]]:
    return [(pair.question, json.loads(pair.text)["queries"]) for pair in found.pairs]


@pytest.fixture
def teacher(make_engine: Any, make_lm: Any) -> Callable[..., Any]:
    """Makes an LM that writes by a function of the question's number and of the seed, None for the greedy one."""

    def make(write: Callable[[int, int | None], str]) -> Any:
        engine = make_engine()
        lock, scripted, engine.seen = threading.Lock(), type(engine).complete, []

        def complete(request: Any) -> Any:
            config = request.config
            with lock:
                engine.write = None
                if "thought" in json.dumps(config.response_format, default=str):
                    number = int(request.messages[-1].text.rsplit("number ", 1)[1].split("?")[0])
                    engine.seen.append((number, config.temperature or 0.0, config.seed))
                    engine.write = lambda asked: write(asked.number, config.seed)
                return scripted(engine, request)

        engine.complete = complete
        return make_lm(engine)

    return make


def test_the_best_rewrite_that_beats_the_question_is_kept(world: Any, make_world: Any, teacher: Any) -> None:
    def write(n: int, seed: int | None) -> str:
        found = {0: seed is None, 1: seed == 1}.get(n, False)
        return "no JSON" if n == 3 else rrr(f"key of {n}" if found else f"none of {n}")

    lm, told = teacher(write), list[Any]()
    found = go(world, lm, progress=lambda *one: told.append(one))
    assert queries(found) == [("q0", ["key of 0"]), ("q1", ["key of 1"])]
    assert {(pair.technique, pair.number, pair.source, pair.reward, pair.data) for pair in found.pairs} == {
        ("rrr", 0, "scripted/model", 1.0, "small")
    }
    assert found.pairs[0].messages[-1] == ("user", "question: What of number 0?\n\noptions:\n- right 0\n- wrong 0")
    assert (found.questions, found.answered, found.questions_kept, found.measure) == (4, 4, 2, "ndcg@10")
    assert (found.plain, found.best) == (0.0, 0.5)
    assert {(2, 0.0, None), (2, 0.8, 1)} <= set(lm.engine.inner.seen)
    assert told == [("collect", 4, 4)]
    both, lm = make_world("both"), teacher(lambda n, seed: rrr(f"key of {n}"))
    assert go(both, lm, 2).pairs == []


def test_what_is_learnt_can_be_written_by_the_rewriter(world: Any, teacher: Any) -> None:
    lm = teacher(lambda n, seed: rrr(f'the "key" of {n}', f"b {n}", f"c {n}", f"d {n}", thought="x" * 400))
    (pair,) = go(world, lm, 1).pairs
    assert json.loads(pair.text) == {"thought": "x" * 320, "queries": ["the 'key' of 0", "b 0", "c 0"]}
    assert "queries\n- thought" not in pair.messages[0][1]
    (pair,) = go(world, lm, 1, replace(SETTINGS, base="another")).pairs
    assert len(json.loads(pair.text)["queries"]) == 4
    assert go(world, teacher(lambda n, seed: rrr()), 1).pairs == []  # no grammar has an empty list
