"""Rewrites are collected, scored in the form that is learnt, and kept where they are good enough."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15

from querywright.data.types import Question
from querywright.errors import BudgetError, InputError
from querywright.models.engine_errors import LMBudgetError
from querywright.optimize.rewriter.canonical import as_written, json_text
from querywright.optimize.rewriter.collect import CollectSettings, _Collection, collect, collect_written
from querywright.optimize.rewriter.pairs import read_pairs, write_pairs
from querywright.optimize.rewriter.recipes import OURS, PAPER
from querywright.optimize.rewriter.rewards import make_reward
from querywright.optimize.rewriter.types import Episode, Pair, Scored

SETTINGS = CollectSettings(candidates=2, threads=2)


def rrr(*queries: str, thought: str = "t") -> str:
    return json.dumps({"thought": thought, "queries": list(queries)})


@pytest.fixture
def teacher(make_engine: Any, make_lm: Any) -> Callable[..., Any]:
    """Makes an LM that writes by a function of the question's number and of the seed, None for the greedy one."""

    def make(write: Callable[[int, int | None], str], before: Callable[[int], None] = lambda n: None) -> Any:
        engine = make_engine()
        lock = threading.Lock()
        seen: list[tuple[int, float, int | None]] = []
        scripted = type(engine).complete

        def complete(request: lm15.Request) -> lm15.Response:
            config = request.config
            text: str = request.messages[-1].text or ""
            if "thought" in json.dumps(config.response_format, default=str):
                number = int(text.rsplit("number ", 1)[1].split("?")[0])
                with lock:
                    seen.append((number, config.temperature or 0.0, config.seed))
                    before(len(seen))
                    engine.write = lambda asked: write(asked.number, config.seed)
                    return scripted(engine, request)
            with lock:
                engine.write = None
                return scripted(engine, request)

        engine.complete = complete
        engine.seen = seen
        return make_lm(engine)

    return make


def seen_by(lm: Any) -> list[tuple[int, float, int | None]]:
    return sorted(lm.engine.inner.seen, key=str)


def test_the_best_rewrite_that_beats_the_question_is_kept(world: Any, teacher: Any, tmp_path: Path) -> None:
    def write(n: int, seed: int | None) -> str:
        found = {0: seed is None, 1: seed == 1}.get(n, False)
        return "no JSON" if n == 3 else rrr(f"key of {n}" if found else f"none of {n}")

    lm, program = teacher(write), world.program("rrr", None)
    pairs = collect(program, world.questions[:4], lm, SETTINGS, tmp_path, reward=make_reward(OURS, program))
    assert [(pair.question, json.loads(pair.text)["queries"]) for pair in pairs] == [
        ("q0", ["key of 0"]),
        ("q1", ["key of 1"]),
    ]
    assert {(pair.technique, pair.number, pair.source, pair.reward) for pair in pairs} == {
        ("rrr", 0, "scripted/model", 1.0)
    }
    assert pairs[0].messages[-1] == ("user", "question: What of number 0?\n\noptions:\n- right 0\n- wrong 0")
    assert read_pairs(tmp_path / "pairs.jsonl") == pairs
    asked = {(n, temperature, seed) for n, temperature, seed in seen_by(lm)}
    assert {(2, 0.0, None), (2, 0.8, 1)} <= asked
    lines = [json.loads(line) for line in (tmp_path / "collected.jsonl").read_text().splitlines()]
    assert [line["rewards"] for line in lines[1:]] == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [-0.1, -0.1]]


def test_what_is_learnt_can_be_written_by_the_rewriter(world: Any, teacher: Any, tmp_path: Path) -> None:
    lm = teacher(lambda n, seed: rrr(f'the "key" of {n}', f"b {n}", f"c {n}", f"d {n}", thought="x" * 400))
    program, reward = world.program("rrr", None), make_reward(OURS, world.program("rrr", None))
    (pair,) = collect(program, world.questions[:1], lm, SETTINGS, tmp_path / "a", reward=reward)
    assert json.loads(pair.text) == {"thought": "x" * 320, "queries": ["the 'key' of 0", "b 0", "c 0"]}
    assert "queries\n- thought" not in pair.messages[0][1]
    free = replace(SETTINGS, limits=None)
    (pair,) = collect(program, world.questions[:1], lm, free, tmp_path / "b", reward=reward)
    assert len(json.loads(pair.text)["queries"]) == 4


