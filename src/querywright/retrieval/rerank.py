"""Rerankers: how well passages answer a query, judged pair by pair.

A cross-encoder reads query and passage together. It is slower than a search and knows more, so it is given the
few passages that a search found.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from querywright.data.types import Passage
from querywright.errors import InputError, ModelError
from querywright.models.embedder import folder_id
from querywright.models.openmp import limit_spinning, quietly
from querywright.retrieval.types import Shared

BATCH_SIZE = 32
MAX_LENGTH = 512
HUB_PREFIX = "ce:"

_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")


@runtime_checkable
class Reranker(Protocol):
    """Anything that scores passages for a query."""

    @property
    def id(self) -> str:
        """Names the reranker; another id means that scores may be others."""
        ...

    def score(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """One finite number a passage, in their order; higher is better."""
        ...


class CrossEncoderReranker(Shared):
    """A cross-encoder through sentence-transformers.

    Loaded at the first score, or by ``load``. The same query and passages have the same scores in whatever order
    the passages come and from whatever thread: their order is settled before they are put into batches, and one
    call at a time runs on the model. A copy is the same object.

    Args:
        name: A folder, or a name on the Hugging Face hub, such as ``cross-encoder/ms-marco-MiniLM-L6-v2``.
        batch_size: Pairs that the model reads at a time, 1 or more. Default 32.
        max_length: Tokens of query and passage together, 8 or more; what is longer is cut. A model that takes
            fewer is given fewer. Default 512.

    Raises:
        ModelError: When the folder is missing or ``name`` is none. A hub model is looked for when it is loaded.
        InputError: When a number is out of range.

    Source: Nogueira and Cho, arXiv 1901.04085.
    """

    def __init__(self, name: str, *, batch_size: int = BATCH_SIZE, max_length: int = MAX_LENGTH) -> None:
        if batch_size < 1 or max_length < 8:
            raise InputError(
                f"a cross-encoder needs batch_size of 1 or more and max_length of 8 or more, but got {batch_size} "
                f"and {max_length}"
            )
        self.name = name
        self.batch_size, self.max_length = batch_size, max_length
        self._source, own_id = _source(name)
        self._id = own_id if max_length == MAX_LENGTH else f"{own_id}#{max_length}"
        self._lock = threading.Lock()
        self._model: Any = None

    @property
    def id(self) -> str:
        """``ce:NAME``, or ``path:FOLDER@DIGEST``; with ``#LENGTH`` where ``max_length`` is not 512."""
        return self._id

    def load(self) -> None:
        """Load the model now, if it is not loaded.

        Raises:
            ModelError: When it cannot be loaded.
        """
        with self._lock:
            self._loaded()

    def score(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """One number a passage, as the model gives it (a logit or a probability); higher is better.

        Args:
            query: What is asked.
            passages: Any number; their title counts as text.

        Raises:
            ModelError: When the model cannot be loaded, or gives something else than one finite number a pair.
        """
        texts = [_clean(passage.content) for passage in passages]
        distinct = sorted(set(texts))
        if not distinct:
            return []
        pairs = [(_clean(query), text) for text in distinct]
        with self._lock:
            answer = self._loaded().predict(pairs, batch_size=self.batch_size, show_progress_bar=False)
        if answer.shape != (len(pairs),):
            raise ModelError(
                f"the cross-encoder {self.name!r} gives {answer.shape[-1]} numbers a pair, but a reranker needs one; "
                "name a model for ranking, with one label"
            )
        scores = dict(zip(distinct, map(float, answer), strict=True))
        if not all(map(math.isfinite, scores.values())):
            raise ModelError(f"the cross-encoder {self.name!r} gave scores that are no numbers; name another model")
        return [scores[text] for text in texts]

    def __repr__(self) -> str:
        return f"CrossEncoderReranker({self.name!r})"

    def _loaded(self) -> Any:
        """The model; the lock is held."""
        if self._model is None:
            self._model = _load(self._source, self.name, self.max_length)
        return self._model


def resolve_reranker(name: str) -> CrossEncoderReranker:
    """The reranker of a name.

    Args:
        name: The folder of a cross-encoder, its name on the Hugging Face hub, or the id of a hub model
            (``ce:NAME``).

    Raises:
        ModelError: When there is no such folder. A hub model is looked for when it is loaded.
    """
    return CrossEncoderReranker(name.removeprefix(HUB_PREFIX))


def _source(name: str) -> tuple[str, str]:
    """What is loaded, and its id."""
    path = Path(name).expanduser()
    if name.strip() and (path / "config.json").is_file():
        return str(path), folder_id(path)
    if not _HUB_NAME.fullmatch(name):
        raise ModelError(
            f"there is no folder of a cross-encoder at {name!r}; give the path of one, or a name on the Hugging Face "
            "hub such as cross-encoder/ms-marco-MiniLM-L6-v2"
        )
    return name, f"{HUB_PREFIX}{name}"


def _load(source: str, name: str, max_length: int) -> Any:
    limit_spinning()
    from sentence_transformers import CrossEncoder

    try:
        with quietly():
            model = CrossEncoder(source, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelError(
            f"the cross-encoder {name!r} cannot be loaded ({reason}); check its name, put it into the Hugging Face "
            "cache, or give the path of its folder (no network is needed then)"
        ) from error
    model.max_seq_length = min(max_length, model.max_seq_length or max_length)
    return model


def _clean(text: str) -> str:
    """The text as the model gets it: no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")
