"""Another state of an artifact takes the place of the one before, and nobody who asks is dropped."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from querywright.data.types import Passage
from querywright.errors import ArtifactError
from querywright.optimize.artifacts.files import write_artifact
from querywright.programs import make_program
from querywright.retrieval.engines import open_retriever
from querywright.retrieval.index import build_collection
from querywright.serving import ServeSettings
from querywright.serving.programs import loader


def test_a_question_ends_with_the_program_that_it_began_with(run, make, scripted):
    go = threading.Event()
    scripted.before = lambda number: number == 1 and go.wait(60)
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


class Flat:
    """An embedder for a collection that is searched by words."""

    id, dimension = "flat", 2

    def encode(self, texts, /):
        return np.tile(np.float32([[1, 0]]), (len(texts), 1))


def test_an_lm_is_shared_by_real_artifacts_that_name_it_and_by_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("QUERYWRIGHT_ALLOW_LM", "openai/*")
    build_collection("rivers", [Passage("1", "Text on rivers.")], embedder=Flat(), home=tmp_path)
    found = open_retriever("rivers", engine="bm25", home=tmp_path)
    load, before = loader(ServeSettings(artifacts=(tmp_path / "a",), home=tmp_path)), None
    for lm, shared in (("openai/one", False), ("openai/one", True), ("openai/two", False)):
        write_artifact(
            tmp_path / "a", make_program("plain", found, reader="short_answer"), lm=lm, embedder=None, engine="bm25",
            collection="rivers", reranker=None, fingerprint=found.fingerprint, created="2026-01-02", made={}, golden=[],
            card="# card\n",
        )  # fmt: skip
        now = load("a", before)
        assert (now.lm.model, before is not None and now.lm is before.lm) == (lm, shared)
        before = now
