from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace

import dspy
import pytest
from dspy.utils.exceptions import LMAuthError, LMServerError

from querywright.data.types import Label, Question
from querywright.errors import BudgetError, InputError, OutageError, QuerywrightError
from querywright.metrics.dspy_metrics import METRICS
from querywright.models.engine_errors import LMPromptTooLongError
from querywright.models.usage import loading
from querywright.optimize.evaluate import Evaluation, Row, evaluate
from querywright.optimize.failures import Failures, TooManyFailuresError
from querywright.optimize.judging import judged_metrics
from querywright.optimize.tables import table_rows
from querywright.programs import RAG, PlainRetrieval, make_program

LABELLED = '{"reason": "It says so.", "label": "USEFUL"}'


def raised(error, *numbers):
    """Raises an error for some questions."""

    def before(n, asked):
        if asked.number in numbers:
            raise error

    return before


def timeless(result, **cost):
    return [replace(row, seconds=0.0, cost=replace(row.cost, seconds=0.0, **cost)) for row in result.rows]


def test_questions_are_scored_in_their_order_however_many_are_under_way(world, make_lm):
    lm, told = make_lm(), []
    result = evaluate(
        world.program(), world.questions, lm=lm, name="hcqr", threads=3, progress=lambda *what: told.append(what)
    )
    assert [row.id for row in result.rows] == [question.id for question in world.questions]
    assert result.mean("accuracy").value == 1.0
    assert result.mean("decision_useful").n == 18
    row = result.rows[4]
    assert (row.answer, row.label, row.failure, row.invalid) == ("right 4", Label.ENTAILED, None, False)
    assert row.passages[0] == "decides-4"
    assert row.queries[0] == ("support", "key of 4")
    assert row.cost.calls == 3
    assert result.label_share(Label.ENTAILED) == 1.0
    assert told == [("hcqr", n, 18) for n in range(1, 19)]
    assert lm.history == []
    assert timeless(evaluate(world.program(), world.questions, lm=make_lm(), name="x", threads=8)) == timeless(result)


def test_passages_that_nobody_judged_are_counted_and_no_zero(world, make_lm):
    pooled = [replace(one, assessors={f"decides-{n}": ("person",)}) for n, one in enumerate(world.questions)]
    pooled[0] = replace(pooled[0], evidence={"elsewhere": Label.USEFUL}, assessors={"elsewhere": ("person",)})
    result = evaluate(world.program(), pooled, lm=make_lm(), name="hcqr", threads=3)
    first, *others = result.rows
    assert (first.label, math.isnan(first.scores["decision_useful"])) == (None, True)
    assert first.unjudged == len(first.passages)
    assert all(row.unjudged == len(row.passages) - 1 and row.label is Label.ENTAILED for row in others)
    assert (result.mean("decision_useful").value, result.mean("decision_useful").unscored) == (1.0, 1)
    shown = sum(len(row.passages) for row in result.rows)
    assert result.to_json()["unjudged"] == (shown - 17) / shown
    (row,) = table_rows([result])
    assert row["unjudged"] == f"{100 * (shown - 17) / shown:.0f}%"


def test_a_zero_is_no_failure_and_what_has_no_label_is_no_zero(world, make_lm):
    plain = evaluate(world.program("plain"), world.questions, lm=make_lm(), name="plain")
    assert (plain.mean("decision_useful").value, plain.mean("accuracy").value) == (0.0, 0.0)
    assert plain.failures == {}
    assert plain.label_share(Label.NOT_USEFUL) == 1.0
    bare = [replace(q, evidence={}, answer=None) if q.id in {"q0", "q1"} else q for q in world.questions]
    result = evaluate(world.program(), bare, lm=make_lm(), name="some bare")
    for metric in ("accuracy", "decision_useful"):
        mean = result.mean(metric)
        assert (mean.value, mean.n, mean.unscored) == (1.0, 16, 2)
    assert (result.rows[0].label, result.failures) == (None, {})


