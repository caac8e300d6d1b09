"""HCQR: the paper's three queries, and what stands in for each step that cannot be read."""

from __future__ import annotations

import dspy
import pytest

from querywright.programs import HCQR

QUESTION = "A patient sweats and shakes after a missed meal. What should be given first?"
OPTIONS = ["Oral glucose", "Insulin", "Aspirin"]
HYPOTHESIS = {
    "discriminating_features": ["onset after a missed meal", "sweating"],
    "reasoning": "The signs point to low blood sugar.",
    "confirming_evidence": ["fast sugar treats hypoglycaemia", "insulin lowers sugar"],
    "best_guess": "Oral glucose",
}
QUERIES = {
    "support": "oral glucose hypoglycaemia first line",
    "distinguish": "hypoglycaemia versus hyperglycaemia signs",
    "verify": "sweating tremor missed meal cause",
}
GOOD = {**HYPOTHESIS, **QUERIES}
TEMPLATES = [
    "Oral glucose fast sugar treats hypoglycaemia",
    "Oral glucose versus Insulin versus Aspirin",
    "onset after a missed meal sweating",
]


@pytest.fixture
def hcqr(run):
    return lambda *steps, options=OPTIONS, **given: run(
        HCQR, *(steps or (GOOD,)), question=QUESTION, options=options, **given
    )


def ids(retriever, query, k=5):
    return [hit.passage.id for hit in retriever.search([query], k)[0]]


def found(out):
    return [passage.id for passage in out.passages]


def test_three_queries_in_the_papers_order_from_a_hypothesis(hcqr):
    out, (weigh, write) = hcqr()
    assert [(q.role, q.text, q.weight) for q in out.queries] == [(role, text, 1.0) for role, text in QUERIES.items()]
    assert (out.steps[0].made, out.fallbacks) == (HYPOTHESIS, [])
    assert all(text in weigh.text for text in (QUESTION, *OPTIONS))
    assert (list(weigh.properties), list(write.properties)) == (list(HYPOTHESIS), list(QUERIES))
    assert weigh.properties["best_guess"]["enum"] == OPTIONS
    known = [*HYPOTHESIS["confirming_evidence"], *HYPOTHESIS["discriminating_features"], HYPOTHESIS["reasoning"]]
    assert all(text in write.text for text in (QUESTION, *known, "best_guess: Oral glucose"))
    assert "options:\n- Oral glucose\n- Insulin\n- Aspirin" in write.text
    _, (weigh, write) = hcqr(rewriter_sees_options=False)
    assert ("Aspirin" in weigh.text, "Aspirin" in write.text) == (True, False)
    assert hcqr(GOOD, {**QUERIES, "verify": ""}, n_queries=2)[0].fallbacks == []  # nobody searches the third


def test_deliberation_weighs_each_option_and_stays_with_the_hypothesis(hcqr):
    weighing = ["Glucose acts fast.", "Insulin lowers sugar further.", "Aspirin does nothing."]
    _, plain = hcqr()
    out, (weigh, write) = hcqr({**GOOD, "weighing": weighing}, deliberate=True)
    assert list(weigh.properties) == ["weighing", *HYPOTHESIS]
    assert "each option in turn: what speaks for it and what against it" in weigh.system
    assert out.steps[0].made == {"weighing": weighing, **HYPOTHESIS}
    assert write == plain[1]


def test_the_published_form_weighs_first_hides_the_options_and_joins_by_union(hcqr, retriever):
    out, asked = hcqr({**GOOD, "weighing": ["one", "two", "three"]}, form="published", fusion="rrf")
    same = {"deliberate": True, "rewriter_sees_options": False, "fusion": "union"}
    alike, as_knobs = hcqr({**GOOD, "weighing": ["one", "two", "three"]}, **same)
    assert asked == as_knobs
    assert found(out) == found(alike) != found(hcqr()[0])
    assert found(out)[:5] == ids(retriever, QUERIES["support"])


