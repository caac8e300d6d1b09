"""Optimizers that choose demonstrations: labelled, bootstrapped, searched, nearest, and several programs of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import dspy
from dspy.teleprompt import BootstrapFewShotWithOptuna

from querywright.data.types import Question
from querywright.optimize.demonstrations import Demos, bootstrap_sets, with_demos
from querywright.optimize.optimizer_run import (
    DrawnLM,
    OptimizerError,
    Work,
    demonstrations,
    halves,
)
from querywright.optimize.program_state import shaped
from querywright.programs import RAG, Ensemble


def labelled_few_shot(work: Work) -> RAG:
    """DSPy's ``LabeledFewShot``: training questions as they are labelled. No LM call."""
    order = list(work.train)
    random.Random(work.number("order")).shuffle(order)
    optimizer = dspy.LabeledFewShot(k=int(work.arguments["k"]))
    tuned = optimizer.compile(work.student(), trainset=[one.to_example() for one in order])
    program = work.with_prompts_of(tuned)
    if not any(predictor.demos for name, predictor in program.named_predictors() if name.startswith(work.prefix)):
        raise OptimizerError(
            f"labelled_few_shot found nothing to show: no predictor of {work.program.technique.NAME} (part "
            f"{work.part}) writes what a question is labelled with; use bootstrap_few_shot"
        )
    return program


def bootstrap_few_shot(work: Work) -> RAG:
    """DSPy's ``BootstrapFewShot``."""
    return _with(work, _one_set(work, int(work.arguments["max_bootstrapped_demos"])))


def random_search(work: Work) -> RAG:
    """DSPy's ``BootstrapFewShotWithRandomSearch``."""
    train, valid = learn_and_choose(work)
    options = ("max_bootstrapped_demos", "max_labeled_demos", "max_rounds", "num_candidate_programs")
    with work.watched(work.scores_or_accepts) as metric:
        optimizer = dspy.BootstrapFewShotWithRandomSearch(
            metric=metric,
            num_threads=work.threads,
            **{name: int(work.arguments[name]) for name in options},
        )
        tuned = optimizer.compile(work.student(), trainset=train, valset=valid)
    return work.with_prompts_of(tuned)


def bootstrap_optuna(work: Work) -> RAG:
    """DSPy's ``BootstrapFewShotWithOptuna``, with a seed, in memory."""
    train, valid = learn_and_choose(work)
    options = ("max_labeled_demos", "max_rounds", "num_candidate_programs")
    with work.watched(work.scores_or_accepts) as metric:
        optimizer = _SeededOptuna(
            work.number("optuna"),
            metric=metric,
            num_threads=work.threads,
            **{name: int(work.arguments[name]) for name in options},
        )
        tuned = optimizer.compile(
            work.student(), max_demos=int(work.arguments["max_demos"]), trainset=train, valset=valid
        )
    return work.with_prompts_of(tuned)


def knn_few_shot(work: Work) -> RAG:
    """What DSPy's ``KNNFewShot`` does, as a program that can be saved: all traces are kept, the nearest are shown."""
    found = _one_set(work, min(len(work.train), int(work.arguments["pool"])))
    return shaped(_with(work, found), nearest=int(work.arguments["k"]), members=0)


def ensemble(work: Work) -> RAG:
    """What DSPy's ``Ensemble`` does, as a program that can be saved, over programs with different demonstrations."""
    size = int(work.arguments["size"])
    members = [_with(work, found) for found in _sets(work, [int(work.arguments["max_bootstrapped_demos"])] * size)]
    if len(members) < 2:
        raise OptimizerError(
            f"ensemble needs 2 different sets of demonstrations, but {len(work.train)} training questions gave "
            f"{len(members)}; give more training questions, or another way to prompts"
        )
    return Ensemble(members)


class _SeededOptuna(BootstrapFewShotWithOptuna):
    """DSPy's optimizer with a seeded sampler; a predictor that no run asked has nothing to choose from."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(**options)
        self._seed = seed

    def compile(
        self, student: Any, *, teacher: Any = None, max_demos: int, trainset: list[Any], valset: list[Any] | None = None
    ) -> Any:
        import optuna

        self.trainset, self.valset, self.student = trainset, valset, student.reset_copy()
        bootstrap = dspy.BootstrapFewShot(
            metric=self.metric,
            max_bootstrapped_demos=max_demos,
            max_labeled_demos=self.max_labeled_demos,
            max_rounds=self.max_rounds,
        )
        self.compiled_teleprompter = bootstrap.compile(self.student, trainset=trainset)
        for predictor in self.compiled_teleprompter.predictors():
            # An empty one is shown nowhere, but can be chosen.
            predictor.demos = demonstrations(predictor, predictor.demos) or [{}]
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=self._seed))
        study.optimize(self.objective, n_trials=self.num_candidate_sets)
        return study.best_trial.user_attrs["program"]


def _sets(work: Work, sizes: Sequence[int]) -> list[Demos]:
    """Different sets of bootstrapped demonstrations, with what the part may show."""
    return bootstrap_sets(
        work.program,
        work.train,
        work.accepts,
        lm=DrawnLM(work.lm, work.number("draws"), lambda error: None),
        sizes=sizes,
        part=work.prefix,
        labelled=int(work.arguments.get("max_labeled_demos", 0)),
        rounds=int(work.arguments.get("max_rounds", 1)),
        seed=work.number("sets"),
        max_failures=work.max_failures,
        progress=work.progress,
    )


def _one_set(work: Work, size: int) -> Demos:
    sets = _sets(work, [size])
    if not sets:
        raise OptimizerError(
            f"{work.name} found nothing to show: on none of the {len(work.train)} training questions did the program "
            f"reach {work.arguments['metric_threshold']}; give more training questions, a lower metric_threshold, or "
            "another way to prompts"
        )
    return sets[0]


def _with(work: Work, found: Demos) -> RAG:
    return work.with_prompts_of(with_demos(work.program, found))


def learn_and_choose(work: Work) -> tuple[list[Any], list[Any]]:
    """Training questions to learn from, in an order of the seed's, and to choose on."""
    train, valid = halves(work.train, float(work.arguments["validation"]), work.seed)
    return examples(train, work.number("order")), [one.to_example() for one in valid]


def examples(questions: Sequence[Question], seed: int) -> list[Any]:
    """Questions as DSPy takes them, in an order that follows from the seed."""
    order = list(questions)
    random.Random(seed).shuffle(order)
    return [one.to_example() for one in order]
