"""The gate: when a question is passed through, when it is translated, and what an LM's failure does."""

from __future__ import annotations

import pytest
from dspy.utils.exceptions import LMAuthError, LMRateLimitError

from querywright.data.types import Passage
from querywright.errors import BudgetError, OutageError, TechniqueError
from querywright.models.engine_errors import LMBudgetError, LMOutageError, LMPromptTooLongError
from querywright.programs import TECHNIQUES, PlainRetrieval
from querywright.retrieval.types import Hit

QUESTION = "Which drug is the right one?"
OPTIONS = ["Aspirin", "Insulin", "Warfarin"]
every_asking = pytest.mark.parametrize("name", [name for name, kind in TECHNIQUES.items() if kind.LM_STAGES])


def failing(error):
    def step(asked):
        raise error

    return step


def certainty(retriever, rule):
    """What the gate looks at, computed anew."""
    (hits,) = retriever.search([QUESTION], 10)
    retriever.searches.clear()
    scores = [hit.score for hit in hits]
    return scores[0] if rule == "score" else scores[0] - sum(scores) / 10


@every_asking
@pytest.mark.parametrize("rule", ["score", "margin"])
def test_a_certain_search_is_passed_through(name, rule, retriever, scripted, asking):
    at = certainty(retriever, rule)
    knobs = {"gate": rule, f"gate_{rule}": at - 0.001}
    lm = scripted()
    with asking(lm):
        out = TECHNIQUES[name](retriever, **knobs)(question=QUESTION, options=OPTIONS)

    plain = PlainRetrieval(retriever, max_passages=TECHNIQUES[name](retriever).max_passages)(question=QUESTION)
    assert lm.engine.asked == []
    assert [p.id for p in out.passages] == [p.id for p in plain.passages]
    assert [(q.role, q.text) for q in out.queries] == [("original", QUESTION)]
    assert out.fallbacks == []
    assert [(step.kind, step.made) for step in out.steps][-1] == ("gate", "pass the question through")


@every_asking
@pytest.mark.parametrize("rule", ["score", "margin"])
def test_an_uncertain_search_is_translated(name, rule, retriever, scripted, asking):
    at = certainty(retriever, rule)
    knobs = {"gate": rule, f"gate_{rule}": at + 0.001}
    with asking(scripted()):
        out = TECHNIQUES[name](retriever, **knobs)(question=QUESTION, options=OPTIONS)
    with asking(scripted()):
        without = TECHNIQUES[name](retriever)(question=QUESTION, options=OPTIONS)

    assert [p.id for p in out.passages] == [p.id for p in without.passages]
    assert out.queries == without.queries
    assert ("gate", "translate") in [(step.kind, step.made) for step in out.steps]


@every_asking
@pytest.mark.parametrize("error", [LMRateLimitError(message="slow down"), LMPromptTooLongError(9000, 4096, 100)])
def test_an_lm_that_fails_behind_the_gate_falls_open_and_is_counted(name, error, retriever, scripted, asking):
    technique = TECHNIQUES[name](retriever, gate="score", gate_score=1.0)
    with asking(scripted(failing(error))):
        out = technique(question=QUESTION, options=OPTIONS)

    assert out.fallbacks == ["lm"]
    assert out.steps[-1].name == "the LM failed"
    assert type(error).__name__ in out.steps[-1].made
    plain = PlainRetrieval(retriever, max_passages=technique.max_passages)(question=QUESTION)
    assert [p.id for p in out.passages] == [p.id for p in plain.passages]


@every_asking
def test_a_wrong_key_is_no_reason_to_go_on(name, retriever, scripted, asking):
    technique = TECHNIQUES[name](retriever, gate="score", gate_score=1.0)
    with asking(scripted(failing(LMAuthError(message="wrong key")))), pytest.raises(LMAuthError):
        technique(question=QUESTION, options=OPTIONS)


@every_asking
@pytest.mark.parametrize("kind", ["lexical", "hybrid", "foreign"])
def test_only_scores_that_are_cosines_are_looked_at(name, kind, retriever):
    if TECHNIQUES[name].NEEDS_VECTORS:
        pytest.skip("it needs a dense retriever anyway")
    retriever.kind = kind
    with pytest.raises(TechniqueError, match=f"cosine similarities, which a {kind} retriever does not give"):
        TECHNIQUES[name](retriever, gate="score")
    technique = TECHNIQUES[name](retriever)
    with pytest.raises(TechniqueError, match="set gate=off"):
        technique.with_knobs(gate="margin")


def test_what_is_passed_through_is_what_plain_retrieval_finds_also_of_passages_that_read_the_same(scripted, asking):
    same = [Passage(f"p{n}", "the same text" if n < 4 else f"text {n}") for n in range(12)]

    class Repeating:
        fingerprint, kind = "repeating", "dense"

        def search(self, queries, k):
            return [[Hit(p, 1 - n / 100, n + 1) for n, p in enumerate(same[:k])] for _ in queries]

    with asking(scripted()):
        gated = TECHNIQUES["multi_query"](Repeating(), gate="score", gate_score=0.1)(question=QUESTION)
    assert [p.id for p in gated.passages] == [p.id for p in PlainRetrieval(Repeating())(question=QUESTION).passages]


@every_asking
def test_without_a_gate_an_lm_that_fails_is_a_failure(name, retriever, scripted, asking):
    with asking(scripted(failing(LMRateLimitError(message="slow down")))), pytest.raises(LMRateLimitError):
        TECHNIQUES[name](retriever)(question=QUESTION, options=OPTIONS)


@every_asking
@pytest.mark.parametrize("error", [LMOutageError("down"), LMBudgetError("spent")])
def test_an_outage_or_a_spent_budget_is_no_reason_to_go_on(name, error, retriever, scripted, asking):
    technique = TECHNIQUES[name](retriever, gate="score", gate_score=1.0)
    with asking(scripted(failing(error))), pytest.raises((OutageError, BudgetError)):
        technique(question=QUESTION, options=OPTIONS)


@every_asking
def test_a_search_that_finds_nothing_is_not_certain(name, nothing, scripted, asking):
    lm = scripted()
    with asking(lm):
        TECHNIQUES[name](nothing, gate="score", gate_score=0.0)(question=QUESTION, options=OPTIONS)
    # A technique that only looks at what was found has nothing to ask about.
    assert bool(lm.engine.asked) == (name not in {"rerank", "filter"})


def test_the_gate_is_a_knob_of_techniques_that_ask_an_lm_and_of_no_other():
    for kind in TECHNIQUES.values():
        assert ("gate" in {knob.name for knob in kind.KNOBS}) == bool(kind.LM_STAGES)
