from __future__ import annotations

import json
import re
from dataclasses import replace

import optuna
import pytest
from dspy.utils.exceptions import LMServerError

from querywright.data.splits import Splits
from querywright.data.types import Question
from querywright.errors import BudgetError, InputError, OutageError, QuerywrightError
from querywright.metrics.statistics import holm
from querywright.models.engine_errors import LMPromptTooLongError
from querywright.models.store import Store
from querywright.models.usage import Cost
from querywright.optimize.evaluate import evaluate
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.program_state import state_of
from querywright.optimize.results import CompileSettings, objective_value
from querywright.optimize.study import resources
from querywright.optimize.study.compile import compile_program

QUICK = CompileSettings(n_trials=6, demo_sizes=(1,), threads=2)


@pytest.fixture
def compiled_in(make_lm):
    """Compiles HCQR, which always rewrites, in a world with a budget of three passages."""

    def compile_once(world, engine=None, *, lm=None, settings=QUICK, knobs=None, reader="multiple_choice", **given):
        return compile_program(
            "hcqr",
            given.pop("splits", world.splits),
            retriever=world,
            lm=lm or make_lm(engine),
            reader=reader,
            knobs={"max_passages": 3} | (knobs or {}),
            settings=settings,
            **given,
        )

    return compile_once


@pytest.fixture
def other_store(tmp_path):
    """For what is held against a run with ``store``; dead knobs are only looked for where answers are stored."""
    opened = Store(tmp_path / "other" / "store.sqlite")
    yield opened
    opened.close()


def outcome(compiled):
    """Everything that was found, without times and without what was made and what was saved."""
    data = compiled.to_json()
    data["cost"] = None
    for evaluation in [*(arm["dev"] for arm in data["arms"]), *data["test"]]:
        cost = evaluation.pop("cost")
        evaluation["asked"] = cost["calls"] + cost["saved"]
        evaluation["seconds"] = evaluation["latency"] = None
    return json.dumps(data, sort_keys=True), state_of(compiled.program)


def values_of(compiled, objective="decision_useful"):
    return [objective_value(arm.dev, objective) for arm in compiled.arms]


@pytest.mark.parametrize(
    ("winner", "recommended", "plain"), [("rewriting", "as written", 0.0), ("plain", "no rewriting", 1.0)]
)
def test_the_arm_that_finds_what_decides_is_recommended(winner, recommended, plain, make_world, compiled_in):
    compiled = compiled_in(make_world(winner))
    assert compiled.recommended == recommended
    assert compiled.arms[0].name == "no rewriting"
    assert values_of(compiled)[0] == plain
    test = {one.name: one.mean("decision_useful").value for one in compiled.test}
    assert test["no rewriting"] == plain
    if recommended == "no rewriting":
        assert compiled.program.technique.NAME == "plain"
    else:
        assert compiled.program.technique.NAME == "hcqr"
        assert test["hcqr compiled"] == 1.0


@pytest.mark.slow
def test_a_setting_of_the_knobs_that_wins_is_found(make_world, compiled_in):
    # The third hit of the first query decides: one rank of each of three queries misses it.
    world = make_world("deep")
    compiled = compiled_in(world, settings=replace(QUICK, n_trials=24))
    as_written = next(arm for arm in compiled.arms if arm.name == "as written")
    assert objective_value(as_written.dev, "decision_useful") == 0.0
    assert objective_value(compiled.compiled.dev, "decision_useful") == 1.0
    assert compiled.recommended == compiled.compiled.name != "as written"
    knobs = compiled.program.technique.knobs
    assert knobs["n_queries"] == 1 or knobs["fusion"] in {"union", "best_score", "rrf"}


@pytest.mark.parametrize(
    ("winner", "objective"),
    [("rewriting", "decision_useful"), ("plain", "accuracy"), ("both", "both"), ("deep", "recall@1")],
)
def test_what_is_recommended_is_as_good_on_dev_as_every_arm(winner, objective, make_world, compiled_in):
    compiled = compiled_in(make_world(winner), settings=replace(QUICK, objective=objective))
    values = values_of(compiled, objective)
    chosen = next(arm for arm in compiled.arms if arm.name == compiled.recommended)
    assert objective_value(chosen.dev, objective) == max(values)
    assert objective_value(compiled.compiled.dev, objective) == max(values[1:])


