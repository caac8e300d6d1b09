"""Rerankers, which score query-passage pairs.

A cross-encoder reads the query and a passage together. It is slower but more accurate than a search, so it scores only
the few passages that a search has found.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from querywright.data.types import Passage
from querywright.errors import ModelError
from querywright.models.embedder import folder_id
from querywright.models.hf import quietly
from querywright.models.usage import loading
from querywright.shared import Shared

BATCH_SIZE = 32
"""Number of pairs in a batch."""
MAX_LENGTH = 512
"""Maximum number of tokens in the query and passage together; longer pairs are truncated."""
HUB_PREFIX = "ce:"

_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")


@runtime_checkable
class Reranker(Protocol):
    """The interface of a reranker: an object that scores passages for a query."""

    @property
    def id(self) -> str:
        """The reranker's name, which must change whenever its scores may change."""
        ...

    def score(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Return one finite score per passage, in the same order; higher is better."""
        ...


class CrossEncoderReranker(Shared):
    """Score passages with a sentence-transformers cross-encoder.

    The model is loaded by ``load`` or on the first call to ``score``. Query and passage together are truncated to 512
    tokens, or to the model's limit if that is smaller. Scores do not depend on the order of the passages or on the
    thread: passages are sorted before they are batched, and the model runs one call at a time. A copy is the same
    object.

    Args:
        name: A folder, or a name on the Hugging Face hub, such as ``cross-encoder/ms-marco-MiniLM-L6-v2``.

    Raises:
        ModelError: ``name`` is neither a folder with a model nor a valid hub name. A hub model is downloaded when it is
            loaded.

    Source: Nogueira and Cho, arXiv 1901.04085.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        path = Path(name).expanduser()
        if name.strip() and os.path.isfile(path / "config.json"):
            self._source, self._id = str(path), folder_id(path)
        elif _HUB_NAME.fullmatch(name):
            self._source, self._id = name, f"{HUB_PREFIX}{name}"
        else:
            raise ModelError(
                f"no cross-encoder folder at {name!r}; use the path of a cross-encoder folder, or a name on the "
                "Hugging Face Hub, such as cross-encoder/ms-marco-MiniLM-L6-v2"
            )
        self._lock = threading.Lock()
        self._model: Any = None

    @property
    def id(self) -> str:
        """The id of the model: ``ce:NAME`` for a hub model, or ``path:FOLDER@DIGEST``."""
        return self._id

    def load(self) -> None:
        """Load the model if it is not loaded yet.

        Raises:
            ModelError: The model cannot be loaded.
        """
        with self._lock:
            self._loaded()

    def score(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Return the model's score (a logit or a probability) for each passage; higher is better.

        Args:
            query: The query.
            passages: Any number of passages; the model reads their title and text.

        Raises:
            ModelError: The model cannot be loaded, or does not return one finite number per pair.
        """
        texts = [_clean(passage.content) for passage in passages]
        distinct = sorted(set(texts))
        if not distinct:
            return []
        pairs = [(_clean(query), text) for text in distinct]
        if self._model is None:
            with loading(self._id):
                self.load()
        with self._lock:
            answer = self._loaded().predict(pairs, batch_size=BATCH_SIZE, show_progress_bar=False)
        if answer.shape != (len(pairs),):
            raise ModelError(
                f"the cross-encoder {self.name!r} returns {answer.shape[-1]} numbers per pair, but a reranker "
                "must return one; use a ranking model with a single label"
            )
        scores = dict(zip(distinct, map(float, answer), strict=True))
        if not all(map(math.isfinite, scores.values())):
            raise ModelError(
                f"the cross-encoder {self.name!r} returned scores that are not finite; use a different model"
            )
        return [scores[text] for text in texts]

    def __repr__(self) -> str:
        return f"CrossEncoderReranker({self.name!r})"

    def _loaded(self) -> Any:
        """Return the model, loading it if necessary; the caller must hold the lock."""
        if self._model is None:
            from sentence_transformers import CrossEncoder

            try:
                with quietly():
                    model = CrossEncoder(self._source, trust_remote_code=False)
            except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise ModelError(
                    f"the cross-encoder {self.name!r} cannot be loaded ({reason}); check the name, download the "
                    "model to the Hugging Face cache, or use the path of a local folder"
                ) from error
            model.max_seq_length = min(MAX_LENGTH, model.max_seq_length or MAX_LENGTH)
            self._model = model
        return self._model


def resolve_reranker(name: str) -> CrossEncoderReranker:
    """Return the cross-encoder with the given name.

    Args:
        name: The folder of a cross-encoder, its name on the Hugging Face hub, or the id of a hub model (``ce:NAME``).

    Raises:
        ModelError: There is no such folder. A hub model is downloaded when it is loaded.
    """
    return CrossEncoderReranker(name.removeprefix(HUB_PREFIX))


def _clean(text: str) -> str:
    """Return a text without lone surrogates, which the tokenizer rejects."""
    return text.encode("utf-8", "replace").decode("utf-8")
