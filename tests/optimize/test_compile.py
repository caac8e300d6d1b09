"""Compiling: what is searched, what is chosen, how test is met, and that nothing is asked twice."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from querywright.data.types import Question
from querywright.errors import InputError, QuerywrightError
from querywright.metrics.statistics import holm
from querywright.models.engine_errors import LMPromptTooLongError
from querywright.models.usage import Cost
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.objectives import objective_named
from querywright.optimize.program_state import state_of
from querywright.optimize.results import CompileSettings
from querywright.optimize.search.compile import compile_program

QUICK = CompileSettings(trials=6, demo_sizes=(1,), threads=2)
TOO_LONG = LMPromptTooLongError(5000, 4096, 100)


@pytest.fixture
def compiled_in(make_lm):
    """Compiles HCQR, which always rewrites, in a world with a budget of three passages."""

    def compile_once(world, engine=None, *, lm=None, settings=QUICK, knobs=None, technique="hcqr", **given):
        return compile_program(
            technique,
            given.pop("splits", world.splits),
            retriever=given.pop("retriever", world),
            lm=lm or make_lm(engine),
            knobs={"max_passages": 3} | (knobs or {}),
            settings=settings,
            **given,
        )

    return compile_once


@pytest.fixture
def failing(make_engine):
    """An engine whose prompts are too long where ``when`` says so."""

    def engine(when):
        def before(n, asked):
            if when(asked):
                raise TOO_LONG

        return make_engine(before=before)

    return engine


def outcome(compiled):
    """Everything that was found, without times and without what was made and what was saved."""
    data = compiled.to_json()
    data["cost"] = None
    for evaluation in [*(arm["dev"] for arm in data["arms"]), *data["test"]]:
        cost = evaluation.pop("cost")
        evaluation["asked"] = cost["calls"] + cost["saved"]
        evaluation["seconds"] = evaluation["latency"] = None
    return json.dumps(data, sort_keys=True), state_of(compiled.program)


def distinct(*engines):
    """How many different requests there were, none of which was made twice."""
    asked = [(one.step, one.prompt) for engine in engines for one in engine]
    assert len(set(asked)) == len(asked)
    return len(asked)


@pytest.mark.parametrize(
    ("winner", "objective", "recommended"),
    [
        ("rewriting", "decision_useful", "untuned"),
        ("plain", "accuracy", "baseline"),
        ("both", "both", "baseline"),
        ("deep", "recall@1", None),
    ],
)
def test_what_is_recommended_is_as_good_on_dev_as_every_arm(winner, objective, recommended, make_world, compiled_in):
    compiled = compiled_in(make_world(winner), settings=replace(QUICK, objective=objective))
    values = [objective_named(objective).value(arm.dev) for arm in compiled.arms]
    chosen = next(arm for arm in compiled.arms if arm.name == compiled.recommended)
    assert compiled.arms[0].name == "baseline"
    assert objective_named(objective).value(chosen.dev) == max(values)
    assert objective_named(objective).value(compiled.compiled.dev) == max(values[1:])
    assert compiled.recommended == (recommended or compiled.recommended)
    assert ("plain" if compiled.recommended == "baseline" else "hcqr") == compiled.program.technique.NAME


def test_a_setting_of_the_knobs_that_wins_is_found(make_world, compiled_in):
    # The third hit of the first query decides: one rank of each of three queries misses it.
    compiled = compiled_in(make_world("deep"), settings=replace(QUICK, trials=24))
    untuned = next(arm for arm in compiled.arms if arm.name == "untuned")
    assert objective_named("decision_useful").value(untuned.dev) == 0.0
    assert objective_named("decision_useful").value(compiled.compiled.dev) == 1.0
    assert compiled.recommended == compiled.compiled.name != "untuned"
    knobs = compiled.program.technique.knobs
    assert knobs["n_queries"] == 1 or knobs["fusion"] in {"union", "best_score", "rrf"}


def test_prompts_that_came_to_nothing_are_named_with_the_reason(make_world, make_engine, scripted, compiled_in):
    def write(asked):  # nothing is found or read rightly on train
        if asked.number >= 6 or asked.step == "hypothesis":
            return scripted(asked)
        if asked.step == "queries":
            return json.dumps(dict.fromkeys(("support", "distinguish", "verify"), f"other of {asked.number}"))
        return json.dumps({"answer": f"wrong {asked.number}"})

    compiled = compiled_in(make_world(), make_engine(write=write))
    assert compiled.n_demo_sets == 0
    assert list(compiled.nothing) == ["demos_1", "reader_demos_1"]
    assert all("on any of the 6 training questions" in why for why in compiled.nothing.values())
    assert compiled.to_json()["failed_prompts"] == compiled.nothing
    assert compiled.failed == {}


def shows_what_to_do(asked):
    return asked.step == "reader" or asked.prompt.count("best_guess:") > 1 or asked.prompt.count("What of number") > 1


def test_an_arm_whose_prompts_do_not_fit_is_out_and_the_search_goes_on(world, failing, compiled_in):
    compiled = compiled_in(world, failing(lambda asked: asked.step == "queries" and shows_what_to_do(asked)))
    assert compiled.recommended == "untuned"
    assert {arm.prompt for arm in compiled.arms} == {"untuned"}
    assert "prompt_too_long" in compiled.failed["trial 2"]
    assert compiled.to_json()["failed_arms"] == compiled.failed

    engine = failing(lambda asked: asked.number >= 6 and not shows_what_to_do(asked))
    compiled = compiled_in(world, engine, settings=replace(QUICK, trials=2))
    assert compiled.recommended == "trial 2"
    assert list(compiled.failed) == ["untuned"]
    assert [one.name for one in compiled.test] == ["closed book", "baseline", "hcqr compiled", "oracle evidence"]

    with pytest.raises(QuerywrightError, match=r"(?s)5 of 6 trials failed; last error: .*prompt_too_long"):
        compiled_in(world, failing(lambda asked: asked.step == "queries" and asked.number >= 6))


def test_what_fails_on_test_is_named_but_what_dev_chose_may_not_fail(make_world, failing, compiled_in):
    def engine():
        return failing(lambda asked: asked.number >= 12 and asked.step != "reader")

    compiled = compiled_in(make_world("both"), engine())
    assert compiled.recommended == "baseline"
    assert "2 of 6 questions failed in 'hcqr compiled'" in compiled.failed["hcqr compiled on test"]
    assert [one.name for one in compiled.test] == ["closed book", "baseline", "oracle evidence"]
    assert {one.family for one in compiled.comparisons} == {"reader check"}
    with pytest.raises(TooManyFailuresError, match="failed in 'hcqr compiled'"):
        compiled_in(make_world(), engine())


def test_test_is_met_once_after_everything_is_chosen_and_train_gives_the_demonstrations(
    world, make_engine, compiled_in
):
    engine = make_engine()
    compiled = compiled_in(world, engine, settings=replace(QUICK, reader_demo_sizes=()))
    test = {int(q.id[1:]) for q in world.splits.test}
    numbers = [asked.number for asked in engine.asked]
    assert set(numbers[next(n for n, number in enumerate(numbers) if number in test) :]) <= test
    searched = [int(re.findall(r"\d+", query)[0]) for query, _ in world.searches]
    assert set(searched[next(n for n, number in enumerate(searched) if number in test) :]) <= test
    # No answer is read while queries are searched for, and test is read once by each program of the table.
    read = [asked.number for asked in engine.asked if asked.step == "reader"]
    assert sorted(read) == sorted([*test] * len(compiled.test))
    assert all("accuracy" not in arm.dev.metrics for arm in compiled.arms)
    trained = {q.question for q in world.splits.train}
    assert {demo.question for _, one in compiled.program.named_predictors() for demo in one.demos} <= trained


def test_the_planned_comparisons_are_corrected_together_and_losses_are_shown(make_world, compiled_in):
    compiled = compiled_in(make_world("plain", size=30))
    planned = {(one.metric, one.arm, one.other): one for one in compiled.comparisons}
    assert list(planned) == [
        ("decision_useful", "hcqr compiled", "baseline"),
        ("decision_useful", "hcqr compiled", "hcqr untuned"),
        ("accuracy", "hcqr compiled", "baseline"),
        ("accuracy", "hcqr compiled", "hcqr untuned"),
        ("accuracy", "oracle evidence", "closed book"),
    ]
    arms = {one.name: one for one in compiled.test}
    raw = [arms[arm].against(arms[other], metric).p_two_sided for metric, arm, other in planned]
    # The check of the reader is no claim about the technique: it corrects nothing else, and nothing corrects it.
    assert [one.family for one in compiled.comparisons] == ["technique"] * 4 + ["reader check"]
    assert [one.test.p_two_sided for one in compiled.comparisons] == pytest.approx([*holm(raw[:4]), raw[4]])
    assert holm(raw)[4] != raw[4]
    check = planned["accuracy", "oracle evidence", "closed book"]
    assert check.sentence.startswith("reader check: accuracy: oracle evidence beats closed book: 10 wins")


def test_further_questions_that_another_stage_sees_are_refused(world, make_engine, compiled_in):
    engine = make_engine()
    further = [Question("new", "What of number 40?", ("a", "b"), "a"), world.questions[13]]
    with pytest.raises(InputError, match=r"\(same ID or text\): q13; remove them from reader_check"):
        compiled_in(world, engine, reader_check=further)
    with pytest.raises(InputError, match="reader_check requires a reader"):
        compiled_in(world, engine, reader_check=further[:1], reader=None)
    assert engine.asked == []


def test_retrieval_alone_a_function_and_a_technique_without_an_lm_can_be_compiled(world, make_engine, compiled_in):
    engine = make_engine()
    compiled = compiled_in(world, engine, reader=None)
    assert compiled.program.reader is None
    assert [one.name for one in compiled.test] == ["baseline", "hcqr compiled"]
    assert {one.metric for one in compiled.comparisons} == {"decision_useful"}
    assert not [asked for asked in engine.asked if asked.step == "reader"]

    compiled = compiled_in(world, retriever=lambda query, k: world.find(query)[:k])
    assert compiled.recommended == "untuned"
    assert "oracle evidence" not in {one.name for one in compiled.test}

    compiled = compiled_in(world, technique="plain")
    assert compiled.recommended == "baseline"
    assert compiled.costs["prompts"].asked == compiled.costs["search"].asked == 0


def test_plain_retrieval_that_is_searched_is_chosen_where_other_knobs_are_better(make_world, compiled_in):
    world = make_world("plain")
    find = world.find
    # Only a query that holds the options, "right 3" among them, finds what decides.
    world.find = lambda query: [p for p in find(query) if "right" in query or not p.id.startswith("decides")]
    compiled = compiled_in(world, technique="plain")
    assert [objective_named("decision_useful").value(arm.dev) for arm in compiled.arms] == [0.0, 1.0]
    assert compiled.recommended == compiled.compiled.name == compiled.arms[1].name != "baseline"
    assert compiled.program.technique.knobs["query_with_options"] is True
    assert [one.name for one in compiled.test][1:3] == ["baseline", "plain compiled"]
    assert "(decision_useful: 6 won, 0 lost of 6" in compiled.sentence


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result_whatever_the_threads(make_world, compiled_in):
    def compile_once(threads, seed):
        return outcome(compiled_in(make_world("deep"), settings=replace(QUICK, threads=threads, seed=seed)))

    assert compile_once(1, 5) == compile_once(8, 5) == compile_once(1, 5)
    assert len({compile_once(2, seed)[0] for seed in (5, 6)}) > 1


@pytest.mark.parametrize("k", [20, None])
def test_interrupted_and_run_again_equals_undisturbed_and_asks_nothing_twice(
    k, make_world, make_lm, make_engine, store, compiled_in
):
    def before(n, asked):
        if n == k:
            raise KeyboardInterrupt

    world, undisturbed = make_world("deep", size=12), make_engine()
    settings = replace(QUICK, threads=1)
    expected = outcome(compiled_in(world, lm=make_lm(undisturbed), settings=settings))
    cut, rest = make_engine(before=before), make_engine()
    if k is None:
        compiled_in(world, lm=make_lm(cut, store=store), settings=settings)
    else:
        with pytest.raises(KeyboardInterrupt):
            compiled_in(world, lm=make_lm(cut, store=store), settings=settings)
        assert len(cut.asked) == k + 1
        cut.asked.pop()
    again = compiled_in(world, lm=make_lm(rest, store=store), settings=settings)
    assert outcome(again) == expected
    assert distinct(cut.asked, rest.asked) == len({(one.step, one.prompt) for one in undisturbed.asked})
    if k is None:
        assert rest.asked == []
        assert sum(cost.calls for cost in again.costs.values()) == 0


def test_costs_of_the_stages_are_the_ledgers_and_progress_names_what_is_done(world, make_lm, compiled_in):
    lm, told = make_lm(), []
    compiled = compiled_in(world, lm=lm, progress=lambda *what: told.append(what))
    assert list(compiled.costs) == ["prompts", "search", "reader", "reader check", "test"]
    assert compiled.costs["reader check"].asked == 2 * 6
    total = sum(compiled.costs.values(), Cost())
    assert (total.calls, total.tokens) == (lm.engine.ledger.total.calls, lm.engine.ledger.total.tokens)
    assert ("prompts hcqr, demos_1", 1, 6) in told
    assert "prompts reader, reader_demos_1" in {what for what, _, _ in told}
    assert ("trial 0 (baseline), plain", 6, 42) in told
    assert ("trial 6 of 6, hcqr", 42, 42) in told
    assert told[-1] in [("closed book", 12, 12), ("oracle evidence", 12, 12)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": replace(QUICK, trials=0)}, "trials must be 1 or more, but got 0"),
        ({"settings": replace(QUICK, objective="speed")}, "unknown objective 'speed'"),
        ({"settings": replace(QUICK, objective="accuracy"), "reader": None}, "accuracy requires a reader"),
        ({"settings": replace(QUICK, demo_sizes=(0,))}, "prompts.demos_0: .*from 1 to 32, but got 0"),
        ({"knobs": {"no_such": 1}}, "no_such"),
        ({"splits": {"test": []}}, "the test split is empty"),
    ],
)
def test_what_cannot_be_compiled_is_refused_before_anything_is_asked(change, message, world, make_engine, compiled_in):
    engine = make_engine()
    if "splits" in change:
        change = {"splits": world.splits._replace(**change["splits"])}
    with pytest.raises(InputError, match=message):
        compiled_in(world, engine, **change)
    assert engine.asked == []


@pytest.mark.parametrize("values", [[1, 3], {"low": 1, "high": 3}])
def test_a_budget_is_searched_and_the_baseline_has_the_largest(values, world, compiled_in):
    compiled = compiled_in(world, knobs={"max_passages": values, "top_k": [3, 5]}, settings=replace(QUICK, trials=8))
    baseline, *others = compiled.arms
    assert baseline.knobs["max_passages"] == 3
    assert {arm.knobs["max_passages"] for arm in others} >= {1, 3}
    assert {arm.knobs["top_k"] for arm in others} <= {3, 5}