def test_what_anything_writes_is_collected_like_an_lms(world: Any, tmp_path: Path) -> None:
    program, asked = world.program("rrr", None), []

    def number(question: Question) -> int:
        return int(question.question.rsplit("number ", 1)[1].rstrip("?"))

    def nothing(question: Question) -> list[str] | None:
        asked.append(question.id)
        return None

    def edit(question: Question) -> list[str] | None:
        n = number(question)
        return [json_text({"thought": "t", "queries": [f"key of {n}" if n < 2 else f"none of {n}"]})]

    def go(folder: Path, step: int = 1) -> list[Pair]:
        return collect_written(
            program,
            world.questions[:4],
            [nothing, edit],
            SETTINGS,
            folder,
            source="edits",
            facts={"step": step},
            reward=make_reward(OURS, program),
        )

    pairs = go(tmp_path)
    assert [(pair.question, pair.source, json.loads(pair.text)["queries"]) for pair in pairs] == [
        ("q0", "edits", ["key of 0"]),
        ("q1", "edits", ["key of 1"]),
    ]
    assert sorted(asked) == ["q0", "q1", "q2", "q3"]
    assert go(tmp_path) == pairs
    assert len(asked) == 4
    with pytest.raises(InputError, match=r"other settings \(step differ\)"):
        go(tmp_path, 2)


def test_without_a_writer_nothing_is_collected(world: Any, tmp_path: Path) -> None:
    program = world.program("rrr", None)
    with pytest.raises(InputError, match="give one writer or more"):
        collect_written(program, [], [], SETTINGS, tmp_path, source="x", facts={}, reward=make_reward(OURS, program))


def test_ties_are_kept_where_they_are_wanted(make_world: Any, teacher: Any, tmp_path: Path) -> None:
    world = make_world("both")
    lm, program = teacher(lambda n, seed: rrr(f"key of {n}")), world.program("rrr", None)
    reward = make_reward(OURS, program)
    assert collect(program, world.questions[:2], lm, SETTINGS, tmp_path / "a", reward=reward) == []
    ties = replace(SETTINGS, ties=True)
    assert len(collect(program, world.questions[:2], lm, ties, tmp_path / "b", reward=reward)) == 2


def test_a_right_answer_is_what_counts_where_answers_are_read(world: Any, teacher: Any, tmp_path: Path) -> None:
    lm = teacher(lambda n, seed: rrr(f"key of {n}" if n < 2 else f"none of {n}"))
    questions = [replace(question, options=()) for question in world.questions[:4]]
    program = world.program("rrr", "short_answer")
    reward = make_reward(PAPER, program, lm=lm)
    strict, lenient = replace(SETTINGS, least=1), replace(SETTINGS, least=500)
    kept = collect(program, questions, lm, strict, tmp_path / "a", reward=reward, reader_lm=lm)
    assert [pair.question for pair in kept] == ["q0", "q1"]
    # "wrong 2" shares one of two tokens with "right 2": F1 .5
    kept = collect(program, questions, lm, lenient, tmp_path / "b", reward=reward, reader_lm=lm)
    assert [pair.question for pair in kept] == ["q0", "q1", "q2", "q3"]


def test_a_run_that_was_stopped_goes_on_to_the_same_end(world: Any, teacher: Any, tmp_path: Path) -> None:
    program = world.program("rrr", None)
    reward = make_reward(OURS, program)

    def write(n: int, seed: int | None) -> str:
        return rrr(f"key of {n}")

    def stop(name: str, done: int, total: int) -> None:
        assert (name, done, total) == ("collect", 16, 18)
        raise KeyboardInterrupt

    whole = collect(program, world.questions, teacher(write), SETTINGS, tmp_path / "whole", reward=reward)
    with pytest.raises(KeyboardInterrupt):
        collect(program, world.questions, teacher(write), SETTINGS, tmp_path / "cut", reward=reward, progress=stop)
    path = tmp_path / "cut" / "collected.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 17
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    lm = teacher(write)
    told: list[int] = []
    again = collect(
        program,
        world.questions,
        lm,
        SETTINGS,
        tmp_path / "cut",
        reward=reward,
        progress=lambda name, done, total: told.append(done),
    )
    assert {n for n, _, _ in seen_by(lm)} == {15, 16, 17}
    assert told == [18]
    assert again == whole
    assert path.read_bytes() == (tmp_path / "whole" / "collected.jsonl").read_bytes()
    assert (tmp_path / "cut" / "pairs.jsonl").read_bytes() == (tmp_path / "whole" / "pairs.jsonl").read_bytes()


def test_an_lm_out_of_budget_stops_and_keeps_what_is_done(world: Any, teacher: Any, tmp_path: Path) -> None:
    def before(n: int) -> None:
        if n > 34:
            raise LMBudgetError("spent")

    program = world.program("rrr", None)
    lm = teacher(lambda n, seed: rrr(f"key of {n}"), before)
    with pytest.raises(BudgetError, match="spent"):
        collect(program, world.questions, lm, SETTINGS, tmp_path, reward=make_reward(OURS, program))
    assert len((tmp_path / "collected.jsonl").read_text().splitlines()) == 17
    assert not (tmp_path / "pairs.jsonl").exists()


