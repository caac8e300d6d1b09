from __future__ import annotations

import json

import dspy
import pytest
from dspy import lm15
from dspy.utils.exceptions import LMError

from querywright.errors import TechniqueError
from querywright.metrics.answers import choice_accuracy
from querywright.programs import READERS, MultipleChoiceReader, ShortAnswerReader, make_reader

QUESTION = "Which drug lowers blood sugar?"
OPTIONS = ["Aspirin", "Insulin", "St. John's wort"]


@pytest.fixture
def read(scripted, asking, passages):
    """Asks a reader; gives the result and what the LM was asked."""

    def read(reader, *steps, adapter=None, options=OPTIONS, shown=2):
        lm = scripted(*steps)
        with asking(lm, adapter):
            out = reader(question=QUESTION, options=options, passages=passages[:shown])
        return out, lm.engine.asked

    return read


def test_multiple_choice_offers_the_options_as_the_only_answers(read):
    out, (asked,) = read(MultipleChoiceReader(), {"answer": "Insulin"})

    assert (out.answer, out.fallbacks) == ("Insulin", [])
    assert asked.properties["answer"]["enum"] == OPTIONS
    assert 'one of "Aspirin" | "Insulin" | "St. John\'s wort"' in asked.system
    assert asked.messages == (
        (
            "user",
            "passages:\n[1] Title 0: Fact number 0 of the handbook.\n[2] Title 1: Fact number 1 of the handbook.\n\n"
            "question: Which drug lowers blood sugar?",
        ),
    )


def test_closed_book_shows_no_passages(read):
    _, (asked,) = read(MultipleChoiceReader(), {"answer": "Insulin"}, shown=0)

    assert asked.messages == (("user", "question: Which drug lowers blood sugar?"),)


def test_tuned_instructions_and_demonstrations_stay(read):
    reader = MultipleChoiceReader()
    reader.predict.signature = reader.predict.signature.with_instructions("Read like a pharmacist.")
    reader.predict.demos = [
        dspy.Example(passages="[1] Ice is cold.", question="What is ice?", answer="cold"),
    ]
    for options in (OPTIONS, ["Metformin", "Insulin"]):
        _, (asked,) = read(reader, {"answer": "Insulin"}, options=options)

        assert asked.system.startswith("Read like a pharmacist.\n")
        assert asked.properties["answer"]["enum"] == options
        assert [role for role, _ in asked.messages] == ["user", "assistant", "user"]
        assert "question: What is ice?" in asked.messages[0][1]
        assert json.loads(asked.messages[1][1]) == {"answer": "cold"}
    assert reader.predict.signature.output_fields["answer"].annotation is str  # a call changes nothing


@pytest.mark.parametrize("written", ["insulin", "INSULIN.", '"Insulin"', " Insulin\n"])
def test_an_option_in_another_spelling_is_that_option(read, written):
    out, _ = read(MultipleChoiceReader(), json.dumps({"answer": written}))

    assert out.answer == "Insulin"


@pytest.mark.parametrize("written", ["B", "(b)", "B) Insulin", "The answer is B.", "I think that Insulin is right."])
def test_another_form_is_kept_for_the_metric_to_judge(read, written):
    for answer in (json.dumps({"answer": written}), written):
        out, asked = read(MultipleChoiceReader(), answer)

        assert out.answer == written
        assert out.fallbacks == ["reader"]
        assert choice_accuracy(out.answer, OPTIONS, "Insulin") == 1.0
        assert len(asked) == 2
        assert "could not be read" in asked[1].messages[-1][1]
        assert asked[1].properties == asked[0].properties


def test_a_form_that_is_right_the_second_time_is_no_fallback(read):
    out, asked = read(MultipleChoiceReader(), "B", {"answer": "Aspirin"})

    assert (out.answer, out.fallbacks, len(asked)) == ("Aspirin", [], 2)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("nothing", ["", " \n", "{}", '{"reply": "Insulin"}', '{"answer": ', '{"answer": ""}'])
def test_an_answer_that_is_missing_is_empty(read, reader, nothing):
    out, _ = read(reader(), nothing)

    assert out.answer == ""


@pytest.mark.parametrize("adapter", [None, dspy.ChatAdapter(), dspy.JSONAdapter()])
def test_thoughts_without_an_answer_are_no_answer(read, adapter):
    out, _ = read(MultipleChoiceReader(), lm15.ThinkingPart("Aspirin? No: Insulin"), adapter=adapter)

    assert (out.answer, out.fallbacks) == ("", ["reader"])


def test_null_is_no_option(read):
    out, _ = read(MultipleChoiceReader(), '{"answer": null}')

    assert (out.answer, out.fallbacks) == ("", ["reader"])


def test_spellings_that_two_options_share_are_not_guessed(read):
    out, _ = read(MultipleChoiceReader(), '{"answer": "aA"}', options=["AA", "Aa", "aa"])
    assert (out.answer, out.fallbacks) == ("aA", ["reader"])

    out, _ = read(MultipleChoiceReader(), '{"answer": "Aa"}', options=["AA", "Aa", "aa"])
    assert (out.answer, out.fallbacks) == ("Aa", [])


@pytest.mark.parametrize("answer", ["[[ ## answer ## ]]\nB\n\n[[ ## completed ## ]]", "B"])
def test_under_dspys_chat_adapter(read, answer):
    out, _ = read(MultipleChoiceReader(), "[[ ## answer ## ]]\nInsulin", adapter=dspy.ChatAdapter())
    assert (out.answer, out.fallbacks) == ("Insulin", [])

    out, _ = read(MultipleChoiceReader(), answer, adapter=dspy.ChatAdapter())
    assert (out.answer, out.fallbacks) == ("B", ["reader"])


@pytest.mark.parametrize("options", [None, []])
def test_multiple_choice_needs_options(read, options):
    with pytest.raises(TechniqueError, match=r"the question has none: 'Which drug .*short_answer"):
        read(MultipleChoiceReader(), options=options)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("options", [["Aspirin"], ["Aspirin", "Aspirin"], [1, 2], "Aspirin"])
def test_bad_options_are_refused(read, reader, options):
    with pytest.raises(TechniqueError, match="options must be"):
        read(reader(), options=options)


def test_short_answer(read):
    out, (asked,) = read(ShortAnswerReader(), {"answer": " Insulin "}, options=None)

    assert (out.answer, out.fallbacks) == ("Insulin", [])
    assert "enum" not in asked.properties["answer"]
    assert asked.messages[-1][1].endswith("question: Which drug lowers blood sugar?")


def test_short_answer_keeps_what_the_lm_wrote(read):
    out, asked = read(ShortAnswerReader(), "Insulin, of course", options=None)

    assert (out.answer, out.fallbacks, len(asked)) == ("Insulin, of course", ["reader"], 2)


def test_an_lm_that_fails_is_no_answer(read):
    def down(asked):
        raise LMError("the service is down")

    with pytest.raises(LMError, match="the service is down"):
        read(MultipleChoiceReader(), down)


def test_readers_by_name():
    assert {name: type(make_reader(name)) for name in READERS} == {
        "multiple_choice": MultipleChoiceReader,
        "short_answer": ShortAnswerReader,
    }
    with pytest.raises(TechniqueError, match="unknown reader 'choice'; the readers are: multiple_choice, short"):
        make_reader("choice")
