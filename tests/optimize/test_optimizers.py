from __future__ import annotations

import json
import logging
from dataclasses import replace

import dspy
import pytest
from dspy.utils.exceptions import LMServerError

from querywright.errors import BudgetError, InputError, OutageError
from querywright.metrics.dspy_metrics import METRICS, scorable
from querywright.models.adapter import PromptAdapter
from querywright.models.engine_errors import LMPromptTooLongError
from querywright.optimize.evaluate import evaluate
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.optimizer_run import OptimizerError, OptimizerRun
from querywright.optimize.optimizers import OPTIMIZERS, run_optimizer
from querywright.optimize.program_state import ProgramState, program_from, state_of
from querywright.programs import Ensemble

FOUND = METRICS["decision_useful"]
ASKING = [name for name in OPTIMIZERS if name != "labelled_few_shot"]
SMALL = {
    "copro": {"breadth": 2, "depth": 1},
    "random_search": {"num_candidate_programs": 1},
    "bootstrap_optuna": {"num_candidate_programs": 2},
    "mipro": {"num_trials": 3},
    "simba": {"max_steps": 1},
    "gepa": {"max_metric_calls": 24},
    "ensemble": {"size": 2},
}
"""Arguments with which each is over in a second, and still comes to something."""


FAST = ("bootstrap_few_shot", "mipro", "gepa")
"""The ways of DSPy to run a program, once each."""


@pytest.fixture
def run(world, make_lm, writing):
    def of(name, *, program=None, engine=None, lm=None, metric=FOUND, part="technique", train=None, **given):
        program = program or world.program(reader=None if part == "technique" else "multiple_choice")
        settings = {"arguments": SMALL.get(name, {}), "lm": lm or make_lm(engine or writing()), **given}
        train = world.questions[:6] if train is None else train
        return run_optimizer(OptimizerRun(name, program, train, metric=metric, part=part, **settings))

    return of


def found(program, questions, lm):
    return evaluate(program, questions, lm=lm, name="x", threads=1).mean("decision_useful").value


def messages(program, question, lm, asked_of):
    evaluate(program, [question], lm=lm, name="x", threads=1)
    return {asked.messages for asked in asked_of(lm)}  # members of an ensemble are asked side by side