def test_searching_for_usefulness_reads_no_answer(world, make_engine, compiled_in):
    engine = make_engine()
    compiled = compiled_in(world, engine, settings=replace(QUICK, reader_demo_sizes=()))
    test_numbers = {int(q.id[1:]) for q in world.splits.test}
    assert {asked.number for asked in engine.asked if asked.step == "reader"} == test_numbers
    assert all("accuracy" not in arm.dev.metrics for arm in compiled.arms)
    assert not compiled.reader_demos


def test_knobs_that_are_given_are_not_searched(world, compiled_in):
    compiled = compiled_in(
        world, knobs={"fusion": "union", "top_k": 4, "n_queries": 2}, settings=replace(QUICK, n_trials=12)
    )
    for arm in compiled.arms[1:]:
        assert (arm.knobs["fusion"], arm.knobs["top_k"], arm.knobs["n_queries"]) == ("union", 4, 2)
        assert arm.knobs["max_passages"] == 3
        assert arm.knobs["rrf_k"] == 60  # it does not act under union
    assert compiled.arms[0].knobs["max_passages"] == 3


def test_without_demonstrations_only_knobs_are_searched(world, compiled_in):
    compiled = compiled_in(world, settings=replace(QUICK, demo_sizes=(), reader_demo_sizes=()))
    assert compiled.n_demo_sets == 0
    assert {arm.prompt for arm in compiled.arms} == {"as written"}
    assert compiled.costs["prompts"] == Cost()


@pytest.mark.slow
def test_a_size_that_repeats_is_a_set_of_its_own_and_all_sets_are_tried(world, compiled_in):
    compiled = compiled_in(world, settings=replace(QUICK, demo_sizes=(1, 2, 1), reader_demo_sizes=(1, 1)))
    tried = {arm.prompt for arm in compiled.arms}
    assert compiled.n_demo_sets == 3
    assert tried == {"as written", "demos_1", "demos_2", "demos_1_2"}


def test_prompts_that_came_to_nothing_are_named_with_the_reason(make_world, make_engine, scripted, compiled_in):
    def write(asked):  # nothing is found or read rightly on train
        if asked.number >= 6:
            return scripted(asked)
        if asked.step == "queries":
            return json.dumps(dict.fromkeys(("support", "distinguish", "verify"), f"other of {asked.number}"))
        return scripted(asked) if asked.step != "reader" else json.dumps({"answer": f"wrong {asked.number}"})

    compiled = compiled_in(make_world(), make_engine(write=write))
    assert compiled.n_demo_sets == 0
    assert list(compiled.nothing) == ["demos_1", "reader_demos_1"]
    assert all("found nothing to show: on none of the 6 training questions" in why for why in compiled.nothing.values())
    assert compiled.to_json()["failed_prompts"] == compiled.nothing
    assert compiled.failed == {}


@pytest.fixture
def stubborn_engine(make_engine, scripted):
    """Reads dev and test rightly only when a demonstration shows it how."""

    def write(asked):
        if asked.step != "reader" or asked.number < 6 or asked.prompt.count("passages:") > 1:
            return scripted(asked)
        return json.dumps({"answer": f"wrong {asked.number}"})

    return make_engine(write=write)


def test_the_reader_keeps_demonstrations_only_where_they_read_better(world, stubborn_engine, compiled_in):
    helped = compiled_in(world, stubborn_engine)
    assert helped.reader_demos
    assert [bool(p.demos) for name, p in helped.program.named_predictors() if name.startswith("reader")] == [True]
    without = compiled_in(world)
    assert not without.reader_demos
    assert not [one.name for one in without.test if "reader" in one.name]


