from __future__ import annotations

import dspy
import pytest

from querywright.programs.query_cleaning import LONGEST_QUERY, one_line, plain_line, query_texts, written_in


@pytest.mark.parametrize(
    "written",
    [
        "1. what helps", "(3) what helps", "\u2022 what helps", "* 4: what helps", "Query 2: what helps",
        "Q1. what helps", "\u201cwhat helps\u201d", "1. 'what\n helps'", "1\u3001what helps",
    ],
)  # fmt: skip
def test_a_line_loses_its_number_and_its_quotes(written):
    assert one_line(written) == "what helps"


@pytest.mark.parametrize(
    "text",
    [
        "'t Hooft's prize", "1.5 mg of insulin", "3-methylbutanal", "questionnaire design", "-40 \u00b0C in winter",
        "Q. Tarantino films", '"Heroes" by "Bowie"',
    ],
)  # fmt: skip
def test_and_nothing_else(text):
    assert one_line(text) == plain_line(text) == text


def test_what_stands_for_nothing_is_empty_and_a_text_that_is_no_query_keeps_its_number():
    assert [one_line(nothing) for nothing in ("12.", "None", "n/a.", "-", "", None)] == [""] * 6
    assert one_line(7) == "7"
    lines = {"10. Dezember 1815": "10. Dezember 1815", "7.": "7.", "- 5\n degrees": "- 5 degrees", '"Ohio"': "Ohio"}
    assert {text: plain_line(text) for text in lines} == lines
    assert (written_in(None, "text"), written_in(dspy.Prediction(text=' "a\nb" '), "text")) == ("", "a b")


@pytest.mark.parametrize(
    ("written", "limit", "texts"),
    [
        (["1. one", "2. two", "3. three"], 2, ["one", "two"]),
        (["one", "One?", "ONE.", "two"], 5, ["one", "two"]),
        ("one\ntwo; three\n\n", 5, ["one", "two", "three"]),
        (["", None, "none", " two "], 5, ["two"]),
        (["the question", "another"], 5, ["another"]),
        (None, 5, []),
        (["one"], 0, []),
    ],
)
def test_queries_are_unique_and_at_most_so_many(written, limit, texts):
    assert query_texts(written, limit, besides=["The question?"]) == texts


def test_a_copy_of_the_question_is_dropped_with_other_quotes_and_cut_off_by_the_grammar():
    question = 'Which "band" of the year was it that ' + "played in the harbour on the first Sunday of spring, " * 3
    copied = question.replace('"', "'")
    cut = copied[:LONGEST_QUERY].rpartition(" ")[0]
    assert len(question) > LONGEST_QUERY > len(cut)
    assert query_texts([copied, cut, "another"], 3, besides=[question]) == ["another"]
    part = "Which 'band' of the year was it"
    assert query_texts([part], 3, besides=[question]) == [part]  # a shorter question is one of its own