def test_a_program_is_scored_by_what_it_does(world, make_lm):
    result = evaluate(world.program(reader=None), world.questions[:4], lm=make_lm(), name="retrieval")
    assert result.metrics == ["decision_useful"]
    assert math.isnan(result.mean("accuracy").value)
    assert math.isnan(result.invalid_rate)
    assert result.rows[0].answer is None
    metrics = judged_metrics(["hypothesis_agreement", "hit"])
    result = evaluate(world.program(), world.questions, lm=make_lm(), name="hcqr", metrics=metrics)
    kept = [float(row.answer == q.options[0]) for row, q in zip(result.rows, world.questions, strict=True)]
    assert 0 < sum(kept) < len(kept)  # the scripted LM always guesses the first option
    assert result.values("hypothesis_agreement") == kept
    plain = evaluate(world.program("plain"), world.questions, lm=make_lm(), name="plain", metrics=metrics)
    assert plain.metrics == ["hit"]
    with pytest.raises(InputError, match=r"unknown metric 'acuracy'.*accuracy"):
        judged_metrics(["acuracy"])


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("lm", LMServerError("down for a moment")),
        ("prompt_too_long", LMPromptTooLongError(5000, 4096, 100)),
        ("lm", RuntimeError("an engine that breaks")),
    ],
)
def test_a_failure_is_typed_counted_and_no_score(kind, error, world, make_lm, make_engine):
    lm = make_lm(make_engine(before=raised(error, 3)))
    result = evaluate(world.program(), world.questions, lm=lm, name="one fails")
    assert result.failures == {kind: 1}
    row = result.rows[3]
    assert (row.id, row.failure, row.answer, row.label) == ("q3", kind, None, None)
    assert all(math.isnan(value) for value in row.scores.values())
    assert str(error)[:20] in row.message
    mean = result.mean("accuracy")
    assert (mean.value, mean.n, mean.unscored) == (1.0, 17, 1)


def test_a_judge_that_fails_is_told_as_the_judges_failure_and_no_score(world, make_lm, make_engine):
    questions = [replace(question, evidence={}) for question in world.questions]
    down = LMServerError("down for a moment")
    engine = make_engine(before=raised(down, 3), write=lambda asked: LABELLED)
    metrics = judged_metrics(["judged_useful"], lm=make_lm(engine, identity="the judges"))
    result = evaluate(world.program("plain"), questions, lm=make_lm(), name="one fails", metrics=metrics)
    row = result.rows[3]
    assert (row.failure, math.isnan(row.scores["judged_useful"])) == ("judge", True)
    assert "the judge 'usefulness' " in row.message
    metrics = judged_metrics(["judged_useful"], lm=make_lm(make_engine(before=raised(down, *range(99)))))
    with pytest.raises((OutageError, TooManyFailuresError), match="the judge 'usefulness' "):
        evaluate(world.program("plain"), questions, lm=make_lm(), name="all fail", metrics=metrics)


def test_nonsense_from_a_judge_is_counted_and_no_score_and_too_much_of_it_ends_the_run(world, make_lm, make_engine):
    questions = [replace(question, evidence={}) for question in world.questions[:3]]
    judge = make_lm(make_engine(write=lambda asked: "so so"), max_unreadable=0.9)
    metrics = judged_metrics(["judged_useful", "judged_entailed"], lm=judge)
    result = evaluate(world.program("plain"), questions, lm=make_lm(), name="nonsense", metrics=metrics)
    assert (result.metrics, result.failures) == ([], {})
    judged = metrics["judged_useful"].counts
    assert judged["asked"] == judged["unreadable"] == sum(len(row.judgements) for row in result.rows) > 0
    assert [(row.label, row.unjudged) for row in result.rows] == [(None, len(row.passages)) for row in result.rows]
    metrics = judged_metrics(["judged_useful"], lm=make_lm(make_engine(write=lambda asked: "so so")))
    with pytest.raises(TooManyFailuresError, match=r"'so so', but .* for a JSON object with \"reason\" and \"label\""):
        evaluate(world.program("plain"), questions, lm=make_lm(), name="nonsense", metrics=metrics)


class Broken(PlainRetrieval):
    def forward(self, question, options=None, history=None):
        if "number 3?" in question:
            json.loads("a slip")
        return super().forward(question, options, history)


class Strict(dspy.Module):
    def __init__(self):
        super().__init__()
        self.reader = object()
        self.predict = dspy.Predict("question -> answer: int")

    def forward(self, question, options):
        self.predict(question=question)


