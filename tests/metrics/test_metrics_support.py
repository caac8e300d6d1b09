from __future__ import annotations

import math
from dataclasses import astuple

import pytest

from querywright.errors import DataError
from querywright.metrics.support import joint_passage_score, joint_score, support_passage_f1

GOLD = [("Radium", 0), ("Marie Curie", 2)]


def test_joint_by_hand():
    # Answer: P 2/3, R 1. Support: P 1/3, R 1/2. Joint: P 2/9, R 1/2, F1 = 2 * 1/9 / (13/18) = 4/13.
    score = joint_score("Dr Marie Curie", ["Marie Curie"], [("Radium", 0), ("Radium", 1), ("Paris", 0)], GOLD)
    assert score.precision == pytest.approx(2 / 9)
    assert score.recall == pytest.approx(1 / 2)
    assert score.f1 == pytest.approx(4 / 13)
    assert score.support_f1 == pytest.approx(2 / 5)
    assert (score.exact_match, score.support_exact_match) == (0.0, 0.0)


def test_all_right():
    score = joint_score("the Marie Curie.", ["Marie Curie"], [["Marie Curie", 2], ["Radium", 0]], GOLD)  # type: ignore[list-item]
    assert astuple(score) == (1.0,) * 6


def test_a_right_answer_with_the_wrong_support_and_the_reverse():
    score = joint_score("Marie Curie", ["Marie Curie"], [("Radium", 1)], GOLD)
    assert astuple(score) == (0.0,) * 6
    score = joint_score("Pierre", ["Marie Curie"], GOLD, GOLD)
    assert (score.exact_match, score.f1, score.support_exact_match, score.support_f1) == (0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("given", "answer", "f1"),
    [
        ("yes", "yes", 1.0),
        ("Yes.", "yes", 1.0),
        ("yes", "no", 0.0),
        ("yes it is", "yes", 0.0),  # a token is shared, but the answer is yes and nothing else
        ("no", "no one", 0.0),
        ("noanswer", "noanswer found", 0.0),
        ("yes it", "yes it is", 4 / 5),  # neither is yes alone: P 1, R 2/3
    ],
)
def test_yes_and_no_are_right_or_wrong(given, answer, f1):
    assert joint_score(given, [answer], GOLD, GOLD).f1 == pytest.approx(f1)


def test_naming_no_sentence_is_wrong_and_not_saying_cannot_be_scored():
    assert joint_score("Marie Curie", ["Marie Curie"], [], GOLD).f1 == 0.0
    for score in (
        joint_score("Marie Curie", ["Marie Curie"], None, GOLD),
        joint_score("Marie Curie", ["Marie Curie"], GOLD, []),
        joint_score("Marie Curie", [], GOLD, GOLD),
    ):
        assert all(math.isnan(value) for value in astuple(score))


def test_sentences_are_a_set_and_the_best_answer_counts():
    score = joint_score("Curie", ["Marie Curie", "Curie"], [*GOLD, *GOLD], GOLD)
    assert (score.exact_match, score.f1) == (1.0, 1.0)


@pytest.mark.parametrize("pair", ["Radium", ("Radium",), ("Radium", "0"), ("Radium", -1), ("Radium", True), (0, "R")])
def test_what_is_no_sentence_is_refused(pair):
    with pytest.raises(DataError, match="a supporting sentence is a pair of a title and the number"):
        joint_score("Curie", ["Curie"], [pair], GOLD)
    with pytest.raises(DataError, match="a supporting sentence"):
        joint_score("Curie", ["Curie"], GOLD, [pair])


def test_the_answer_part_is_dspys():
    from dspy.evaluate.metrics import hotpot_f1_score

    for given in ("the red house", "red", "yes", "no house", "blue sky"):
        for answer in ("red house", "yes", "no", "a blue red sky"):
            expected = hotpot_f1_score(given, answer)
            assert joint_score(given, [answer], GOLD, GOLD).f1 == pytest.approx(expected)


PASSAGES = ["curie", "radium"]


def test_joint_over_passages_by_hand():
    # The answer stands in the sentence: P 1, R 1. Support: P 1/3, R 1/2. Joint F1 = 2 * 1/6 / (5/6) = 2/5.
    score = joint_passage_score("It was Marie Curie.", ["Marie Curie"], ["radium", "paris", "polonium"], PASSAGES)
    assert (score.precision, score.recall) == (pytest.approx(1 / 3), pytest.approx(1 / 2))
    assert score.f1 == score.support_f1 == pytest.approx(2 / 5)
    assert (score.exact_match, score.support_exact_match) == (0.0, 0.0)
    # It does not: "it was pierre curie" shares one of four tokens, R 1/2. Joint: P 1/4, R 1/2, F1 = 2 * 1/8 / (3/4).
    score = joint_passage_score("It was Pierre Curie.", ["Marie Curie"], PASSAGES, PASSAGES)
    assert score.f1 == pytest.approx(1 / 3)
    assert (score.exact_match, score.support_exact_match) == (0.0, 1.0)


def test_a_sentence_costs_nothing_over_passages_and_something_over_sentences():
    sentence, right = "The element was found by Marie Curie in Paris.", ["Marie Curie"]
    assert astuple(joint_passage_score(sentence, right, [*PASSAGES, "curie"], PASSAGES)) == (1.0,) * 6
    assert joint_score(sentence, right, GOLD, GOLD).f1 == pytest.approx(2 * (2 / 8) / (2 / 8 + 1))  # P 2/8, R 1


def test_yes_and_no_begin_a_right_sentence():
    assert joint_passage_score("Yes, both are.", ["yes"], PASSAGES, PASSAGES).exact_match == 1.0
    for wrong in ("No, only one is.", "It is not known, yes.", ""):
        score = joint_passage_score(wrong, ["yes"], PASSAGES, PASSAGES)
        assert (score.exact_match, score.f1, score.support_f1) == (0.0, 0.0, 1.0)


def test_passages_that_are_not_named_are_wrong_and_not_saying_cannot_be_scored():
    assert joint_passage_score("Marie Curie", ["Marie Curie"], [], PASSAGES).f1 == 0.0
    assert support_passage_f1([], PASSAGES) == 0.0
    assert support_passage_f1(["radium", "paris", "polonium"], PASSAGES) == pytest.approx(2 / 5)
    for answers, support, gold in (
        (["Curie"], None, PASSAGES),
        (["Curie"], PASSAGES, []),
        ([], PASSAGES, PASSAGES),
    ):
        assert all(math.isnan(value) for value in astuple(joint_passage_score("Curie", answers, support, gold)))
    assert math.isnan(support_passage_f1(None, PASSAGES))
    assert math.isnan(support_passage_f1(PASSAGES, ()))


def test_sentences_are_no_passages():
    for named, gold in ((GOLD, PASSAGES), (PASSAGES, GOLD), ("curie", PASSAGES)):
        with pytest.raises(DataError, match="supporting passages are a list of their ids"):
            joint_passage_score("Curie", ["Curie"], named, gold)
