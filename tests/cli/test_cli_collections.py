"""``querywright collections``, and commands that search what was not built here."""

from __future__ import annotations

import json

import chromadb
import pytest

from querywright.cli import collections
from querywright.models.embedder import resolve_embedder
from querywright.optimize.study import engine
from querywright.progress import Bar


@pytest.fixture
def shelf(home, passages, tmp_path):
    """The place of a collection of Chroma with the same passages, and its folder."""
    rows = [json.loads(line) for line in passages.read_text().splitlines()]
    table = chromadb.PersistentClient(str(tmp_path / "shelf")).create_collection("tiny", embedding_function=None)
    table.add(
        ids=[row["id"] for row in rows],
        documents=[row["text"] for row in rows],
        metadatas=[{"title": row["title"], "sweet": row["title"] == "juice"} for row in rows],
        embeddings=resolve_embedder().encode([row["text"] for row in rows]),
    )
    return tmp_path / "shelf"


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_filter_that_removes_evidence_is_reported_in_json_too(ok, shelf, questions):
    options = ["--collection", f"{shelf}#tiny", "--reader", "none", "--where", '{"sweet": false}', "--json"]
    notes = ok("evaluate", "plain", "--data", questions, *options).data["notes"]
    assert any("matches 5 of 6 passages" in note and "lose all labeled passages" in note for note in notes)


def test_a_chroma_of_ones_own_in_every_command(ok, wrong, shelf, questions, server, tmp_path):
    before, place = snapshot(shelf), f"{shelf}#tiny"
    asked = ["What of fast sugar such as juice?", "--technique", "plain", "--reader", "none", "--json"]
    assert ok("ask", *asked, "--collection", place).data["passages"][0]["id"] == "p-juice"
    found = ok("ask", *asked, "--collection", place, "--where", '{"sweet": false}').data["passages"]
    assert {one["id"] for one in found} == {f"p-{name}" for name in ("feet", "cuff", "salt", "walk", "lenses")}
    options = ["--collection", place, "--reader", "none", "--metric", "recall@1", "--json"]
    (arm,) = ok("evaluate", "plain", "--data", questions, *options).data["arms"]
    assert arm["metrics"]["recall@1"]["value"] == 1
    ok("compare", "plain", "hyde", "--data", questions, "--out", tmp_path / "out", *options, *server.lm)
    given = ("--data", questions, "--collection", place, "--out", tmp_path / "a", "--trials", 2, *server.lm)
    ok("compile", "hyde", *given)
    choices = ("--option", "juice", "--option", "salt", *server.lm)
    artifact = ["ask", "What is said of juice?", "--artifact", tmp_path / "a", *choices]
    assert "an artifact cannot contain a custom retriever; pass --collection" in wrong(*artifact)
    ok(*artifact, "--collection", place, "--where", '{"sweet": true}')
    assert snapshot(shelf) == before
    assert ok("collections", "list", shelf, "--json").data == [{"collection": "tiny", "passages": 6}]
    assert "the folder 'nowhere' does not exist" in wrong("collections", "list", "nowhere")
    shown = ok("collections", "show", place, "--passages", 1)
    assert "metadata key 'sweet'; passages: 6; common values: False, True" in shown.out
    assert snapshot(shelf) == before
    for given, said in (
        (["--collection", place, "--engine", "bm25"], "supports only the dense engine, but got bm25"),
        (["--collection", place, "--where", "sweet"], '--where must be a JSON object, such as \'{"topic": "heart"}\''),
        (["--collection", place, "--where", '{"sweet": {"$is": 1}}'], "Chroma rejected the search"),
        (["--collection", place, "--retriever", "shelf:open"], "cannot be used together"),
        (["--retriever", "shelf:open"], "cannot import the retriever 'shelf:open'"),
        (["--collection", f"{shelf}#small"], "unknown collection 'small'"),
    ):
        assert said in wrong("ask", *asked, *given)
    for command in (
        ["compile", "plain", "--data", questions, "--out", "x"],
        ["judge", "label", "plain", "--data", questions, "--out", "x.jsonl"],
    ):
        assert "use --collection NAME or --retriever MODULE:FUNCTION" in wrong(*command)


