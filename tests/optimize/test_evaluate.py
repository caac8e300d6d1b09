from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import dspy
import pytest
from dspy.utils.exceptions import LMAuthError, LMServerError

from querywright.data.types import Label, Question
from querywright.errors import BudgetError, InputError, OutageError, QuerywrightError
from querywright.metrics.dspy_metrics import METRICS
from querywright.models.engine_errors import LMPromptTooLongError
from querywright.models.memo import Memo, remembering
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row, evaluate, metrics_by_name
from querywright.optimize.failures import Failures, TooManyFailuresError
from querywright.programs import RAG, PlainRetrieval, make_program
from querywright.retrieval.replay import ReplayRetriever


def asked_about(*numbers):
    """Raises an error of a kind for some questions."""

    def make(error):
        def before(n, asked):
            if asked.number in numbers:
                raise error

        return before

    return make


def test_questions_are_scored_in_their_order(world, make_lm):
    result = evaluate(world.program(), world.questions, lm=make_lm(), name="hcqr", threads=3)
    assert [row.id for row in result.rows] == [question.id for question in world.questions]
    assert result.mean("accuracy").value == 1.0
    assert result.mean("decision_useful").n == 18
    row = result.rows[4]
    assert (row.answer, row.label, row.failure, row.invalid) == ("right 4", Label.ENTAILED, None, False)
    assert row.passages[0] == "decides-4"
    assert row.queries[0] == ("support", "key of 4")
    assert row.cost.calls == 3
    assert result.label_share(Label.ENTAILED) == 1.0


def test_blocks_of_questions_share_one_allowance(world, make_engine, make_lm):
    lm = make_lm(make_engine(before=asked_about(1, 4, 12)(LMServerError("out of order"))))
    failures = Failures("blocks", 18, 0.12)  # two of eighteen
    blocks = [world.questions[start : start + 6] for start in (0, 6, 12)]

    first = evaluate(world.program(), blocks[0], lm=lm, name="blocks", failures=failures, max_failures=0)
    assert first.failures == {"lm": 2}
    assert not evaluate(world.program(), blocks[1], lm=lm, name="blocks", failures=failures).failures
    with pytest.raises(TooManyFailuresError, match="3 of 18 questions failed in 'blocks'"):
        evaluate(world.program(), blocks[2], lm=lm, name="blocks", failures=failures)


def test_an_evaluation_that_is_remembered_asks_nothing_and_is_the_same(world, make_engine, make_lm):
    lm, memo = make_lm(make_engine()), Memo()
    replay = ReplayRetriever(world, store=None, deepest=10)
    programs = [make_program("hcqr", replay, reader="multiple_choice", max_passages=3) for _ in range(2)]
    with remembering(memo):
        first, again = (evaluate(one, world.questions, lm=lm, name="hcqr", threads=3) for one in programs)
    unaided = evaluate(world.program(), world.questions, lm=make_lm(), name="hcqr")

    assert len(lm.engine.inner.asked) == 54
    assert len(set(world.searches[:54])) == 54
    assert [replace(row, seconds=0, cost=Cost()) for row in again.rows] == [
        replace(row, seconds=0, cost=Cost()) for row in unaided.rows
    ]
    assert [row.cost.asked for row in again.rows] == [row.cost.asked for row in first.rows] == [3] * 18
    assert (again.cost.calls, again.cost.saved_tokens) == (0, first.cost.tokens)
    assert again.cost.saved_seconds == pytest.approx(first.cost.seconds)
    assert dspy.settings.lm is None


def test_plain_retrieval_that_finds_nothing_useful_is_a_zero_not_a_failure(world, make_lm):
    result = evaluate(world.program("plain"), world.questions, lm=make_lm(), name="plain")
    assert result.mean("decision_useful").value == 0.0
    assert result.mean("accuracy").value == 0.0
    assert not result.failures
    assert result.label_share(Label.NOT_USEFUL) == 1.0


