"""Multi-Query, RAG-Fusion and Step-Back: what they search, and their originals' arithmetic worked out by hand."""

from __future__ import annotations

import pytest

from querywright.data.types import Passage
from querywright.programs import MultiQuery, RAGFusion, StepBackRetrieval
from querywright.retrieval.types import Hit

QUESTION = "How is low sugar treated?"
DOCS = {key: Passage(key, f"text of {key}") for key in "abcde"}
THREE = {"queries": ["first wording", "second wording", "third wording"]}


class Ranked:
    """A retriever with a fixed ranking for each query."""

    fingerprint = "ranked"

    def __init__(self, **rankings: str) -> None:
        self.rankings = {key.replace("_", " "): value for key, value in rankings.items()}
        self.depths: list[int] = []

    def search(self, queries, k):
        self.depths.append(k)
        found = [self.rankings.get(query, self.rankings["question"]) for query in queries]
        return [[Hit(DOCS[key], 1 / rank, rank) for rank, key in enumerate(keys[:k], 1)] for keys in found]


@pytest.fixture
def ranked():
    return Ranked(question="abc", first_wording="bca", second_wording="bd", third_wording="de", step_back="cb")


def run(technique, scripted, asking, *steps, question=QUESTION):
    lm = scripted(*steps)
    with asking(lm):
        return technique(question=question), lm.engine.asked


def ids(out):
    return "".join(passage.id for passage in out.passages)


def queries(out):
    return [(query.role, query.text, query.weight) for query in out.queries]


def test_multi_query_searches_the_question_and_its_paraphrases(ranked, scripted, asking):
    out, (asked,) = run(MultiQuery(ranked), scripted, asking, THREE)

    assert queries(out) == [
        ("original", QUESTION, 1.0),
        ("paraphrase", "first wording", 1.0),
        ("paraphrase", "second wording", 1.0),
        ("paraphrase", "third wording", 1.0),
    ]
    # First hits a b b d, second hits b c d e, third hits c a: round by round, each once.
    assert ids(out) == "abdce"
    assert "3 different wordings" in asked.text
    assert ranked.depths == [5]


def test_multi_query_as_langchain_does_it(ranked, scripted, asking):
    """The paraphrases alone, their lists one after another, each document at its first place."""
    technique = MultiQuery(ranked, fusion="union", search_question=False)
    out, _ = run(technique, scripted, asking, THREE)

    assert [query.text for query in out.queries] == THREE["queries"]
    assert ids(out) == "bcade"


def test_multi_query_cleans_what_is_written(ranked, scripted, asking):
    lines = {"queries": ["1. first wording", "", '2) "FIRST wording?"', QUESTION.upper(), "third wording", "one more"]}
    out, _ = run(MultiQuery(ranked, n_queries=2), scripted, asking, lines)

    assert [query.text for query in out.queries] == [QUESTION, "first wording", "third wording"]
    assert out.fallbacks == []


@pytest.mark.parametrize("technique", [MultiQuery, RAGFusion])
@pytest.mark.parametrize("step", ["no JSON", {"queries": []}, {"queries": ["none", QUESTION]}])
def test_without_a_query_the_question_is_searched(technique, step, ranked, scripted, asking):
    for own in (True, False):
        out, _ = run(technique(ranked, search_question=own), scripted, asking, step)
        assert queries(out) == [("original", QUESTION, 1.0)]
        assert out.fallbacks == ["queries"]
        assert ids(out) == "abc"


def test_rag_fusion_adds_reciprocal_ranks(ranked, scripted, asking):
    """a 1/61 + 1/63, b 1/62 + 1/61 + 1/61, c 1/63 + 1/62, d 1/62 + 1/61, e 1/62: by hand."""
    out, _ = run(RAGFusion(ranked), scripted, asking, {"queries": [*THREE["queries"]]})

    sums = {"b": 0.0489159, "d": 0.0325225, "a": 0.0322665, "c": 0.0320020, "e": 0.0161290}
    by_hand = {"b": 1 / 62 + 2 / 61, "d": 1 / 62 + 1 / 61, "a": 1 / 61 + 1 / 63, "c": 1 / 63 + 1 / 62, "e": 1 / 62}
    assert by_hand == pytest.approx(sums, abs=5e-8)
    assert ids(out) == "bdace" == "".join(sorted(sums, key=lambda key: -sums[key]))
    assert [query.role for query in out.queries] == ["original", "related", "related", "related"]


def test_rag_fusion_weighs_the_question(ranked, scripted, asking):
    """With weight 4 the question's own first, a, has 4/61 + 1/63 against 4/62 + 2/61 of b and 4/63 + 1/62 of c."""
    out, _ = run(RAGFusion(ranked, question_weight=4.0), scripted, asking, THREE)
    assert ids(out)[:3] == "bac"

    out, _ = run(RAGFusion(ranked, search_question=False), scripted, asking, THREE)
    assert ids(out) == "bdcea"  # b 2/61, d 1/62 + 1/61, then c 1/62 (first seen), e 1/62, a 1/63


def test_rag_fusion_asks_for_four_queries(ranked, scripted, asking):
    _, (asked,) = run(RAGFusion(ranked), scripted, asking, THREE)

    assert "4 short search queries" in asked.text


def test_step_back_gives_each_question_half_of_the_budget(ranked, scripted, asking):
    """The question's a b, then of c b, which the other found, c alone; what is left over goes back: nothing."""
    written = {"step_back_question": "step back"}
    out, (asked,) = run(StepBackRetrieval(ranked, max_passages=4), scripted, asking, written)

    assert queries(out) == [("original", QUESTION, 1.0), ("step_back", "step back", 1.0)]
    assert ids(out) == "abc"
    assert "more general question" in asked.text

    out, _ = run(StepBackRetrieval(ranked, max_passages=2), scripted, asking, written)
    assert ids(out) == "ac"


@pytest.mark.parametrize("step", ["no JSON", {"step_back_question": ""}, {"step_back_question": "None"}])
def test_without_a_step_back_question_the_question_is_searched(step, ranked, scripted, asking):
    out, _ = run(StepBackRetrieval(ranked), scripted, asking, step)

    assert queries(out) == [("original", QUESTION, 1.0)]
    assert out.fallbacks == ["step_back"]
