"""Compiling: demonstrations and knobs tuned together, chosen on dev, and held against no rewriting on test."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from querywright.data.splits import Splits
from querywright.data.types import Label, Question
from querywright.metrics.dspy_metrics import METRICS
from querywright.optimize.demonstrations import Demos, bootstrap_sets, with_demos
from querywright.optimize.domains import suggest
from querywright.optimize.evaluate import Progress
from querywright.optimize.final import final_test, planned_comparisons
from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.results import (
    NO_REWRITING,
    Arm,
    Comparison,
    Compiled,
    CompileSettings,
    Objective,
    objective_value,
)
from querywright.optimize.run import Run, check
from querywright.optimize.selection import beats, best_of
from querywright.programs import RAG, technique_class
from querywright.programs.knobs import Knob
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.rerank import Reranker


def compile_program(
    technique: str,
    splits: Splits,
    *,
    retriever: Any,
    lm: dspy.LM,
    reader: str | None = "multiple_choice",
    knobs: Mapping[str, Any] | None = None,
    settings: CompileSettings | None = None,
    reader_check: Sequence[Question] = (),
    reranker: Reranker | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Tune a technique on labelled questions and hold it against no rewriting.

    Three stages. A DSPy teleprompter bootstraps demonstration sets for the technique's predictors on train. Optuna
    searches knobs and demonstration sets together on dev, the technique as written and no rewriting among the
    arms; the reader's demonstrations are then chosen on dev by accuracy, "none" among them. The winner meets test
    once, beside closed book, no rewriting, the technique as written and, with labelled evidence, the oracle; all
    with the same reader. Two arms are always compared on the questions that both scored.

    Everything that an LM answered is kept in the LM's store, and every choice follows from the seed: an
    interrupted compilation that is started again asks only for what is missing and ends where an undisturbed one
    would have ended.

    Args:
        technique: A name in ``TECHNIQUES``.
        splits: Train, dev and test questions.
        retriever: What is searched.
        lm: An LM made by ``resolve_lm``; with a store, so that nothing is asked twice.
        reader: ``multiple_choice``, ``short_answer``, or None to tune retrieval alone.
        knobs: Values that are fixed and not searched; ``max_passages`` is the budget of every arm. Default 5.
        settings: How much is tried.
        reader_check: Further labelled questions, met by closed book and oracle evidence alone: whether the reader
            reads takes more questions to show than whether the technique finds. Default none.
        reranker: Scores passages, for a technique that reranks. Default None: the technique's own way.
        progress: Called as work proceeds.

    Returns:
        The recommended program and everything it was chosen from.

    Raises:
        InputError: The data cannot carry the objective, a question of the reader check stands in a split, or a
            name or value is wrong.
        OutageError: The LM is out of reach; answers so far are kept, nothing is chosen.
        BudgetError: The limit of LM calls is reached; answers so far are kept, nothing is chosen.
        TooManyFailuresError: Too many questions failed, and not because an arm's prompts were too long.
    """
    settings = settings or CompileSettings()
    fixed = {"max_passages": 5, **(knobs or {})}
    run = Run(technique, splits, as_retriever(retriever), lm, reader, fixed, settings, progress, reader_check, reranker)
    check(run)

    sets = run.stage("bootstrap", lambda: _bootstrap(run))
    run.stage("search", lambda: _search(run, sets))
    plain, *others = run.arms
    best = best_of(others, settings.objective)
    winner = best if beats(best, plain, settings.objective) else plain
    program = _with_arm(run, winner, sets)
    reader_demos: Demos = {}
    if reader is not None and settings.reader_demo_sizes:
        reader_demos = run.stage("reader", lambda: _choose_reader_demos(run, program))

    recommended = NO_REWRITING if winner is plain else f"{technique} compiled"
    test = final_test(run, _with_arm(run, best, sets), recommended, reader_demos)
    return Compiled(
        program=with_demos(program, reader_demos),
        technique=technique,
        recommended=winner.name,
        arms=tuple(run.arms),
        compiled=best,
        reader_demos=bool(reader_demos),
        test=tuple(test),
        comparisons=tuple(planned_comparisons(test, technique, recommended)),
        costs=run.costs,
        settings=settings,
        n_demo_sets=len(sets),
        failed=run.failed,
        reader_check=tuple(reader_check),
    )


def _bootstrap(run: Run) -> list[Demos]:
    """Demonstration sets of the technique; a trace is kept when it found or led to what decides."""
    if not technique_class(run.technique).LM_STAGES:
        return []
    by_evidence = run.settings.objective != "accuracy"
    program = run.program(run.technique, reads=not by_evidence, knobs=run.knobs)
    return bootstrap_sets(
        program,
        run.splits.train,
        _found_deciding if by_evidence else METRICS["accuracy"],
        lm=run.lm,
        sizes=run.settings.demo_sizes,
        part="technique",
        seed=run.settings.seed,
        max_failures=run.settings.max_failures,
        progress=run.say("demonstrations"),
    )


