from __future__ import annotations

import json

import pytest

from querywright.programs import Decomposition, Finding, make_program

QUESTION = "In which state was the director of the film Jaws born?"
SUBS = ["Who directed Jaws?", "Where was that person born?", "In which state is that town?"]
ANSWERS = ["Steven Spielberg", "Cincinnati", "Ohio"]
FED = ["Who directed Jaws?", "Where was that person born? Steven Spielberg", "In which state is that town? Cincinnati"]
PAIRS = [f"{sub} {answer}" for sub, answer in zip(SUBS, ANSWERS, strict=True)]
UNREADABLE = "sorry, no JSON"


def play(subs=SUBS, answers=ANSWERS):
    """The LM's part: it lists sub-questions, gives the answer to the one it is asked, and reads as it likes."""

    def step(asked):
        if "sub_questions" in asked.properties:
            return subs if isinstance(subs, str) else json.dumps({"sub_questions": subs})
        if "sub_answer" in asked.properties:
            answer = answers[SUBS.index(value(asked, "sub_question"))]
            return answer if answer == UNREADABLE else json.dumps({"sub_answer": answer})
        return json.dumps({"answer": "Ohio"})

    return step


def value(asked, field):
    """What a prompt says under an input's name, on its line."""
    return asked.messages[0][1].rpartition(f"{field}: ")[2].partition("\n")[0]


@pytest.fixture
def run(retriever, scripted, asking):
    """Runs Decomposition with some part for the LM; gives the result and what the LM was asked."""

    def run(step=None, **knobs):
        lm = scripted(step or play())
        with asking(lm):
            out = Decomposition(retriever, **knobs)(question=QUESTION)
        return out, lm.engine.asked

    return run


def hits(retriever, query, k=5):
    return [hit.passage for hit in retriever.search([query], k)[0]]


def test_each_answer_feeds_the_next_search_and_the_question_comes_last(run, retriever):
    out, _ = run(top_k=3)

    assert retriever.searches == [((FED[0],), 3), ((FED[1],), 3), ((FED[2], QUESTION), 3)]
    assert [(q.text, q.role, q.weight) for q in out.queries] == [
        *((text, "sub_question", 1.0) for text in FED),
        (QUESTION, "original", 1.0),
    ]
    assert out.fallbacks == []


def test_a_sub_question_is_answered_from_its_passages_and_the_answers_before_it(run, retriever):
    _, (listing, *answering) = run()

    assert listing.messages[0][1] == f"question: {QUESTION}"
    for number, asked in enumerate(answering):
        assert list(asked.properties) == ["sub_answer"]
        assert value(asked, "sub_question") == SUBS[number]
        own = hits(retriever, FED[number])
        assert asked.messages[0][1].count("of the handbook") == len(own) == 5
        assert all(passage.text in asked.text for passage in own)
        assert [pair for pair in PAIRS if pair in asked.text] == PAIRS[:number]
        assert QUESTION not in asked.text
    assert f"known:\n- {PAIRS[0]}\n- {PAIRS[1]}\n" in answering[2].text


def test_passages_are_those_of_all_queries_in_turn(run, retriever):
    out, _ = run()

    lists = [hits(retriever, query) for query in (*FED, QUESTION)]
    expected = list(dict.fromkeys(passage.id for row in zip(*lists, strict=True) for passage in row))
    assert [passage.id for passage in out.passages] == expected[:15]


def test_union_begins_with_the_first_sub_question(run, retriever):
    out, _ = run(fusion="union", max_passages=7)

    expected = dict.fromkeys(passage.id for query in (*FED, QUESTION) for passage in hits(retriever, query))
    assert [passage.id for passage in out.passages] == list(expected)[:7]


def test_findings_are_the_sub_questions_as_written_with_their_answers(run):
    out, _ = run()

    assert out.findings == [Finding(sub, answer) for sub, answer in zip(SUBS, ANSWERS, strict=True)]


def test_a_trace_tells_the_steps_in_order(run):
    out, _ = run()

    assert [(step.stage, step.kind, step.name) for step in out.steps] == [
        (1, "lm", "list_sub_questions"),
        (2, "search", "passages"),
        (3, "lm", "answer_sub_question"),
        (4, "search", "passages"),
        (5, "lm", "answer_sub_question"),
        (6, "search", "passages"),
        (7, "lm", "answer_sub_question"),
    ]
    assert [step.made for step in out.steps if step.name == "answer_sub_question"] == [
        {"sub_answer": answer} for answer in ANSWERS
    ]


