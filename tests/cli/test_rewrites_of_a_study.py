"""Rewrites that a study's LM wrote are taken from the answers that were kept."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from querywright.data import read_questions, split_questions
from querywright.data.splits import Splits
from querywright.errors import InputError
from querywright.models.embedder import resolve_embedder
from querywright.optimize.rewriter.collect import Collected, collect_from_study, splits_after
from querywright.optimize.rewriter.pairs import read_pairs
from querywright.optimize.rewriter.settings import Given, TrainSettings
from querywright.optimize.rewriter.train import data_facts
from querywright.retrieval.engines import open_retriever

TOLD = "Write what to look up, in the words of a handbook."
SETTINGS = TrainSettings(technique="rrr", knobs={"max_passages": 2}, metric="decision_useful", ties=True, threads=2)


@pytest.fixture
def study(ok: Any, study_file: Any, tmp_path: Path) -> Path:
    """A study of two arms of Rewrite-Retrieve-Read that was run, one of them with instructions of its own."""
    file = study_file(
        "told",
        techniques={"rrr": {"knobs": {"n_queries": [1]}, "search": "named", "prompts": ["told"]}},
        prompts={"told": {"instructions": {"technique.rewriter": TOLD}}},
        trials=4,
    )
    ok("study", "run", file, "--out", tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def tiny_base(tmp_path: Path) -> Path:
    pytest.importorskip("peft")
    tiny = runpy.run_path(str(Path(__file__).parents[1] / "optimize" / "rewriter" / "tiny.py"))
    return Path(tiny["save_tiny"](tmp_path / "tiny"))


def test_kept_answers_become_pairs_and_nothing_is_asked(study: Path, home: Path, server: Any, tmp_path: Path) -> None:
    asked = [body for body in server.requests if TOLD in json.dumps(body)]
    assert asked  # the study did ask with instructions of its own
    server.requests.clear()
    retriever = open_retriever("small", embedder=resolve_embedder("embedded"), home=home)
    train, dev, _ = split_questions(read_questions(tmp_path / "more.jsonl"), sizes=(4, 8, 6))

    def collected(questions: Any = (*train, *dev), technique: str = "rrr", folder: Path = study) -> Collected:
        given = Given(Splits(list(questions), [], []), retriever, "small", study=folder, home=home)
        return collect_from_study(replace(SETTINGS, technique=technique), given)

    found = collected()
    assert server.requests == []
    assert (found.arms, found.questions) == (2, 12)
    assert found.missing == 2 * 4  # trials meet dev, so nothing of train was kept
    assert found.pairs
    assert {pair.source for pair in found.pairs} == {"study:told"}
    assert TOLD not in str([pair.messages for pair in found.pairs])
    assert {len(json.loads(pair.text)["queries"]) for pair in found.pairs} == {1}
    chosen = next(one for one in dev if one.id == found.pairs[0].question)
    assert {pair.question for pair in collected([chosen]).pairs} == {chosen.id}
    for given, said in (
        ({"questions": [replace(chosen, id="strange")]}, "met none of the 1 train questions"),
        ({"technique": "multi_query"}, "completed no arm of multi_query; it has: plain, rrr"),
        ({"folder": tmp_path / "nowhere"}, "holds no study"),
    ):
        with pytest.raises(InputError, match=said):
            collected(**given)


def test_a_training_learns_from_the_answers_to_its_dev_questions(
    ok: Any, cli: Any, study: Path, server: Any, tmp_path: Path, tiny_base: Path
) -> None:
    server.requests.clear()
    call = ("rewriter", "train")
    given = ("--data", tmp_path / "more.jsonl", "--collection", "small", "--metric", "decision_useful")
    base = ("--base", tiny_base, "--device", "cpu", "--stages", "collect", "--ties", "--from-study", study)
    other = cli(*call, "multi_query", *given, *base, "--out", tmp_path / "mine", "--work", tmp_path / "work")
    assert other.status == 2
    assert "completed no arm of multi_query" in other.err
    assert not (tmp_path / "work").exists()
    done = ok(
        *call, "rrr", *given, *base, "--out", tmp_path / "mine", "--work", tmp_path / "work", "--json"
    )  # fmt: skip
    assert server.requests == []
    stage = done.data["stages"]["collect"]
    assert stage["arms of the study"] == 2
    assert stage["from the study"] > 0
    asked = read_questions(tmp_path / "more.jsonl")
    studied, mine = split_questions(asked, sizes=(4, 8, 6)), splits_after(study, asked)
    assert list(map(len, mine)) == [8, 4, 6]
    assert (mine.train, mine.dev) == ([*studied.train, *studied.dev[:4]], studied.dev[4:])
    assert {name: facts["n"] for name, facts in done.data["data"].items()} == {"train": 8, "dev": 4, "test": 6}
    assert done.data["data"]["test"] == data_facts(studied)["test"]
    learnt = {pair.question for pair in read_pairs(tmp_path / "work" / "pairs.jsonl")}
    assert learnt
    assert learnt <= {one.id for one in studied.dev[:4]}
    sized = cli(*call, *given, *base, "--sizes", "4,8,6", "--out", tmp_path / "other")
    assert sized.status == 2
    assert "--sizes does not go with --from-study" in sized.err
