"""Question matching by prototypes: the questions of the cell that a query falls into.

QuIM-RAG (arXiv:2501.02702) quantises the vectors of the questions to prototypes, keeps an inverted index from prototype
to questions, and looks for a query in the cell of its own prototype. We take the nearest prototype by the largest
cosine similarity, where a printed formula takes the smallest, and go on to the next cells where one holds too few.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from querywright.errors import InputError
from querywright.models.embedder import Vectors

ITERATIONS = 25


class Prototypes:
    """Questions in cells around prototypes, by k-means; a cell that ends without questions is left out.

    Args:
        ids: Ids of the questions, each once.
        vectors: A row of length 1 a question, in the same order.
        count: How many prototypes at most, 1 to the number of questions. Default: the square root of that number.
        seed: Of the first prototypes. Default 0.

    Raises:
        InputError: When ids and vectors do not fit each other, or ``count`` is out of range.
    """

    def __init__(self, ids: Sequence[str], vectors: Vectors, count: int | None = None, seed: int = 0) -> None:
        from scipy.cluster.vq import kmeans2

        if not len(ids) or len(set(ids)) != len(ids) or vectors.ndim != 2 or len(vectors) != len(ids):
            raise InputError(
                f"prototypes need distinct ids and a vector for each, at least one, but got {len(ids)} ids and vectors "
                f"of the shape {vectors.shape}"
            )
        count = round(math.sqrt(len(ids))) if count is None else count
        if not 1 <= count <= len(ids):
            raise InputError(f"the number of prototypes is from 1 to that of questions, {len(ids)}, but got {count}")
        rows = np.asarray(vectors, dtype=np.float64)
        with warnings.catch_warnings(), np.errstate(invalid="ignore"):
            warnings.simplefilter("ignore")  # of cells that are empty, and of vectors that are all the same
            means, _ = kmeans2(rows, count, iter=ITERATIONS, minit="++", rng=np.random.default_rng(seed))
        lengths = np.linalg.norm(means, axis=1)
        means = means[lengths > 0] / lengths[lengths > 0, None]
        taken, cells = np.unique(np.argmax(rows @ means.T, axis=1), return_inverse=True)
        self.prototypes: Vectors = means[taken].astype(np.float32)
        order = np.lexsort((np.array(ids), cells))  # a cell after the other, in each the ids in order
        self._ids = [str(ids[row]) for row in order]
        self._vectors = vectors[order]
        self._starts = np.searchsorted(cells[order], np.arange(len(taken) + 1))

    def cells(self, query: Vectors) -> Iterator[list[tuple[str, float]]]:
        """All cells, that of the nearest prototype first.

        Args:
            query: A row of length 1.

        Returns:
            Id and cosine similarity of each question of a cell, best first, equal ones by id. Stop when there are
            enough: a cell is looked at when it is asked for.

        Raises:
            InputError: When the vector has another shape.
        """
        if query.shape != self.prototypes.shape[1:]:
            raise InputError(f"a query has the shape {self.prototypes.shape[1:]}, but got {query.shape}")
        nearest = np.argsort(-(self.prototypes @ query), kind="stable")
        return (self._ranked(cell, query) for cell in nearest)

    def __len__(self) -> int:
        return len(self.prototypes)

    def _ranked(self, cell: int, query: Vectors) -> list[tuple[str, float]]:
        start, stop = self._starts[cell], self._starts[cell + 1]
        similarities = self._vectors[start:stop] @ query
        order = np.argsort(-similarities, kind="stable")
        return [(self._ids[start + row], float(similarities[row])) for row in order]