@pytest.mark.parametrize(("winner", "saved"), [("rewriting", "hcqr compiled"), ("plain", "no rewriting")])
def test_one_reader_reads_for_every_arm_of_the_final_table(winner, saved, make_world, stubborn_engine, compiled_in):
    compiled = compiled_in(make_world(winner), stubborn_engine)
    test = {one.name: one.mean("accuracy").value for one in compiled.test}
    assert list(test) == [
        "closed book",
        "no rewriting",
        *(["hcqr as written"] if winner == "plain" else []),  # in the other world it is the best one
        "hcqr compiled",
        "oracle evidence",
        f"{saved}, reader as written",
    ]
    assert test["oracle evidence"] == 1.0
    assert (test["no rewriting"], test.get("hcqr as written")) == ((0.0, None) if winner == "rewriting" else (1.0, 0.0))
    assert (test[saved], test[f"{saved}, reader as written"]) == (1.0, 0.0)
    tuned = next(one for one in compiled.comparisons if one.other.endswith("reader as written"))
    assert (tuned.family, tuned.metric, tuned.arm) == ("technique", "accuracy", saved)
    assert (tuned.test.wins, tuned.test.losses) == (6, 0)
    prompts = [asked.prompt for asked in stubborn_engine.asked if asked.step == "reader" and asked.number >= 12]
    without = [prompt for prompt in prompts if not re.search(r"What of number [0-5]\?", prompt)]
    assert len(without) == 6  # all of the last row


@pytest.mark.slow
def test_the_saved_program_is_the_one_in_the_table(make_world, make_lm, stubborn_engine, compiled_in):
    world, lm = make_world("rewriting"), make_lm(stubborn_engine)
    compiled = compiled_in(world, lm=lm)
    again = evaluate(compiled.program, world.splits.test, lm=lm, name="again")
    row = next(one for one in compiled.test if one.name == "hcqr compiled")
    assert [(one.answer, one.passages) for one in again.rows] == [(one.answer, one.passages) for one in row.rows]


def test_an_arm_whose_prompts_do_not_fit_is_out_and_the_search_goes_on(world, make_engine, compiled_in):
    def before(n, asked):
        if asked.step == "queries" and asked.prompt.count("best_guess:") > 1:  # a demonstration is shown
            raise LMPromptTooLongError(5000, 4096, 100)

    compiled = compiled_in(world, make_engine(before=before))
    assert compiled.recommended == "as written"
    assert {arm.prompt for arm in compiled.arms} == {"as written"}
    assert "trial 2" in compiled.failed
    assert "prompt_too_long" in compiled.failed["trial 2"]
    assert compiled.to_json()["failed_arms"] == compiled.failed


def shows_what_to_do(asked):
    return asked.step == "reader" or asked.prompt.count("best_guess:") > 1 or asked.prompt.count("What of number") > 1


def test_a_technique_that_is_out_as_written_does_not_meet_test(world, make_engine, compiled_in):
    def before(n, asked):
        if asked.number >= 6 and not shows_what_to_do(asked):
            raise LMPromptTooLongError(5000, 4096, 100)

    compiled = compiled_in(world, make_engine(before=before), settings=replace(QUICK, n_trials=2))
    assert compiled.recommended == "trial 2"
    assert list(compiled.failed) == ["as written"]
    assert [one.name for one in compiled.test] == ["closed book", "no rewriting", "hcqr compiled", "oracle evidence"]
    assert compiled.sentence.startswith("Chosen on dev; ")


def test_what_fails_on_test_alone_is_named_and_the_rest_is_kept(make_world, make_engine, compiled_in):
    world = make_world("both")

    def before(n, asked):
        if asked.number >= 12 and asked.step != "reader":
            raise LMPromptTooLongError(5000, 4096, 100)

    compiled = compiled_in(world, make_engine(before=before))
    assert compiled.recommended == "no rewriting"
    assert "2 of 6 questions failed in 'hcqr compiled'" in compiled.failed["hcqr compiled on test"]
    assert [one.name for one in compiled.test] == ["closed book", "no rewriting", "oracle evidence"]
    assert {one.family for one in compiled.comparisons} == {"reader check"}
    assert compiled.program.technique.NAME == "plain"


def test_what_dev_chose_may_not_fail_on_test(world, make_engine, compiled_in):
    def before(n, asked):
        if asked.number >= 12 and asked.step != "reader":
            raise LMPromptTooLongError(5000, 4096, 100)

    with pytest.raises(TooManyFailuresError, match="failed in 'hcqr compiled'"):
        compiled_in(world, make_engine(before=before))


