from __future__ import annotations

import math

import pytest

from querywright.data.splits import Splits
from querywright.data.types import Label, Question
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.objectives import objective_named

COST = Cost(calls=2, saved=3, input_tokens=10, output_tokens=5, saved_tokens=20, seconds=1.5)
EVALUATION = Evaluation(
    "arm",
    (
        Row("a", {"accuracy": 1.0, "decision_useful": 0.0, "recall@5": 0.5}, cost=COST),
        Row("b", {"accuracy": 0.0, "decision_useful": 0.0, "recall@5": math.nan}, cost=COST),
        Row("c", {"accuracy": 1.0, "decision_useful": 1.0, "recall@5": 1.0}),
        Row("d", {"accuracy": 1.0, "decision_useful": 1.0, "recall@5": 0.0}),
    ),
    1.0,
)


def splits(*, evidence=True, answer=True):
    labels = {"p": Label.ENTAILED} if evidence else {}
    question = Question("q", "Who?", (), "x" if answer else None, evidence=labels)
    return Splits([question], [question], [question])


@pytest.mark.parametrize(
    ("name", "value", "direction"),
    [
        ("accuracy", 0.75, "maximize"),
        ("decision_useful", 0.5, "maximize"),
        ("both", 0.625, "maximize"),
        ("recall@5", 0.5, "maximize"),
        ("lm_calls", 2.5, "minimize"),
        ("tokens", 17.5, "minimize"),
        ("seconds", 0.75, "minimize"),
    ],
)
def test_values(name, value, direction):
    objective = objective_named(name)
    assert objective.value(EVALUATION) == pytest.approx(value)
    assert objective.direction == direction
    assert math.isnan(objective.value(Evaluation("none", (), 0.0)))