def test_a_study_of_a_chroma_of_ones_own(ok, shelf, study_file, tmp_path):
    before, searched = snapshot(shelf), {"multi_query": {"search": "named", "knobs": {"top_k": [1, 2], "n_queries": 2}}}
    study = study_file("own", collection=f"{shelf}#tiny", sizes=[4, 6, 4], trials=2, techniques=searched,
                       where={"sweet": False})  # fmt: skip
    assert "recommended: " in ok("study", "run", study, "--out", tmp_path / "study").out
    assert snapshot(shelf) == before
    found = [row.passages for trial in engine.snapshot(tmp_path / "study").trials for row in trial.dev.rows]
    assert any(found)
    assert not any("p-juice" in one for one in found)


def test_a_function_of_ones_own_is_searched(ok, tmp_path, questions):
    (tmp_path / "mine.py").write_text(
        "def shelf():\n    return lambda query, k: [{'id': 'p-juice', 'text': 'juice'}]\n"
    )
    given = ["--retriever", "mine:shelf", "--reader", "none", "--metric", "recall@1", "--json"]
    (arm,) = ok("evaluate", "plain", "--data", questions, *given).data["arms"]
    assert arm["metrics"]["recall@1"]["value"] == pytest.approx(1 / 6)


def test_collections_are_listed_shown_and_deleted(ok, cli, wrong, home, passages, monkeypatch):
    assert "no collections in" in ok("collections", "list").out
    for name in ("tiny", "other"):
        ok("index", name, passages)
    (home / "collections" / "other" / "manifest.json").write_text("{}")
    other, tiny = ok("collections", "list", "--json").data
    assert (other["collection"], other["passages"]) == ("other", "damaged")
    assert (tiny["passages"], tiny["embedder"], tiny["size"][-3:]) == (6, "embedded:all-MiniLM-L6-v2", " MB")
    assert tiny["fingerprint"][:12] in ok("collections", "list").out
    shown = ok("collections", "show", "tiny", "--passages", 2, "--json").data
    assert ([one["id"] for one in shown["first"]], shown["passages"]) == (["p-cuff", "p-feet"], 6)
    assert "(known: other, tiny)" in wrong("collections", "show", "none")
    assert "there is no collection 'none'" in wrong("collections", "delete", "none", "--yes")
    assert "to delete 'tiny', add --yes" in wrong("collections", "delete", "tiny")
    stdin = type("Terminal", (), {"isatty": lambda self: True, "readline": lambda self: self.said})()
    monkeypatch.setattr(collections.sys, "stdin", stdin)
    stdin.said = "n\n"
    assert "'tiny' was not deleted" in wrong("collections", "delete", "tiny")
    stdin.said = "y\n"
    assert "Delete the collection 'tiny' (passages: 6)?" in cli("collections", "delete", "tiny").err
    assert ok("collections", "delete", "other", "--yes", "--json").data == {"deleted": "other"}
    assert list((home / "collections").iterdir()) == []


def test_indexing_a_packaged_set_says_so(ok, passages):
    assert "source: the packaged set 'sample' (not one of your files or folders)" in ok("index", "mine", "sample").err
    assert "packaged" not in ok("index", "tiny", passages).err


def test_a_compilation_names_its_engine_while_it_runs(ok, questions, collection, server, monkeypatch):
    arms = []
    monkeypatch.setattr(Bar, "stand", lambda bar, told, spent=None: arms.extend(told()[1]))
    ok("compile", "rrr", "--data", questions, "--collection", collection, "--engine", "hybrid", "--out", "mine",
       "--sizes", "3,4,4", "--trials", "3", *server.lm)  # fmt: skip
    names = {one["name"].partition(", prompts")[0] for one in arms}
    assert names >= {"trial 0, plain@hybrid", "trial 1, rrr@hybrid"}
    assert not any("dense" in name for name in names)
