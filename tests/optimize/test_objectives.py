from __future__ import annotations

import math
from dataclasses import replace

import pytest

from querywright.data.splits import Splits
from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.models.lm import resolve_lm
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.objectives import check_objectives, check_price, objective_named, objectives_of

COST = Cost(
    calls=2, saved=3, input_tokens=10, output_tokens=5, saved_tokens=20, seconds=1.5, dollars=0.5, saved_dollars=1.5
)
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
        ("dollars", 1.0, "minimize"),
    ],
)
def test_values(name, value, direction):
    objective = objective_named(name)
    assert objective.value(EVALUATION) == pytest.approx(value)
    assert objective.direction == direction
    assert math.isnan(objective.value(Evaluation("none", (), 0.0)))


def test_what_is_read_and_scored():
    both, found, calls = objectives_of(["both", "ndcg@3", "lm_calls"])
    assert both.metrics == ("decision_useful", "accuracy")
    assert [one.reads for one in (both, found, calls)] == [True, False, False]
    assert both.scores(EVALUATION) == {"a": 0.5, "b": 0.0, "c": 1.0, "d": 1.0}
    with pytest.raises(InputError, match=r"unknown objective 'recal@5' \(did you mean recall"):
        objective_named("recal@5")
    with pytest.raises(InputError, match="unknown objective 'mrr@0'"):
        objective_named("mrr@0")


@pytest.mark.parametrize(
    ("names", "given", "reader", "part"),
    [
        (["decision_useful"], {"evidence": False}, None, "decision_useful requires labeled evidence"),
        (["accuracy"], {"answer": False}, "short_answer", "accuracy requires questions with an answer"),
        (["accuracy"], {}, None, "accuracy requires a reader"),
        (["joint_passage_f1"], {}, "short_answer", "a reader that names its support"),
    ],
)
def test_what_the_data_cannot_carry_is_refused(names, given, reader, part):
    with pytest.raises(InputError, match=part):
        check_objectives(names, splits(**given), reader)


def test_passages_labeled_as_not_useful_can_be_scored_only_for_abstention():
    given = splits()
    given = given._replace(
        dev=[replace(one, evidence=dict.fromkeys(one.evidence, Label.NOT_USEFUL)) for one in given.dev]
    )
    remedy = r"an ENTAILED or USEFUL passage, but no dev question has any \(querywright judge label --judge none lists"
    for name in ("decision_useful", "recall@5", "both"):
        with pytest.raises(InputError, match=remedy):
            check_objectives([name], given, "short_answer")
    check_objectives(["abstention_recall"], given, None)


def test_dollars_need_a_known_price(make_lm):
    check_price(["accuracy", "dollars"], resolve_lm("openai/gpt-4o-mini", api_key="k" * 12))
    with pytest.raises(InputError, match=r"dollars requires an LM with a known price, but got .*; use tokens"):
        check_price(["accuracy", "dollars"], make_lm())


def test_everything_that_is_lacking_is_said_at_once_and_what_can_be_carried_is_let_through():
    with pytest.raises(InputError) as caught:
        check_objectives(["both", "recall@5"], Splits([], splits(evidence=False, answer=False).dev, []), None)
    assert len(str(caught.value).splitlines()) == 6
    check_objectives(["decision_useful", "hit", "seconds"], splits(), None)
    check_objectives(["accuracy", "joint_passage_f1"], splits(), "grounded")