def _found_deciding(example: Any, prediction: Any, trace: Any = None) -> float:
    """1.0 if a passage that entails the answer was found."""
    evidence = example.evidence or {}
    return float(any(evidence.get(passage.id) == Label.ENTAILED for passage in prediction.passages))


def _search(run: Run, sets: Sequence[Demos]) -> None:
    """Optuna over demonstration sets and knobs; arms are appended in the order in which they were tried."""
    import optuna

    _try(run, NO_REWRITING, "plain", {"max_passages": run.knobs["max_passages"]}, None, sets)
    searched = run.program(run.technique, reads=False, knobs=run.knobs).technique.searched_knobs
    space = [knob for knob in searched if knob.name not in run.knobs]
    space.sort(key=lambda knob: len(knob.when))  # a knob comes after those that it depends on
    with quiet_optuna():
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=run.settings.seed))
        for demo_set in range(-1, len(sets)):
            study.enqueue_trial({"demonstrations": demo_set, **{knob.name: knob.default for knob in space}})
        n_trials = max(run.settings.n_trials, 1 + len(sets))
        study.optimize(lambda trial: _trial(run, trial, space, sets), n_trials=n_trials)


def _trial(run: Run, trial: Any, space: Sequence[Knob], sets: Sequence[Demos]) -> float:
    """The objective of an arm; NaN, which is a failed trial to Optuna, when it cannot be scored."""
    demo_set = trial.suggest_categorical("demonstrations", list(range(-1, len(sets)))) if sets else -1
    given = dict(technique_class(run.technique)(None, **run.knobs).knobs)
    values: dict[str, Any] = {}
    for knob in space:
        if knob.acts({**given, **values}):
            values[knob.name] = suggest(trial, knob)
    name = "as written" if trial.number == 0 else f"trial {trial.number}"
    knobs, chosen = {**run.knobs, **values}, None if demo_set < 0 else demo_set
    if trial.number == 0:
        arm: Arm | None = _try(run, name, run.technique, knobs, chosen, sets)
    else:
        arm = run.fits(name, lambda: _try(run, name, run.technique, knobs, chosen, sets))
    return math.nan if arm is None else objective_value(arm.dev, run.settings.objective)


def _try(
    run: Run,
    name: str,
    technique: str,
    knobs: Mapping[str, Any],
    demo_set: int | None,
    sets: Sequence[Demos],
) -> Arm:
    """Evaluate an arm on dev once; the same arm under another name is not run again."""
    key = repr((technique, sorted(knobs.items()), demo_set))
    known = run.tried.get(key)
    if known is not None:
        return known
    reads = run.settings.objective != "decision_useful"
    program = run.program(technique, reads=reads, knobs=knobs)
    if demo_set is not None:
        program = with_demos(program, sets[demo_set])
    arm = Arm(name, dict(program.technique.knobs), demo_set, run.evaluate(program, run.splits.dev, name))
    run.tried[key] = arm
    run.arms.append(arm)
    return arm


def _with_arm(run: Run, arm: Arm, sets: Sequence[Demos]) -> RAG:
    """The program of an arm, with a reader as it is written."""
    technique = "plain" if arm.name == NO_REWRITING else run.technique
    program = run.program(technique, reads=True, knobs=arm.knobs)
    return program if arm.demo_set is None else with_demos(program, sets[arm.demo_set])


def _choose_reader_demos(run: Run, program: RAG) -> Demos:
    """Demonstrations of the reader, or none when no set reads dev more accurately."""

    def read(name: str, demos: Demos) -> Arm:
        evaluation = run.evaluate(with_demos(program, demos), run.splits.dev, name)
        return Arm(name, dict(program.technique.knobs), None, evaluation)

    without = read("reader without demonstrations", {})
    if math.isnan(objective_value(without.dev, "accuracy")):
        return {}
    sets = bootstrap_sets(
        program,
        run.splits.train,
        METRICS["accuracy"],
        lm=run.lm,
        sizes=run.settings.reader_demo_sizes,
        part="reader",
        seed=run.settings.seed + 1,
        max_failures=run.settings.max_failures,
        progress=run.say("demonstrations of the reader"),
    )
    named = {f"reader with demonstration set {number}": demos for number, demos in enumerate(sets)}
    tried = [run.fits(name, functools.partial(read, name, named[name])) for name in named]
    best = best_of([without, *(arm for arm in tried if arm is not None)], "accuracy")
    return named[best.name] if beats(best, without, "accuracy") else {}


__all__ = [
    "Arm",
    "Comparison",
    "CompileSettings",
    "Compiled",
    "Objective",
    "compile_program",
    "objective_value",
    "suggest",
]
