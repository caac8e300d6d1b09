"""Decomposition and IRCoT: how one step feeds the next, when the loop ends, and what the reader may see."""

from __future__ import annotations

import json
import re

import pytest

from querywright.data.types import Passage
from querywright.programs import Decomposition, Finding, IRCoT, make_program
from querywright.programs.ircot import first_sentence

QUESTION = "In which state was the director of the film Jaws born?"
SUBS = ["Who directed Jaws?", "Where was that person born?", "In which state is that town?"]
ANSWERS = ["Steven Spielberg", "Cincinnati", "Ohio"]
FED = ["Who directed Jaws?", "Where was that person born? Steven Spielberg", "In which state is that town? Cincinnati"]
PAIRS = [f"{sub} {answer}" for sub, answer in zip(SUBS, ANSWERS, strict=True)]
UNREADABLE = "sorry, no JSON"


def solving(subs=SUBS, answers=ANSWERS):
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


def hits(retriever, query, k=5):
    return [hit.passage for hit in retriever.search([query], k)[0]]


def decompose(run, step=None, **knobs):
    return run(Decomposition, step or solving(), question=QUESTION, **knobs)


def test_each_answer_feeds_the_next_search_and_the_question_comes_last(run, retriever):
    out, (listing, *answering) = decompose(run, top_k=3)
    assert retriever.searches == [((FED[0],), 3), ((FED[1],), 3), ((FED[2], QUESTION), 3)]
    assert [(q.text, q.role) for q in out.queries] == [
        *((text, "sub_question") for text in FED),
        (QUESTION, "original"),
    ]
    assert out.findings == [Finding(sub, answer) for sub, answer in zip(SUBS, ANSWERS, strict=True)]
    stages = [(step.stage, step.name) for step in out.steps]
    assert stages == [
        (1, "list_sub_questions"),
        *((n, "answer_sub_question" if n % 2 else "passages") for n in range(2, 8)),
    ]
    assert listing.messages[0][1] == f"question: {QUESTION}"
    assert "up to 3 simpler questions" in listing.system
    assert "one simpler question" in decompose(run, n_sub_questions=1)[1][0].system
    for number, asked in enumerate(answering):  # from its own passages and the answers before it
        assert value(asked, "sub_question") == SUBS[number]
        own = hits(retriever, FED[number], 3)
        assert asked.messages[0][1].count("of the handbook") == len(own) == 3
        assert all(passage.text in asked.text for passage in own)
        assert [pair for pair in PAIRS if pair in asked.text] == PAIRS[:number]
        assert QUESTION not in asked.text


def test_individual_searches_once_and_answers_side_by_side(run, retriever):
    out, (_, *answering) = decompose(run, mode="individual")
    assert retriever.searches == [((*SUBS, QUESTION), 5)]
    assert sorted(value(asked, "sub_question") for asked in answering) == sorted(SUBS)
    assert not any("known" in asked.messages[0][1] or answer in asked.text for asked in answering for answer in ANSWERS)
    assert [(step.stage, step.name) for step in out.steps[2:]] == [(3, "answer_sub_question")] * 3
    assert len(out.findings) == 3


@pytest.mark.parametrize("mode", ["recursive", "individual"])
def test_the_reader_sees_sub_answers_only_when_allowed(mode, retriever, scripted, asking):
    prompts = {}
    for allowed in (True, False):
        lm = scripted(solving())
        program = make_program(
            "decomposition", retriever, reader="short_answer", mode=mode, reader_sees_answers=allowed
        )
        with asking(lm):
            program(question=QUESTION)
        prompts[allowed] = lm.engine.asked[-1].messages[0][1]
    assert "sub_answers:\n" + "\n".join(f"- {pair}" for pair in PAIRS) in prompts[True]
    assert not any(text in prompts[False] for text in (*SUBS, *ANSWERS, "sub_answers"))


def test_answers_that_nobody_reads_are_not_asked_for(run):
    out, asked = decompose(run, reader_sees_answers=False)
    assert [value(one, "sub_question") for one in asked[1:]] == SUBS[:2]
    assert [query.text for query in out.queries] == [*FED, QUESTION]
    for knobs in ({"mode": "individual"}, {"query_with_answer": False}):
        out, asked = decompose(run, reader_sees_answers=False, **knobs)
        assert (len(asked), [query.text for query in out.queries]) == (1, [*SUBS, QUESTION])
    out, asked = decompose(run, query_with_answer=False)
    assert ([query.text for query in out.queries], PAIRS[0] in asked[2].text) == ([*SUBS, QUESTION], True)
    out, _ = decompose(run, solving(answers=["that PERSON", *ANSWERS[1:]]))
    assert out.queries[1].text == SUBS[1]  # which names the answer itself


