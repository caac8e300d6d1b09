from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from dspy.utils.exceptions import LMServerError

from querywright.data.types import Question
from querywright.errors import BudgetError, InputError, OutageError
from querywright.metrics.dspy_metrics import METRICS
from querywright.models.engine_errors import LMPromptTooLongError
from querywright.optimize.demonstrations import bootstrap_sets, demos_of, with_demos
from querywright.optimize.evaluate import evaluate
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.program_state import program_from, state_of


def accept_all(example, prediction, trace=None):
    return 1.0


def accept(*ids):
    return lambda example, prediction, trace=None: float(example.id in ids)


@pytest.fixture
def sets_of(world, make_lm):
    """Bootstraps the whole program over the training questions of the world."""

    def run(metric=accept_all, *, engine=None, lm=None, sizes=(1, 2), **settings):
        lm = lm or make_lm(engine)
        return bootstrap_sets(world.program(), world.splits.train, metric, lm=lm, sizes=sizes, **settings)

    return run


def test_every_predictor_gets_a_demonstration_of_an_accepted_run(sets_of):
    (one, two) = sets_of()
    assert list(one) == ["technique.form_hypothesis", "technique.write_queries", "reader.predict"]
    assert [len(demos) for demos in one.values()] == [1, 1, 1]
    assert [len(demos) for demos in two.values()] == [2, 2, 2]
    (queries,) = one["technique.write_queries"]
    number = queries["support"].removeprefix("key of ")
    assert queries["question"] == f"What of number {number}?"
    assert one["reader.predict"][0]["answer"] == f"right {number}"
    assert "augmented" not in queries
    json.dumps([one, two], allow_nan=False)


def test_only_accepted_runs_are_kept(sets_of):
    (found,) = sets_of(accept("q4"), sizes=(3,))
    assert [demo["question"] for demo in found["technique.write_queries"]] == ["What of number 4?"]


def test_a_set_that_found_nothing_is_left_out(sets_of):
    assert sets_of(accept()) == []


def test_a_set_that_equals_an_earlier_one_is_left_out(sets_of):
    assert len(sets_of(accept("q4"), sizes=(1, 2, 3))) == 1


def test_only_the_part_asked_for_is_kept(sets_of):
    (found,) = sets_of(sizes=(1,), part="reader")
    assert list(found) == ["reader.predict"]


def test_the_seed_decides_and_nothing_else(sets_of):
    assert sets_of(seed=3) == sets_of(seed=3)
    assert len({json.dumps(sets_of(seed=seed, sizes=(1,))) for seed in range(6)}) > 1


def test_a_grounded_reader_learns_from_runs_that_were_right(world, make_engine, make_lm, scripted):
    def write(asked):
        if asked.step != "reader":
            return scripted(asked)
        holds = "yes" if f"Decides {asked.number}." in asked.prompt.rsplit("passages:", 1)[-1] else "no"
        answer = f"It is right {asked.number} here."
        return json.dumps({"answer": answer, "passage_numbers": [1], "passages_hold_the_answer": holds})

    program = world.program(reader="grounded")
    train = [replace(question, options=()) for question in world.splits.train[:2]]
    lm = make_lm(make_engine(write=write))
    plain = world.program("plain", reader="grounded")
    assert bootstrap_sets(plain, train, METRICS["accuracy"], lm=lm, sizes=(2,), part="reader") == []  # it declined
    train = world.splits.train
    (found,) = bootstrap_sets(program, train, METRICS["accuracy"], lm=lm, sizes=(2,), part="reader")
    demos = found["reader.predict"]
    assert [sorted(demo) for demo in demos] == [sorted(program.reader.predict.signature.fields)] * 2
    assert all(demo["passage_numbers"] == [1] and "[1] Decides" in demo["passages"] for demo in demos)

    loaded = program_from(state_of(with_demos(program, found)), world)
    row = evaluate(loaded, world.splits.test[:1], lm=lm, name="loaded").rows[0]
    assert row.support == (f"decides-{row.id.removeprefix('q')}",)
    assert row.scores["accuracy"] == 1.0


def test_the_program_is_not_changed(world, make_lm):
    program = world.program()
    before = state_of(program)
    bootstrap_sets(program, world.splits.train, accept_all, lm=make_lm(), sizes=(2,))
    assert state_of(program) == before