@pytest.mark.parametrize("name", ASKING)
def test_prompts_get_better_and_go_through_json(
    name, world, run, make_lm, writing, asked_of, store, capfd, caplog, tmp_path, monkeypatch
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    caplog.set_level(logging.DEBUG, logger="dspy")
    program = world.program(reader=None)
    before, told, lm = state_of(program), [], make_lm(writing(), store=store)
    tuned = run(name, program=program, lm=lm, progress=lambda done, total: told.append((done, total)))
    assert state_of(program) == before  # the program itself is not changed
    most = OPTIMIZERS[name].most_calls(6, 2, SMALL.get(name), calls_per_run=2)
    assert len(asked_of(lm)) <= most
    assert all(done <= total for done, total in told)
    assert capfd.readouterr() == ("", "")
    assert "What of number" not in caplog.text
    assert logging.getLogger("optuna").level != logging.CRITICAL + 1

    odd = [question for question in world.questions[10:] if int(question.id[1:]) % 2]
    assert found(world.program(reader=None), odd, make_lm(writing())) == 0.0
    assert found(tuned, odd, make_lm(writing())) == 1.0
    text = json.dumps(state_of(tuned).model_dump(), allow_nan=False)
    loaded = program_from(ProgramState.model_validate_json(text), world)
    one, other = (messages(each, odd[0], make_lm(writing()), asked_of) for each in (tuned, loaded))
    assert one == other
    assert len(one) == (4 if name == "ensemble" else 2)

    again = make_lm(writing(), store=store)
    assert state_of(run(name, program=program, lm=again)) == state_of(tuned)  # the seed decides, and nothing else
    assert asked_of(again) == []
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", [*FAST, "copro", "ensemble"])
def test_only_the_part_asked_for_changes(name, world, run):
    program = world.program()
    tuned = run(name, program=program, part="reader", metric=METRICS["accuracy"])
    before, after = state_of(program).predictors, state_of(tuned).predictors
    assert {one.rpartition("].")[2] for one in after} == set(before)
    for one, state in after.items():
        plain = one.rpartition("].")[2]
        assert plain.startswith("reader") or state == before[plain]
    both = state_of(run(name, part="all", metric=METRICS["accuracy"]))
    assert both.predictors != before


def test_gepa_is_told_in_words_what_was_missing(run, make_lm, writing, asked_of):
    lm = make_lm(writing())
    run("gepa", lm=lm)
    told = next(asked.prompt for asked in asked_of(lm) if "new_instruction" in asked.properties)
    assert "was missing from the 3 found" in told
    assert "The queries were" in told


def test_labelled_questions_are_shown_to_a_reader_and_ask_nothing(world, run, make_lm, writing, asked_of):
    lm = make_lm(writing())
    tuned = run("labelled_few_shot", lm=lm, part="reader", arguments={"k": 3})
    assert asked_of(lm) == []
    demos = state_of(tuned).predictors["reader.predict"].demos
    assert [sorted(demo) for demo in demos] == [["answer", "question"]] * 3
    shown = [one for asked in messages(tuned, world.questions[12], lm, asked_of) for one in asked]
    assert any(role == "assistant" and "right" in text for role, text in shown)
    with pytest.raises(OptimizerError, match="bootstrap_few_shot"):  # they say nothing of queries
        run("labelled_few_shot")


@pytest.mark.parametrize("name", ASKING)
def test_an_outage_and_the_limit_of_calls_go_up(name, run, writing, make_lm):
    after = 3

    def before(n, asked):
        if n >= after:
            raise LMServerError("gone")

    engine = writing(before=before)
    with pytest.raises(OutageError):
        run(name, lm=make_lm(engine, outage_after=2), max_failures=1.0)
    assert len(engine.asked) <= after + 4
    engine = writing()
    with pytest.raises(BudgetError):
        run(name, lm=make_lm(engine, max_calls=after), max_failures=1.0)
    assert len(engine.asked) == after


@pytest.mark.parametrize("name", FAST)
def test_an_lm_that_answers_prose_ends_it_early(name, run, world, make_engine, make_lm):
    engine = make_engine(write=lambda asked: "As an AI, I cannot.")
    with pytest.raises(TooManyFailuresError, match=r"'As an AI, I cannot\.', but the prompt asked .* for a JSON"):
        run(name, lm=make_lm(engine), train=world.questions, max_failures=1.0)
    assert len(engine.asked) <= 40


@pytest.mark.parametrize("name", ["copro", "mipro", "simba", "gepa"])
def test_an_outage_while_instructions_are_written_goes_up(name, run, writing, make_lm):
    reached = []

    def before(n, asked):
        if asked.proposes:
            reached.append(n)
            raise LMServerError("gone")

    arguments = {"max_demos": 0, "max_steps": 2} if name == "simba" else SMALL[name]  # no demonstrations: rules
    with pytest.raises(OutageError, match="while it was writing instructions"):
        run(name, lm=make_lm(writing(before=before), outage_after=9), arguments=arguments, max_failures=1.0)
    assert len(reached) == 1


@pytest.mark.parametrize("name", [*FAST, "simba"])
def test_too_many_failed_questions_stop_it_and_one_that_fails_again_and_again_counts_once(name, run, writing):
    def broken(example, prediction, trace=None):
        raise AttributeError("no such field")

    def before(n, asked):
        if not asked.proposes and "number 4?" in asked.messages[-1][1]:
            raise LMServerError("once more")

    with pytest.raises(TooManyFailuresError, match="no such field"):
        run(name, metric=broken)
    assert run(name, engine=writing(before=before))


@pytest.mark.parametrize("name", ["random_search", "copro", "mipro", "gepa"])
def test_a_prompt_that_is_too_long_only_loses(name, run, writing):
    def before(n, asked):
        if not asked.proposes and (len(asked.messages) > 2 or "Name the key" in asked.messages[0][1]):
            raise LMPromptTooLongError(5000, 4096, 100)

    assert run(name, engine=writing(before=before))


def test_an_interrupt_goes_up(run, writing):
    def before(n, asked):
        if n == 5:
            raise KeyboardInterrupt

    for name in FAST:
        with pytest.raises(KeyboardInterrupt):
            run(name, engine=writing(before=before))


@pytest.mark.parametrize("name", ["random_search", "mipro", "gepa"])
def test_questions_are_asked_side_by_side_with_the_same_result(name, run):
    assert state_of(run(name, threads=4)) == state_of(run(name, threads=1))


def test_arguments_are_passed_through(run):
    knn, both = run("knn_few_shot", arguments={"k": 3, "pool": 2}), run("ensemble", arguments={"size": 2})
    assert (knn.nearest, len(state_of(knn).predictors["technique.write_queries"].demos)) == (3, 2)
    assert isinstance(both, Ensemble)
    assert len(both.members) == 2
    short = run("gepa", arguments={"max_chars": 50})
    assert all(len(state.instructions) <= 200 for state in state_of(short).predictors.values())


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("mipro", {"arguments": {"num_trial": 3}}, "did you mean num_trials"),
        ("mipro", {"arguments": {"num_trials": "3"}}, "num_trials must be a whole number from 1 to 200, but got '3'"),
        ("coprro", {}, "did you mean copro"),
        ("mipro", {"n_train": 1}, "at least 2"),
    ],
)
def test_what_cannot_be_tuned_is_refused(name, given, message, run, world):
    with pytest.raises(InputError, match=message):
        run(name, train=world.questions[: given.pop("n_train", 6)], **given)


@pytest.mark.parametrize("name", ["bootstrap_few_shot", "knn_few_shot", "ensemble"])
def test_nothing_that_could_be_shown_is_said(name, run, world):
    odd = [question for question in world.questions if int(question.id[1:]) % 2]
    with pytest.raises(OptimizerError):
        run(name, train=odd)


def test_an_lm_that_writes_no_instructions_is_said(run, make_engine):
    with pytest.raises(OptimizerError, match="copro failed: AdapterParseError"):
        run("copro", engine=make_engine(write=lambda asked: "{}"))


def test_dspys_own_mipro_learns_where_some_questions_have_no_label(world, make_lm, writing):
    asked = [replace(one, evidence={}) if n % 3 == 0 else one for n, one in enumerate(world.questions[:12])]
    with pytest.warns(UserWarning, match="4 of 12 examples that cannot be scored"):
        examples = scorable("decision_useful", [question.to_example() for question in asked])
    with dspy.context(lm=make_lm(writing()), adapter=PromptAdapter()):
        mipro = dspy.MIPROv2(metric=FOUND, auto=None, num_candidates=3, max_bootstrapped_demos=0, max_labeled_demos=0)
        program = world.program(reader=None)
        tuned = mipro.compile(program, trainset=examples[:3], valset=examples[3:], num_trials=5, minibatch=False)
    assert "Name the key." in state_of(tuned).predictors["technique.write_queries"].instructions
