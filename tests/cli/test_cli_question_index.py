"""The commands over questions that were written for a collection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from querywright.models.embedder import resolve_embedder
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion, publish_questions

WRITTEN = {
    "salt": "Which meals should I avoid?",
    "feet": "When are soles inspected?",
    "juice": "What lifts glucose quickly?",
    "cuff": "Why would a reading be wrong?",
}
QUESTION = "Which meals should be avoided?"


@pytest.fixture
def asked(collection, home):
    """The collection with a question for four of its passages."""
    embedder = resolve_embedder("embedded")
    passages = {passage.title: passage for passage in ChromaRetriever(collection, embedder=embedder).passages()}
    records = [
        PassageRecord(passages[topic].id, passages[topic].digest(), "s", (WrittenQuestion(text, COMPLETE),))
        for topic, text in WRITTEN.items()
    ]
    publish_questions(collection, records, embedder=embedder, home=home)
    return collection


def test_a_technique_brings_its_engine(cli, asked, questions, server):
    fixed = ("--collection", asked, "--json", *server.lm)
    done = cli("ask", QUESTION, "--technique", "qb_rag", "--reader", "none", *fixed)
    assert done.status == 0, done.err
    assert done.data["passages"][0]["id"] == "p-salt"
    assert done.data["steps"][0]["given"]["through"]["p-salt"] == WRITTEN["salt"]
    assert len(done.data["passages"]) == 4
    done = cli(
        "evaluate", questions, "--technique", "qb_rag", "--technique", "plain", "--technique", "plain@questions",
        "--technique", "qb_rag:match=hybrid,weight=1", "--reader", "none", *fixed,
    )  # fmt: skip
    assert done.status == 0, done.err
    arms = {arm["arm"]: arm["metrics"]["recall"]["value"] for arm in done.data["arms"]}
    assert arms["plain"] == arms["qb_rag:match=hybrid,weight=1"] == 1.0
    assert arms["qb_rag"] == arms["plain@questions"] == pytest.approx(4 / 6)  # two topics have no question
    assert server.requests == []


def test_the_trace_shows_the_questions(cli, asked, server):
    done = cli(
        "ask", QUESTION, "--technique", "qb_rag", "--collection", asked, "--reader", "none", "--trace", *server.lm
    )
    assert f"p-salt through: {WRITTEN['salt']}" in " ".join(done.out.split())


def test_another_engine_is_refused(cli, asked, questions, server):
    fixed = ("--collection", asked, *server.lm)
    for command in (
        ["ask", QUESTION, "--technique", "qb_rag", "--engine", "bm25"],
        ["evaluate", questions, "--technique", "qb_rag@dense"],
        ["compile", "qb_rag", questions, "--engine", "hybrid", "--out", "new"],
    ):
        done = cli(*command, *fixed)
        assert done.status == 2
        assert "qb_rag searches with the engine questions, not with" in " ".join(done.err.split())


def test_without_questions_the_remedy_is_told(cli, collection, questions, server):
    for command in (
        ["ask", QUESTION, "--technique", "qb_rag"],
        ["evaluate", questions, "--technique", "hyde@questions"],
    ):
        done = cli(*command, "--collection", collection, *server.lm)
        assert done.status == 2
        assert f"write some: querywright questions build {collection}" in " ".join(done.err.split())
    assert server.requests == []


def about(topic: str) -> list[dict[str, object]]:
    """Questions in the words of the one that was written."""
    return [
        {"id": f"{topic}-{n}", "question": f"{n}: {WRITTEN[topic]}", "options": ["salt", "feet", "juice", "cuff"],
         "answer": topic, "evidence": {f"p-{topic}": "ENTAILED"}}
        for n in range(8)
    ]  # fmt: skip


@pytest.mark.parametrize(("technique", "sizes"), [("qb_rag", "3,6,6"), ("plain", "3,4,4")])
def test_it_is_compiled_against_plain_retrieval_and_loaded_again(
    cli, asked, questions, server, write, technique, sizes
):
    if technique == "qb_rag":  # it wins where questions are asked in the words of those that were written
        questions = write("asked.jsonl", [row for topic in WRITTEN for row in about(topic)])
    made = cli(
        "compile", "qb_rag", questions, "--collection", asked, "--out", "artifacts/q", "--sizes", sizes,
        "--trials", "3", "--threads", "2", "--knob", "max_passages=1", "--json", *server.lm,
    )  # fmt: skip
    assert made.status == 0, made.err
    manifest = json.loads(Path("artifacts/q/manifest.json").read_text())
    expected = (technique, {"plain": "dense", "qb_rag": "questions"}[technique], asked)
    assert (manifest["technique"], manifest["engine"], manifest["collection"]) == expected
    done = cli(
        "ask", f"7: {WRITTEN['feet']}", "--artifact", "artifacts/q", "--verify", "--option", "salt", "--option",
        "feet", "--json", *server.lm,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert (done.data["passages"][0]["id"] == "p-feet") or technique == "plain"
