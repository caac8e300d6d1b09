"""An embedder that needs no model, and what several tests of retrieval build with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest


class Hashed:
    """Random but repeatable vectors of length 1; remembers what it embedded."""

    def __init__(self, dimension: int = 16, id: str = "hashed") -> None:
        self.id, self.dimension = id, dimension
        self.batches: list[list[str]] = []

    def encode(self, texts: Sequence[str], /) -> Any:
        self.batches.append(list(texts))
        seeds = [int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8], "big") for text in texts]
        rows = np.array([np.random.default_rng(seed).normal(size=self.dimension) for seed in seeds], dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="session")
def hashed() -> type[Hashed]:
    return Hashed


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """Builds a collection in a working folder."""
    from querywright.retrieval.index import build_collection

    def make(home: Path, name: str, passages: Sequence[Any], embedder: Any = None, **options: Any) -> Any:
        return build_collection(name, passages, embedder=embedder or Hashed(), home=home, **options)

    return make


@pytest.fixture(scope="session")
def publish() -> Callable[..., Any]:
    """Publishes questions: of each passage its (text, label) pairs."""
    from querywright.retrieval.generated_questions import PassageRecord, WrittenQuestion, publish_questions

    def make(home: Path, name: str, *written: tuple[Any, Sequence[tuple[str, ...]]], embedder: Any = None) -> Any:
        records = [
            PassageRecord(passage.id, passage.text_digest(), "s", tuple(WrittenQuestion(*pair) for pair in pairs))
            for passage, pairs in written
        ]
        return publish_questions(name, records, embedder=embedder or Hashed(), home=home)

    return make


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A working folder whose store is closed in the end."""
    from querywright.models.store import open_store

    yield tmp_path / "home"
    open_store(tmp_path / "home").close()
