"""Demonstrations chosen anew for each call: those nearest to what a predictor is asked.

DSPy's ``KNNFewShot`` replaces a program's ``forward`` by a closure, which nothing can save. Here a program keeps all
its demonstrations and the number that is shown, and both are saved as they are.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from querywright.retrieval.words import query_terms

if TYPE_CHECKING:
    from querywright.models.embedder import Vectors

Embed = Callable[[Sequence[str]], "Vectors"]

KEPT = 4096
"""Vectors of demonstrations that are kept at most."""


class NearestDemos:
    """Chooses the demonstrations of a call, and changes no predictor.

    The text that is compared is the predictor's ``question``, of the demonstration and of the call, or its first
    input where it has none. Texts are near by the cosine of their vectors, or without an embedder by the words they
    share (Jaccard). The nearest comes first; of equals, the one that stands first in the predictor.

    Args:
        embed: Gives one vector a text, or None.
    """

    def __init__(self, embed: Embed | None = None) -> None:
        self._embed = embed
        self._kept: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> NearestDemos:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return NearestDemos, (self._embed,)

    def choose(self, predictor: Any, inputs: Mapping[str, Any], count: int) -> list[Any]:
        """The demonstrations for a call; all where there are no more than asked for.

        Args:
            predictor: A ``dspy.Predict``.
            inputs: The inputs of the call.
            count: Demonstrations wanted, 1 or more.
        """
        demos = list(predictor.demos)
        if len(demos) <= count:
            return demos
        names = list(predictor.signature.input_fields)
        name = "question" if "question" in names else names[0]
        scores = self._scores(str(inputs.get(name) or ""), [str(demo.get(name) or "") for demo in demos])
        order = sorted(range(len(demos)), key=lambda place: (-scores[place], place))
        return [demos[place] for place in order[:count]]

    def _scores(self, asked: str, texts: Sequence[str]) -> list[float]:
        if self._embed is None:
            words = set(query_terms(asked))
            others = [set(query_terms(text)) for text in texts]
            return [len(words & other) / (len(words | other) or 1) for other in others]
        self._remember(self._embed, texts)
        with self._lock:
            known = [self._kept.get(text) for text in texts]
        (question,) = _unit(self._embed([asked]))
        rows = [_unit(self._embed([text]))[0] if row is None else row for text, row in zip(texts, known, strict=True)]
        # Rounded, so that equal texts are equally near whatever order their products were added up in.
        return [round(float(np.dot(row, question)), 6) for row in rows]

    def _remember(self, embed: Embed, texts: Sequence[str]) -> None:
        """Keep the vectors of demonstrations: they are compared with every question."""
        with self._lock:
            missing = [text for text in dict.fromkeys(texts) if text not in self._kept]
        if not missing:
            return
        rows = _unit(embed(missing))
        with self._lock:
            if len(self._kept) + len(missing) > KEPT:
                self._kept.clear()
            self._kept.update(zip(missing, rows, strict=True))


_showing: ContextVar[tuple[NearestDemos, int] | None] = ContextVar("querywright_nearest", default=None)


@contextlib.contextmanager
def showing(nearest: NearestDemos, count: int) -> Iterator[None]:
    """Inside the ``with`` block, calls of predictors are shown so many of their demonstrations; all where it is 0."""
    token = _showing.set((nearest, count) if count else None)
    try:
        yield
    finally:
        _showing.reset(token)


def is_showing() -> bool:
    """Whether calls are shown a choice of their demonstrations."""
    return _showing.get() is not None


def shown(predictor: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a call of a predictor is given besides its inputs: the demonstrations that were chosen, if any were."""
    chosen = _showing.get()
    if chosen is None or "demos" in inputs or not getattr(predictor, "demos", None):
        return {}
    nearest, count = chosen
    return {"demos": nearest.choose(predictor, inputs, count)}


def _unit(vectors: Vectors) -> Any:
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths == 0, 1, lengths)
