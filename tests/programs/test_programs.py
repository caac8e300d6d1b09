from __future__ import annotations

import pytest

from querywright.data.types import Label, Passage, Question
from querywright.errors import InputError, TechniqueError
from querywright.programs import (
    RAG,
    TECHNIQUES,
    ClosedBook,
    MultipleChoiceReader,
    OracleEvidence,
    PlainRetrieval,
    Plan,
    Technique,
    make_program,
    technique_class,
)
from querywright.retrieval.types import Query

QUESTION = "Which drug lowers blood sugar?"
OPTIONS = ["Aspirin", "Insulin"]


def test_techniques_by_name(retriever):
    assert technique_class("plain") is PlainRetrieval
    known = ", ".join(TECHNIQUES)
    with pytest.raises(TechniqueError, match=f"^unknown technique 'hyd'; the techniques are: {known}$"):
        technique_class("hyd")
    with pytest.raises(TechniqueError, match="unknown technique 'hyd'"):
        make_program("hyd", retriever)


def test_make_program(retriever):
    program = make_program("plain", retriever, reader="multiple_choice", max_passages=7)

    assert isinstance(program, RAG)
    assert isinstance(program.technique, PlainRetrieval)
    assert isinstance(program.reader, MultipleChoiceReader)
    assert program.technique.retriever is retriever
    assert program.technique.knobs["max_passages"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reader": "long"}, "unknown reader 'long'"),
        ({"top_k": 3}, "unknown knob 'top_k'; the knobs are: max_passages, query_with_options"),
        ({"max_passages": 0}, "max_passages must be a whole number from 1 to 50, but got 0"),
    ],
)
def test_make_program_says_what_is_wrong(retriever, arguments, message):
    with pytest.raises(TechniqueError, match=message):
        make_program("plain", retriever, **arguments)


def test_a_retriever_that_is_none_is_refused():
    with pytest.raises(InputError, match="int is no retriever"):
        make_program("plain", 5)


def test_any_function_can_be_the_retriever(scripted, asking):
    program = make_program("plain", lambda query, k: [f"{query} {n}" for n in range(k)], max_passages=2)
    with asking(scripted()):
        out = program(question="Why?")

    assert [passage.text for passage in out.passages] == ["Why? 0", "Why? 1"]


def test_plain_searches_the_question_alone_by_default(retriever):
    out = PlainRetrieval(retriever)(question=QUESTION, options=OPTIONS)

    assert [(q.text, q.role) for q in out.queries] == [(QUESTION, "original")]
    assert retriever.searches == [((QUESTION,), 5)]
    assert [p.id for p in out.passages] == [h.passage.id for h in retriever.search([QUESTION], 5)[0]]


def test_plain_may_search_the_options_too(retriever):
    technique = PlainRetrieval(retriever, query_with_options=True)

    assert technique(question=QUESTION, options=OPTIONS).queries[0].text == f"{QUESTION} Aspirin Insulin"
    assert technique(question=QUESTION).queries[0].text == QUESTION


def test_closed_book_finds_nothing_and_needs_no_retriever():
    out = ClosedBook()(question=QUESTION, options=OPTIONS)

    assert (out.passages, out.queries, out.steps, out.fallbacks) == ([], [], [], [])


def test_a_technique_may_leave_knobs_undeclared(retriever):
    class Pair(Technique):
        NAME = "pair"

        async def plan(self, question, options):
            return Plan((Query("one"), Query("two")))

    out = Pair(retriever, max_passages=4)(question=QUESTION)

    one, two = retriever.search(["one", "two"], 4)
    rounds = [hit.passage.id for pair in zip(one, two, strict=True) for hit in pair]
    assert [p.id for p in out.passages] == list(dict.fromkeys(rounds))[:4]


def test_a_technique_without_a_plan_says_so(retriever):
    with pytest.raises(NotImplementedError, match=r"Technique must write plan\(\)"):
        Technique(retriever)(question=QUESTION)


def test_rag_without_a_reader_only_retrieves(retriever, scripted, asking):
    lm = scripted()
    with asking(lm):
        out = make_program("plain", retriever)(question=QUESTION)

    assert out.answer is None
    assert len(out.passages) == 5
    assert lm.engine.asked == []


def test_rag_gives_everything_that_technique_and_reader_give(retriever, scripted, asking):
    program = make_program("hcqr", retriever, reader="multiple_choice", max_passages=4)
    with asking(scripted()):
        out = program(question=QUESTION, options=OPTIONS)

    assert out.answer in OPTIONS
    assert len(out.passages) == 4
    assert [q.role for q in out.queries] == ["support", "distinguish", "verify"]
    assert out.steps[0].made["best_guess"] in OPTIONS
    assert out.fallbacks == []


def test_rag_names_the_fallbacks_of_both(retriever, scripted, asking):
    program = make_program("hcqr", retriever, reader="multiple_choice")
    with asking(scripted("B")):
        out = program(question=QUESTION, options=OPTIONS)

    assert out.fallbacks == ["hypothesis", "reader"]
    assert out.answer == "B"


CARDS = {key: Passage(key, f"card {key}") for key in "abcd"}
LABELLED = Question(
    "q",
    QUESTION,
    ("Aspirin", "Insulin"),
    "Insulin",
    evidence={"c": Label.ENTAILED, "a": Label.USEFUL, "gone": Label.ENTAILED, "b": Label.ENTAILED},
)


def test_oracle_gives_the_passages_that_entail():
    oracle = OracleEvidence(CARDS, [LABELLED])

    out = oracle(question=QUESTION, options=OPTIONS)
    assert [p.id for p in out.passages] == ["c", "b"]
    assert (out.queries, out.steps, out.fallbacks) == ([], [], [])
    assert [p.id for p in oracle.with_knobs(max_passages=1)(question=QUESTION, options=OPTIONS).passages] == ["c"]


def test_oracle_knows_only_its_questions():
    oracle = OracleEvidence(CARDS, [LABELLED])

    assert oracle(question="Another one?", options=OPTIONS).passages == []
    assert oracle(question=QUESTION, options=["Insulin", "Aspirin"]).passages == []
    assert oracle(question=QUESTION).passages == []


def test_oracle_is_a_reference_and_no_technique(scripted, asking):
    assert OracleEvidence.NAME not in TECHNIQUES

    lm = scripted({"answer": "Insulin"})
    with asking(lm):
        out = RAG(OracleEvidence(CARDS, [LABELLED]), MultipleChoiceReader())(question=QUESTION, options=OPTIONS)
    assert out.answer == "Insulin"
    assert "[1] card c\n[2] card b" in lm.engine.asked[0].text
