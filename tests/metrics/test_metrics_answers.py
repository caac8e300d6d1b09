from __future__ import annotations

import math

import pytest
from dspy.evaluate.metrics import em_score, f1_score
from hypothesis import given, settings
from hypothesis import strategies as st

from querywright.metrics.answers import (
    contains_answer,
    exact_match,
    hit,
    squad_exact_match,
    squad_f1,
    token_f1,
)

WORDS = st.lists(st.sampled_from(["red", "blue", "green", "the", "a", "x-ray", "U.S."]), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("prediction", "answers", "match", "f1"),
    [
        ("the Beatles", ["Queen", "Beatles"], 1.0, 1.0),
        ("A", [""], 0.0, 0.0),
        ("2.5 mg", ["25 mg"], 0.0, 1 / 2),  # the unit is shared
        ("red red blue", ["red blue blue"], 0.0, 2 / 3),  # shared: red once, blue once
        ("red", ["blue", "red green"], 0.0, 2 / 3),
        ("red", ["the"], 0.0, 0.0),
        ("대한 민국。", ["대한민국"], 1.0, 1.0),
        ("北京市", ["北京"], 0.0, 4 / 5),  # P 2/3, R 1
        ("서울은", ["서울"], 0.0, 4 / 5),  # by words it would be 0
        ("1911年", ["1912年"], 0.0, 1 / 2),  # a number is one token
    ],
)
def test_exact_match_and_f1_by_hand(prediction, answers, match, f1):
    assert exact_match(prediction, answers) == match
    assert token_f1(prediction, answers) == pytest.approx(f1)


@given(WORDS, WORDS.filter(bool))
def test_english_scores_of_squads_form_are_dspys(prediction, answer):
    if not squad_f1(prediction, [""]) and not squad_f1(answer, [""]):  # neither is empty
        assert squad_f1(prediction, [answer]) == pytest.approx(f1_score(prediction, answer))
    assert squad_exact_match(prediction, [answer]) == float(em_score(prediction, answer))


def test_squads_form_deletes_signs():
    assert squad_exact_match("A", [""]) == squad_f1("25 mg", ["2.5 mg"]) == squad_exact_match("C++", ["C#"]) == 1.0
    assert squad_exact_match("5.0", ["5"]) == 0.0


@settings(max_examples=50)
@given(st.text(max_size=50))
def test_any_text_equals_itself(text):
    assert token_f1(text, [text]) == exact_match(text, [text]) == 1.0


PASSAGE = "Radium\nMarie Curie's lab in Paris/Sceaux found it; she knew no rest (U.S. visit: 1921)."


def test_hit_is_of_any_answer_in_any_one_passage():
    assert hit(["Nothing here.", PASSAGE], ["absent", "the lab"]) == 1.0  # articles do not count
    assert hit([PASSAGE], ["no"]) == 1.0  # a word of its own; an accident, which the definition allows
    assert hit([PASSAGE], ["radium Marie"]) == 1.0  # the title is in front of the text
    assert hit([PASSAGE], ["new"]) == hit([PASSAGE], ["Curie Marie"]) == hit([PASSAGE], ["A"]) == 0.0
    assert hit(["seen by Marie", "Curie was there"], ["Marie Curie"]) == hit([], ["Curie"]) == 0.0
    assert hit(["Lord of the Rings (指輪物語)"], ["The Lord of the Rings"]) == 1.0
    assert hit(["Request f47ac10b-5e02b2c3 of Curie"], ["A", "Curie"]) == 1.0  # no number has the exponent 02b2c3
    assert math.isnan(hit([PASSAGE], ["", " "]))


@pytest.mark.parametrize(
    ("written", "answer", "value"),
    [
        ("Insulin lowers blood sugar.", "insulin", 1.0),
        ("Yes, both are rivers.", "yes", 1.0),
        ("They are, yes.", "yes", 0.0),
        ("There is no river.", "no", 0.0),
        ("No one is.", "no one", 1.0),
    ],
)
def test_an_answer_in_a_sentence_by_hand(written, answer, value):
    assert contains_answer(written, [answer]) == value
    assert contains_answer(written, ["absent", answer]) == value


SCORES = [exact_match, token_f1, contains_answer, lambda text, answers: hit([text], answers)]


@pytest.mark.parametrize("score", SCORES)
def test_without_accepted_answers_nothing_is_scored_and_one_text_in_their_place_is_refused(score):
    assert math.isnan(score("red", []))
    with pytest.raises(TypeError, match="answers must be a list of strings, but got the string 'Paris'"):
        score("P", "Paris")
    with pytest.raises(TypeError, match="passages must be a list"):
        hit("Curie", ["Curie"])
