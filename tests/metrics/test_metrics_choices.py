from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querywright.errors import DataError
from querywright.metrics.answers import choice_accuracy, extract_option, is_invalid_choice, mmlu_accuracy

DRUGS = ["Aspirin", "A beta blocker", "Insulin", "Aspirin with insulin"]
GERMS = ["C. difficile", "Staphylococcus aureus", "E. coli", "Vibrio cholerae", "Giardia"]


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        (" **aspirin**. ", 0),
        ('"A  beta\nblocker"', 1),
        ("aspirin with INSULIN", 3),
    ],
)
def test_option_text_alone(answer, index):
    assert extract_option(answer, DRUGS) == index


@pytest.mark.parametrize(
    "answer",
    [
        "B",
        "B. a beta blocker",
        "B because it slows the heart",
        "Final answer: (B) A beta blocker",
        "the correct answer is: **B**, not C",
        '{"answer": "B"}',
        "The answer is $\\boxed{B}$.",
        "It is B",
        "I think that's (B), since it slows the heart.",
        "B, a drug that slows the heart",
        "The answer is B, C-reactive protein does not matter",
        "C: tempting, but no.\n\nB",
        "The answer is A. No, wait: the answer is B.",
        "A) is wrong and C) is wrong.\nAnswer: B) A beta blocker",
        "Ans. B",
        "I choose B.",
        "A resposta correta é a letra B",
        "选B",
        "A) is wrong.\nThe answer is B because it slows the heart.",
    ],
)
def test_final_letter(answer):
    assert extract_option(answer, DRUGS) == 1


@pytest.mark.parametrize(
    "answer",
    [
        "Option B",
        "I choose **option B**.",
        "**Answer: B**",
        "<answer>B</answer>",
        r"$\boxed{\text{B}}$",
        r"Thus \boxed{B} follows.",
        r"\(\mathbf{B}\)",
        "\uff08\uff22\uff09",
        "\u300cB\u300d",
        "Antwort: B",
        "Richtig ist B.",
        "C'est la B.",
        "La bonne réponse est la B",
        "La risposta corretta è B",
        "Правильный ответ \u2014 B",
        "Doğru cevap B'dir.",
        "答案\uff1aB",
        "正解はBです。",
        "정답은 B입니다.",
        "الإجابة هي B",
        "सही उत्तर B है।",
    ],
)
def test_final_letter_inside_marks_and_in_other_languages(answer):
    assert extract_option(answer, DRUGS) == 1


@pytest.mark.parametrize(
    "answer",
    [
        "   ",
        "Not option B.",
        "A resposta é um remédio",
        "Option A or option B",
        "答案是A或B",
        "The answer is a drug that slows the heart",
        "The answer is A or B",
        "E",
        "The answer is A. No, the answer is Z.",
        "The answer is B-cell therapy",
        "It is not B.",
        "Aspirin or insulin",
        "Answer: A. Insulin",  # letter and text disagree
        "A) Aspirin\nB) A beta blocker\nC) Insulin",  # the list said again
        "non-insulin",
    ],
)
def test_nothing_that_can_be_told(answer):
    assert extract_option(answer, DRUGS) is None
    assert is_invalid_choice(answer, DRUGS)


def test_letter_a_alone_is_a_letter_and_before_a_noun_an_article():
    assert extract_option("A", DRUGS) == 0
    assert extract_option("the answer is A.", DRUGS) == 0
    assert extract_option("I would give a beta blocker, as it slows the heart.", DRUGS) == 1


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        ("E. coli", 2),  # not the letter E
        ("The answer is C. difficile", 0),
        ("S. aureus", None),
        ("H. Pylori is not it, Giardia is", 4),
        ("The answer is E.", 4),
    ],
)
def test_letters_inside_names(answer, index):
    assert extract_option(answer, GERMS) == index


@pytest.mark.parametrize(
    ("answer", "options", "index"),
    [
        ("She needs aspirin with insulin now", DRUGS, 3),  # the longer text, not the two inside it
        ("Yes, it is safe", ["yes", "no", "maybe"], 0),
        ("maybe yes, maybe no", ["yes", "no", "maybe"], None),
        ("Yes, it is O.", ["yes", "no", "maybe"], 0),  # no option has this letter
        ("about 2.5 mg", ["5", "2.5", "25"], 1),
        ("about 2.5 mg", ["5", "3", "25"], None),
        ("The genotype is Aa.", ["AA", "Aa", "aa"], 1),
        ("HBsAg -", ["HBsAg +", "HBsAg -"], 1),
        ("A", [], None),
        ("Crohn\u2019s disease", ["Crohn's disease", "Colitis"], 0),
        ("The answer is B", ["C", "A", "B"], 2),  # options that are letters are meant by their text
        ("the drug", ["drug", "drug"], None),
        ("C++", ["C", "C++", "C#"], 1),
        ("It is C#.", ["C", "C++", "C#"], 2),
        ("The grade is A-.", ["A+", "A-", "B"], 1),
        ("It is \u221240 °C", ["40", "-40"], 1),
        ("2.50 mg", ["25 mg", "2.5 mg"], 1),
        ("10%", ["10", "10%"], 1),
        ("beta-blocker", ["beta blocker", "insulin"], 0),
    ],
)
def test_option_text_inside_an_answer(answer, options, index):
    assert extract_option(answer, options) == index


def test_mmlus_form_takes_the_letter_or_the_text_in_the_first_line_alone():
    said = ["B", "(b)", " B.\nIt is.", "a beta-blocker", "A beta blocker.", "The answer is B", "C"]
    assert [mmlu_accuracy(one, DRUGS, "A beta blocker") for one in said] == [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert mmlu_accuracy("25", ["25", "2.5"], "2.5") == 1.0  # punctuation is deleted
    with pytest.raises(DataError, match=r"must be one of the options .* but got 'B'"):
        mmlu_accuracy("B", DRUGS, "B")


def test_accuracy_counts_invalid_as_wrong_and_needs_an_option_that_is_right():
    assert [choice_accuracy(answer, DRUGS, "A beta blocker") for answer in ("B", "C", "")] == [1.0, 0.0, 0.0]
    assert not is_invalid_choice("C", DRUGS)
    with pytest.raises(DataError, match=r"must be one of the options .* but got 'B'"):
        choice_accuracy("B", DRUGS, "B")


@given(st.text(max_size=60), st.lists(st.text(max_size=8), max_size=6))
def test_any_text_gives_an_option_or_none(answer, options):
    index = extract_option(answer, options)
    assert index is None or 0 <= index < len(options)
