from __future__ import annotations

import json
import math
import random
from types import SimpleNamespace

import pytest
from scipy.stats import spearmanr
from sklearn.metrics import cohen_kappa_score

from querywright.data.judged import Case, Judged
from querywright.data.types import Passage, Question
from querywright.errors import ArtifactError
from querywright.metrics.agreement import FIGURES, Figure, paired_difference, shown
from querywright.metrics.calibration import Calibration, calibration

LABELS = ("NOT_USEFUL", "USEFUL", "ENTAILED")


def held(people, judge, questions=None, labels=LABELS, name="usefulness", **changes):
    questions = questions or [str(place) for place in range(len(people))]
    pairs = zip(people, questions, strict=True)
    judged = [Judged(Case(Question(id, "What?"), (Passage("p", "Text."),)), label) for label, id in pairs]
    known = SimpleNamespace(NAME=name, SCALE=dict.fromkeys(labels), digest=lambda: "p" * 64)
    return calibration(known, judged, judge, lm="some/model", engine="e" * 64, **changes)


def drawn(n, seed, agree, labels=LABELS, weights=None):
    random_ = random.Random(seed)
    people = random_.choices(labels, weights, k=n)
    judge = [label if random_.random() < agree else random_.choice(labels) for label in people]
    return people, judge


def values(made):
    return {name: figure.value for name, figure in made.figures.items()}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("labels", [LABELS, ("no", "yes"), ("a", "b", "c", "d")])
def test_figures_equal_scikit_learns_and_scipys(seed, labels):
    people, judge = drawn(60, seed, agree=seed / 3, labels=labels, weights=range(1, len(labels) + 1))
    got = values(held(people, judge, labels=labels))
    ranks = [[labels.index(label) for label in side] for side in (people, judge)]
    assert got["agreement"] == pytest.approx(sum(a == b for a, b in zip(people, judge, strict=True)) / 60)
    assert got["kappa"] == pytest.approx(cohen_kappa_score(people, judge))
    assert got["linear_kappa"] == pytest.approx(cohen_kappa_score(*ranks, weights="linear"))
    assert got["quadratic_kappa"] == pytest.approx(cohen_kappa_score(*ranks, weights="quadratic"))
    assert got["spearman"] == pytest.approx(spearmanr(*ranks).statistic)


