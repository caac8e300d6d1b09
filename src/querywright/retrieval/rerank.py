"""Rerankers: how well passages answer a query, judged pair by pair.

A cross-encoder reads query and passage together. It is slower than a search and knows more, so it is given the
few passages that a search found.
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
"""Pairs that the model reads at a time."""
MAX_LENGTH = 512
"""Tokens of query and passage together; what is longer is cut."""
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

    Loaded at the first score, or by ``load``. Query and passage together are cut to 512 tokens, or to what the model
    takes. The same query and passages have the same scores in whatever order the passages come and from whatever
    thread: their order is settled before they are put into batches, and one call at a time runs on the model. A copy is
    the same object.

    Args:
        name: A folder, or a name on the Hugging Face hub, such as ``cross-encoder/ms-marco-MiniLM-L6-v2``.

    Raises:
        ModelError: When the folder is missing or ``name`` is none. A hub model is looked for when it is loaded.

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
                f"there is no folder of a cross-encoder at {name!r}; give the path of one, or a name on the Hugging "
                "Face hub such as cross-encoder/ms-marco-MiniLM-L6-v2"
            )
        self._lock = threading.Lock()
        self._model: Any = None

    @property
    def id(self) -> str:
        """``ce:NAME``, or ``path:FOLDER@DIGEST``."""
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
        if self._model is None:
            with loading(self._id):
                self.load()
        with self._lock:
            answer = self._loaded().predict(pairs, batch_size=BATCH_SIZE, show_progress_bar=False)
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
            from sentence_transformers import CrossEncoder

            try:
                with quietly():
                    model = CrossEncoder(self._source, trust_remote_code=False)
            except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise ModelError(
                    f"the cross-encoder {self.name!r} cannot be loaded ({reason}); check its name, put it into the "
                    "Hugging Face cache, or give the path of its folder (no network is needed then)"
                ) from error
            model.max_seq_length = min(MAX_LENGTH, model.max_seq_length or MAX_LENGTH)
            self._model = model
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


def _clean(text: str) -> str:
    """The text as the model gets it: no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")