def test_bugs_and_answers_that_nothing_can_read_are_failures_of_their_own_kinds(world, make_lm, make_engine):
    program = RAG(Broken(world, max_passages=3), world.program().reader)
    result = evaluate(program, world.questions, lm=make_lm(), name="broken")
    assert result.failures == {"bug": 1}
    assert re.fullmatch(r"JSONDecodeError at .*test_evaluate\.py:\d+: Expecting value.*", result.rows[3].message)
    for wrong in (None, math.inf):
        metrics = {"mine": lambda example, prediction, trace=None, w=wrong: w if example.id == "q2" else 1.0}
        result = evaluate(world.program(), world.questions, lm=make_lm(), name="x", metrics=metrics)
        assert (result.failures, result.rows[2].cost.calls) == ({"metric": 1}, 3)
        assert result.rows[2].message.startswith(("the metric mine raised TypeError at ", "the metric mine must"))
        assert result.mean("mine").unscored == 1
    lm = make_lm(make_engine(write=lambda asked: "{}" if asked.number == 1 else '{"answer": 7}'))
    found = evaluate(Strict(), world.questions[:2], lm=lm, name="strict", max_failures=1)
    assert found.failures == {"bug": 1, "parse": 1}


def test_what_is_no_failure_of_a_question_stops_the_run(world, make_lm, make_engine):
    def run(engine, questions=world.questions, **lm):
        evaluate(world.program(), questions, lm=make_lm(engine, **lm), name="x", threads=1, max_failures=1.0)

    engine = make_engine(before=raised(LMServerError("gone"), *range(2, 18)))
    with pytest.raises(OutageError):
        run(engine)
    assert len(engine.asked) == 2 * 3 + 5
    engine = make_engine(before=raised(LMAuthError("no such key"), *range(18)))
    with pytest.raises(QuerywrightError):
        run(engine)
    assert len(engine.asked) <= 2
    engine = make_engine()
    with pytest.raises(BudgetError, match="10"):
        run(engine, max_calls=10)
    assert len(engine.asked) == 10
    with pytest.raises(InputError, match=r"^x: .*options"):
        run(make_engine(), [Question("bare", "What of number 0?"), *world.questions])
    with pytest.raises(KeyboardInterrupt):
        run(make_engine(before=raised(KeyboardInterrupt, 4)))


@pytest.mark.parametrize(("share", "allowed"), [(0.0, 0), (0.05, 1), (0.2, 3)])
def test_more_failures_than_allowed_stop_the_run(share, allowed, world, make_lm, make_engine):
    def run(failing):
        lm = make_lm(make_engine(before=raised(LMPromptTooLongError(5000, 4096, 100), *range(failing))))
        return evaluate(world.program(), world.questions, lm=lm, name="hard", max_failures=share, threads=1)

    assert sum(run(allowed).failures.values()) == allowed
    with pytest.raises(TooManyFailuresError, match=f"{allowed + 1} of 18 questions failed in 'hard'") as error:
        run(allowed + 1)
    assert error.value.kinds == {"prompt_too_long": allowed + 1}
    assert f"q{allowed}: prompt_too_long" in str(error.value)


def test_blocks_of_questions_share_one_allowance(world, make_engine, make_lm):
    lm = make_lm(make_engine(before=raised(LMServerError("out of order"), 1, 4, 12)))
    failures = Failures("blocks", 18, 0.12)  # two of eighteen
    blocks = [world.questions[start : start + 6] for start in (0, 6, 12)]

    first = evaluate(world.program(), blocks[0], lm=lm, name="blocks", failures=failures, max_failures=0)
    assert first.failures == {"lm": 2}
    assert not evaluate(world.program(), blocks[1], lm=lm, name="blocks", failures=failures).failures
    with pytest.raises(TooManyFailuresError, match="3 of 18 questions failed in 'blocks'"):
        evaluate(world.program(), blocks[2], lm=lm, name="blocks", failures=failures)
    with pytest.raises(InputError, match=r"max_failures .* 1\.5"):
        evaluate(world.program(), world.questions, lm=lm, name="x", max_failures=1.5)