@pytest.mark.parametrize("left_out", [UNREADABLE, "None"])
def test_a_sub_answer_that_is_missing_is_left_out(run, left_out):
    answers = [ANSWERS[0], left_out, ANSWERS[2]]
    out, _ = decompose(run, solving(answers=answers))
    assert (out.fallbacks, out.findings) == (
        ["sub_answer:2"],
        [Finding(SUBS[0], ANSWERS[0]), Finding(SUBS[2], ANSWERS[2])],
    )
    assert out.queries[2].text == f"{SUBS[2]} Steven Spielberg"  # the last answer there is
    assert decompose(run, solving(answers=answers), mode="individual")[0].fallbacks == ["sub_answer:2"]


@pytest.mark.parametrize("written", [[], [QUESTION.upper(), "In which  state was the"]])
def test_without_sub_questions_the_question_is_the_only_query(run, retriever, written):
    out, _ = decompose(run, solving(written))
    assert retriever.searches == [((QUESTION,), 5)]
    assert (out.passages, out.fallbacks, out.findings) == (hits(retriever, QUESTION), ["sub_questions"], [])


CHAIN = ["Jaws was directed by Steven Spielberg.", "Steven Spielberg was born in Cincinnati.", "So the answer is Ohio."]


def writing(*sentences):
    """The LM's part: it writes the sentences in turn, the last one again and again, and reads."""
    left = list(sentences or CHAIN)

    def step(asked):
        if "next_sentence" not in asked.properties:
            return json.dumps({"answer": "Ohio"})
        sentence = left.pop(0) if len(left) > 1 else left[0]
        return sentence if sentence == UNREADABLE else json.dumps({"next_sentence": sentence})

    return step


def reason(run, *sentences, **knobs):
    return run(IRCoT, writing(*sentences), question=QUESTION, **knobs)


def collected(retriever, queries, cap, k=4):
    """The passages of the queries one after another, each once."""
    return list({passage.id: passage for query in queries for passage in hits(retriever, query, k)}.values())[:cap]


def searched(retriever):
    return [text for (text,), _ in retriever.searches]


def test_each_sentence_is_the_next_query_until_the_answer(run, retriever):
    out, asked = reason(run)
    assert retriever.searches == [((QUESTION,), 4), ((CHAIN[0],), 4), ((CHAIN[1],), 4)]
    assert [(q.text, q.role) for q in out.queries[1:]] == [(text, "sentence") for text in CHAIN[:2]]
    assert [step.name for step in out.steps] == ["passages", "write_next_sentence"] * 3
    assert out.passages == collected(retriever, [QUESTION, *CHAIN[:2]], 15)
    prompts = [one.messages[0][1] for one in asked]
    for number, prompt in enumerate(prompts):
        shown = collected(retriever, [QUESTION, *CHAIN[:number]], 15)
        lines = [f"[{place}] {passage.title}: {passage.text}" for place, passage in enumerate(shown, 1)]
        assert prompt.startswith("passages:\n" + "\n".join(lines) + f"\n\nquestion: {QUESTION}")
        assert [sentence for sentence in CHAIN if sentence in prompt] == CHAIN[:number]
    # A prefix cache finds the passages of the last step at the beginning of the next.
    assert prompts[2].startswith(prompts[1].partition("\n\nquestion:")[0])


def test_the_reader_starts_afresh_and_sees_whole_passages(retriever, scripted, asking):
    text = " ".join(f"word{number}" for number in range(400))
    for passages in (retriever.passages, [Passage("long", text)]):
        retriever.passages, lm = passages, scripted(writing())
        with asking(lm):
            out = make_program("ircot", retriever, reader="short_answer")(question=QUESTION)
        *thought, read = lm.engine.asked
        assert out.answer == "Ohio"
        assert all(passage.text in read.text for passage in out.passages)
        assert not any(words in read.text for words in (*CHAIN, "Spielberg", "Cincinnati", "Ohio", "sentence"))
    assert ("word349\n" in thought[0].text, "word350" in thought[0].text) == (True, False)


