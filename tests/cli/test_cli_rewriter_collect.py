"""Pairs are collected by a command of their own, on the train questions alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from querywright.data import read_questions, split_questions
from querywright.data.splits import asked_of
from querywright.optimize.rewriter.pairs import read_pairs

SIZES = (4, 3, 3)


def number_of(question: str) -> int:
    return int(question.rsplit("number ", 1)[1].split("?")[0])


@pytest.fixture
def vague(write: Callable[..., Path], rows: list[dict[str, Any]]) -> Path:
    """Questions that share no word with their passages; the teacher knows the topic by the question's number."""
    asked = [{**row, "question": f"Which one is number {n}?", "options": []} for n, row in enumerate(rows)]
    return write("vague.jsonl", asked)


@pytest.fixture
def collect(cli: Any, vague: Path, collection: str, server: Any, rows: list[dict[str, Any]]) -> Callable[..., Any]:
    """Collects of a teacher that writes the topic of even numbers, and of the others what finds nothing."""

    def reply(body: dict[str, Any]) -> str:
        number = number_of(body["messages"][-1]["content"])
        return json.dumps({"thought": "t", "queries": ["nobody knows" if number % 2 else rows[number]["answer"]]})

    server.reply = reply

    def call(*more: object, sizes: str = "4,3,3") -> Any:
        return cli(
            "rewriter", "collect", "--data", vague, "--collection", collection, "--metric", "recall@1", "--sizes",
            sizes, "--candidates", "2", "--knob", "max_passages=1", "--lm", "openai/scripted",
            "--api-base", server.address, "--api-key-env", "SCRIPTED_KEY", *more, width=200,
        )  # fmt: skip

    return call


def numbers(server: Any) -> set[int]:
    return {number_of(body["messages"][-1]["content"]) for body in server.requests}


def test_only_train_questions_are_asked_and_the_best_kept(collect: Any, vague: Path, server: Any, home: Path) -> None:
    done = collect("--out", "a.jsonl")
    assert done.status == 0, done.err
    told = " ".join(done.out.split())
    assert "technique: rrr collection: tiny" in told
    assert "measure: recall@1" in told
    train = split_questions(read_questions(vague), sizes=SIZES).train
    assert numbers(server) == {number_of(one.question) for one in train}
    learnt = {one.id: asked_of(one) for one in train if number_of(one.question) % 2 == 0}
    pairs, before = read_pairs(Path("a.jsonl")), Path("a.jsonl").read_bytes()
    assert {pair.question: pair.asked for pair in pairs} == learnt
    assert {(pair.technique, pair.data, pair.source) for pair in pairs} == {("rrr", "tiny", "openai/scripted")}
    asked, again = len(server.requests), collect("--out", "a.jsonl", "--json")
    assert (again.data["questions"], again.data["answered"], again.data["measure"]) == (4, 4, "recall@1")
    assert again.data["pairs"] == again.data["questions_kept"] == len(pairs)
    assert again.data["best"] > again.data["plain"]
    assert len(server.requests) == asked
    assert Path("a.jsonl").read_bytes() == before


def test_as_many_rewrites_are_asked_for_at_a_time_as_the_threads_say(
    collect: Any, server: Any, rows: list[dict[str, Any]]
) -> None:
    together = threading.Barrier(8, timeout=300)  # 4 questions, 2 candidates each

    def reply(body: dict[str, Any]) -> str:
        together.wait()
        return json.dumps({"thought": "t", "queries": [rows[number_of(body["messages"][-1]["content"])]["answer"]]})

    server.reply = reply
    assert collect("--out", "a.jsonl", "--threads", "8", "--json").data["answered"] == 4