@pytest.fixture
def forgetful(make_engine):
    """A reader whose prompt does not fit as it is written, on dev; on test it does, and with a demonstration."""

    def before(n, asked):
        if asked.step == "reader" and 6 <= asked.number < 12 and asked.prompt.count("What of number") == 1:
            raise LMPromptTooLongError(5000, 4096, 100)

    return make_engine(before=before)


def test_a_reader_that_is_out_as_written_ends_no_compilation(world, forgetful, compiled_in):
    settings = replace(QUICK, objective="recall@5", reader_demo_sizes=(1,))
    compiled = compiled_in(world, forgetful, settings=settings)
    assert compiled.reader_demos
    assert list(compiled.failed) == ["reader as written"]
    assert "questions failed in 'the reader as written'" in compiled.failed["reader as written"]
    rows = [one.name for one in compiled.test]
    assert rows[:2] == ["closed book", "no rewriting"]
    assert rows[-1].endswith(", reader as written"), "test is read, so there is a row of it"
    assert compiled.program.reader.predict.demos


def test_a_reader_that_is_out_and_alone_stays_as_it_is_written(world, forgetful, compiled_in, monkeypatch):
    real = resources.Bench.compiled

    def made(bench, prompt, called, program):
        if prompt.last:
            raise OptimizerError(f"{called}: nothing to learn from")
        return real(bench, prompt, called, program)

    monkeypatch.setattr(resources.Bench, "compiled", made)
    settings = replace(QUICK, objective="recall@5", reader_demo_sizes=(1,))
    compiled = compiled_in(world, forgetful, settings=settings)
    assert not compiled.reader_demos
    assert list(compiled.failed) == ["reader as written"]
    assert "nothing to learn from" in compiled.nothing["reader_demos_1"]


def test_arms_that_all_fail_stop_it(world, make_engine, compiled_in):
    def before(n, asked):
        if asked.step == "queries" and asked.number >= 6:
            raise LMPromptTooLongError(5000, 4096, 100)

    with pytest.raises(QuerywrightError, match=r"(?s)5 of 6 trials failed; the last: .*prompt_too_long"):
        compiled_in(world, make_engine(before=before))


def test_test_is_met_once_and_only_after_everything_is_chosen(world, make_engine, compiled_in, monkeypatch):
    seen = []
    real = evaluate

    def spy(program, questions, **settings):
        seen.append((settings["name"], {q.id for q in questions}))
        return real(program, questions, **settings)

    monkeypatch.setattr(resources, "evaluate", spy)
    engine = make_engine()
    compiled_in(world, engine)
    dev, test = ({q.id for q in part} for part in (world.splits.dev, world.splits.test))
    first = next(n for n, (_, ids) in enumerate(seen) if ids == test)
    assert all(ids == dev for _, ids in seen[:first])
    assert [name for name, ids in seen[first:]] == [
        "no rewriting",
        "hcqr compiled",
        "closed book",
        "oracle evidence",
    ]
    assert all(ids == test for _, ids in seen[first:])
    numbers = [asked.number for asked in engine.asked]
    tested = {int(id[1:]) for id in test}
    start = next(n for n, number in enumerate(numbers) if number in tested)
    assert set(numbers[start:]) <= tested


def test_train_dev_and_test_stay_apart(world, make_engine, compiled_in):
    engine = make_engine()
    compiled = compiled_in(world, engine)
    train = {int(q.id[1:]) for q in world.splits.train}
    for _, predictor in compiled.program.named_predictors():
        for demo in predictor.demos:
            assert int(demo.question.removeprefix("What of number ").rstrip("?")) in train


