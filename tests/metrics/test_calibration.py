from __future__ import annotations

import json
import math
import random
from types import SimpleNamespace

import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import cohen_kappa_score

from querywright.data.judged import Case, JudgedCase
from querywright.data.types import Passage, Question
from querywright.errors import ArtifactError
from querywright.metrics.agreement import FIGURES, Figure, paired_difference, shown
from querywright.metrics.calibration import Calibration, calibration
from querywright.metrics.judges import CoverageJudge, UsefulnessJudge

LABELS = ("NOT_USEFUL", "USEFUL", "ENTAILED")


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr("querywright.metrics.agreement._FEWER", 200)


def held(people, judge, questions=None, labels=LABELS, name="usefulness", **changes):
    questions = questions or [str(place) for place in range(len(people))]
    pairs = zip(people, questions, strict=True)
    judged = [JudgedCase(Case(Question(id, "What?"), (Passage("p", "Text."),)), label) for label, id in pairs]
    known = SimpleNamespace(NAME=name, SCALE=dict.fromkeys(labels), digest=lambda: "p" * 64, needs=tuple)
    return calibration(known, judged, judge, lm="some/model", engine="e" * 64, **changes)


def drawn(n, seed, agree, labels=LABELS, weights=None):
    random_ = random.Random(seed)
    people = random_.choices(labels, weights, k=n)
    judge = [label if random_.random() < agree else random_.choice(labels) for label in people]
    return people, judge


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("labels", [LABELS, ("no", "yes"), ("a", "b", "c", "d")])
def test_figures_equal_scikit_learns_and_scipys(seed, labels):
    people, judge = drawn(60, seed, agree=seed / 3, labels=labels, weights=range(1, len(labels) + 1))
    got = {name: figure.value for name, figure in held(people, judge, labels=labels).figures.items()}
    ranks = [[labels.index(label) for label in side] for side in (people, judge)]
    assert got == {
        "agreement": pytest.approx(sum(a == b for a, b in zip(people, judge, strict=True)) / 60),
        "kappa": pytest.approx(cohen_kappa_score(people, judge)),
        "linear_kappa": pytest.approx(cohen_kappa_score(*ranks, weights="linear")),
        "quadratic_kappa": pytest.approx(cohen_kappa_score(*ranks, weights="quadratic")),
        "spearman": pytest.approx(spearmanr(*ranks).statistic),
        "pearson": pytest.approx(pearsonr(*ranks).statistic),
    }


def test_a_judge_that_always_says_the_same():
    same = held(["NOT_USEFUL"] * 90 + ["ENTAILED"] * 10, ["NOT_USEFUL"] * 100).figures
    assert (same["agreement"].value, same["kappa"].value) == (pytest.approx(0.9), 0.0)
    assert (math.isnan(same["spearman"].value), same["spearman"].reason) == (True, "the judge used only one label")


def test_what_cannot_be_told_is_undefined_and_says_why():
    one_label = held(["USEFUL"] * 9, ["USEFUL"] * 8 + ["ENTAILED"])
    assert {one_label.figures[name].reason for name in list(FIGURES)[1:]} == {"people used only one label"}
    assert "kappa undefined" in one_label.sentence()
    assert {figure.reason for figure in held([], []).figures.values()} == {"no judgment could be read"}
    people, judge = drawn(30, 3, agree=0.5)
    single = held(people, judge, ["q"] * 30).figures["kappa"]
    people = ["NOT_USEFUL"] * 19 + ["USEFUL"]  # in a third of the resamples nobody says USEFUL
    rare = held(people, people).figures["kappa"]
    for figure, reason in ((single, "one question is too few for an interval"), (rare, "too rare")):
        assert (math.isnan(figure.value), math.isnan(figure.low), reason in figure.reason) == (False, True, True)


def test_unreadable_and_failed_are_counted_and_left_out():
    people = ["USEFUL", "ENTAILED", "NOT_USEFUL", "USEFUL", "ENTAILED"]
    made = held(people, ["USEFUL", None, "NOT_USEFUL", None, None], failed=1)
    assert (made.n, made.unreadable, made.failed) == (2, 2, 1)
    assert [figure.value for figure in made.figures.values()] == [pytest.approx(1)] * len(FIGURES)
    assert made.sentence().endswith("(n = 2; 2 unreadable; 1 failed)")


def test_the_interval_resamples_questions_and_not_judgements():
    people, judge = drawn(40, 5, agree=0.6)
    single = held(people, judge).figures["kappa"]
    assert single == held(people, judge, seed=0).figures["kappa"] != held(people, judge, seed=1).figures["kappa"]
    # The same judgement ten times in one question is no more evidence than once.
    tenfold = held(people * 10, judge * 10, [str(place) for place in range(40)] * 10).figures["kappa"]
    assert (tenfold.value, tenfold.low, tenfold.high) == pytest.approx((single.value, single.low, single.high))


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(0.123, -0.049, 0.3), ".12 [-.05, .30]"),
        (Figure(-0.001, -1.0, 0.2), ".00 [-1.00, .20]"),
        (Figure(0.5, math.nan, math.nan, "x"), ".50 [no interval]"),
    ],
)
def test_shown(figure, text):
    assert shown(figure) == text


