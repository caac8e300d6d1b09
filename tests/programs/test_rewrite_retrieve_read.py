from __future__ import annotations

import asyncio
import copy
import json

import pytest

from querywright.programs import RewriteRetrieveRead, make_program

QUESTION = "Which of the two directors was born first, Ed Wood's or Big Fish's?"
OPTIONS = ["Tim Burton", "They are the same person"]
THOUGHT = "Find who directed each film."
QUERIES = ["director of Ed Wood", "director of Big Fish", "Tim Burton born", "Big Fish cast"]


def answer(queries):
    return json.dumps({"thought": THOUGHT, "queries": queries})


@pytest.fixture
def run(retriever, scripted, asking):
    def run(step, options=None, **knobs):
        lm = scripted(step)
        with asking(lm):
            out = RewriteRetrieveRead(retriever, **knobs)(question=QUESTION, options=options)
        return out, lm.engine.asked

    return run


def ids(retriever, text, k):
    return [hit.passage.id for hit in retriever.search([text], k)[0]]


def test_the_rewriters_queries_are_searched_and_the_question_is_not(run, retriever):
    out, (asked,) = run(answer(QUERIES))

    assert [(q.text, q.role, q.weight) for q in out.queries] == [(text, "rewrite", 1.0) for text in QUERIES[:3]]
    assert retriever.searches == [(tuple(QUERIES[:3]), 5)]
    first, second, third = (ids(retriever, text, 5) for text in QUERIES[:3])
    expected = list(dict.fromkeys([first[0], second[0], third[0], first[1], second[1], third[1]]))[:5]
    assert [p.id for p in out.passages] == expected
    assert out.fallbacks == []
    assert list(asked.properties) == ["thought", "queries"]  # the thought comes first
    assert "\nWrite at most 3 queries, or none if nothing has to be looked up.\n" in asked.system


def test_union_joins_the_lists_one_after_another(run, retriever):
    out, _ = run(answer(QUERIES), n_queries=2, top_k=3, fusion="union")

    joined = ids(retriever, QUERIES[0], 3) + ids(retriever, QUERIES[1], 3)
    assert [p.id for p in out.passages] == list(dict.fromkeys(joined))[:5]
    assert retriever.searches[0] == (tuple(QUERIES[:2]), 3)


@pytest.mark.parametrize(
    ("written", "searched"),
    [
        (["director of Ed Wood; director of Big Fish"], QUERIES[:2]),
        (["1. director of Ed Wood", "Director of Ed Wood ", "none", '"director of Big Fish"'], QUERIES[:2]),
        (["None", "director of Ed Wood"], QUERIES[:1]),
    ],
)
def test_queries_are_told_apart_and_cleaned(run, written, searched):
    out, _ = run(answer(written))

    assert [q.text for q in out.queries] == searched


@pytest.mark.parametrize("written", [[], ["None"], [" NONE. "], [""], ["none; None"]])
def test_no_query_means_no_search(run, retriever, written):
    out, asked = run(answer(written))

    assert (out.passages, out.queries, out.fallbacks) == ([], [], [])
    assert retriever.searches == []
    assert [(step.kind, step.name, step.made["queries"]) for step in out.steps] == [("lm", "rewriter", written)]
    assert len(asked) == 1


def test_where_that_is_not_allowed_the_question_is_searched(run, retriever):
    out, (asked,) = run(answer(["None"]), may_skip=False)

    assert [(q.text, q.role) for q in out.queries] == [(QUESTION, "original")]
    assert [p.id for p in out.passages] == ids(retriever, QUESTION, 5)
    assert out.fallbacks == []
    assert "\nWrite at most 3 queries.\n" in asked.system


@pytest.mark.parametrize("written", ["sorry", '{"thought": "x", "queries": null}', '{"thought": "x"}'])
def test_an_answer_that_cannot_be_read_is_no_decision_to_search_nothing(run, written):
    out, asked = run(written)

    assert [(q.text, q.role) for q in out.queries] == [(QUESTION, "original")]
    assert out.fallbacks == ["rewrite"]
    assert len(out.passages) == 5
    assert len(asked) == 2


def test_the_rewriter_sees_the_options_unless_it_may_not(run):
    _, (shown,) = run(answer(QUERIES), OPTIONS)
    _, (hidden,) = run(answer(QUERIES), OPTIONS, rewriter_sees_options=False)

    assert "options:\n- Tim Burton\n- They are the same person" in shown.text
    assert "same person" not in hidden.text
    assert QUESTION in hidden.text


def test_one_query_is_asked_for_as_one(run):
    out, (asked,) = run(answer(QUERIES), n_queries=1)

    assert [q.text for q in out.queries] == QUERIES[:1]
    assert "\nWrite one query, or none if nothing has to be looked up.\n" in asked.system


def test_tuned_instructions_are_the_ones_that_are_sent(retriever, scripted, asking):
    technique = RewriteRetrieveRead(retriever)
    technique.rewriter.signature = technique.rewriter.signature.with_instructions("Say what to search.")
    lm = scripted(answer(QUERIES))
    with asking(lm):
        technique(question=QUESTION)

    assert lm.engine.asked[0].system.startswith("Say what to search.")
    assert "\nWrite at most 3 queries" in lm.engine.asked[0].system


def test_the_reader_answers_closed_book_when_nothing_is_searched(retriever, scripted, asking):
    program = make_program("rrr", retriever, reader="short_answer")
    lm = scripted(answer(["None"]), {"answer": "Tim Burton"})
    with asking(lm):
        out = program(question=QUESTION)

    assert out.answer == "Tim Burton"
    assert lm.engine.asked[1].messages[-1][1] == f"question: {QUESTION}"


@pytest.mark.parametrize(
    "variant",
    [lambda technique: technique, copy.deepcopy, lambda technique: technique.with_knobs(n_queries=2)],
    ids=["itself", "deepcopy", "with_knobs"],
)
@pytest.mark.parametrize("in_a_loop", [False, True])
def test_the_rewriter_may_have_an_lm_of_its_own(retriever, scripted, asking, variant, in_a_loop):
    trained, reading = scripted(answer(QUERIES)), scripted({"answer": "Tim Burton"})
    program = make_program("rrr", retriever, reader="short_answer")
    program.technique.rewriter.lm = trained
    program.technique = variant(program.technique)

    async def later():
        return await program.acall(question=QUESTION)

    with asking(reading):
        out = asyncio.run(later()) if in_a_loop else program(question=QUESTION)

    assert [q.text for q in out.queries][:2] == QUERIES[:2]
    assert out.answer == "Tim Burton"
    assert [list(asked.properties) for asked in trained.engine.asked] == [["thought", "queries"]]
    assert [list(asked.properties) for asked in reading.engine.asked] == [["answer"]]
    (read,) = reading.engine.asked
    assert QUESTION in read.text
    assert not any(text in read.text for text in (THOUGHT, *QUERIES))