@pytest.mark.parametrize("deliberate", [False, True])
def test_without_options_it_proposes_candidates_in_the_same_call_and_continues_with_them(hcqr, deliberate):
    step = {**GOOD, "best_guess": "Glucagon", "candidates": ["1. Glucagon", "2. Oral glucose", "3. oral glucose"]}
    out, (weigh, write) = hcqr(step, options=None, deliberate=deliberate)
    assert list(weigh.properties) == ["candidates", *["weighing"] * deliberate, *HYPOTHESIS]
    assert "First propose two to four different answers" in weigh.system
    assert "options:" not in weigh.messages[-1][1]
    assert "enum" not in weigh.properties["best_guess"]
    assert "options:\n- Glucagon\n- Oral glucose\n\n" in write.text
    assert ([query.text for query in out.queries], out.fallbacks) == (list(QUERIES.values()), [])
    assert out.queries[0].role == "support"

    out, (_, write) = hcqr({**step, "candidates": []}, options=[])
    assert ("options: - Glucagon\n" in write.text, out.fallbacks) == (True, ["candidates"])
    out, _ = hcqr({**step, "best_guess": "None"}, options=None)
    assert ([query.role for query in out.queries], out.fallbacks) == (["original"], ["hypothesis"])


def test_the_question_joins_first_with_its_weight(hcqr, retriever):
    out, _ = hcqr(search_question=True, question_weight=2.5)
    assert [(q.role, q.weight) for q in out.queries] == [("original", 2.5), *((role, 1.0) for role in QUERIES)]
    heavy, _ = hcqr(fusion="rrf", search_question=True, question_weight=4.0, max_passages=5)
    assert set(found(heavy)) == set(ids(retriever, QUESTION))  # in its list: 4/65 at least; in all others: 3/61 at most


def test_without_a_hypothesis_the_question_is_the_only_query(hcqr, retriever):
    out, asked = hcqr("no JSON at all")
    assert ([(q.role, q.text) for q in out.queries], out.fallbacks) == ([("original", QUESTION)], ["hypothesis"])
    assert found(out) == ids(retriever, QUESTION)
    assert len(asked) == 2  # once, and once more; no query is written without a hypothesis


def test_a_guess_that_is_no_option_is_asked_for_again(hcqr):
    out, asked = hcqr({**GOOD, "best_guess": "Glucagon"}, GOOD)
    assert (out.steps[0].made["best_guess"], out.fallbacks, len(asked)) == ("Oral glucose", [], 3)
    assert hcqr({**GOOD, "best_guess": "Glucagon"})[0].fallbacks == ["hypothesis"]
    spaced, _ = hcqr(options=[" Oral glucose ", "Insulin\n", "Aspirin"])
    assert spaced.steps[0].made["best_guess"] == "Oral glucose"


@pytest.mark.parametrize(
    ("steps", "given", "texts", "missing"),
    [
        ((GOOD, "sorry"), {}, TEMPLATES, list(QUERIES)),
        (
            (GOOD, {**QUERIES, "distinguish": "None"}),
            {},
            [QUERIES["support"], TEMPLATES[1], QUERIES["verify"]],
            ["distinguish"],
        ),
        # Templates name no option that the writer may not see, and those of an empty hypothesis are still queries.
        (
            (GOOD, "sorry"),
            {"rewriter_sees_options": False},
            [TEMPLATES[0], "Oral glucose onset after a missed meal sweating", TEMPLATES[2]],
            list(QUERIES),
        ),
        (
            ({**GOOD, "discriminating_features": [], "confirming_evidence": [], "reasoning": ""}, "sorry"),
            {},
            ["Oral glucose", TEMPLATES[1], QUESTION],
            list(QUERIES),
        ),
    ],
)
def test_queries_that_cannot_be_read_are_built_from_the_hypothesis(hcqr, steps, given, texts, missing):
    out, _ = hcqr(*steps, **given)
    assert [(q.role, q.text) for q in out.queries] == list(zip(QUERIES, texts, strict=True))
    assert out.fallbacks == [f"query:{role}" for role in missing]


def chat_answer(asked):
    """An answer as DSPy's ChatAdapter asks for it."""
    last = asked.messages[-1][1]
    fields = [name for name in GOOD if f"[[ ## {name} ## ]]" in last.rpartition("Respond with")[2]]
    return "\n\n".join(f"[[ ## {name} ## ]]\n{GOOD[name]}" for name in fields)


@pytest.mark.parametrize(("adapter", "step"), [(dspy.ChatAdapter(), chat_answer), (dspy.JSONAdapter(), GOOD)])
def test_it_works_under_dspys_own_adapters(hcqr, adapter, step):
    out, asked = hcqr(step, adapter=adapter)
    assert ([q.text for q in out.queries], out.steps[0].made) == (list(QUERIES.values()), HYPOTHESIS)
    assert (out.fallbacks, len(asked)) == ([], 2)
    assert hcqr("sorry", adapter=adapter)[0].fallbacks == ["hypothesis"]