def test_individual_searches_once_and_answers_side_by_side(run, retriever):
    out, (_, *answering) = run(mode="individual")

    assert retriever.searches == [((*SUBS, QUESTION), 5)]
    assert sorted(value(asked, "sub_question") for asked in answering) == sorted(SUBS)
    assert not any("known" in asked.messages[0][1] or answer in asked.text for asked in answering for answer in ANSWERS)
    assert [(step.stage, step.name) for step in out.steps[2:]] == [(3, "answer_sub_question")] * 3
    assert out.findings == [Finding(sub, answer) for sub, answer in zip(SUBS, ANSWERS, strict=True)]


@pytest.mark.parametrize("mode", ["recursive", "individual"])
def test_the_reader_sees_sub_answers_only_when_allowed(mode, retriever, scripted, asking):
    prompts = {}
    for allowed in (True, False):
        lm = scripted(play())
        program = make_program(
            "decomposition", retriever, reader="short_answer", mode=mode, reader_sees_answers=allowed
        )
        with asking(lm):
            out = program(question=QUESTION)
        assert len(out.findings) == 3 * allowed
        prompts[allowed] = lm.engine.asked[-1].messages[0][1]

    assert f"question: {QUESTION}" in prompts[True]
    assert "sub_answers:\n" + "\n".join(f"- {pair}" for pair in PAIRS) in prompts[True]
    assert not any(text in prompts[False] for text in (*SUBS, *ANSWERS, "sub_answers"))


def test_answers_that_nobody_reads_are_not_asked_for(run, retriever):
    out, asked = run(reader_sees_answers=False)
    assert [value(one, "sub_question") for one in asked[1:]] == SUBS[:2]
    assert [query.text for query in out.queries] == [*FED, QUESTION]

    retriever.searches.clear()
    for knobs in ({"mode": "individual"}, {"query_with_answer": False}):
        out, asked = run(reader_sees_answers=False, **knobs)
        assert len(asked) == 1
        assert [query.text for query in out.queries] == [*SUBS, QUESTION]
    assert len(retriever.searches) == 2


def test_searches_may_leave_the_answers_out(run, retriever):
    out, asked = run(query_with_answer=False)

    assert retriever.searches == [((SUBS[0],), 5), ((SUBS[1],), 5), ((SUBS[2], QUESTION), 5)]
    assert PAIRS[0] in asked[2].text  # an answer still feeds the next answer
    assert len(out.findings) == 3


def test_an_answer_that_the_next_sub_question_names_is_not_searched_twice(run):
    out, _ = run(play(answers=["that PERSON", *ANSWERS[1:]]))

    assert out.queries[1].text == SUBS[1]


@pytest.mark.parametrize("left_out", [UNREADABLE, "", " ", "None"])
def test_a_sub_answer_that_is_missing_is_left_out(run, left_out):
    out, asked = run(play(answers=[ANSWERS[0], left_out, ANSWERS[2]]))

    assert out.fallbacks == ["sub_answer:2"]
    assert out.findings == [Finding(SUBS[0], ANSWERS[0]), Finding(SUBS[2], ANSWERS[2])]
    assert out.queries[2].text == f"{SUBS[2]} Steven Spielberg"  # the last answer there is
    assert "Cincinnati" not in asked[-1].text
    assert PAIRS[0] in asked[-1].text


def test_individual_answers_that_are_missing_are_named(run):
    out, _ = run(play(answers=["", "Cincinnati", UNREADABLE]), mode="individual")

    assert out.fallbacks == ["sub_answer:1", "sub_answer:3"]
    assert out.findings == [Finding(SUBS[1], "Cincinnati")]


@pytest.mark.parametrize("mode", ["recursive", "individual"])
@pytest.mark.parametrize("written", [UNREADABLE, [], ["", "none"], [QUESTION.upper(), "In which  state was the"]])
def test_without_sub_questions_the_question_is_the_only_query(run, retriever, written, mode):
    out, _ = run(play(written), mode=mode)

    assert [(q.text, q.role) for q in out.queries] == [(QUESTION, "original")]
    assert retriever.searches == [((QUESTION,), 5)]
    assert out.passages == hits(retriever, QUESTION)
    assert (out.fallbacks, out.findings) == (["sub_questions"], [])


def test_sub_questions_are_clean_distinct_and_at_most_so_many(run):
    out, _ = run(play([f"1. {SUBS[0]}", QUESTION, f'"{SUBS[0]}"', f"2) {SUBS[1]}\n", SUBS[2], "What else?"]))
    assert [query.text for query in out.queries] == [*FED, QUESTION]

    out, asked = run(n_sub_questions=1)
    assert [query.text for query in out.queries] == [FED[0], QUESTION]
    assert "one simpler question" in asked[0].system

    _, asked = run(n_sub_questions=6)
    assert "up to 6 simpler questions" in asked[0].system