def test_what_has_no_label_is_unscored_and_never_a_zero(world, make_lm):
    bare = [replace(q, evidence={}, answer=None) if q.id in {"q0", "q1"} else q for q in world.questions]
    result = evaluate(world.program(), bare, lm=make_lm(), name="some bare")
    for metric in ("accuracy", "decision_useful"):
        mean = result.mean(metric)
        assert (mean.value, mean.n, mean.unscored) == (1.0, 16, 2)
    assert result.rows[0].label is None
    assert result.failures == {}


def test_a_program_without_reader_is_not_scored_by_its_answers(world, make_lm):
    result = evaluate(world.program(reader=None), world.questions[:4], lm=make_lm(), name="retrieval")
    assert result.metrics == ["decision_useful"]
    assert math.isnan(result.mean("accuracy").value)
    assert math.isnan(result.invalid_rate)
    assert result.rows[0].answer is None


def test_the_guess_of_a_technique_is_read_from_its_steps(world, make_lm):
    metrics = metrics_by_name(["hypothesis_agreement", "hit"])
    result = evaluate(world.program(), world.questions, lm=make_lm(), name="hcqr", metrics=metrics)
    kept = [float(row.answer == q.options[0]) for row, q in zip(result.rows, world.questions, strict=True)]
    assert 0 < sum(kept) < len(kept)  # the scripted LM always guesses the first option
    assert result.values("hypothesis_agreement") == kept
    plain = evaluate(world.program("plain"), world.questions, lm=make_lm(), name="plain", metrics=metrics)
    assert plain.metrics == ["hit"]
    retrieval = evaluate(world.program(reader=None), world.questions[:2], lm=make_lm(), name="r", metrics=metrics)
    assert list(retrieval.rows[0].scores) == ["hit"]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("lm", LMServerError("down for a moment")),
        ("prompt_too_long", LMPromptTooLongError(5000, 4096, 100)),
        ("lm", RuntimeError("an engine that breaks")),
    ],
)
def test_a_failure_is_typed_counted_and_no_score(kind, error, world, make_lm, make_engine):
    lm = make_lm(make_engine(before=asked_about(3)(error)))
    result = evaluate(world.program(), world.questions, lm=lm, name="one fails")
    assert result.failures == {kind: 1}
    row = result.rows[3]
    assert (row.id, row.failure, row.answer, row.label) == ("q3", kind, None, None)
    assert all(math.isnan(value) for value in row.scores.values())
    assert str(error)[:20] in row.message
    assert result.mean("accuracy").value == 1.0
    assert (result.mean("accuracy").n, result.mean("accuracy").unscored) == (17, 1)


def test_a_bug_in_a_program_is_a_failure_of_its_own_kind(world, make_lm):
    class Broken(PlainRetrieval):
        async def plan(self, question, options):
            if "number 3?" in question:
                raise KeyError("a slip")
            return await super().plan(question, options)

    program = RAG(Broken(world, max_passages=3), world.program().reader)
    result = evaluate(program, world.questions, lm=make_lm(), name="broken")
    assert result.failures == {"bug": 1}
    assert "a slip" in result.rows[3].message


@pytest.mark.parametrize("wrong", [None, math.inf])
def test_a_bug_in_a_metric_is_a_failure_and_no_zero(wrong, world, make_lm):
    def metric(example, prediction, trace=None):
        return wrong if example.id == "q2" else 1.0

    result = evaluate(world.program(), world.questions, lm=make_lm(), name="x", metrics={"mine": metric})
    assert result.failures == {"bug": 1}
    assert result.rows[2].cost.calls == 3
    assert result.mean("mine").unscored == 1


def test_an_answer_that_nothing_can_read_is_a_failure_of_the_kind_parse(world, make_lm, make_engine):
    class Strict(dspy.Module):
        def __init__(self):
            super().__init__()
            self.reader = object()
            self.predict = dspy.Predict("question -> answer: int")

        def forward(self, question, options):
            self.predict(question=question)

    lm = make_lm(make_engine(write=lambda asked: "{}"))
    result = evaluate(Strict(), world.questions[:1], lm=lm, name="strict")
    assert result.failures == {"parse": 1}


