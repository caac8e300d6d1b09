"""Another state of an artifact takes the place of the one before, and nobody who asks is dropped."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import ArtifactError
from querywright.models.embedder import Embedder
from querywright.models.store import open_store
from querywright.optimize.artifacts.files import write_artifact
from querywright.programs import make_program
from querywright.retrieval.engines import open_retriever
from querywright.retrieval.index import build_collection
from querywright.serving import ServeSettings
from querywright.serving.programs import loader


def test_a_question_ends_with_the_program_that_it_began_with(run, make, scripted):
    go = threading.Event()
    scripted.before = lambda number: number == 1 and go.wait(10)
    server = run(load=lambda name, before: make(scripted, mark="b"))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.ask, 1)
        server.wait_for(lambda: scripted.asked == [1])
        told = server.client.post("/reload")
        assert told.json() == {"artifacts": [{"name": "sample", "before": "a" * 12, "after": "b" * 12}]}
        assert server.ask(2).json()["version"] == "b" * 12
        go.set()
        assert first.result().json()["version"] == "a" * 12
    assert server.client.get("/health").json()["artifacts"][0]["version"] == "b" * 12
    assert server.metric("reloads_total", result="done") == 1


def test_where_one_cannot_be_loaded_all_go_on_as_they_were(run, make, scripted):
    def load(name, before):
        if name == "two":
            raise ArtifactError("manifest.json was edited")
        return make(scripted, mark="c")

    server = run({"one": make(scripted), "two": make(scripted, mark="b")}, load=load)
    told = server.client.post("/reload")
    assert told.status_code == 409
    assert "manifest.json was edited" in told.json()["error"]["message"]
    assert [one["version"][0] for one in server.client.get("/health").json()["artifacts"]] == ["a", "b"]
    assert server.metric("reloads_total", result="failed") == 1
    assert server.ask().json()["version"] == "a" * 12


# Real artifacts.


class Numbers:
    """A model whose vectors mean nothing."""

    def encode(self, texts, **_):
        return np.array([[len(text) % 7 + 1, len(text) % 3 + 1, 1] for text in texts], dtype=np.float32)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes an artifact over a collection, gives its version."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("QUERYWRIGHT_ALLOW_LM", "openai/*")
    passages = [Passage(str(number), f"Text {number} on rivers.") for number in range(3)]
    embedder = Embedder("st:tests/numbers", Numbers, dimension=3, store=open_store(tmp_path))
    build_collection("rivers", passages, embedder=embedder, home=tmp_path)

    def written(name="a", *, lm="openai/one", max_passages=2):
        found = open_retriever("rivers", engine="bm25", home=tmp_path)
        program = make_program("plain", found, reader="short_answer", max_passages=max_passages)
        return write_artifact(
            tmp_path / name, program, lm=lm, embedder=None, collection="rivers", engine="bm25", reranker=None,
            fingerprint=found.fingerprint, created="2026-01-02", made={}, golden=[], card="# card\n",
        ).id  # fmt: skip

    return written


def test_real_artifacts_take_the_places_of_those_before(write, tmp_path, run):
    load = loader(ServeSettings(artifacts=(tmp_path / "a", tmp_path / "b"), home=tmp_path))
    before = {name: write(name, max_passages=most) for name, most in (("a", 1), ("b", 2))}
    server = run({name: load(name, None) for name in before}, load=load)

    def found(name):
        told = server.client.post("/retrieve", json={"question": "Which rivers?", "artifact": name}).json()
        return told["version"], len(told["passages"])

    assert {name: found(name) for name in before} == {"a": (before["a"], 1), "b": (before["b"], 2)}
    after = write("a", max_passages=3)
    assert server.client.post("/reload").json()["artifacts"] == [
        {"name": "a", "before": before["a"], "after": after},
        {"name": "b", "before": before["b"], "after": before["b"]},
    ]
    assert {name: found(name) for name in before} == {"a": (after, 3), "b": (before["b"], 2)}
    (tmp_path / "b" / "program.json").write_text("{}")
    write("a", max_passages=2)
    assert server.client.post("/reload").status_code == 409
    assert found("a") == (after, 3)


def test_an_lm_is_shared_by_artifacts_that_name_it_and_by_no_other(write, tmp_path):
    load = loader(ServeSettings(artifacts=(tmp_path / "a",), home=tmp_path))
    write()
    first = load("a", None)
    write(max_passages=1)
    second = load("a", first)
    assert second.lm is first.lm
    write(lm="openai/two")
    third = load("a", second)
    assert (third.lm.model, third.manifest.lm) == ("openai/two", "openai/two")