def test_the_planned_comparisons_are_corrected_together_and_losses_are_shown(make_world, compiled_in):
    compiled = compiled_in(make_world("plain", size=30))
    planned = {(one.metric, one.arm, one.other): one for one in compiled.comparisons}
    assert list(planned) == [
        ("decision_useful", "hcqr compiled", "no rewriting"),
        ("decision_useful", "hcqr compiled", "hcqr as written"),
        ("accuracy", "hcqr compiled", "no rewriting"),
        ("accuracy", "hcqr compiled", "hcqr as written"),
        ("accuracy", "oracle evidence", "closed book"),
    ]
    arms = {one.name: one for one in compiled.test}
    raw = [arms[arm].against(arms[other], metric).p_two_sided for metric, arm, other in planned]
    # The check of the reader is no claim about the technique: it corrects nothing else, and nothing corrects it.
    assert [one.family for one in compiled.comparisons] == ["technique"] * 4 + ["reader check"]
    assert [one.test.p_two_sided for one in compiled.comparisons] == pytest.approx([*holm(raw[:4]), raw[4]])
    assert holm(raw)[4] != raw[4]
    lost = planned["decision_useful", "hcqr compiled", "no rewriting"]
    if arms["hcqr compiled"].mean("decision_useful").value < 1.0:
        assert lost.test.losses > 0
        assert "hcqr compiled" in lost.sentence
    check = planned["accuracy", "oracle evidence", "closed book"]
    assert check.test.wins == 10
    assert check.sentence.startswith("reader check: accuracy: oracle evidence beats closed book: 10 wins")


@pytest.mark.slow
def test_a_loss_is_said_as_plainly_as_a_win(make_world, compiled_in):
    # The question is not searched, so nothing of the technique can find what plain retrieval finds.
    compiled = compiled_in(make_world("plain", size=30), knobs={"search_question": False})
    first = compiled.comparisons[0]
    assert (first.test.wins, first.test.losses) == (0, 10)
    assert first.sentence.startswith("decision_useful: hcqr compiled is worse than no rewriting: 0 wins, 10 losses")


def test_further_questions_check_the_reader_and_nothing_else(make_world, make_engine, compiled_in):
    world, engine = make_world(size=30), make_engine()
    splits = Splits(world.questions[:6], world.questions[6:12], world.questions[12:18])
    further = world.questions[18:]
    compiled = compiled_in(world, engine, splits=splits, reader_check=further)
    rows = {one.name: [row.id for row in one.rows] for one in compiled.test}
    test = [question.id for question in splits.test]
    both = test + [question.id for question in further]
    assert rows == {
        "closed book": both,
        "no rewriting": test,
        "hcqr compiled": test,
        "oracle evidence": both,
    }
    *_, check = compiled.comparisons
    assert (check.arm, check.other, check.test.n, check.test.wins) == ("oracle evidence", "closed book", 18, 18)
    assert {one.test.n for one in compiled.comparisons[:-1]} == {6}
    assert {asked.step for asked in engine.asked if asked.number >= 18} == {"reader"}
    assert compiled.costs["reader check"].calls == 36
    data = compiled.to_json()
    assert data["reader_check"] == 12
    assert [one["n"] for one in data["test"]] == [18, 6, 6, 18]
    assert [one["family"] for one in data["comparisons"]] == ["technique"] * 2 + ["reader check"]
    without = compiled_in(world, splits=splits)
    assert [one.sentence for one in compiled.comparisons[:-1]] == [one.sentence for one in without.comparisons[:-1]]


@pytest.mark.parametrize("number", [0, 13])
def test_further_questions_that_another_stage_sees_are_refused(number, world, make_engine, compiled_in):
    engine = make_engine()
    further = [Question("new", "What of number 40?", ("a", "b"), "a"), world.questions[number]]
    with pytest.raises(InputError, match=f"nor twice, by id or text, but these do: q{number};"):
        compiled_in(world, engine, reader_check=further)
    with pytest.raises(InputError, match="reader_check needs a reader"):
        compiled_in(world, engine, reader_check=further[:1], reader=None)
    assert engine.asked == []


def test_retrieval_alone_can_be_compiled(world, make_engine, compiled_in):
    engine = make_engine()
    compiled = compiled_in(world, engine, reader=None)
    assert compiled.program.reader is None
    assert [one.name for one in compiled.test] == ["no rewriting", "hcqr compiled"]
    assert {one.metric for one in compiled.comparisons} == {"decision_useful"}
    assert not [asked for asked in engine.asked if asked.step == "reader"]


def test_a_function_can_be_searched(world, make_lm):
    compiled = compile_program(
        "hcqr",
        world.splits,
        retriever=lambda query, k: world.find(query)[:k],
        lm=make_lm(),
        knobs={"max_passages": 3},
        settings=QUICK,
    )
    assert compiled.recommended == "as written"
    assert "oracle evidence" not in {one.name for one in compiled.test}