@pytest.mark.parametrize(
    ("sentences", "searches", "calls"),
    [
        ((CHAIN[0], "Hence the answer is Ohio. It lies north."), [CHAIN[0]], 2),
        ((f"{CHAIN[0]} {CHAIN[1]} So the answer is Ohio.", CHAIN[2]), [CHAIN[0]], 2),  # the first sentence is kept
        ((*CHAIN[:2], "jaws was  directed by Steven Spielberg"), CHAIN[:2], 3),  # one that repeats another ends it
        # Conclusions, calculations and bare numbers are not searched, and the reasoning goes on from them.
        (("So the film is American.", CHAIN[0], CHAIN[2]), [CHAIN[0]], 3),
        (("He was 1975 - 1946 = 29 years old.", CHAIN[0], CHAIN[2]), [CHAIN[0]], 3),
        (("1986-2013", CHAIN[0], CHAIN[2]), [CHAIN[0]], 3),
        # Facts that look a little like them are searched.
        (("He reigned 1914-1918.", CHAIN[2]), ["He reigned 1914-1918."], 2),
    ],
)
def test_what_is_searched_and_what_ends_the_loop(run, retriever, sentences, searches, calls):
    out, asked = reason(run, *sentences)
    assert searched(retriever) == [QUESTION, *searches]
    assert (len(asked), out.fallbacks) == (calls, [])
    assert calls == 2 or sentences[0] in asked[1].text


@pytest.mark.parametrize(("nothing", "before"), [(UNREADABLE, 0), ("none", 1)])
def test_a_sentence_that_is_missing_ends_the_loop(run, retriever, nothing, before):
    out, _ = reason(run, *CHAIN[:before], nothing)
    assert out.fallbacks == [f"sentence:{before + 1}"]
    assert searched(retriever) == [QUESTION, *CHAIN[:before]]


@pytest.mark.parametrize(("cap", "calls"), [(4, 0), (5, 1), (9, 2)])
def test_it_ends_when_no_more_passages_may_be_collected_or_steps_made(run, retriever, cap, calls):
    out, asked = reason(run, collect=cap)
    assert (len(asked), len(out.passages)) == (calls, cap)
    assert out.passages == collected(retriever, [QUESTION, *CHAIN[:calls]], cap)
    facts = [f"Fact {word} is known." for word in ("one", "two", "three", "four")]
    retriever.searches.clear()
    _, asked = reason(run, *facts, max_steps=3, collect=50)
    assert (searched(retriever), len(asked)) == ([QUESTION, *facts[:3]], 3)


def test_a_smaller_budget_of_the_reader_ends_nothing_and_is_shared_by_the_searches(run, retriever):
    out, asked = reason(run, max_passages=5)
    first, second, third = retriever.search([QUESTION, *CHAIN[:2]], 4)
    turns = [first[0], second[0], third[0], first[1], second[1], third[1], first[2]]
    assert len(asked) == 3
    assert [p.id for p in out.passages] == list(dict.fromkeys(hit.passage.id for hit in turns))[:5]


def test_it_may_not_end_before_its_least_number_of_steps(run, retriever):
    out, asked = reason(run, CHAIN[2], *CHAIN[:2], CHAIN[2], min_steps=3)
    assert ["too early for the answer" in one.system for one in asked] == [True, True, False, False]
    assert searched(retriever) == [QUESTION, *CHAIN[:2]]
    assert out.fallbacks == []


def test_further_hits_of_the_searches_fill_the_budget(run, retriever):
    assert len(reason(run, CHAIN[2])[0].passages) == 4
    retriever.searches.clear()
    out, asked = reason(run, CHAIN[0], "The answer is Ohio.", fill=True)
    assert (len(out.passages), len(asked)) == (15, 2)
    assert retriever.searches[2] == ((QUESTION, CHAIN[0]), 15)
    before = collected(retriever, [QUESTION, CHAIN[0]], 15)
    assert out.passages[: len(before)] == before


def test_the_patterns_of_another_language_end_the_loop(run, retriever):
    class German(IRCoT):
        STOP = re.compile(r"Antwort ist")
        CONCLUDES = re.compile(r"Also")

    run(German, writing("Also ist das klar.", CHAIN[0], "Die Antwort ist Ohio."), question=QUESTION)
    assert searched(retriever) == [QUESTION, CHAIN[0]]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One without an end", "One without an end"),
        ('He said "It is one." Then he left.', 'He said "It is one."'),
        ("Dr. Smith met J. K. Rowling in St. Louis. They spoke.", "Dr. Smith met J. K. Rowling in St. Louis."),
        ("The U.S. Army, e.g. its bands, came. It left.", "The U.S. Army, e.g. its bands, came."),
        ("It weighs 3.5 kg? It is green.", "It weighs 3.5 kg?"),
        ("Born on 4 Oct. 1976 (see No. 5). Died later.", "Born on 4 Oct. 1976 (see No. 5)."),
        ("Well... it may be so. Or not.", "Well... it may be so."),
        ("彼は「はい。」と言った。次。", "彼は「はい。」と言った。"),
        ("2. Weltkrieg: 1939 bis 1945. Er begann in Polen.", "2. Weltkrieg: 1939 bis 1945."),
        ("\n 1. The first line\nThe second line.", "The first line"),
        (None, ""),
    ],
)
def test_first_sentence(text, first):
    assert first_sentence(text) == first
