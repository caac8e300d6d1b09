"""Optimizers that choose demonstrations: labelled, bootstrapped, searched, nearest, and several programs of them."""

from __future__ import annotations

from typing import Any

import dspy
from dspy.teleprompt import BootstrapFewShotWithOptuna

from querywright.optimize.optimizer_run import OptimizerError, Work, demonstrations
from querywright.optimize.program_state import shaped
from querywright.programs import RAG, Ensemble


def labelled_few_shot(work: Work) -> RAG:
    """DSPy's ``LabeledFewShot``: training questions as they are labelled. No LM call."""
    optimizer = dspy.LabeledFewShot(k=int(work.arguments["k"]))
    program = work.with_prompts_of(optimizer.compile(work.student(), trainset=work.examples()))
    if not _shown(work, program):
        raise OptimizerError(
            f"labelled_few_shot found nothing to show: no predictor of {work.program.technique.NAME} (part "
            f"{work.part}) writes what a question is labelled with; use bootstrap_few_shot"
        )
    return program


def bootstrap_few_shot(work: Work) -> RAG:
    """DSPy's ``BootstrapFewShot``."""
    return _bootstrapped(work, int(work.arguments["max_bootstrapped_demos"]))


def random_search(work: Work) -> RAG:
    """DSPy's ``BootstrapFewShotWithRandomSearch``."""
    train, valid = work.learn_and_choose()
    options = work.given("max_bootstrapped_demos", "max_labeled_demos", "max_rounds", "num_candidate_programs")
    with work.watched(work.scores_or_accepts) as metric:
        optimizer = dspy.BootstrapFewShotWithRandomSearch(metric=metric, num_threads=work.threads, **options)
        tuned = optimizer.compile(work.student(), trainset=train, valset=valid)
    return work.with_prompts_of(tuned)


def bootstrap_optuna(work: Work) -> RAG:
    """DSPy's ``BootstrapFewShotWithOptuna``, with a seed, in memory."""
    train, valid = work.learn_and_choose()
    options = work.given("max_labeled_demos", "max_rounds", "num_candidate_programs")
    with work.watched(work.scores_or_accepts) as metric:
        optimizer = _SeededOptuna(work.number("optuna"), metric=metric, num_threads=work.threads, **options)
        tuned = optimizer.compile(work.student(), trainset=train, valset=valid, **work.given("max_demos"))
    return work.with_prompts_of(tuned)


def knn_few_shot(work: Work) -> RAG:
    """What DSPy's ``KNNFewShot`` does, as a program that can be saved: all traces are kept, the nearest are shown."""
    found = _bootstrapped(work, min(len(work.train), int(work.arguments["pool"])))
    return shaped(found, nearest=int(work.arguments["k"]), members=0)


def ensemble(work: Work) -> RAG:
    """What DSPy's ``Ensemble`` does, as a program that can be saved, over programs with different demonstrations."""
    members: dict[str, RAG] = {}
    for place in range(int(work.arguments["size"])):
        found = _traced(work, int(work.arguments["max_bootstrapped_demos"]), place)
        if shown := _shown(work, found):
            members.setdefault(repr(shown), found)
    if len(members) < 2:
        raise OptimizerError(
            f"ensemble needs 2 different sets of demonstrations, but {len(work.train)} training questions gave "
            f"{len(members)}; give more training questions, or another way to prompts"
        )
    return Ensemble(list(members.values()))


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


def _bootstrapped(work: Work, size: int) -> RAG:
    """The program with so many demonstrations that it wrote itself where it succeeded, and one at least."""
    found = _traced(work, size)
    if not _shown(work, found):
        raise OptimizerError(
            f"{work.name} found nothing to show: on none of the {len(work.train)} training questions did the program "
            f"reach {work.arguments['metric_threshold']}; give more training questions, a lower metric_threshold, or "
            "another way to prompts"
        )
    return found


def _traced(work: Work, size: int, place: int = 0) -> RAG:
    """The program as ``BootstrapFewShot`` leaves it, over the training questions in the order of a place."""
    with work.watched(work.accepts) as metric:
        optimizer = dspy.BootstrapFewShot(
            metric=metric,
            max_bootstrapped_demos=size,
            max_labeled_demos=int(work.arguments.get("max_labeled_demos", 0)),
            max_rounds=int(work.arguments["max_rounds"]),
        )
        tuned = optimizer.compile(work.student(), trainset=work.examples(place))
    return work.with_prompts_of(tuned)


def _shown(work: Work, program: RAG) -> list[Any]:
    """The demonstrations of the part that may change, predictor by predictor; empty where there is none at all."""
    found = [predictor.demos for name, predictor in program.named_predictors() if name.startswith(work.prefix)]
    return found if any(found) else []
