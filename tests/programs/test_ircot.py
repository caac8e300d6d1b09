from __future__ import annotations

import json
import re

import pytest

from querywright.data.types import Passage
from querywright.programs import IRCoT, make_program
from querywright.programs.ircot import first_sentence

QUESTION = "In which state was the director of the film Jaws born?"
CHAIN = ["Jaws was directed by Steven Spielberg.", "Steven Spielberg was born in Cincinnati.", "So the answer is Ohio."]
UNREADABLE = "sorry, no JSON"


def play(*sentences):
    """The LM's part: it writes the sentences in turn, the last one again and again, and reads."""
    left = list(sentences)

    def step(asked):
        if "next_sentence" not in asked.properties:
            return json.dumps({"answer": "Ohio"})
        sentence = left.pop(0) if len(left) > 1 else left[0]
        return sentence if sentence == UNREADABLE else json.dumps({"next_sentence": sentence})

    return step


@pytest.fixture
def run(retriever, scripted, asking):
    """Runs IRCoT with some sentences of the LM; gives the result and what the LM was asked."""

    def run(*sentences, kind=IRCoT, **knobs):
        lm = scripted(play(*(sentences or CHAIN)))
        with asking(lm):
            out = kind(retriever, **knobs)(question=QUESTION)
        return out, lm.engine.asked

    return run


def hits(retriever, query, k=4):
    return [hit.passage for hit in retriever.search([query], k)[0]]


def collected(retriever, queries, cap, k=4):
    """The passages of the queries one after another, each once."""
    return list({passage.id: passage for query in queries for passage in hits(retriever, query, k)}.values())[:cap]


def searched(retriever):
    return [text for (text,), _ in retriever.searches]


def test_each_sentence_is_the_next_query_until_the_answer(run, retriever):
    out, asked = run()

    assert retriever.searches == [((QUESTION,), 4), ((CHAIN[0],), 4), ((CHAIN[1],), 4)]
    assert [(q.text, q.role) for q in out.queries] == [
        (QUESTION, "original"),
        (CHAIN[0], "sentence"),
        (CHAIN[1], "sentence"),
    ]
    assert len(asked) == 3
    assert (out.fallbacks, out.findings) == ([], [])


def test_passages_are_in_the_order_in_which_they_were_collected(run, retriever):
    out, _ = run()

    assert out.passages == collected(retriever, [QUESTION, *CHAIN[:2]], 15)
    assert 8 < len(out.passages) <= 12


def test_reasoning_sees_all_passages_the_question_and_the_sentences_so_far(run, retriever):
    _, asked = run()

    prompts = [one.messages[0][1] for one in asked]
    for number, prompt in enumerate(prompts):
        shown = collected(retriever, [QUESTION, *CHAIN[:number]], 15)
        lines = [f"[{place}] {passage.title}: {passage.text}" for place, passage in enumerate(shown, 1)]
        assert prompt.startswith("passages:\n" + "\n".join(lines) + f"\n\nquestion: {QUESTION}")
        assert [sentence for sentence in CHAIN if sentence in prompt] == CHAIN[:number]
    # A prefix cache finds the passages of the last step at the beginning of the next.
    assert prompts[2].startswith(prompts[1].partition("\n\nquestion:")[0])


def test_the_reader_starts_afresh(retriever, scripted, asking):
    lm = scripted(play(*CHAIN))
    with asking(lm):
        out = make_program("ircot", retriever, reader="short_answer")(question=QUESTION)

    *_, read = lm.engine.asked
    assert out.answer == "Ohio"
    assert f"question: {QUESTION}" in read.text
    assert all(passage.text in read.text for passage in out.passages)
    assert not any(words in read.text for words in (*CHAIN, "Spielberg", "Cincinnati", "Ohio", "sentence"))