def test_nothing_is_printed_or_logged(sets_of, make_engine, capfd, caplog):
    def before(n, asked):
        if n == 0:
            raise LMServerError("once")

    caplog.set_level(logging.DEBUG, logger="dspy")
    assert sets_of(engine=make_engine(before=before))
    assert capfd.readouterr() == ("", "")
    assert "What of number" not in caplog.text


def test_progress_is_told_after_each_set(sets_of):
    told = []
    sets_of(sizes=(1, 2), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_an_outage_stops_it_although_the_optimizer_would_go_on(sets_of, make_engine):
    def before(n, asked):
        raise LMServerError("gone")

    engine = make_engine(before=before)
    with pytest.raises(OutageError):
        sets_of(engine=engine, max_failures=1.0)
    assert len(engine.asked) == 5


def test_an_outage_after_the_first_finds_stops_it_too(sets_of, make_engine, make_lm):
    def before(n, asked):
        if n >= 3:
            raise LMServerError("gone")

    with pytest.raises(OutageError):
        sets_of(lm=make_lm(make_engine(before=before), outage_after=1), sizes=(2,), max_failures=1.0)


def test_the_limit_of_calls_stops_it(sets_of, make_lm):
    with pytest.raises(BudgetError):
        sets_of(lm=make_lm(max_calls=4), sizes=(2,), max_failures=1.0)


def test_failures_are_not_taken_for_questions_without_finds(sets_of, make_engine):
    def before(n, asked):
        if asked.number in {1, 4}:
            raise LMPromptTooLongError(5000, 4096, 100)

    with pytest.raises(TooManyFailuresError, match="2 of 6 questions failed in 'demonstrations'") as error:
        sets_of(accept(), engine=make_engine(before=before), sizes=(6,))
    assert error.value.kinds == {"prompt_too_long": 2}


def test_a_failure_within_the_limit_costs_its_question_only(sets_of, make_engine):
    def before(n, asked):
        if asked.number == 4:
            raise LMServerError("once")

    (found,) = sets_of(engine=make_engine(before=before), sizes=(6,))
    assert len(found["reader.predict"]) == 5


def test_an_answer_that_the_program_made_up_for_is_no_failure(sets_of, make_engine):
    def write(asked):
        return "{}" if asked.step == "hypothesis" else json.dumps({"answer": asked.options[0]})

    (found,) = sets_of(engine=make_engine(write=write), sizes=(6,))
    assert list(found) == ["reader.predict"]


def test_a_metric_that_breaks_is_not_taken_for_no_finds(sets_of):
    def broken(example, prediction, trace=None):
        raise AttributeError("no such field")

    with pytest.raises(TooManyFailuresError, match="no such field"):
        sets_of(broken)


def test_an_interrupt_goes_up(sets_of, make_engine):
    def before(n, asked):
        if n == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sets_of(engine=make_engine(before=before), sizes=(3,))


def test_a_users_mistake_goes_up(world, make_lm):
    with pytest.raises(InputError, match="options"):
        bootstrap_sets(world.program(), [Question("bare", "What?")], accept_all, lm=make_lm(), sizes=(1,))


def test_a_set_of_no_demonstrations_is_refused(sets_of):
    with pytest.raises(InputError, match="1 or more"):
        sets_of(sizes=(1, 0))


def test_demonstrations_are_put_into_a_copy_and_stand_in_the_prompt(world, make_lm, sets_of):
    (one,) = sets_of(accept("q4"), sizes=(1,), part="technique.write_queries")
    program = world.program()
    shown = with_demos(program, one)
    assert demos_of(program)["technique.write_queries"] == []
    assert demos_of(shown) == {
        "technique.form_hypothesis": [],
        "technique.write_queries": [dict(one["technique.write_queries"][0])],
        "reader.predict": [],
    }
    lm = make_lm()
    evaluate(shown, world.splits.dev[:1], lm=lm, name="x")
    prompts = {asked.step: asked.prompt for asked in lm.engine.inner.asked}
    assert "What of number 4?" in prompts["queries"]
    assert "What of number 4?" not in prompts["hypothesis"]
