from __future__ import annotations

import math

import pytest

from querywright.metrics.support import joint_passage_score, support_passage_f1

GOLD = ["curie", "radium"]


def test_by_hand():
    # The answer stands in the sentence: P 1, R 1. Support: P 1/3, R 1/2. Joint F1 = 2 * 1/6 / (5/6) = 2/5.
    score = joint_passage_score("It was Marie Curie.", ["Marie Curie"], ["radium", "paris", "polonium"], GOLD)
    assert score == (0.0, pytest.approx(2 / 5))
    # It does not: "it was pierre curie" shares one of four tokens, R 1/2. Joint: P 1/4, R 1/2, F1 = 2 * 1/8 / (3/4).
    assert joint_passage_score("It was Pierre Curie.", ["Marie Curie"], GOLD, GOLD) == (0.0, pytest.approx(1 / 3))
    # A sentence costs nothing, ids are a set, and the best answer counts.
    sentence, right = "The element was found by Marie Curie in Paris.", ["Pierre", "Marie Curie"]
    assert joint_passage_score(sentence, right, [*GOLD, "curie"], GOLD) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("given", "answer", "f1"),
    [
        ("Yes, both are.", "yes", 1.0),
        ("yes", "no", 0.0),
        ("no", "no one", 0.0),
        ("It is not known, yes.", "yes", 0.0),
        ("yes it", "yes it is", 4 / 5),  # neither is yes alone: P 1, R 2/3
    ],
)
def test_yes_and_no_are_right_or_wrong(given, answer, f1):
    assert joint_passage_score(given, [answer], GOLD, GOLD)[1] == pytest.approx(f1)


def test_the_answer_part_is_dspys_where_no_answer_is_contained():
    from dspy.evaluate.metrics import hotpot_f1_score

    for given in ("the red house", "red", "no house", "blue sky"):
        for answer in ("red green house", "a blue red sky"):
            expected = hotpot_f1_score(given, answer)
            assert joint_passage_score(given, [answer], GOLD, GOLD)[1] == pytest.approx(expected)


def test_passages_that_are_not_named_are_wrong_and_not_saying_cannot_be_scored():
    assert joint_passage_score("Marie Curie", ["Marie Curie"], [], GOLD) == (0.0, 0.0)
    assert support_passage_f1([], GOLD) == 0.0
    assert support_passage_f1(["radium", "paris", "polonium"], GOLD) == pytest.approx(2 / 5)
    for answers, support, gold in ((["Curie"], None, GOLD), (["Curie"], GOLD, []), ([], GOLD, GOLD)):
        assert all(math.isnan(value) for value in joint_passage_score("Curie", answers, support, gold))
    assert math.isnan(support_passage_f1(None, GOLD))
    assert math.isnan(support_passage_f1(GOLD, ()))


def test_any_one_of_a_group_of_alternatives_is_enough_support():
    gold, either = [*GOLD, "pierre"], [["curie", "pierre"]]
    for named, f1 in ((["pierre", "radium"], 1.0), (gold, 1.0), (["curie", "pierre"], 2 / 3), (["pierre", "x"], 1 / 2)):
        assert support_passage_f1(named, gold, either) == pytest.approx(f1)
    assert joint_passage_score("Marie Curie", ["Marie Curie"], ["curie", "radium"], gold, either) == (1.0, 1.0)
    assert joint_passage_score("Marie Curie", ["Marie Curie"], ["curie", "pierre"], gold, either)[0] == 0.0
