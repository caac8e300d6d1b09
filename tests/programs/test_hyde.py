"""HyDE: the mean vector worked out by hand, samples that differ, and what happens when some cannot be read."""

from __future__ import annotations

import dspy
import numpy as np
import pytest
from dspy.clients.cache import Cache

from querywright.data.types import Passage
from querywright.errors import TechniqueError
from querywright.programs import HyDE, use_rewriter
from querywright.retrieval.types import Hit

QUESTION = "How is low sugar treated?"
VECTORS = {QUESTION: (1, 0), "first": (0, 2), "second": (0, 1)}
DOCS = {"east": (1.0, 0.0), "north": (0.0, 1.0), "between": (0.6, 0.8)}


class Plane:
    """Three documents in two dimensions, searched by cosine."""

    fingerprint, kind = "plane", "dense"

    def __init__(self):
        self.vectors = []

    def embed(self, texts):
        return [VECTORS[text] for text in texts]

    def search(self, queries, k):
        return self.search_vectors(self.embed(queries), k)

    def search_vectors(self, vectors, k):
        self.vectors.extend(np.asarray(vectors).tolist())
        lists = []
        for row in np.asarray(vectors, dtype=float):
            cosines = {key: float(row @ np.array(doc)) / np.linalg.norm(row) for key, doc in DOCS.items()}
            best = sorted(cosines, key=lambda key: -cosines[key])[:k]
            lists.append([Hit(Passage(key, key), cosines[key], rank) for rank, key in enumerate(best, 1)])
        return lists


@pytest.fixture
def plane():
    return Plane()


def documents(*texts):
    """An LM that writes the texts in turn."""
    return [{"passage": text} for text in texts]


def run(technique, scripted, asking, *steps):
    lm = scripted(*steps)
    with asking(lm):
        return technique(question=QUESTION), lm.engine.asked


def ids(out):
    return [passage.id for passage in out.passages]


def test_the_mean_of_two_documents_and_the_question(plane, scripted, asking):
    """Of (1, 0), (0, 2) and (0, 1), made of length 1: ((1 + 0 + 0) / 3, (0 + 1 + 1) / 3) = (1/3, 2/3)."""
    out, _ = run(HyDE(plane, n_documents=2), scripted, asking, *documents("first", "second"))

    assert plane.vectors == [pytest.approx([1 / 3, 2 / 3])]
    # Cosines: between (1/3 * .6 + 2/3 * .8) / (sqrt(5) / 3) = .98, north .89, east .45.
    assert ids(out) == ["between", "north", "east"]
    assert [query.role for query in out.queries] == ["original", *["hypothetical_document"] * 2]


def test_the_question_may_be_left_out_of_the_mean(plane, scripted, asking):
    out, _ = run(HyDE(plane, n_documents=2, search_question=False), scripted, asking, *documents("first", "second"))

    assert plane.vectors == [pytest.approx([0, 1])]
    assert ids(out) == ["north", "between", "east"]
    assert [query.role for query in out.queries] == ["hypothetical_document"] * 2


def test_documents_are_sampled_with_a_seed_of_their_own(plane, scripted, asking):
    _, asked = run(HyDE(plane, n_documents=3), scripted, asking, *documents("first"))

    assert sorted(one.sampling for one in asked) == [(0.7, 0), (0.7, 1), (0.7, 2)]
    assert len({one.text for one in asked}) == 1


@pytest.mark.parametrize("named", [None, "its own"])
def test_samples_of_an_lm_without_seeds_are_told_apart_by_their_rollout(plane, scripted, asking, named, monkeypatch):
    """DSPy's cache would otherwise give the first one for all."""
    monkeypatch.setattr(dspy, "cache", Cache(False, True, "", 0))
    plain = scripted(*documents("first", "second"))
    plain.engine.supported_params = frozenset({"temperature", "max_tokens", "response_format"})
    lm, technique = plain.copy(cache=True), HyDE(plane, n_documents=2)
    technique.write_document.lm = lm if named else None
    for _ in range(2):
        with asking(scripted("never asked") if named else lm):
            out = technique(question=QUESTION)
        texts = [query.text for query in out.queries if query.role == "hypothetical_document"]
        assert sorted(texts) == ["first", "second"]

    assert [one.sampling for one in lm.engine.asked] == [(0.7, None)] * 2


def test_eight_documents_by_default(plane, scripted, asking):
    _, asked = run(HyDE(plane), scripted, asking, *documents("first"))

    assert len(asked) == 8


def test_a_document_that_cannot_be_read_is_left_out(plane, scripted, asking):
    def step(asked):
        return '{"passage": "first"}' if asked.sampling[1] == 1 else "no JSON"

    out, _ = run(HyDE(plane, n_documents=3), scripted, asking, step)

    assert out.fallbacks == ["document:1", "document:3"]
    assert plane.vectors == [pytest.approx([0.5, 0.5])]


def test_without_any_document_the_question_is_searched(plane, scripted, asking):
    for own in (True, False):
        out, _ = run(HyDE(plane, n_documents=2, search_question=own), scripted, asking, "no JSON")
        assert out.fallbacks == ["document:1", "document:2"]
        assert [(query.role, query.text) for query in out.queries] == [("original", QUESTION)]
    assert plane.vectors == [[1.0, 0.0], [1.0, 0.0]]


def test_a_retriever_without_vectors_is_refused_at_construction():
    class Words:
        fingerprint, kind = "words", "lexical"

        def search(self, queries, k):
            return [[] for _ in queries]

    with pytest.raises(TechniqueError, match=r"hyde .* vectors, which a lexical retriever cannot.*query2doc"):
        HyDE(Words())
    with pytest.raises(TechniqueError, match="hyde searches with vectors, which a foreign retriever cannot"):
        HyDE(lambda query, k: [])


def test_a_rewriter_decides_about_seeds_before_the_predictors_own_lm(plane, scripted, asking):
    rewriter, own = scripted(*documents("first")), scripted(*documents("first"))
    own.engine.supported_params = frozenset({"temperature", "max_tokens", "response_format"})
    technique = use_rewriter(HyDE(plane, n_documents=1), rewriter)
    technique.write_document.lm = own
    run(technique, scripted, asking, *documents("first"))

    assert [one.sampling for one in rewriter.engine.asked] == [(0.7, 0)]
    assert own.engine.asked == []


def test_the_predictors_own_lm_decides_about_seeds(plane, scripted, asking):
    technique = HyDE(plane, n_documents=2)
    own = scripted(*documents("first"))
    technique.write_document.lm = own
    with asking(scripted("never asked")), dspy.context():
        technique(question=QUESTION)

    assert sorted(one.sampling for one in own.engine.asked) == [(0.7, 0), (0.7, 1)]
