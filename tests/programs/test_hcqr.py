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


@pytest.fixture
def run(retriever, scripted, asking):
    """Runs HCQR with some answers of the LM; gives the result and what the LM was asked."""

    def run(*steps, adapter=None, options=OPTIONS, **knobs):
        lm = scripted(*(steps or (GOOD,)))
        with asking(lm, adapter):
            out = HCQR(retriever, **knobs)(question=QUESTION, options=options)
        return out, lm.engine.asked

    return run


def ids(retriever, query, k):
    return [hit.passage.id for hit in retriever.search([query], k)[0]]


def test_three_queries_in_the_papers_order(run):
    out, asked = run()

    assert [(q.role, q.text, q.weight) for q in out.queries] == [(role, text, 1.0) for role, text in QUERIES.items()]
    assert out.steps[0].made == HYPOTHESIS
    assert out.fallbacks == []
    assert len(asked) == 2


def test_the_first_call_weighs_the_options_and_the_second_knows_the_hypothesis(run):
    _, (weigh, write) = run()

    assert QUESTION in weigh.text
    assert all(option in weigh.text for option in OPTIONS)
    assert list(weigh.properties) == list(HYPOTHESIS)
    assert weigh.properties["best_guess"]["enum"] == OPTIONS
    assert list(write.properties) == list(QUERIES)
    for value in (
        QUESTION,
        HYPOTHESIS["reasoning"],
        *HYPOTHESIS["confirming_evidence"],
        *HYPOTHESIS["discriminating_features"],
    ):
        assert value in write.text
    assert "best_guess: Oral glucose" in write.text


def test_the_budget_is_shared_by_all_queries(run, retriever):
    out, _ = run(max_passages=6)

    lists = [ids(retriever, text, 5) for text in QUERIES.values()]
    expected = list(dict.fromkeys(passage for row in zip(*lists, strict=True) for passage in row))
    assert [p.id for p in out.passages] == expected[:6]


def test_union_is_the_papers_order_and_takes_five_of_each(run, retriever):
    out, _ = run(fusion="union")

    lists = [ids(retriever, text, 5) for text in QUERIES.values()]
    assert [p.id for p in out.passages] == list(dict.fromkeys(p for one in lists for p in one))


def test_rrf_and_best_score_rank_as_they_should(run, retriever):
    searched = retriever.search(list(QUERIES.values()), 50)
    rrf = {}
    best = {}
    for hits in searched:
        for hit in hits:
            rrf[hit.passage.id] = rrf.get(hit.passage.id, 0) + 1 / (7 + hit.rank)
            best[hit.passage.id] = max(best.get(hit.passage.id, 0), hit.score)

    out, _ = run(fusion="rrf", rrf_k=7, top_k=50)
    assert [p.id for p in out.passages] == sorted(rrf, key=lambda key: -rrf[key])[:15]
    out, _ = run(fusion="best_score", top_k=50)
    assert [p.id for p in out.passages] == sorted(best, key=lambda key: -best[key])[:15]


def test_fewer_queries_are_the_first_of_more(run):
    texts = [[q.text for q in run(n_queries=n)[0].queries] for n in (1, 2, 3)]

    assert texts == [list(QUERIES.values())[:n] for n in (1, 2, 3)]
    prompts = [[asked.text for asked in run(n_queries=n)[1]] for n in (1, 3)]
    assert prompts[0] == prompts[1]  # the same LM calls: nothing is generated twice in a study


def test_the_question_joins_first_with_its_weight(run):
    out, _ = run(search_question=True, question_weight=2.5)
    assert [(q.role, q.weight) for q in out.queries] == [
        ("original", 2.5),
        ("support", 1.0),
        ("distinguish", 1.0),
        ("verify", 1.0),
    ]
    assert out.queries[0].text == QUESTION

    rrf = {"fusion": "rrf", "search_question": True, "max_passages": 5}
    light, heavy = (run(**rrf, question_weight=w)[0].passages for w in (0.25, 4.0))
    assert light != heavy


def test_a_heavy_question_leads_in_rrf(run, retriever):
    out, _ = run(fusion="rrf", search_question=True, question_weight=4.0, max_passages=5)

    # In its list: 4/65 at least; in all three others: 3/61 at most.
    assert {p.id for p in out.passages} == set(ids(retriever, QUESTION, 5))


def test_the_query_writer_may_be_kept_from_the_options(run):
    _, (_, shown) = run()
    _, (weigh, hidden) = run(rewriter_sees_options=False)

    assert "options:\n- Oral glucose\n- Insulin\n- Aspirin" in shown.text
    assert "Aspirin" not in hidden.text
    assert "Aspirin" in weigh.text


