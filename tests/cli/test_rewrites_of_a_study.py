"""Rewrites that a study's LM wrote are taken from the answers that were kept."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from querywright.data import read_questions, split_questions
from querywright.errors import InputError
from querywright.models.embedder import resolve_embedder
from querywright.optimize.rewriter.collect import CollectSettings, collect_from_study
from querywright.optimize.rewriter.given import splits_after
from querywright.optimize.rewriter.pairs import read_pairs
from querywright.optimize.rewriter.recipes import OURS
from querywright.optimize.rewriter.rewards import make_reward
from querywright.optimize.rewriter.settings import data_facts
from querywright.programs import make_program
from querywright.retrieval.engines import open_retriever

TOLD = "Write what to look up, in the words of a handbook."
SETTINGS = CollectSettings(ties=True, threads=2)


@pytest.fixture
def study(cli: Any, study_file: Any, tmp_path: Path) -> Path:
    """A study of two arms of Rewrite-Retrieve-Read that was run, one of them with instructions of its own."""
    file = study_file(
        "told",
        techniques={"rrr": {"knobs": {"n_queries": [1]}, "search": "named", "prompts": ["told"]}},
        prompts={"told": {"instructions": {"technique.rewriter": TOLD}}},
        trials=4,
    )
    done = cli("study", "run", file, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    return tmp_path / "out"


@pytest.fixture
def tiny_base(tmp_path: Path) -> Path:
    pytest.importorskip("peft")
    tiny = runpy.run_path(str(Path(__file__).parents[1] / "optimize" / "rewriter" / "tiny.py"))
    return Path(tiny["save_tiny"](tmp_path / "tiny"))


@pytest.fixture
def program(study: Path, home: Path) -> Any:
    retriever = open_retriever("small", embedder=resolve_embedder("embedded"), home=home)
    return make_program("rrr", retriever, max_passages=2)


def test_kept_answers_become_pairs_and_nothing_is_asked(
    study: Path, program: Any, home: Path, server: Any, tmp_path: Path
) -> None:
    asked = [body for body in server.requests if TOLD in json.dumps(body)]
    assert asked  # the study did ask with instructions of its own
    server.requests.clear()
    reward = make_reward(OURS, program, metric="decision_useful")
    found = collect_from_study(study, program, SETTINGS, tmp_path / "pairs", reward=reward, home=home)
    assert server.requests == []
    assert found.arms == 2
    assert found.missing == 2 * 4  # trials meet dev, so nothing of train was kept
    assert found.pairs
    assert {pair.source for pair in found.pairs} == {"study:told"}
    assert TOLD not in str([pair.messages for pair in found.pairs])
    assert {len(json.loads(pair.text)["queries"]) for pair in found.pairs} == {1}
    again = collect_from_study(study, program, SETTINGS, tmp_path / "pairs", reward=reward, home=home)
    assert again.pairs == found.pairs
    assert again == found


def test_only_the_questions_that_are_given_are_used(study: Path, program: Any, home: Path, tmp_path: Path) -> None:
    reward = make_reward(OURS, program, metric="decision_useful")
    every = collect_from_study(study, program, SETTINGS, tmp_path / "all", reward=reward, home=home)
    lines = (tmp_path / "all" / "collected.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 4 + 8
    ids = {pair.question for pair in every.pairs}
    chosen = [one for one in read_questions(tmp_path / "more.jsonl") if one.id in ids][:1]
    one = collect_from_study(study, program, SETTINGS, tmp_path / "one", reward=reward, questions=chosen, home=home)
    assert {pair.question for pair in one.pairs} == {chosen[0].id}
    strange = [replace(chosen[0], id="strange")]
    with pytest.raises(InputError, match="met none of the 1 train questions"):
        collect_from_study(study, program, SETTINGS, tmp_path / "x", reward=reward, questions=strange, home=home)


def test_a_technique_that_was_not_tried_is_said(study: Path, program: Any, home: Path, tmp_path: Path) -> None:
    other = make_program("multi_query", program.technique.retriever)
    reward = make_reward(OURS, other, metric="decision_useful")
    with pytest.raises(InputError, match="completed no arm of multi_query; it has: plain, rrr"):
        collect_from_study(study, other, SETTINGS, tmp_path / "x", reward=reward, home=home)
    with pytest.raises(InputError, match="holds no study"):
        collect_from_study(tmp_path / "nowhere", other, SETTINGS, tmp_path / "x", reward=reward, home=home)


def test_a_training_learns_from_the_answers_to_its_dev_questions(
    cli: Any, study: Path, server: Any, tmp_path: Path, tiny_base: Path
) -> None:
    server.requests.clear()
    call = ("rewriter", "train", tmp_path / "more.jsonl", "--collection", "small", "--metric", "decision_useful")
    base = ("--base", tiny_base, "--device", "cpu", "--stages", "collect", "--ties", "--from-study", study)
    other = cli(*call, *base, "--technique", "multi_query", "--out", tmp_path / "mine", "--work", tmp_path / "work")
    assert other.status == 2
    assert "completed no arm of multi_query" in other.err
    assert not (tmp_path / "work").exists()
    done = cli(
        *call, *base, "--technique", "rrr", "--out", tmp_path / "mine", "--work", tmp_path / "work", "--json"
    )  # fmt: skip
    assert done.status == 0, done.err
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
    learnt = {pair.question for pair in read_pairs(tmp_path / "work" / "from-study" / "pairs.jsonl")}
    assert learnt
    assert learnt <= {one.id for one in studied.dev[:4]}
    sized = cli(*call, *base, "--sizes", "4,8,6", "--out", tmp_path / "other")
    assert sized.status == 2
    assert "--sizes does not go with --from-study" in sized.err
