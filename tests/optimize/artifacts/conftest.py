"""A program over a small collection, saved, with an embedder that needs no model."""

from __future__ import annotations

import hashlib
import re
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.artifacts.save import save_program
from querywright.programs import make_program
from querywright.retrieval.engines import LEXICAL, open_retriever
from querywright.retrieval.generated_questions import (
    COMPLETE,
    PARTIAL,
    PassageRecord,
    WrittenQuestion,
    publish_questions,
)
from querywright.retrieval.index import build_collection


class WordModel:
    """Texts as bags of hashed words: near when they share words."""

    loaded: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.loaded.append(1)

    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        rows = np.full((len(texts), 256), 0.01, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                row[int(hashlib.sha256(word.encode()).hexdigest(), 16) % 256] += 1
        return rows


@pytest.fixture(scope="module")
def word_model() -> Iterator[type[WordModel]]:
    """Stands behind every embedder; ``loaded`` tells whether one was needed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("querywright.models.embedder._loader", lambda *_: WordModel)
        yield WordModel


@pytest.fixture(scope="session")
def built(
    tmp_path_factory: pytest.TempPathFactory, make_world: Any, make_lm: Any
) -> Iterator[Callable[[str], tuple[Path, Path]]]:
    """By engine a working folder and an artifact that searches it; made once a session."""
    homes: dict[str, tuple[Path, Path]] = {}
    patch = pytest.MonkeyPatch()

    def build(engine: str = "hybrid") -> tuple[Path, Path]:
        if engine not in homes:
            patch.setattr("querywright.models.embedder._loader", lambda *_: WordModel)
            folder = tmp_path_factory.mktemp(engine)
            homes[engine] = _built(folder, engine, make_world(), make_lm())
            patch.undo()
        return homes[engine]

    yield build
    for home, _ in homes.values():
        open_store(home).close()


def _built(folder: Path, engine: str, world: Any, lm: Any) -> tuple[Path, Path]:
    home = folder / "home"
    embedder = resolve_embedder("words", store=open_store(home))
    passages = [*world.deciding.values(), *world.others]
    build_collection("cards", passages, embedder=embedder, home=home)
    if engine in ("questions", "expanded"):
        records = [
            PassageRecord(
                one.id,
                one.text_digest(),
                "by hand",
                (
                    WrittenQuestion(f"What decides {number}, key of {number}?", COMPLETE, "it says so"),
                    WrittenQuestion(f"And what of {number}?", PARTIAL),
                ),
            )
            for number, one in world.deciding.items()
        ]
        publish_questions("cards", records, embedder=embedder, home=home)
    retriever = open_retriever("cards", engine=engine, embedder=None if engine in LEXICAL else embedder, home=home)
    program = make_program("hcqr", retriever, reader="multiple_choice", max_passages=2)
    save_program(
        folder / "hcqr",
        program,
        lm=lm,
        asked=world.splits.dev[:2],
        threads=1,
        made={
            "recommended": "hcqr compiled",
            "verdict_sentence": "It is better on test",
            "test": [
                {"arm": name, "n": 6, "metrics": {"accuracy": {"value": v, "low": v / 2, "high": 1.0, "n": 6}}}
                for name, v in (("baseline", 0.5), ("hcqr compiled", 0.75))
            ],
            "comparisons": [{"sentence": "hcqr compiled won 3, lost 1"}],
            "seed": 7,
        },
        card="# hcqr\n",
    )
    return home, folder / "hcqr"


@pytest.fixture
def saved(built: Callable[..., tuple[Path, Path]], word_model: Any) -> tuple[Path, Path]:
    """A working folder and an artifact that searches it, both to be left as they are."""
    return built()


@pytest.fixture
def own(saved: tuple[Path, Path], tmp_path: Path) -> Path:
    """The artifact, to be changed."""
    return Path(shutil.copytree(saved[1], tmp_path / "own"))


@pytest.fixture(scope="session")
def small_rewriter() -> Callable[..., Any]:
    """Writes a rewriter's folder: see ``small_rewriter.py``."""
    made: Callable[..., Any] = runpy.run_path(str(Path(__file__).parents[2] / "small_rewriter.py"))["small_rewriter"]
    return made
