"""Prototypes: cells against scikit-learn, the walk over them against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from querywright.errors import InputError
from querywright.retrieval.prototypes import Prototypes


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def groups(n=240, count=6, spread=0.1, seed=0):
    """Vectors around a few directions, and the direction of each."""
    random = np.random.default_rng(seed)
    centres = np.linalg.qr(random.normal(size=(16, count)))[0].T
    labels = np.arange(n) % count
    return unit(centres[labels] + spread * random.normal(size=(n, 16))), labels


VECTORS, LABELS = groups()
IDS = [f"q{number:03}" for number in np.random.default_rng(1).permutation(len(VECTORS))]
QUERIES = groups(20, seed=2)[0]


def ranked(fitted, query):
    """Every question, a cell after the other."""
    return [question for cell in fitted.cells(query) for question in cell]


def cells_of(fitted):
    """Row of each question's prototype, the first cell of a query that is that very prototype."""
    return {
        id: cell for cell, prototype in enumerate(fitted.prototypes) for id, _ in next(iter(fitted.cells(prototype)))
    }


@pytest.mark.parametrize("seed", range(3))
def test_cells_are_the_groups_that_k_means_of_scikit_learn_finds(seed):
    fitted = Prototypes(IDS, VECTORS, 6, seed)
    found = [cells_of(fitted)[id] for id in IDS]
    expected = KMeans(6, n_init=10, random_state=0).fit_predict(VECTORS)
    assert adjusted_rand_score(LABELS, expected) == 1.0
    assert adjusted_rand_score(expected, found) == 1.0
    for cell, prototype in enumerate(fitted.prototypes):
        mean = VECTORS[np.array(found) == cell].mean(axis=0)
        assert prototype @ mean == pytest.approx(np.linalg.norm(mean), abs=1e-5)


def test_a_query_goes_to_the_cell_of_largest_similarity_and_ranks_it_by_similarity():
    fitted = Prototypes(IDS, VECTORS, 6)
    rows, cells = {id: row for row, id in enumerate(IDS)}, cells_of(fitted)
    for query in QUERIES:
        found = next(fitted.cells(query))
        nearest = int(np.argmax([prototype @ query for prototype in fitted.prototypes]))
        similarity = {id: float(VECTORS[rows[id]] @ query) for id, cell in cells.items() if cell == nearest}
        assert len(similarity) == 40
        assert [id for id, _ in found] == sorted(similarity, key=lambda id: -similarity[id])
        assert [value for _, value in found] == pytest.approx([similarity[id] for id, _ in found], abs=1e-6)


def test_equal_questions_are_in_order_of_ids_and_share_one_cell():
    same = np.repeat(VECTORS[:1], 5, axis=0)
    fitted = Prototypes(["e", "b", "d", "a", "c"], same, 3)
    assert len(fitted) == 1
    assert [id for id, _ in ranked(fitted, same[0])] == ["a", "b", "c", "d", "e"]


def test_the_same_seed_gives_the_same_prototypes():
    hard = groups(spread=1.0)[0]
    one, same, other = (Prototypes(IDS, hard, 12, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.prototypes, same.prototypes)
    assert ranked(one, QUERIES[0]) == ranked(same, QUERIES[0])
    assert not np.array_equal(one.prototypes, other.prototypes)


def test_every_question_is_in_the_cell_of_its_nearest_prototype():
    hard = groups(spread=1.0)[0]
    fitted = Prototypes(IDS, hard)
    assert len(fitted) <= 15  # the square root of 240
    cells = cells_of(fitted)
    assert [cells[id] for id in IDS] == (hard @ fitted.prototypes.T).argmax(axis=1).tolist()


@pytest.mark.parametrize(
    ("ids", "vectors", "count"),
    [
        ([], VECTORS[:0], None),
        (["a", "a"], VECTORS[:2], 1),
        (["a"], VECTORS[:2], 1),
        (["a"], VECTORS[0], 1),
        (["a", "b"], VECTORS[:2], 0),
        (["a", "b"], VECTORS[:2], 3),
    ],
)
def test_what_cannot_be_fitted_is_refused(ids, vectors, count):
    with pytest.raises(InputError, match="prototypes"):
        Prototypes(ids, vectors, count)