def test_without_a_hypothesis_the_question_is_the_only_query(run, retriever):
    out, asked = run("no JSON at all")

    assert [(q.role, q.text) for q in out.queries] == [("original", QUESTION)]
    assert [p.id for p in out.passages] == ids(retriever, QUESTION, 5)
    assert out.fallbacks == ["hypothesis"]
    assert [(step.kind, step.made is None) for step in out.steps] == [("lm", True), ("search", False)]
    assert len(asked) == 2  # once, and once more; no query is written without a hypothesis


@pytest.mark.parametrize("guess", ["Glucagon", "A", ""])
def test_a_guess_that_is_no_option_is_asked_for_again(run, guess):
    out, asked = run({**GOOD, "best_guess": guess}, GOOD)
    assert out.steps[0].made["best_guess"] == "Oral glucose"
    assert out.fallbacks == []
    assert len(asked) == 3

    out, asked = run({**GOOD, "best_guess": guess})
    assert out.fallbacks == ["hypothesis"]
    assert len(asked) == 2


def test_queries_that_cannot_be_read_are_built_from_the_hypothesis(run):
    out, asked = run(GOOD, "sorry", "sorry")

    assert [q.text for q in out.queries] == [
        "Oral glucose fast sugar treats hypoglycaemia",
        "Oral glucose versus Insulin versus Aspirin",
        "onset after a missed meal sweating",
    ]
    assert [q.role for q in out.queries] == ["support", "distinguish", "verify"]
    assert out.fallbacks == ["query:support", "query:distinguish", "query:verify"]
    assert out.steps[0].made == HYPOTHESIS
    assert len(asked) == 3


@pytest.mark.parametrize("left_out", ["", "  ", "None", "null", None])
def test_one_query_that_is_missing_is_built_alone(run, left_out):
    out, _ = run(GOOD, {**QUERIES, "distinguish": left_out})

    assert [q.text for q in out.queries] == [
        QUERIES["support"],
        "Oral glucose versus Insulin versus Aspirin",
        QUERIES["verify"],
    ]
    assert out.fallbacks == ["query:distinguish"]


def test_a_query_that_is_not_searched_does_not_count_as_fallen_back(run):
    out, _ = run(GOOD, {**QUERIES, "verify": ""}, n_queries=2)

    assert out.fallbacks == []


def test_templates_name_no_option_that_the_writer_may_not_see(run):
    out, _ = run(GOOD, "sorry", rewriter_sees_options=False)

    assert out.queries[1].text == "Oral glucose onset after a missed meal sweating"
    assert not any("Aspirin" in q.text for q in out.queries)


def test_templates_of_an_empty_hypothesis_are_still_queries(run):
    bare = {**HYPOTHESIS, "discriminating_features": [], "confirming_evidence": [], "reasoning": ""}
    out, _ = run({**bare, **QUERIES}, "sorry")

    assert [q.text for q in out.queries] == [
        "Oral glucose",
        "Oral glucose versus Insulin versus Aspirin",
        QUESTION,
    ]


def test_queries_are_put_on_one_line(run):
    out, _ = run({**GOOD, "support": " oral\n glucose\t"})

    assert out.queries[0].text == "oral glucose"


def test_the_same_query_three_times_finds_each_passage_once(run, retriever):
    out, _ = run({**HYPOTHESIS, **dict.fromkeys(QUERIES, "hypoglycaemia")})

    assert [p.id for p in out.passages] == ids(retriever, "hypoglycaemia", 5)


def test_space_around_options_does_not_keep_the_guess_from_matching(run):
    out, _ = run(options=[" Oral glucose ", "Insulin\n", "Aspirin"])

    assert out.steps[0].made["best_guess"] == "Oral glucose"
    assert out.fallbacks == []


def chat_answer(asked):
    """An answer as DSPy's ChatAdapter asks for it."""
    last = asked.messages[-1][1]
    fields = [name for name in GOOD if f"[[ ## {name} ## ]]" in last.rpartition("Respond with")[2]]
    return "\n\n".join(f"[[ ## {name} ## ]]\n{GOOD[name]}" for name in fields)


@pytest.mark.parametrize(
    ("adapter", "step"),
    [(dspy.ChatAdapter(), chat_answer), (dspy.JSONAdapter(), GOOD)],
    ids=["chat", "json"],
)
def test_it_works_under_dspys_own_adapters(run, adapter, step):
    out, asked = run(step, adapter=adapter)

    assert [q.text for q in out.queries] == list(QUERIES.values())
    assert out.steps[0].made == HYPOTHESIS
    assert out.fallbacks == []
    assert len(asked) == 2


def test_under_dspys_chat_adapter_bad_answers_fall_back_too(run):
    out, asked = run("sorry", adapter=dspy.ChatAdapter())

    assert out.fallbacks == ["hypothesis"]
    assert len(asked) == 2  # DSPy itself asks again for JSON
