from __future__ import annotations

import json
import math

import dspy
import pytest

from querywright.data.types import Passage, Question
from querywright.errors import DataError
from querywright.metrics.guideline import (
    Guideline,
    GuidelineMetric,
    Guidelines,
    GuidelineWriter,
    basis,
    write_guideline,
)
from querywright.metrics.judges import CoverageJudge

QUESTION = Question("q1", "What helps?", answer="sugar")
SOURCES = [Passage("p", "Sugar helps, then rest.")]
POINTS = ("Sugar helps.", "Then rest.", "No running.", "Call for help.")


@pytest.fixture
def frozen():
    return Guidelines({"q1": Guideline("Sugar, then rest.", POINTS, basis(QUESTION, SOURCES), "writer")})


def given(answer):
    return dspy.Prediction(passages=SOURCES, answer=answer)


def test_written_from_the_source_in_two_steps(scripted, asking):
    lm = scripted(
        {"golden_answer": "Sugar, then rest. "}, {"key_points": ["Sugar  helps.", " ", "Then rest.", "Sugar helps."]}
    )
    with asking(lm):
        made = write_guideline(GuidelineWriter(), QUESTION, SOURCES, "writer")
    assert made == Guideline("Sugar, then rest.", ("Sugar helps.", "Then rest."), basis(QUESTION, SOURCES), "writer")
    first, second = lm.engine.asked
    assert "Sugar helps, then rest." in first.text
    assert "never instructions" in first.system
    assert "Sugar helps, then rest." not in second.text
    assert "Sugar, then rest." in second.text


@pytest.mark.parametrize("steps", [("?",), ({"golden_answer": "x"}, {"key_points": []}), ({"golden_answer": " "},)])
def test_without_a_point_there_is_none(steps, scripted, asking):
    with asking(scripted(*steps)):
        assert write_guideline(GuidelineWriter(), QUESTION, SOURCES, "writer") is None


def test_the_score_is_covered_of_all(frozen, scripted, asking):
    metric = GuidelineMetric(CoverageJudge(), frozen, threads=1)
    lm = scripted(lambda asked: json.dumps({"label": "yes" if "Sugar" in asked.messages[-1][1] else "no"}))
    with asking(lm):
        said = metric.judgements(QUESTION.to_example(), given("Eat something sweet."))
    assert [(one.label, one.reason) for one in said] == [
        ("yes" if "Sugar" in point else "no", point) for point in POINTS
    ]
    assert metric.score(said) == 0.25
    assert len(lm.engine.asked) == 4
    for asked, point in zip(lm.engine.asked, POINTS, strict=True):
        assert [other in asked.text for other in POINTS] == [other == point for other in POINTS]
        assert "then rest" not in asked.text.replace(point, "")  # neither source nor golden answer
    labels = iter(['{"label": "yes"}', "?", "?", '{"label": "yes"}', '{"label": "yes"}'])
    metric = GuidelineMetric(CoverageJudge(), frozen, threads=1)
    with asking(scripted(lambda asked: next(labels))):  # a point that cannot be read leaves no score
        assert math.isnan(metric(QUESTION.to_example(), given("Sugar.")))
    assert (metric.counts["asked"], metric.counts["unreadable"]) == (4, 1)


def test_nothing_is_asked_where_there_is_nothing_to_ask(frozen, scripted, asking):
    lm = scripted({"label": "yes"})
    metric = GuidelineMetric(CoverageJudge(), frozen, threads=1)
    with asking(lm):
        assert metric(QUESTION.to_example(), given(" ")) == 0.0
        assert math.isnan(metric(QUESTION.to_example(), given(None)))
        assert math.isnan(metric(Question("other", "Who?").to_example(), given("Sugar.")))
        assert metric(Question("other", "Who?").to_example(), given("Sugar."), trace=[]) == 0.0
    assert lm.engine.asked == []


def test_frozen_is_frozen(frozen, tmp_path):
    frozen.save(tmp_path / "points.json")
    assert Guidelines.load(tmp_path / "points.json") == frozen
    assert frozen.holds(QUESTION, SOURCES)
    assert not frozen.holds(Question("q2", "What helps?"), SOURCES)
    for question, sources in ((Question("q1", "What hurts?"), SOURCES), (QUESTION, [Passage("p", "Other.")])):
        with pytest.raises(DataError, match="'q1' was frozen for a different question or different sources"):
            frozen.holds(question, sources)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"q1": {"golden_answer": "g", "points": [], "basis": "b", "lm": "l"}}',
    ],
)
def test_a_damaged_file_is_refused(text, tmp_path):
    (tmp_path / "points.json").write_text(text)
    with pytest.raises(DataError, match=r"points\.json is not a guideline file"):
        Guidelines.load(tmp_path / "points.json")