def test_another_collection_in_the_folder_is_refused(world: Any, teacher: Any, tmp_path: Path) -> None:
    program, lm = world.program("rrr", None), teacher(lambda n, seed: rrr(f"key of {n}"))
    reward = make_reward(OURS, program)
    collect(program, world.questions[:1], lm, SETTINGS, tmp_path, reward=reward)
    collect(program, world.questions[:2], lm, replace(SETTINGS, threads=1), tmp_path, reward=reward)
    with pytest.raises(InputError, match=r"other settings \(seed differ\)"):
        collect(program, world.questions[:1], lm, replace(SETTINGS, seed=1), tmp_path, reward=reward)
    with pytest.raises(InputError, match="knobs"):
        collect(world.program("rrr", None, n_queries=1), [], lm, SETTINGS, tmp_path, reward=reward)
    (tmp_path / "collected.jsonl").write_text("[1]\n")
    with pytest.raises(InputError, match="line 1: no JSON object"):
        collect(program, world.questions[:1], lm, SETTINGS, tmp_path, reward=reward)


@pytest.mark.parametrize(
    ("values", "said"), [({"candidates": 0}, "candidates must be 1"), ({"temperature": 0.0}, "more than 0")]
)
def test_settings_that_cannot_be_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        CollectSettings(**values)


PAIR = Pair("q", "rrr", 0, (("system", "s"), ("user", "u")), "{}", 0.5, "me")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.pop("text"), "'text' is missing"),
        (lambda data: data.update(text=" "), "an empty text"),
        (lambda data: data.update(messages=[]), "no messages"),
        (lambda data: data.update(messages=[["tool", "x"]]), "the role 'tool'"),
        (lambda data: data.update(messages=[["user"]]), "no pair"),
        (lambda data: data.update(number=-1), "the number -1"),
        (lambda data: data.update(question=3), "question is no text"),
        (lambda data: data.update(data=None), "data is no text"),
    ],
)
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, change: Callable[[Any], Any], said: str) -> None:
    write_pairs(tmp_path / "p.jsonl", [PAIR])
    data = json.loads((tmp_path / "p.jsonl").read_text())
    change(data)
    (tmp_path / "p.jsonl").write_text(json.dumps(data) + "\n")
    with pytest.raises(InputError, match=rf"p.jsonl, line 1: .*{said}"):
        read_pairs(tmp_path / "p.jsonl")


def test_what_is_not_known_of_a_pair_is_not_written(tmp_path: Path) -> None:
    whole = replace(PAIR, data="mine", asked="0123")
    write_pairs(tmp_path / "p.jsonl", [PAIR, whole])
    assert read_pairs(tmp_path / "p.jsonl") == [PAIR, whole]
    first, second = map(json.loads, (tmp_path / "p.jsonl").read_text().splitlines())
    assert set(second) - set(first) == {"data", "asked"}


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'p.jsonl' cannot be read"):
        read_pairs(tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_pairs(tmp_path / "p.jsonl")


def test_a_line_of_many_characters_and_half_a_character_are_read_again(tmp_path: Path) -> None:
    long = replace(PAIR, text="x" * 300_000 + "\ud800")
    write_pairs(tmp_path / "p.jsonl", [long])
    assert read_pairs(tmp_path / "p.jsonl") == [replace(long, text="x" * 300_000 + "?")]
    told = as_written({"queries": ["half \ud83d of it"], "thought": "\ud83d\ude00"[:1]}, None, None)
    assert told == {"queries": ["half \ufffd of it"], "thought": "\ufffd"}
    assert json_text({"thought": "\ud800"}) == '{"thought": "\ufffd"}'


def test_a_right_rewrite_comes_before_one_of_more_reward() -> None:
    class Reads:
        needs_reader, name = True, "paper"

    question = Question("q", "What?", answer="right one")
    work = _Collection(None, SETTINGS, Reads(), None, "me")  # type: ignore[arg-type]
    answers = {"wrong": 3.0, "right": 2.0, "right one": -1.0}
    scored = [
        (Episode(question, (), (), dspy.Prediction(answer=answer)), Scored(reward, reward, 0.0))
        for answer, reward in answers.items()
    ]
    for kept, best in ((3, -1.0), (2, 2.0), (1, 3.0)):
        assert work._line(question, 0.0, scored[:kept])["reward"] == best