def test_costs_of_questions_add_up_to_the_ledger_also_with_failures(world, make_lm, make_engine, store):
    def before(n, asked):
        if asked.number == 7 and asked.step == "reader":
            raise LMServerError("after two answers")

    lm = make_lm(make_engine(before=before), store=store)
    twice = [*world.questions, *(replace(q, id=f"again-{q.id}") for q in world.questions if q.id != "q7")]
    result = evaluate(world.program(), twice, lm=lm, name="x", threads=8)
    assert result.failures == {"lm": 1}
    failed = result.rows[7].cost
    assert (failed.calls, failed.failures) == (2, 1)
    rows, ledger = result.cost, lm.engine.ledger.total
    assert replace(rows, seconds=0.0, saved_seconds=0.0) == replace(ledger, seconds=0.0, saved_seconds=0.0)
    assert rows.saved_seconds == pytest.approx(ledger.saved_seconds)
    assert rows.seconds == pytest.approx(ledger.seconds)
    assert (rows.calls, rows.saved) == (18 * 3 - 1, 17 * 3)


def test_what_a_judge_is_asked_by_a_metric_is_not_the_programs_cost(world, make_lm):
    judge = dspy.Predict("question -> answer")

    def judged(example, prediction, trace=None):
        judge(question=f"{example.question} judged")
        return 1.0

    lm = make_lm()
    result = evaluate(world.program("plain"), world.questions[:3], lm=lm, name="x", metrics={"judged": judged})
    assert result.cost.calls == 3
    assert lm.engine.ledger.total.calls == 6


def test_the_summary_is_json_without_nan(world, make_lm, make_engine):
    lm = make_lm(make_engine(before=raised(LMServerError("down"), 0)))
    questions = [replace(q, evidence={}) for q in world.questions]
    none = {"accuracy": METRICS["accuracy"], "unknown": lambda e, p, t=None: math.nan}
    result = evaluate(world.program(), questions, lm=lm, name="bare", metrics=none)
    data = json.loads(json.dumps(result.to_json(rows=True), allow_nan=False))
    assert data["labels"] == {"ENTAILED": None, "USEFUL": None, "NOT_USEFUL": None}
    assert data["failures"] == {"lm": 1}
    assert data["rows"][0]["scores"] == {"accuracy": None, "unknown": None}
    assert "unknown" not in data["metrics"]
    assert data["metrics"]["accuracy"]["n"] == 17
    assert data["cost"]["failures"] == 1
    empty = json.dumps(Evaluation("none", (), 0.0).to_json(), allow_nan=False)
    assert json.loads(empty)["fallback_rate"] is None


def scored(name, *values):
    return Evaluation(name, tuple(Row(f"q{n}", {"accuracy": value}) for n, value in enumerate(values)), 0.0)


def test_means_rates_and_latency_are_of_the_questions_that_went_through():
    some = scored("some", 0.1, 0.7, math.nan, 0.2)
    assert some.average("accuracy") == some.mean("accuracy").value == pytest.approx(1 / 3)
    assert math.isnan(some.average("recall"))
    assert math.isnan(scored("none").average("accuracy"))
    rows = (
        Row("a", {"accuracy": 1.0}, answer="x", fallbacks=("query:support",)),
        Row("b", {"accuracy": 0.0}, answer="none of them", invalid=True),
        Row("c", {"accuracy": math.nan}, failure="lm"),
    )
    result = Evaluation("arm", rows, 1.0)
    assert (result.fallback_rate, result.invalid_rate) == (0.5, 0.5)
    late = Row(id="late", scores={}, seconds=500.0, failure="lm")
    timed = Evaluation("arm", (*(Row(id=str(n), scores={}, seconds=float(n)) for n in range(1, 21)), late), 1.0)
    assert (timed.latency(0.5), timed.latency(0.95), timed.latency(1.0)) == (10.0, 19.0, 20.0)
    assert timed.to_json()["latency"] == {"p50": 10.0, "p95": 19.0}
    assert math.isnan(Evaluation("none", (late,), 1.0).latency(0.5))


def test_the_loading_of_a_model_is_nobodys_latency(world, make_lm):
    def searches(query, k):
        with loading("a model"):
            time.sleep(0.5)
        return []

    program = make_program("plain", searches, reader="multiple_choice")
    result = evaluate(program, world.questions[:2], lm=make_lm(), name="plain")
    assert result.latency(0.95) <= result.seconds - 0.5
