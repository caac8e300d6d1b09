"""The two steps that write test questions: what the LM is shown, and what is made of its answer."""

from __future__ import annotations

import pytest
from dspy.utils.exceptions import AdapterParseError

from querywright.data.types import Passage
from querywright.programs.question_writer import AskAnother, RephraseQuestion

TEA = Passage("tea", "Tea hinders\nthe uptake of iron.", "Tea")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("1. Which drink hinders iron?", "Which drink hinders iron?"),
        ('"Which drink\nhinders iron?"', "Which drink hinders iron?"),
        ("none", ""),
    ],
)
def test_a_wording_is_one_clean_line(scripted, asking, written, text):
    with asking(scripted({"rephrased_question": written})):
        assert RephraseQuestion()(question="What hinders iron?").question == text


def test_another_question_is_asked_with_the_passage_and_its_stored_questions(scripted, asking):
    lm = scripted({"new_question": "- Does tea hinder iron?"})
    with asking(lm):
        assert (
            AskAnother()(passage=TEA, stored=["What is tea?", "Who\ndrinks tea?"]).question == "Does tea hinder iron?"
        )
    _, shown = lm.engine.asked[0].messages[-1]
    assert "passage: Tea: Tea hinders the uptake of iron." in shown
    assert "stored_questions:\n- What is tea?\n- Who drinks tea?" in shown


def test_the_examples_are_known_to_whoever_sorts_out_what_was_copied():
    assert "What protects the roots of a rose against frost?" in RephraseQuestion().examples()
    assert {"What kind of nights bring frost?", "In which month is the straw on roses taken away?"} < set(
        AskAnother().examples()
    )


def test_an_answer_that_cannot_be_read_is_no_question(scripted, asking):
    with asking(scripted("hm")), pytest.raises(AdapterParseError):
        RephraseQuestion()(question="What hinders iron?")
