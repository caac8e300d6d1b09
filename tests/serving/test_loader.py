"""What loads the artifacts of a server, over real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.models.embedder import Embedder
from querywright.models.store import open_store
from querywright.optimize.artifacts.files import write_artifact
from querywright.programs import make_program
from querywright.retrieval.engines import Engine, open_retriever
from querywright.retrieval.index import build_collection
from querywright.serving import ServeSettings
from querywright.serving.programs import loader

EMBEDDER = "st:tests/numbers"


class Numbers:
    """A model whose vectors mean nothing."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, texts: Sequence[str], **_: Any) -> Any:
        self.texts += texts
        return np.array([[len(text) % 7 + 1, len(text) % 3 + 1, 1] for text in texts], dtype=np.float32)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a collection, and a model of its embedder's name."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr("querywright.optimize.artifacts.load.embedder_of", lambda name, store: embedder(store))
    passages = [Passage(str(number), f"Text {number} on rivers.") for number in range(3)]
    build_collection("rivers", passages, embedder=embedder(open_store(tmp_path)), home=tmp_path)
    return tmp_path


def embedder(store: Any) -> Embedder:
    return Embedder(EMBEDDER, Numbers, dimension=3, store=store)


def write(
    home: Path, *, lm: str = "openai/one", engine: Engine = "bm25", max_passages: int = 2, name: str = "a"
) -> str:
    """The version."""
    dense = engine in ("dense", "hybrid")
    found = open_retriever("rivers", engine=engine, embedder=embedder(open_store(home)) if dense else None, home=home)
    program = make_program("plain", found, reader="short_answer", max_passages=max_passages)
    manifest = write_artifact(
        home / name, program, lm=lm, embedder=EMBEDDER if dense else None, collection="rivers", engine=engine,
        reranker=None, fingerprint=found.fingerprint, created="2026-01-02", made={}, golden=[], card="# card\n",
    )  # fmt: skip
    return manifest.id


def test_real_artifacts_take_the_places_of_those_before(home: Path, run: Any) -> None:
    settings = ServeSettings(artifacts=(home / "a", home / "b"), home=home)
    before = {name: write(home, name=name, max_passages=most) for name, most in (("a", 1), ("b", 2))}
    load = loader(settings)
    server = run({name: load(name, None) for name in before}, load=load)

    def found(name: str) -> tuple[str, int]:
        told = server.client.post("/retrieve", json={"question": "Which rivers?", "artifact": name}).json()
        return told["version"], len(told["passages"])

    assert {name: found(name) for name in before} == {"a": (before["a"], 1), "b": (before["b"], 2)}
    after = write(home, name="a", max_passages=3)
    assert server.client.post("/reload").json()["artifacts"] == [
        {"name": "a", "before": before["a"], "after": after},
        {"name": "b", "before": before["b"], "after": before["b"]},
    ]
    assert {name: found(name) for name in before} == {"a": (after, 3), "b": (before["b"], 2)}
    (home / "b" / "program.json").write_text("{}")
    newest = write(home, name="a", max_passages=2)
    assert server.client.post("/reload").status_code == 409
    assert found("a") == (after, 3) != (newest, 2)


def test_an_lm_is_shared_by_artifacts_that_name_it_and_by_no_other(home: Path) -> None:
    load = loader(ServeSettings(artifacts=(home / "a",), home=home))
    write(home)
    first = load("a", None)
    write(home, max_passages=1)
    second = load("a", first)
    assert second.lm is first.lm
    write(home, lm="openai/two")
    third = load("a", second)
    assert (third.lm.model, third.manifest.lm) == ("openai/two", "openai/two")