def test_a_technique_without_an_lm_can_be_compiled(world, make_lm):
    compiled = compile_program(
        "plain", world.splits, retriever=world, lm=make_lm(), knobs={"max_passages": 3}, settings=QUICK
    )
    assert compiled.recommended == "no rewriting"
    assert compiled.costs["prompts"].asked == compiled.costs["search"].asked == 0


def test_plain_retrieval_that_is_searched_is_chosen_where_other_knobs_are_better(make_world, make_lm):
    world = make_world("plain")
    find = world.find
    # Only a query that holds the options, "right 3" among them, finds what decides.
    world.find = lambda query: [p for p in find(query) if "right" in query or not p.id.startswith("decides")]
    compiled = compile_program(
        "plain", world.splits, retriever=world, lm=make_lm(), knobs={"max_passages": 3}, settings=QUICK
    )
    assert [objective_value(arm.dev, "decision_useful") for arm in compiled.arms] == [0.0, 1.0]
    assert compiled.recommended == compiled.compiled.name == compiled.arms[1].name != "no rewriting"
    assert compiled.program.technique.knobs["query_with_options"] is True
    assert [one.name for one in compiled.test][1:3] == ["no rewriting", "plain compiled"]
    assert "plain as written" not in {one.name for one in compiled.test}
    assert "(decision_useful: 6 won, 0 lost of 6" in compiled.sentence


@pytest.mark.slow
def test_plain_retrieval_that_fails_with_other_knobs_is_out_and_the_search_goes_on(make_world, make_lm):
    world = make_world("plain")

    def search(query, k):
        if "right" in query:
            raise ValueError("too many words")
        return world.find(query)[:k]

    compiled = compile_program("plain", world.splits, retriever=search, lm=make_lm(), settings=QUICK)
    assert compiled.recommended == "no rewriting"
    assert compiled.failed
    assert all("too many words" in said for said in compiled.failed.values())
    assert compiled.sentence == "No other arm has a result on dev, so no rewriting is what was saved"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result_whatever_the_threads(make_world, compiled_in):
    def compile_once(threads, seed):
        return outcome(compiled_in(make_world("deep"), settings=replace(QUICK, threads=threads, seed=seed)))

    assert compile_once(1, 5) == compile_once(8, 5) == compile_once(1, 5)
    assert len({compile_once(2, seed)[0] for seed in (5, 6)}) > 1


def test_a_second_run_asks_nothing(world, make_lm, make_engine, store, compiled_in):
    first, second = make_engine(), make_engine()
    one = compiled_in(world, lm=make_lm(first, store=store))
    other = compiled_in(world, lm=make_lm(second, store=store))
    assert first.asked
    assert second.asked == []
    assert outcome(one) == outcome(other)
    assert sum(cost.calls for cost in other.costs.values()) == 0
    assert other.costs["prompts"] == Cost(), "prompts that were compiled are kept whole"
    assert other.costs["search"].saved == one.costs["search"].asked


@pytest.mark.parametrize("k", [0, 20, 51])
def test_interrupted_and_run_again_equals_undisturbed_and_asks_nothing_twice(
    k, make_world, make_lm, make_engine, store, other_store, compiled_in
):
    world = make_world("deep", size=12)
    settings = replace(QUICK, threads=1)
    undisturbed = make_engine()
    expected = outcome(compiled_in(world, lm=make_lm(undisturbed, store=other_store), settings=settings))
    needed = len({(asked.step, asked.prompt) for asked in undisturbed.asked})
    assert k < needed

    def before(n, asked):
        if n == k:
            raise KeyboardInterrupt

    cut, rest = make_engine(before=before), make_engine()
    with pytest.raises(KeyboardInterrupt):
        compiled_in(world, lm=make_lm(cut, store=store), settings=settings)
    assert len(cut.asked) == k + 1
    assert outcome(compiled_in(world, lm=make_lm(rest, store=store), settings=settings)) == expected
    answered = [*cut.asked[:-1], *rest.asked]
    assert len(answered) == len({(asked.step, asked.prompt) for asked in answered}) == needed


