from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querywright.metrics.answers import exact_match, normalize_answer, token_f1

WORDS = st.lists(st.sampled_from(["red", "blue", "green", "the", "a", "x-ray", "U.S."]), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("U.S.", "us"),
        ("x-ray", "xray"),
        ("an  answer\tto   the question", "answer to question"),
        ("theatre and anagram", "theatre and anagram"),
        ("A", ""),
        ("the.end", "theend"),  # punctuation goes first, so no article is left alone
        ("a-b", "ab"),
        ("“the”", "“ ”"),  # only ASCII punctuation is deleted
        ("東京タワー", "東京タワー"),
    ],
)
def test_normalisation_follows_squad(text, normal):
    assert normalize_answer(text) == normal


def test_exact_match_is_the_best_over_the_answers():
    assert exact_match("the Beatles", ["Queen", "Beatles"]) == 1.0
    assert exact_match("Beatle", ["Queen", "Beatles"]) == 0.0
    assert exact_match("A", [""]) == 1.0  # the trap that multiple choice must avoid


def test_f1_by_hand():
    assert token_f1("the Eiffel Tower", ["Eiffel Tower in Paris"]) == pytest.approx(2 / 3)
    assert token_f1("red red blue", ["red blue blue"]) == pytest.approx(2 / 3)  # shared: red once, blue once
    assert token_f1("red", ["blue", "red green"]) == pytest.approx(2 / 3)


def test_f1_without_tokens():
    assert token_f1("", ["red"]) == 0.0
    assert token_f1("red", ["the"]) == 0.0
    assert token_f1("the", ["a"]) == 1.0


def test_no_accepted_answer_cannot_be_scored():
    assert math.isnan(exact_match("red", []))
    assert math.isnan(token_f1("red", []))


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_bounded(one, other):
    value = token_f1(one, [other])
    assert 0.0 <= value <= 1.0
    assert value == token_f1(other, [one])
    same_tokens = Counter(normalize_answer(one).split()) == Counter(normalize_answer(other).split())
    assert (value == 1.0) == same_tokens


@given(WORDS, st.lists(WORDS, min_size=1, max_size=4))
def test_exact_match_implies_full_f1_and_aliases_never_hurt(prediction, answers):
    assert token_f1(prediction, answers) >= exact_match(prediction, answers)
    assert token_f1(prediction, answers) == max(token_f1(prediction, [answer]) for answer in answers)


@given(st.text(max_size=50))
def test_any_text_equals_itself(text):
    normal = normalize_answer(text)
    assert normal == " ".join(normal.split())
    assert token_f1(text, [text]) == 1.0
    assert exact_match(text, [text]) == 1.0