def test_a_question_that_hangs_is_late_and_the_others_are_scored(world, make_lm, make_engine):
    lm = make_lm(make_engine(before=lambda n, asked: time.sleep(1.5 if asked.number == 5 else 0)))
    result = evaluate(world.program(), world.questions, lm=lm, name="slow", threads=2, deadline=0.6)
    assert result.failures == {"deadline": 1}
    assert result.rows[5].failure == "deadline"
    assert 0.6 <= result.rows[5].seconds < 1.4
    assert result.mean("accuracy").value == 1.0


def test_an_outage_stops_the_run(world, make_lm, make_engine):
    engine = make_engine(before=asked_about(*range(2, 18))(LMServerError("gone")))
    with pytest.raises(OutageError):
        evaluate(world.program(), world.questions, lm=make_lm(engine), name="down", threads=1, max_failures=1.0)
    assert len(engine.asked) == 2 * 3 + 5  # with more threads an answer to one question breaks the row of another's


def test_a_wrong_key_stops_the_run_at_once(world, make_lm, make_engine):
    engine = make_engine(before=asked_about(*range(18))(LMAuthError("no such key")))
    with pytest.raises(QuerywrightError):
        evaluate(world.program(), world.questions, lm=make_lm(engine), name="down", threads=1)
    assert len(engine.asked) <= 2


def test_the_limit_of_calls_stops_the_run(world, make_lm, make_engine):
    engine = make_engine()
    with pytest.raises(BudgetError, match="10"):
        evaluate(world.program(), world.questions, lm=make_lm(engine, max_calls=10), name="dear", max_failures=1.0)
    assert len(engine.asked) == 10


@pytest.mark.parametrize(("share", "allowed"), [(0.0, 0), (0.05, 1), (0.2, 3)])
def test_more_failures_than_allowed_stop_the_run(share, allowed, world, make_lm, make_engine):
    def run(failing):
        before = asked_about(*range(failing))(LMPromptTooLongError(5000, 4096, 100))
        return evaluate(
            world.program(),
            world.questions,
            lm=make_lm(make_engine(before=before)),
            name="hard",
            max_failures=share,
            threads=1,
        )

    assert sum(run(allowed).failures.values()) == allowed
    with pytest.raises(TooManyFailuresError, match=f"{allowed + 1} of 18 questions failed in 'hard'") as error:
        run(allowed + 1)
    assert error.value.kinds == {"prompt_too_long": allowed + 1}
    assert f"q{allowed}: prompt_too_long" in str(error.value)


def test_a_share_of_failures_out_of_range_is_refused(world, make_lm):
    with pytest.raises(InputError, match=r"max_failures .* 1\.5"):
        evaluate(world.program(), world.questions, lm=make_lm(), name="x", max_failures=1.5)


def test_a_users_mistake_goes_up_at_once(world, make_lm, make_engine):
    engine = make_engine(before=lambda n, asked: time.sleep(0.2))
    questions = [Question("bare", "What of number 0?"), *world.questions]
    with pytest.raises(InputError, match="options"):
        evaluate(world.program("plain"), questions, lm=make_lm(engine), name="x", threads=1, max_failures=1.0)
    assert len(engine.asked) <= 1


def test_an_interrupt_goes_up(world, make_lm, make_engine):
    def before(n, asked):
        if n == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(world.program(), world.questions, lm=make_lm(make_engine(before=before)), name="x", threads=2)


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
    assert rows.calls == 18 * 3 - 1
    assert rows.saved == 17 * 3


def test_what_a_judge_is_asked_by_a_metric_is_not_the_programs_cost(world, make_lm):
    judge = dspy.Predict("question -> answer")

    def judged(example, prediction, trace=None):
        judge(question=f"{example.question} judged")
        return 1.0

    lm = make_lm()
    result = evaluate(world.program("plain"), world.questions[:3], lm=lm, name="x", metrics={"judged": judged})
    assert result.cost.calls == 3
    assert lm.engine.ledger.total.calls == 6


def test_results_do_not_depend_on_the_number_of_threads(world, make_lm):
    def run(threads):
        result = evaluate(world.program(), world.questions, lm=make_lm(), name="x", threads=threads)
        return [replace(row, seconds=0.0, cost=replace(row.cost, seconds=0.0)) for row in result.rows]

    assert run(1) == run(8)


