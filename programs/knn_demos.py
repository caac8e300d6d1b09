"""Choose the demonstrations that are nearest to the input of each call.

DSPy's ``KNNFewShot`` replaces a program's ``forward`` with a closure, which cannot be saved. Here, a program keeps all
its demonstrations and the number to show, and both are saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from querywright.shared import Shared

if TYPE_CHECKING:
    from querywright.models.embedder import Vectors

KEPT = 4096
"""Maximum number of text vectors kept in memory."""


class NearestDemos(Shared):
    """Chooses the demonstrations for a call without changing the predictor.

    It compares each demonstration's ``question`` with the question of the call, or the first input of each if the
    predictor has no question. The measure is cosine similarity or, without an embedder, the share of common words
    (Jaccard). The nearest demonstration comes first; demonstrations with equal scores keep their order.

    Args:
        embed: A function that returns one vector per text, or None to compare words.
    """

    def __init__(self, embed: Callable[[Sequence[str]], Vectors] | None = None) -> None:
        self._embed = embed
        self._kept: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return NearestDemos, (self._embed,)

    def choose(self, predictor: Any, inputs: Mapping[str, Any], count: int) -> list[Any]:
        """Return the demonstrations for a call; if there are at most ``count``, return all of them.

        Args:
            predictor: A ``dspy.Predict``.
            inputs: The inputs of the call.
            count: Number of demonstrations to choose, 1 or more.
        """
        demos = list(predictor.demos)
        if len(demos) <= count:
            return demos
        names = list(predictor.signature.input_fields)
        name = "question" if "question" in names else names[0]
        asked, *texts = [str(one.get(name) or "") for one in (inputs, *demos)]
        scores = self._by_words(asked, texts) if self._embed is None else self._by_vectors(asked, texts)
        return [demos[place] for place in sorted(range(len(demos)), key=lambda place: -scores[place])[:count]]

    def _by_words(self, asked: str, texts: Sequence[str]) -> list[float]:
        from querywright.retrieval.words import query_terms

        words, others = set(query_terms(asked)), [set(query_terms(text)) for text in texts]
        return [len(words & other) / (len(words | other) or 1) for other in others]

    def _by_vectors(self, asked: str, texts: Sequence[str]) -> list[float]:
        kept = self._kept = self._kept if len(self._kept) < KEPT else {}
        missing = [text for text in dict.fromkeys([asked, *texts]) if text not in kept]
        if missing:
            rows = np.asarray(self._embed(missing), dtype=np.float64)  # type: ignore[misc]
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            kept.update(zip(missing, rows / np.where(lengths == 0, 1, lengths), strict=True))
        # Round, so that equal texts get equal scores regardless of the order in which the products are summed.
        return [round(float(kept[text] @ kept[asked]), 6) for text in texts]