def of_arms(labels):
    """Cases of 12 questions: a label by people, one by the judge, and the arms that found the passage."""
    rows = [(JudgedCase(Case(Question(str(q), "What?")), people, arms=arms), said)
            for q in range(12) for people, said, arms in labels(q)]  # fmt: skip
    return calibration(UsefulnessJudge(), *zip(*rows, strict=True), lm="some/model", engine="e" * 64)


def test_the_order_of_arms_is_held_against_that_of_people():
    """People: a .75, b .5, c .25. The judge: a 1, b .25, c .5; what it could not read counts for no arm."""

    def labels(q):
        people = ["NOT_USEFUL" if q % 4 < worst else "USEFUL" for worst in (1, 2, 3)]
        said = ["ENTAILED", "USEFUL" if q % 4 < 1 else "NOT_USEFUL", "USEFUL" if q % 4 < 2 else "NOT_USEFUL"]
        yield from zip(people, said, [("a",), ("b",), ("c",)], strict=True)
        yield "ENTAILED", None, ("c",)
        yield "NOT_USEFUL", "NOT_USEFUL", ("a", "b")  # the best passage of an arm counts

    found = of_arms(labels)
    assert found.arms == {"a": (0.75, 1.0), "b": (0.5, 0.25), "c": (0.25, 0.5)}
    assert found.order.value == pytest.approx(1 / 3)
    assert -1 <= found.order.low <= found.order.value < found.order.high <= 1
    assert "order of 3 arms: tau .33 [" in found.sentence()
    assert Calibration.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found
    same = of_arms(lambda q: [("USEFUL", "USEFUL", ("a",)), ("USEFUL", "NOT_USEFUL", ("b",))])
    assert (math.isnan(same.order.value), same.order.reason) == (
        True,
        "people or the judge gave all arms the same score",
    )
    assert of_arms(lambda q: [("USEFUL", "USEFUL", ("a",))]).order is None


def test_an_answers_points_are_a_score_and_a_second_person_is_told(monkeypatch):
    monkeypatch.setattr("querywright.metrics.agreement._FEWER", 100)
    points = [("yes", "yes", "no"), ("yes", "no", "no"), ("no", "no", "no"), ("yes", "yes", "yes")]
    rows = [
        (JudgedCase(Case(Question(str(q), "What?"), response=f"{q}", point=f"{n}"), label, "no" if q else label), label)
        for q, labels in enumerate(points)
        for n, label in enumerate(labels)
    ]
    flip = {"yes": "no", "no": "yes"}
    for change, rho in ((dict, 1.0), (flip.get, -1.0)):
        said = [change(label) if change is not dict else label for _, label in rows]
        made = calibration(CoverageJudge(), [one for one, _ in rows], said, lm="some/model", engine="e" * 64)
        assert [made.graded[name].value for name in ("spearman", "pearson")] == [pytest.approx(rho)] * 2
    labels, seconds = zip(*((one.label, one.second) for one, _ in rows), strict=True)
    assert made.between_people["kappa"].value == pytest.approx(cohen_kappa_score(labels, seconds))
    assert held(labels, labels, labels=("no", "yes")).between_people == {}
    said[0] = None  # an answer whose points cannot all be read has no score
    fewer = calibration(CoverageJudge(), [one for one, _ in rows], said, lm="some/model", engine="e" * 64)
    assert fewer.graded["pearson"].value == pytest.approx(-1)
    assert set(held(labels, labels, labels=("no", "yes")).graded) == set()


def test_json_and_back_and_damage():
    people, judge = drawn(30, 9, agree=0.5)
    made = held(people, [*judge[:-1], None], [str(n // 3) for n in range(30)])
    assert Calibration.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False))) == made
    undefined = held(["USEFUL"] * 3, ["USEFUL"] * 3)
    back = Calibration.from_json(json.loads(json.dumps(undefined.to_json(), allow_nan=False)))
    assert math.isnan(back.figures["kappa"].value)
    assert back.figures["kappa"].reason == "people used only one label"
    for change in ({"figures": {}}, {"figures": None}, {"table": [[1, 2], [3]]}, {"labels": ["a"]}, {"n": 28}):
        with pytest.raises(ArtifactError, match="rerun the calibration"):
            Calibration.from_json({**made.to_json(), **change})


def test_the_difference_of_two_judges_is_paired():
    people, worse = drawn(200, 21, agree=0.2)
    _, better = drawn(200, 21, agree=0.8)
    questions = [str(n // 4) for n in range(200)]
    found, n = paired_difference(people, worse, better, questions, LABELS)
    apart = [cohen_kappa_score(people, judge) for judge in (worse, better)]
    assert (n, found["kappa"].value) == (200, pytest.approx(apart[1] - apart[0]))
    assert 0 < found["kappa"].low < found["kappa"].value < found["kappa"].high
    same, n = paired_difference(people, [None, *worse[1:]], worse, questions, LABELS)  # of cases that both could judge
    assert (n, same["kappa"].value, same["kappa"].low, same["kappa"].high) == (199, 0, 0, 0)
    back, _ = paired_difference(people, better, worse, questions, LABELS)
    assert (back["kappa"].low, back["kappa"].high) == pytest.approx((-found["kappa"].high, -found["kappa"].low))
