"""Matching through questions: hand-worked walks, and what holds for every list."""

from __future__ import annotations

import math

import pytest

from querywright.errors import InputError
from querywright.retrieval.question_match import (
    Answers,
    Match,
    Matching,
    blend,
    drawn,
    gathered,
    is_settled,
    time_of,
    walk,
)

# Two questions lead to salt, one each to the others; tea is dated, salt and feet are not.
OWN = {"q1": ["salt"], "q2": ["salt"], "q3": ["feet"], "q4": ["tea"], "q5": ["cuff"]}
ANSWERS = Answers(OWN, {"tea": time_of("2024-05-01")})
RANKED = [("q1", 0.9), ("q2", 0.8), ("q3", 0.7), ("q4", 0.6), ("q5", 0.5)]


def test_equal_scores_go_to_the_newer_then_to_that_of_more_questions_then_by_id() -> None:
    level = [(question, 0.5) for question in OWN]
    # tea has a date; salt answers two questions; cuff comes before feet.
    assert [match.passage for match in walk(level, ANSWERS)] == ["tea", "salt", "cuff", "feet"]
    assert walk(level, ANSWERS)[1].question == "q1"
    newer = Answers(OWN, {"tea": time_of(2019), "feet": time_of(2021)})
    assert [match.passage for match in walk(level, newer)] == ["feet", "tea", "salt", "cuff"]


def test_a_question_of_several_passages_leads_to_all_of_them() -> None:
    filled = Answers({"q1": ["salt", "feet"], "q3": ["feet"], "q4": ["tea"]}, {})
    # feet has two questions, salt one: of the passages of q1 it is the first.
    expected = [Match("feet", 0.9, "q1"), Match("salt", 0.9, "q1"), Match("tea", 0.6, "q4")]
    assert walk(RANKED, filled) == expected
    assert walk(RANKED, filled, 1) == expected[:1]


def test_cells_come_one_after_the_other_and_only_as_many_as_it_takes() -> None:
    def cells():
        yield [("q3", 0.7), ("q4", 0.6)]
        yield [("q1", 0.9), ("q5", 0.5)]
        pytest.fail("no third cell is needed")

    nearest = [Match("feet", 0.7, "q3"), Match("tea", 0.6, "q4")]
    assert gathered(cells(), ANSWERS, 1) == nearest[:1]  # a nearer question of another cell is not looked at
    assert gathered(cells(), ANSWERS, 2) == nearest
    assert gathered(cells(), ANSWERS, 3) == [*nearest, Match("salt", 0.9, "q1")]
    assert gathered([], ANSWERS, 3) == []


def test_what_is_seen_settles_the_first_k_only_when_nothing_further_can_tie() -> None:
    found = walk(RANKED[:3], ANSWERS)
    assert is_settled(RANKED[:3], found, ANSWERS, 1)  # salt at .9, and what follows has .7 at most
    assert not is_settled(RANKED[:3], found, ANSWERS, 2)  # feet at .7, as the next question may have
    assert not is_settled(RANKED[:3], found, ANSWERS, 3)
    assert not is_settled(RANKED[:4], walk(RANKED[:4], ANSWERS), ANSWERS, 9)  # cuff is still to come
    some = Answers({"q1": ["salt"], "q3": ["feet"]}, {})
    assert is_settled(RANKED[:4], walk(RANKED[:4], some), some, 9)  # there is no third


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (None, "1066-10-14"),
        ("not a date", "2020"),
        ("2020", "2020-02"),
        ("2020-02", "2020-02-02"),
        ("2020-02-02", "2020-02-02T08:00"),
        ("2020-02-02T10:00+02:00", "2020-02-02T09:00"),
        (2019, 2020.5),
        (True, 0),
        (math.nan, -1),
    ],
)
def test_times_are_in_order(older: object, newer: object) -> None:
    assert time_of(older) < time_of(newer)


def test_a_draw_has_the_mean_number_of_questions_per_passage() -> None:
    questions = [f"q{number}" for number in range(100)]
    assert len(drawn(questions, 10, 2)) == 20
    assert len(drawn(questions, 10, 8)) == 80
    assert len(drawn(questions, 7, 0.5)) == 4  # 3.5 is rounded to the even 4
    assert drawn(questions, 10, 0) == drawn(questions, 10, 10) == drawn(questions, 10, 50) == set(questions)
    assert drawn(questions, 10, 2) != drawn(questions, 10, 2, seed=1)


def test_a_blend_by_hand() -> None:
    through = [Match("salt", 0.9, "q1"), Match("feet", 0.6, "q3")]
    own = [("tea", 0.8), ("feet", 0.7), ("cuff", 0.2)]
    # salt .5 * .9 + .5 * .2 (the least of the passages); tea and cuff have the least of the questions, .6.
    found = blend(through, own, 0.5, ANSWERS)
    assert [match.passage for match in found] == ["tea", "feet", "salt", "cuff"]
    assert [match.score for match in found] == pytest.approx([0.7, 0.65, 0.55, 0.4])
    assert [match.question for match in found] == ["", "q3", "q1", ""]
    assert [match.passage for match in blend(through, own, 0.25, ANSWERS)] == ["salt", "tea", "feet", "cuff"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"match": "furthest"}, "match must be one of nearest, hybrid, filled, prototypes, but got 'furthest'"),
        ({"coverage": -1}, "coverage must be a number of 0 or more, but got -1"),
        ({"coverage": math.nan}, "coverage must be a number of 0 or more, but got nan"),
        ({"weight": 1.5}, "weight must be 0 to 1, but got 1.5"),
        ({"weight": math.nan}, "weight must be 0 to 1, but got nan"),
        ({"depth": 0}, "depth must be 1 or more, but got 0"),
    ],
)
def test_a_matching_that_is_none_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Matching(**values)  # type: ignore[arg-type]
