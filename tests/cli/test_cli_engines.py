"""The commands on other engines, and with a reranker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from querywright.optimize.artifacts.load import load

load_module = sys.modules[load.__module__]  # the package gives its name to the function
QUESTION = "What is said about bread and ready meals?"
OPTIONS = ("--option", "salt", "--option", "feet")


class LongestFirst:
    """Passages by length."""

    id = "ce:some/longest"
    loaded = 0

    def load(self):
        self.loaded += 1

    def score(self, query, passages):
        return [float(len(passage.content)) for passage in passages]


@pytest.fixture
def longest(monkeypatch):
    found = LongestFirst()
    monkeypatch.setattr("querywright.retrieval.rerank.resolve_reranker", lambda name: found)
    monkeypatch.setattr(load_module, "resolve_reranker", lambda name: found)
    return found


@pytest.mark.parametrize("engine", ["dense", "bm25", "hybrid"])
def test_ask_on_each_engine(cli, collection, server, engine):
    asked = cli(
        "ask", QUESTION, "--technique", "plain", "--collection", collection, "--engine", engine,
        "--knob", "max_passages=2", "--json", *OPTIONS, *server.lm,
    )  # fmt: skip
    assert asked.status == 0, asked.err
    assert asked.err.count("\n") <= (engine != "dense")  # a slow machine says how long the BM25 index took
    assert asked.data["answer"] == "salt"
    assert asked.data["passages"][0]["id"] == "p-salt"


def test_compile_on_an_engine_and_ask_what_was_compiled(cli, collection, questions, server):
    made = cli(
        "compile", "plain", questions, "--collection", collection, "--engine", "hybrid", "--out", "artifacts/hybrid",
        "--sizes", "3,4,4", "--trials", "2", "--threads", "2", "--json", *server.lm,
    )  # fmt: skip
    assert made.status == 0, made.err
    manifest = json.loads(Path("artifacts/hybrid/manifest.json").read_text())
    assert (manifest["engine"], manifest["collection"], manifest["reranker"]) == ("hybrid", collection, None)
    for verify in ((), ("--verify",)):
        asked = cli("ask", QUESTION, "--artifact", "artifacts/hybrid", *verify, *OPTIONS, *server.lm)
        assert asked.status == 0, asked.err
    # The engine of --engine is that of techniques; an artifact opens its own.
    done = cli(
        "evaluate", questions, "--artifact", "artifacts/hybrid", "--technique", "plain", "--collection", collection,
        "--engine", "bm25", "--limit", "3", "--json", *server.lm,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert [arm["arm"] for arm in done.data["arms"]] == ["plain", "hybrid"]


def test_an_artifact_brings_its_own_engine(cli, artifact, server):
    done = cli("ask", QUESTION, "--artifact", artifact, "--engine", "bm25", *OPTIONS, *server.lm)
    assert done.status == 2
    assert "leave out --engine" in " ".join(done.err.split())


def test_a_reranker_orders_what_was_found(cli, collection, questions, server, longest):
    fixed = ("--collection", collection, "--reranker", "some/longest", *server.lm)
    asked = cli("ask", QUESTION, "--technique", "rerank", "--json", *OPTIONS, *fixed)
    assert asked.status == 0, asked.err
    lengths = [len(passage["title"]) + len(passage["text"]) for passage in asked.data["passages"]]
    assert lengths == sorted(lengths, reverse=True)
    assert len(lengths) > 2
    done = cli("evaluate", questions, "--technique", "rerank", "--technique", "plain", "--limit", "3", "--json", *fixed)
    assert done.status == 0, done.err
    assert [arm["arm"] for arm in done.data["arms"]] == ["rerank", "plain"]


def test_a_reranker_is_compiled_and_saved(cli, collection, questions, server, longest):
    made = cli(
        "compile", "rerank", questions, "--collection", collection, "--reranker", "some/longest", "--out",
        "artifacts/r", "--sizes", "3,4,4", "--trials", "2", "--threads", "2", "--json", *server.lm,
    )  # fmt: skip
    assert made.status == 0, made.err
    manifest = json.loads(Path("artifacts/r/manifest.json").read_text())
    assert manifest["reranker"] == (longest.id if manifest["technique"] == "rerank" else None)
    asked = cli("ask", QUESTION, "--artifact", "artifacts/r", *OPTIONS, *server.lm)
    assert asked.status == 0, asked.err
