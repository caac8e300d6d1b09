from __future__ import annotations

import dspy
import pytest

from querywright.programs.query_cleaning import LONGEST_QUERY, one_line, plain_line, query_texts, written_in


@pytest.mark.parametrize(
    "written",
    [
        "1. what helps", "(3) what helps", "\u2022 what helps", "* 4. what helps", "Query 2: what helps",
        "Q1. what helps", "\u201cwhat helps\u201d", "1. 'what\n helps'", "1\u3001what helps", "- what helps",
        "> what helps", "[1] what helps", "1\\. what helps", "2) what helps", "**Query 1:** what helps",
        "**Query 1**: what helps", "<query>what helps</query>", "\u2460 what helps",
        "Sub-question 1: what helps", "Step-back question: what helps", "Frage 2: what helps", "## what helps",
        "**what helps**", "*what helps*", "`what helps`", "- **what helps**", "Here is the query: what helps",
        "Here is a broader question:\n\nwhat helps\n\nLet me know if you need another.", "```\nwhat helps\n```",
    ],
)  # fmt: skip
def test_a_line_loses_what_makes_it_an_item_of_a_list(written):
    assert one_line(written) == "what helps"


@pytest.mark.parametrize(
    "text",
    [
        "'t Hooft's prize", "1.5 mg of insulin", "3-methylbutanal", "questionnaire design", "-40 \u00b0C in winter",
        "Q. Tarantino films", '"Heroes" by "Bowie"', "2. Weltkrieg Ursachen", "1. FC K\xf6ln Gr\xfcndung", "3. Oktober",
        "5. Sinfonie", "Q3: revenue of Siemens", "> 65 years", "24: season 3", "- 5 degrees", "(500) Days of Summer",
        "What is the ratio 3:1?", "Mission: Impossible", "SQL query: how to join", "emoticon :", "# of employees",
        "f(**kwargs) in Python", "2**3", "Here Comes the Sun", "Let Me Know by Aaliyah", "24: The Game",
        "Question Time",
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
        (["2. Weltkrieg", "3. Oktober", "other"], 5, ["2. Weltkrieg", "3. Oktober", "other"]),
        (["7. Sinfonie", "8. Sinfonie"], 5, ["7. Sinfonie", "8. Sinfonie"]),
        (["- 5 degrees", "> 65 years"], 5, ["- 5 degrees", "> 65 years"]),
        (["Q1: one", "Q2: two"], 5, ["one", "two"]),
        (["**1. one**", "2. **two**"], 5, ["one", "two"]),
        (["- 1. one", "- 2. two"], 5, ["one", "two"]),
        (["1 - one", "2 - two"], 5, ["one", "two"]),
        (["1. one\n2. two\n3. three"], 5, ["one", "two", "three"]),
        ("2. one\n3. two", 5, ["one", "two"]),
        ("- 5 one\n- 6 two", 5, ["5 one", "6 two"]),
        ("1. FC K\xf6ln", 5, ["1. FC K\xf6ln"]),
        ("Here are three queries:\n1. one\n2. two\n\nLet me know if you need more!", 5, ["one", "two"]),
        ("## Queries\n- one\n- two", 5, ["one", "two"]),
        ("```text\none\ntwo\n```", 5, ["one", "two"]),
        ("Causes:\none", 5, ["one"]),
        (["Sure! Here are 2 search queries:", "one", "two"], 5, ["one", "two"]),
        (["I suggest the following queries:", "one"], 5, ["one"]),
        (["Hier sind zwei Suchanfragen:", "one"], 5, ["one"]),
        (["\u4ee5\u4e0b\u662f\u67e5\u8be2\uff1a", "one"], 5, ["one"]),
        (["**Search Queries:**", "one"], 5, ["one"]),
        (["Causes:", "1. one", "2. two"], 5, ["one", "two"]),
        (["Meaning of the emoticon :", "one"], 5, ["Meaning of the emoticon :", "one"]),
        (["one", "I hope this helps!"], 5, ["one"]),
        (["one", "These queries should cover the topic.", "Would you like me to refine them?"], 5, ["one"]),
        (["Here are three queries:"], 5, []),
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
