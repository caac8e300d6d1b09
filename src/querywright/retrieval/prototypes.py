"""Question matching by prototypes: the questions of the cell that a query falls into.

QuIM-RAG (arXiv:2501.02702) quantises the vectors of the questions to prototypes, keeps an inverted index from prototype
to questions, and looks for a query in the cell of its own prototype. We take the nearest prototype by the largest
cosine similarity, where a printed formula takes the smallest, and go on to the next cells where one holds too few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from querywright.errors import InputError
from querywright.models.embedder import Vectors
from querywright.retrieval.answer_choice import Floats, Integers, blocks

ITERATIONS = 25
NOTHING = 1e-6
"""A distance that rounding makes between equal vectors."""


class Prototypes:
    """Questions in cells around prototypes; made by ``fit``, and only read from then on.

    Args:
        ids: Ids of the questions.
        vectors: A row of length 1 a question.
        prototypes: A row of length 1 a prototype.
        cells: Row of each question's prototype.
    """

    def __init__(self, ids: Sequence[str], vectors: Vectors, prototypes: Vectors, cells: Integers) -> None:
        self.prototypes = prototypes
        order = np.lexsort((np.array(ids), cells))  # a cell after the other, in each the ids in order
        self._ids = [str(ids[row]) for row in order]
        self._vectors = vectors[order]
        self._starts = np.searchsorted(cells[order], np.arange(len(prototypes) + 1))

    @classmethod
    def fit(cls, ids: Sequence[str], vectors: Vectors, count: int | None = None, seed: int = 0) -> Prototypes:
        """Quantises questions: spherical k-means (Dhillon and Modha, 2001), begun as greedy k-means++ does.

        A cell that ends without questions is left out, so there may be fewer than ``count``.

        Args:
            ids: Ids of the questions, each once.
            vectors: A row of length 1 a question, in the same order.
            count: How many prototypes, 1 to the number of questions. Default: the square root of that number.
            seed: Of the first prototypes. Default 0.

        Raises:
            InputError: When ids and vectors do not fit each other, or ``count`` is out of range.
        """
        if not len(ids) or len(set(ids)) != len(ids) or vectors.ndim != 2 or len(vectors) != len(ids):
            raise InputError(
                f"prototypes need distinct ids and a vector for each, at least one, but got {len(ids)} ids and vectors "
                f"of the shape {vectors.shape}"
            )
        count = round(math.sqrt(len(ids))) if count is None else count
        if not 1 <= count <= len(ids):
            raise InputError(f"the number of prototypes is from 1 to that of questions, {len(ids)}, but got {count}")
        prototypes = _begin(vectors, count, np.random.default_rng(seed))
        cells = _nearest(vectors, prototypes)
        for _ in range(ITERATIONS):
            prototypes = _means(vectors, cells, prototypes)
            before, cells = cells, _nearest(vectors, prototypes)
            if np.array_equal(before, cells):
                break
        taken, cells = np.unique(cells, return_inverse=True)
        return cls(ids, vectors, prototypes[taken], cells)

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


def _begin(vectors: Vectors, count: int, random: np.random.Generator) -> Vectors:
    """Questions as first prototypes: of a few drawn with their squared distance from those chosen, the best next."""
    chosen = [int(random.integers(len(vectors)))]
    distances = _distances(vectors, chosen)[0]
    while len(chosen) < count:
        total = distances.sum()
        if not total > 0:  # all others lie where a prototype is
            break
        drawn = random.choice(len(vectors), size=2 + int(math.log(count)), p=distances / total)
        left = np.minimum(distances, _distances(vectors, drawn))
        best = int(left.sum(axis=1).argmin())
        chosen.append(int(drawn[best]))
        distances = left[best]
    first: Vectors = vectors[chosen]
    return first


def _distances(vectors: Vectors, chosen: Sequence[int] | Integers) -> Floats:
    """One less cosine similarity, half of the squared distance: a row a chosen question."""
    found = np.maximum(1.0 - (vectors[chosen] @ vectors.T).astype(np.float64), 0.0)
    found[np.arange(len(chosen)), chosen] = 0.0
    return np.where(found > NOTHING, found, 0.0)


def _nearest(vectors: Vectors, prototypes: Vectors) -> Integers:
    """Row of the prototype with the largest cosine similarity; of equal ones the first."""
    parts = [
        np.argmax(vectors[start:stop] @ prototypes.T, axis=1) for start, stop in blocks(len(vectors), len(prototypes))
    ]
    return np.concatenate(parts)


def _means(vectors: Vectors, cells: Integers, before: Vectors) -> Vectors:
    """The direction of the mean of each cell; the prototype before where a cell is empty or has no direction."""
    from scipy.sparse import csr_array

    rows = np.arange(len(vectors))
    members = csr_array((np.ones(len(vectors), dtype=np.float32), (cells, rows)), shape=(len(before), len(vectors)))
    sums = np.asarray(members @ vectors)
    lengths: NDArray[np.float32] = np.linalg.norm(sums, axis=1, keepdims=True)
    means: Vectors = np.where(lengths > 0, sums / np.where(lengths > 0, lengths, 1), before)
    return means
