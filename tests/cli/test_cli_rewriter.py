"""Pairs are collected from the evidence of training questions; errors are reported before training starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from querywright.cli.options import SearchOptions, Threads
from querywright.cli.rewriter import RewriteOptions
from querywright.data import read_questions, split_questions
from querywright.data.splits import asked_of
from querywright.optimize.rewriter.pairs import read_pairs

THINGS = range(60)


@pytest.fixture
def asked(cli: Any, write: Callable[..., Path]) -> Path:
    """Questions with the title of their passage, whose options name its first word; the collection is ``things``."""
    passages = [{"id": f"p{n}", "title": f"Thing{n} (x)", "text": f"word{n} what is it"} for n in THINGS]
    rows = [
        {"id": f"q{n}", "question": f"what is it of Thing{n}?", "options": [f"word{n}", "none"], "answer": f"word{n}",
         "evidence": {f"p{n}": "ENTAILED"}}
        for n in THINGS
    ]  # fmt: skip
    assert cli("index", "things", write("things.jsonl", passages)).status == 0
    return write("asked.jsonl", rows)


@pytest.fixture
def collect(cli: Any, asked: Path) -> Callable[..., Any]:
    def call(*more: object, out: str = "a.jsonl") -> Any:
        return cli(
            "rewriter", "collect", "--data", asked, "--collection", "things", "--metric", "recall@1",
            "--engine", "bm25", "--knob", "max_passages=1", "--out", out, *more,
        )  # fmt: skip

    return call


def test_the_evidence_of_train_questions_becomes_pairs_that_others_splits_refuse(
    collect: Any, cli: Any, asked: Path, server: Any
) -> None:
    done = collect("--json")
    assert done.status == 0, done.err
    pairs, train = read_pairs(Path("a.jsonl")), split_questions(read_questions(asked)).train
    assert (done.data["questions"], done.data["answered"], done.data["pairs"]) == (len(train),) * 3
    assert done.data["best"] > done.data["plain"] - 1e-9
    assert {pair.question: pair.asked for pair in pairs} == {one.id: asked_of(one) for one in train}
    assert {(pair.technique, pair.data, pair.source) for pair in pairs} == {("rrr", "things", "evidence")}
    for pair in pairs:
        queries, number = json.loads(pair.text)["queries"], pair.question[1:]
        assert queries[0].removesuffix(f" word{number} none") == f"what is it of Thing{number}?"
    before = Path("a.jsonl").read_bytes()
    assert collect().status == 0
    assert Path("a.jsonl").read_bytes() == before
    assert server.requests == []
    refused = cli("rewriter", "train", "--data", asked, "--collection", "things", "--pairs", "a.jsonl", "--out", "r",
        "--seed", "4")  # fmt: skip
    assert refused.status == 2
    assert f"of {len(pairs)} pairs use dev or test questions" in " ".join(refused.err.split())


def test_a_file_that_does_not_hold_pairs_is_not_replaced(collect: Any) -> None:
    Path("mine.txt").write_text("mine\n")
    refused = collect(out="mine.txt")
    assert refused.status == 2
    assert "'mine.txt' exists but is not a file of pairs" in " ".join(refused.err.split())
    assert Path("mine.txt").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lr", "0"], "lr must be more than 0"),
        (["--sizes", "20,0,10"], "--sizes must be three positive integers"),
        (["--pairs", "missing.jsonl"], "cannot read 'missing.jsonl'"),
    ],
)
def test_a_training_that_cannot_succeed_is_refused(
    options: list[str], said: str, cli: Any, collection: str, questions: Path, write: Callable[..., Path]
) -> None:
    given = ("--data", questions, "--collection", collection, "--pairs", write("none.jsonl", []), "--out", "r")
    found = cli("rewriter", "train", *given, *options)
    assert found.status == 2
    assert said in " ".join(found.err.split())
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("metric", "knobs", "passages"),
    [("hit", (), 10), ("recall@20", (), 20), ("ndcg@10", ("max_passages=3",), 3)],
)
def test_as_many_passages_are_retrieved_as_the_card_reports(metric: str, knobs: tuple[str, ...], passages: int) -> None:
    settings = RewriteOptions("mine", metric=metric).settings("rrr", SearchOptions(knob=knobs), Threads())
    assert settings.knobs["max_passages"] == passages