def test_a_collection_that_was_stopped_asks_nothing_twice(collect: Any, server: Any) -> None:
    stopped = collect("--out", "a.jsonl", "--max-calls", "3")
    assert (stopped.status, len(server.requests)) == (3, 3)
    assert not Path("a.jsonl").exists()
    assert collect("--out", "a.jsonl", "--json").data["answered"] == 4
    assert len(server.requests) == 4 * 2
    known, before = numbers(server), read_pairs(Path("a.jsonl"))
    server.requests.clear()
    more = collect("--out", "a.jsonl", "--json", sizes="6,3,3")  # more questions of the same split
    assert more.data["questions"] == 6
    assert not numbers(server) & known
    assert read_pairs(Path("a.jsonl"))[: len(before)] == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["plain"], "plain writes nothing with an LM"),
        (["--out", "mine.txt"], "'mine.txt' exists and is no file of pairs; give another --out"),
    ],
)
def test_what_cannot_be_collected_is_said_at_once(collect: Any, server: Any, options: list[str], said: str) -> None:
    Path("mine.txt").write_text("mine\n")
    refused = collect(*(() if "--out" in options else ("--out", "a.jsonl")), *options)
    assert refused.status == 2
    assert said in " ".join(refused.err.split())
    assert server.requests == []
    assert Path("mine.txt").read_text() == "mine\n"


def test_the_evidence_teaches_names_and_options_without_an_lm(ok: Any, cli: Any, write: Any, server: Any) -> None:
    """The titles of passages stand in every question; options tell what the question itself does not."""
    passages = [{"id": f"p{n}", "title": f"Thing{n} (x)", "text": f"word{n} what is it"} for n in range(20)]
    asked = [
        {"id": f"q{n}", "question": f"what is it of Thing{n}?", "options": [f"word{n}", "none"], "answer": f"word{n}",
         "evidence": {f"p{n}": "ENTAILED"}}
        for n in range(20)
    ]  # fmt: skip
    assert cli("index", "things", write("things.jsonl", passages)).status == 0
    done = ok(
        "rewriter", "collect", "--data", write("asked.jsonl", asked), "--collection", "things", "--metric",
        "recall@1", "--sizes", "4,3,3", "--teacher", "evidence", "--engine", "bm25", "--knob", "max_passages=1",
        "--out", "a.jsonl", "--json",
    )  # fmt: skip
    pairs = read_pairs(Path("a.jsonl"))
    assert (done.data["answered"], len(pairs), server.requests) == (4, 4, [])
    assert {pair.source for pair in pairs} == {"evidence"}
    for pair in pairs:
        queries, number = json.loads(pair.text)["queries"], pair.question[1:]
        assert queries[0].removesuffix(f" word{number} none") == f"what is it of Thing{number}?"


def test_what_was_asked_of_passages_is_for_the_writer_of_questions(
    ok: Any, cli: Any, write: Any, rows: list[dict[str, Any]], collection: str, server: Any
) -> None:
    asked = write("asked.jsonl", rows)
    call = ("rewriter", "collect", "qb_rag", "--data", asked, "--collection", collection, "--sizes", "4,3,3")
    done = ok(*call, "--teacher", "evidence", "--out", "a.jsonl", width=200)
    assert "nothing is searched or scored" in done.err
    split, pairs = split_questions(read_questions(asked), sizes=SIZES), read_pairs(Path("a.jsonl"))
    assert {(pair.technique, pair.data, pair.source) for pair in pairs} == {("qb_rag", "tiny", "evidence")}
    learnt = {text for pair in pairs for text in json.loads(pair.text)["questions"]}
    assert learnt
    assert learnt <= {one.question for one in split.train}
    again = cli(*call, "--teacher", "evidence", "--out", "a.jsonl", "--json")
    assert (again.data["pairs"], again.data["plain"]) == (len(pairs), None)
    refused = cli(*call, "--out", "b.jsonl")
    assert refused.status == 2
    assert "give --teacher evidence" in refused.err
    assert server.requests == []
    # questions that are held out are refused
    assert cli(*call[:-2], "--teacher", "evidence", "--out", "c.jsonl", "--seed", "4").status == 0
    held, pairs = {asked_of(one) for one in (*split.dev, *split.test)}, read_pairs(Path("c.jsonl"))
    leaking = [pair for pair in pairs if held & set(pair.asked.split())]
    assert leaking
    refused = cli("rewriter", "train", "--data", asked, "--collection", collection, "--out", "r", "--sizes", "4,3,3",
        "--stages", "warmup", "--base", "some/model", "--pairs", "c.jsonl")  # fmt: skip
    assert refused.status == 2
    assert f"{len(leaking)} of the {len(pairs)} pairs of --pairs are of dev or test questions" in refused.err