@pytest.mark.parametrize(
    "last", ["So the answer is Ohio.", "The Answer is: Ohio", "answer is", "Hence the answer is Ohio. It lies north."]
)
def test_a_sentence_with_the_answer_ends_the_loop_and_is_not_searched(run, retriever, last):
    out, asked = run(CHAIN[0], last)

    assert searched(retriever) == [QUESTION, CHAIN[0]]
    assert (len(asked), out.fallbacks) == (2, [])


def test_only_the_first_sentence_is_kept(run, retriever):
    _, asked = run(f"{CHAIN[0]} {CHAIN[1]} So the answer is Ohio.", CHAIN[2])

    assert searched(retriever) == [QUESTION, CHAIN[0]]
    assert len(asked) == 2
    assert CHAIN[1] not in asked[1].text


def test_a_sentence_that_repeats_an_earlier_one_ends_the_loop(run, retriever):
    out, asked = run(*CHAIN[:2], "jaws was  directed by Steven Spielberg")

    assert searched(retriever) == [QUESTION, *CHAIN[:2]]
    assert (len(asked), out.fallbacks) == (3, [])


@pytest.mark.parametrize(
    "conclusion",
    [
        "So the film is American.",
        "Thus, it was Cincinnati.",
        "THEREFORE it was Ohio.",
        "Hence Ohio it must be.",
        "He was 1975 - 1946 = 29 years old.",
        "It cost 3,000 + 500 = 3,500 dollars.",
        "That makes 4 x 5 equals 20 people.",
    ],
)
def test_conclusions_are_not_searched(run, retriever, conclusion):
    out, asked = run(conclusion, CHAIN[0], f"{conclusion[:-1]} indeed.", CHAIN[2])

    assert searched(retriever) == [QUESTION, CHAIN[0]]  # the question, then the last fact: each is searched once
    assert [query.text for query in out.queries] == [QUESTION, CHAIN[0]]
    assert len(asked) == 4
    assert conclusion in asked[1].text  # the reasoning goes on from it all the same


def test_a_bare_number_is_not_searched(run, retriever):
    run("1986-2013", CHAIN[0], "1986.", CHAIN[2])

    assert searched(retriever) == [QUESTION, CHAIN[0]]


@pytest.mark.parametrize(
    "fact",
    [
        "Sofia Coppola was born in 1971.",
        "He reigned 1914-1918.",
        "Henceforth Park is in Ohio.",
        "It scored 3-2 in 2010.",
    ],
)
def test_facts_that_look_a_little_like_conclusions_are_searched(run, retriever, fact):
    run(fact, CHAIN[2])

    assert searched(retriever) == [QUESTION, fact]


@pytest.mark.parametrize("nothing", [UNREADABLE, "", "  \n ", "none"])
@pytest.mark.parametrize("before", [0, 1])
def test_a_sentence_that_is_missing_ends_the_loop(run, retriever, nothing, before):
    out, _ = run(*CHAIN[:before], nothing)

    assert out.fallbacks == [f"sentence:{before + 1}"]
    assert searched(retriever) == [QUESTION, *CHAIN[:before]]
    assert out.passages == collected(retriever, [QUESTION, *CHAIN[:before]], 15)


def test_it_ends_after_max_steps(run, retriever):
    facts = [f"Fact {word} is known." for word in ("one", "two", "three", "four")]
    out, asked = run(*facts, max_steps=3, collect=50)

    assert searched(retriever) == [QUESTION, *facts[:3]]
    assert (len(asked), out.fallbacks) == (3, [])


@pytest.mark.parametrize(("cap", "calls"), [(3, 0), (4, 0), (5, 1), (9, 2)])
def test_it_ends_when_no_more_passages_may_be_collected(run, retriever, cap, calls):
    out, asked = run(collect=cap)

    assert len(asked) == calls
    assert out.passages == collected(retriever, [QUESTION, *CHAIN[:calls]], cap)
    assert len(out.passages) == cap