def test_a_limit_of_calls_stops_it_and_a_higher_one_goes_on(
    world, make_lm, make_engine, store, other_store, compiled_in
):
    expected = outcome(compiled_in(world, lm=make_lm(store=other_store)))
    small, large = make_engine(), make_engine()
    with pytest.raises(BudgetError, match="25"):
        compiled_in(world, lm=make_lm(small, store=store, max_calls=25))
    assert len(small.asked) == 25
    assert outcome(compiled_in(world, lm=make_lm(large, store=store, max_calls=1000))) == expected
    answered = [*small.asked, *large.asked]
    assert len(answered) == len({(asked.step, asked.prompt) for asked in answered})


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 50])
def test_an_outage_stops_it_and_nothing_is_chosen(k, world, make_lm, make_engine, store, compiled_in):
    def before(n, asked):
        if n >= k:
            raise LMServerError("gone")

    engine = make_engine(before=before)
    with pytest.raises((OutageError, TooManyFailuresError)):
        compiled_in(world, lm=make_lm(engine, store=store))
    assert len(engine.asked) <= k + 5 + QUICK.threads


@pytest.mark.slow
def test_nothing_is_printed_also_not_when_it_is_interrupted(world, make_engine, compiled_in, capfd):
    def before(n, asked):
        if n == 40:
            raise KeyboardInterrupt

    verbosity = optuna.logging.get_verbosity()
    with pytest.raises(KeyboardInterrupt):
        compiled_in(world, make_engine(before=before))
    compiled_in(world)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == verbosity


def test_costs_of_the_stages_are_the_ledgers(world, make_lm, compiled_in):
    lm = make_lm()
    compiled = compiled_in(world, lm=lm)
    assert list(compiled.costs) == ["prompts", "search", "reader", "reader check", "test"]
    assert compiled.costs["reader check"].asked == 2 * 6
    total = sum(compiled.costs.values(), Cost())
    assert total.calls == lm.engine.ledger.total.calls
    assert total.tokens == lm.engine.ledger.total.tokens


def test_progress_names_what_is_done(world, compiled_in):
    told = []
    compiled_in(world, progress=lambda *what: told.append(what))
    assert ("prompts hcqr, demos_1", 1, 6) in told
    assert "prompts reader, reader_demos_1" in {what for what, _, _ in told}
    assert ("trial 0", 6, 6) in told
    assert told[-1] == ("oracle evidence", 6, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": replace(QUICK, n_trials=0)}, "n_trials must be 1 or more, but got 0"),
        ({"settings": replace(QUICK, objective="speed")}, "unknown objective 'speed'"),
        ({"settings": replace(QUICK, objective="lm_calls")}, "one of quality, but got 'lm_calls'"),
        ({"settings": replace(QUICK, objective="accuracy"), "reader": None}, "accuracy needs a reader"),
        ({"settings": replace(QUICK, demo_sizes=(0,))}, "prompts.demos_0: .*from 1 to 32, but got 0"),
        ({"settings": replace(QUICK, reader_demo_sizes=(33,))}, "prompts.reader_demos_33: .*from 1 to 32, but got 33"),
        ({"settings": replace(QUICK, threads=0)}, "threads"),
        ({"settings": replace(QUICK, max_failures=2.0)}, "max_failures"),
        ({"knobs": {"no_such": 1}}, "no_such"),
        ({"knobs": {"max_passages": 0}}, "max_passages"),
        ({"reader": "essay"}, "unknown reader 'essay'"),
    ],
)
def test_what_cannot_be_compiled_is_refused_before_anything_is_asked(change, message, world, make_engine, compiled_in):
    engine = make_engine()
    with pytest.raises(InputError, match=message):
        compiled_in(world, engine, **change)
    assert engine.asked == []


@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_an_empty_split_is_refused(part, world, compiled_in):
    splits = world.splits._replace(**{part: []})
    with pytest.raises(InputError, match=f"the {part} split is empty"):
        compiled_in(world, splits=splits)


@pytest.mark.parametrize(
    ("technique", "message"), [("closed_book", "finds no passages"), ("magic", "unknown technique")]
)
def test_a_technique_that_cannot_be_compiled_is_refused(technique, message, world, make_lm):
    with pytest.raises(InputError, match=message):
        compile_program(technique, world.splits, retriever=world, lm=make_lm())