def test_a_perfect_judge_has_kappa_one():
    people, _ = drawn(80, 1, agree=1)
    made = held(people, people, [str(n // 8) for n in range(80)])
    for figure in made.figures.values():
        assert (figure.value, figure.low, figure.high, figure.reason) == (pytest.approx(1), 1, 1, "")
    assert made.questions == 10


def test_a_judge_that_always_says_the_same_has_kappa_zero_and_one_label_of_people_none():
    people = ["NOT_USEFUL"] * 90 + ["ENTAILED"] * 10
    made = held(people, ["NOT_USEFUL"] * 100)
    assert values(made)["agreement"] == pytest.approx(0.9)
    assert values(made)["kappa"] == 0.0
    assert (math.isnan(values(made)["spearman"]), made.figures["spearman"].reason) == (
        True, "the judge gave one label only",
    )  # fmt: skip
    same = held(["USEFUL"] * 9, ["USEFUL"] * 8 + ["ENTAILED"])
    assert {same.figures[name].reason for name in list(FIGURES)[1:]} == {"people gave one label only"}
    assert "kappa undefined" in same.sentence()
    assert {figure.reason for figure in held([], []).figures.values()} == {"no judgement could be read"}


def test_sentence():
    people, judge = ["yes"] * 25 + ["no"] * 25, ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    said = held(people, judge, [str(n // 2) for n in range(50)], labels=("no", "yes"), name="answerability").sentence()
    begin, _, rest = said.partition(" [")
    assert begin == "judge answerability by some/model: kappa .40"
    assert rest.partition("], ")[2] == "agreement 70 % against people on 25 questions (n = 50)"


def test_unreadable_and_failed_are_counted_and_left_out():
    people = ["USEFUL", "ENTAILED", "NOT_USEFUL", "USEFUL", "ENTAILED"]
    made = held(people, ["USEFUL", None, "NOT_USEFUL", None, None], failed=1)
    assert (made.n, made.unreadable, made.failed) == (2, 2, 1)
    assert values(made)["kappa"] == pytest.approx(1)
    assert made.sentence().endswith("(n = 2; 2 unreadable; 1 failed)")


def test_one_question_and_a_rare_label_give_no_interval():
    people, judge = drawn(30, 3, agree=0.5)
    single = held(people, judge, ["q"] * 30).figures["kappa"]
    people = ["NOT_USEFUL"] * 19 + ["USEFUL"]  # in a third of the resamples nobody says USEFUL
    rare = held(people, people).figures["kappa"]
    for figure, reason in ((single, "one question says nothing about the spread"), (rare, "too rare")):
        assert not math.isnan(figure.value)
        assert math.isnan(figure.low)
        assert reason in figure.reason


def test_the_interval_resamples_questions_and_not_judgements():
    people, judge = drawn(40, 5, agree=0.6)
    single = held(people, judge).figures["kappa"]
    # The same judgement ten times in one question is no more evidence than once.
    tenfold = held(people * 10, judge * 10, [str(place) for place in range(40)] * 10).figures["kappa"]
    assert tenfold.value == pytest.approx(single.value)
    assert (tenfold.low, tenfold.high) == pytest.approx((single.low, single.high))


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(0.123, -0.049, 0.3), ".12 [-.05, .30]"),
        (Figure(1.0, 0.999, 1.0), "1.00 [1.00, 1.00]"),
        (Figure(-0.001, -1.0, 0.2), ".00 [-1.00, .20]"),
        (Figure(0.5, math.nan, math.nan, "x"), ".50 [no interval]"),
        (Figure(math.nan, math.nan, math.nan, "x"), "undefined"),
    ],
)
def test_shown(figure, text):
    assert shown(figure) == text


def test_json_and_back():
    people, judge = drawn(30, 9, agree=0.5)
    made = held(people, [*judge[:-1], None], [str(n // 3) for n in range(30)])
    data = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert Calibration.from_json(data) == made
    undefined = held(["USEFUL"] * 3, ["USEFUL"] * 3)
    data = json.loads(json.dumps(undefined.to_json(), allow_nan=False))
    back = Calibration.from_json(data)
    assert math.isnan(back.figures["kappa"].value)
    assert back.figures["kappa"].reason == "people gave one label only"


@pytest.mark.parametrize(
    "change",
    [
        {"figures": {}},
        {"figures": None},
        {"table": [[1, 2], [3]]},
        {"n": 29},
    ],
)
def test_a_damaged_calibration_is_refused(change):
    people, judge = drawn(30, 9, agree=0.5)
    with pytest.raises(ArtifactError, match="calibrate again"):
        Calibration.from_json({**held(people, judge).to_json(), **change})


def test_the_difference_of_two_judges_is_paired():
    people, worse = drawn(200, 21, agree=0.2)
    _, better = drawn(200, 21, agree=0.8)
    questions = [str(n // 4) for n in range(200)]
    found, n = paired_difference(people, worse, better, questions, LABELS)
    apart = [cohen_kappa_score(people, judge) for judge in (worse, better)]
    assert n == 200
    assert found["kappa"].value == pytest.approx(apart[1] - apart[0])
    assert 0 < found["kappa"].low < found["kappa"].value < found["kappa"].high
    same, _ = paired_difference(people, worse, worse, questions, LABELS)
    assert (same["kappa"].value, same["kappa"].low, same["kappa"].high) == (0, 0, 0)
    back, _ = paired_difference(people, better, worse, questions, LABELS)
    assert (back["kappa"].low, back["kappa"].high) == pytest.approx((-found["kappa"].high, -found["kappa"].low))


def test_the_difference_is_of_cases_that_both_could_judge():
    people = ["USEFUL", "ENTAILED", "NOT_USEFUL", "USEFUL"]
    found, n = paired_difference(people, [None, *people[1:]], [*people[:3], None], ["a", "b", "c", "d"], LABELS)
    assert n == 2
    assert found["kappa"].value == 0