def test_progress_is_told_after_each_question(world, make_lm):
    told = []
    evaluate(world.program(), world.questions[:5], lm=make_lm(), name="arm", progress=lambda *what: told.append(what))
    assert told == [("arm", n, 5) for n in range(1, 6)]


def test_nothing_is_recorded_by_dspy(world, make_lm):
    lm = make_lm()
    evaluate(world.program(), world.questions[:3], lm=lm, name="x")
    assert lm.history == []


def test_the_average_is_the_mean_without_its_interval():
    rows = [Row(str(n), {"recall@5": value}) for n, value in enumerate((0.1, 0.7, math.nan, 0.2))]
    some = Evaluation("some", tuple(rows), 0.0)
    assert some.average("recall@5") == some.mean("recall@5").value == pytest.approx(1 / 3)
    assert math.isnan(some.average("accuracy"))
    assert math.isnan(Evaluation("none", (), 0.0).average("recall@5"))


def test_the_summary_is_json_without_nan(world, make_lm, make_engine):
    lm = make_lm(make_engine(before=asked_about(0)(LMServerError("down"))))
    questions = [replace(q, evidence={}) for q in world.questions]
    none = {"accuracy": METRICS["accuracy"], "unknown": lambda e, p, t=None: math.nan}
    result = evaluate(world.program(), questions, lm=lm, name="bare", metrics=none)
    text = json.dumps(result.to_json(rows=True), allow_nan=False)
    data = json.loads(text)
    assert data["labels"] == {"ENTAILED": None, "USEFUL": None, "NOT_USEFUL": None}
    assert data["failures"] == {"lm": 1}
    assert data["rows"][0]["scores"] == {"accuracy": None, "unknown": None}
    assert "unknown" not in data["metrics"]
    assert data["metrics"]["accuracy"]["n"] == 17
    assert data["cost"]["failures"] == 1
    empty = json.dumps(Evaluation("none", (), 0.0).to_json(), allow_nan=False)
    assert json.loads(empty)["fallback_rate"] is None


def test_rates_are_of_the_questions_that_went_through():
    rows = (
        Row("a", {"accuracy": 1.0}, answer="x", fallbacks=("query:support",)),
        Row("b", {"accuracy": 0.0}, answer="none of them", invalid=True),
        Row("c", {"accuracy": math.nan}, failure="lm"),
    )
    result = Evaluation("arm", rows, 1.0)
    assert result.fallback_rate == 0.5
    assert result.invalid_rate == 0.5
    assert result.values("accuracy")[:2] == [1.0, 0.0]


def test_arms_are_compared_question_by_question():
    def arm(*values):
        rows = (Row(f"q{n}", {"accuracy": v}, cost=Cost(calls=1)) for n, v in enumerate(values))
        return Evaluation("arm", tuple(rows), 0.0)

    test = arm(1.0, 1.0, 0.0, math.nan).against(arm(0.0, 1.0, 1.0, 1.0), "accuracy")
    assert (test.wins, test.losses, test.ties, test.unscored) == (1, 1, 1, 1)
    with pytest.raises(InputError, match="not evaluated on the same questions"):
        arm(1.0, 1.0).against(arm(1.0), "accuracy")


def test_metrics_are_chosen_by_name():
    assert list(metrics_by_name(["recall", "accuracy"])) == ["recall", "accuracy"]
    with pytest.raises(InputError, match=r"unknown metric 'acuracy'.*accuracy"):
        metrics_by_name(["acuracy"])


def test_latency_is_of_the_questions_that_went_through():
    rows = [Row(id=str(n), scores={}, seconds=float(n)) for n in range(1, 21)]
    rows.append(Row(id="late", scores={}, seconds=500.0, failure="deadline"))
    result = Evaluation("arm", tuple(rows), 1.0)

    assert (result.latency(0.5), result.latency(0.95), result.latency(1.0)) == (10.0, 19.0, 20.0)
    assert result.to_json()["latency"] == {"p50": 10.0, "p95": 19.0}
    assert math.isnan(Evaluation("none", (rows[-1],), 1.0).latency(0.5))