def test_a_smaller_budget_of_the_reader_ends_nothing_and_is_shared_by_the_searches(run, retriever):
    out, asked = run(max_passages=5)

    assert len(asked) == 3
    first, second, third = retriever.search([QUESTION, *CHAIN[:2]], 4)
    turns = [first[0], second[0], third[0], first[1], second[1], third[1], first[2]]
    assert [p.id for p in out.passages] == list(dict.fromkeys(hit.passage.id for hit in turns))[:5]


def test_a_passage_that_reads_the_same_is_collected_once(scripted, asking, retriever):
    retriever.passages += [Passage(f"copy {p.id}", p.text.upper(), p.title) for p in retriever.passages]
    with asking(scripted(play(*CHAIN))):
        out = IRCoT(retriever, top_k=50, max_passages=50, collect=50)(question=QUESTION)

    assert len({passage.text.casefold() for passage in out.passages}) == len(out.passages)


def test_long_passages_are_cut_for_the_reasoning_only(retriever, scripted, asking):
    text = " ".join(f"word{number}" for number in range(400))
    retriever.passages = [Passage("long", text)]
    lm = scripted(play(CHAIN[2]))
    with asking(lm):
        out = make_program("ircot", retriever, reader="short_answer")(question=QUESTION)

    reason, read = lm.engine.asked
    assert "word349\n" in reason.text
    assert "word350" not in reason.text
    assert text in read.text
    assert out.passages == [Passage("long", text)]


def test_another_language_has_its_own_words(run, retriever):
    class Chinese(IRCoT):
        STOP = re.compile("答案是")
        REASONING = re.compile("所以|因此")

    out, asked = run("大白鲨的导演是斯皮尔伯格。他很有名。", "所以他是美国人。", "答案是俄亥俄。", kind=Chinese)

    assert searched(retriever) == [QUESTION, "大白鲨的导演是斯皮尔伯格。"]
    assert (len(asked), out.fallbacks) == (3, [])


def test_a_trace_tells_the_steps_in_order(run):
    out, _ = run()

    assert [(step.stage, step.kind, step.name) for step in out.steps] == [
        (1, "search", "passages"),
        (2, "lm", "write_next_sentence"),
        (3, "search", "passages"),
        (4, "lm", "write_next_sentence"),
        (5, "search", "passages"),
        (6, "lm", "write_next_sentence"),
    ]
    assert [step.made for step in out.steps[1::2]] == [{"next_sentence": sentence} for sentence in CHAIN]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One is here. Two is there.", "One is here."),
        ("One without an end", "One without an end"),
        ("Is it one? It is.", "Is it one?"),
        ("It is! Two.", "It is!"),
        ('He said "It is one." Then he left.', 'He said "It is one."'),
        ("Dr. Smith met J. K. Rowling in St. Louis. They spoke.", "Dr. Smith met J. K. Rowling in St. Louis."),
        ("The U.S. Army, e.g. its bands, came. It left.", "The U.S. Army, e.g. its bands, came."),
        ("It weighs 3.5 kg. It is green.", "It weighs 3.5 kg."),
        ("Apple Inc. was founded in 1976. It grew.", "Apple Inc. was founded in 1976."),
        ("Born on 4 Oct. 1976 (see No. 5). Died later.", "Born on 4 Oct. 1976 (see No. 5)."),
        ("Well... it may be so. Or not.", "Well... it may be so."),
        ("It ended in 1976. 1977 was better.", "It ended in 1976."),
        ("第一句。第二句。", "第一句。"),
        ("彼は「はい。」と言った。次。", "彼は「はい。」と言った。"),
        ("本当\uff1fはい。", "本当\uff1f"),
        ("첫 문장이다. 둘째 문장이다.", "첫 문장이다."),
        ("\n 1. The first line\nThe second line.", "The first line"),
        ("- A bullet. More.", "A bullet."),
        ('"A quoted sentence."', "A quoted sentence."),
        ("none", ""),
        ("", ""),
        (" \n\t", ""),
        (None, ""),
    ],
)
def test_first_sentence(text, first):
    assert first_sentence(text) == first
