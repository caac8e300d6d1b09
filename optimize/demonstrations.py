"""Demonstrations by a DSPy optimizer: sets to choose from, never applied unseen."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.optimize.evaluate import asking
from querywright.optimize.failures import Failures
from querywright.programs.rag import RAG

Demos = Mapping[str, Sequence[Mapping[str, Any]]]
"""Demonstrations of each predictor, by the predictor's name in the program."""


def bootstrap_sets(
    program: RAG,
    train: Sequence[Question],
    accept: Callable[..., float],
    *,
    lm: dspy.LM,
    sizes: Sequence[int],
    part: str = "",
    labelled: int = 0,
    rounds: int = 1,
    seed: int = 0,
    max_failures: float = 0.05,
    progress: Callable[[int, int], None] | None = None,
) -> list[Demos]:
    """Sets of demonstrations that the program wrote itself on training questions where it succeeded.

    DSPy's ``BootstrapFewShot`` runs the program over the training questions in an order of their own for each set
    and keeps the traces that ``accept`` is content with. A set that found none, or equals an earlier one, is left
    out. BootstrapFewShot passes over questions that fail and forgets them; here they are counted, and what would
    stop an evaluation stops this too.

    Args:
        program: The program as it stands; it is not changed.
        train: Training questions.
        accept: A DSPy metric; a trace with 1.0 is kept.
        lm: An LM made by ``resolve_lm``.
        sizes: Demonstrations wanted in each set, each 1 or more.
        part: Keep demonstrations of the predictors whose name begins so. Default all.
        labelled: Fill a set up to so many with training questions as they are labelled, which have what the question
            has and nothing else. Default 0.
        rounds: Attempts at a question, each after the first sampled anew. Default 1.
        seed: Orders the training questions.
        max_failures: Share of the questions that may fail while a set is made. Default 0.05.
        progress: Called with how many sets are done and how many there are.

    Returns:
        The sets, in the order of ``sizes``.

    Raises:
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached.
        TooManyFailuresError: More questions failed than allowed.
        InputError: A size is below 1, or a question does not fit the program.
    """
    if any(size < 1 for size in sizes):
        raise InputError(f"sizes of demonstration sets must be 1 or more, but got {tuple(sizes)}")
    found: list[Demos] = []
    for position, size in enumerate(sizes):
        order = list(train)
        random.Random(f"{seed}:{position}").shuffle(order)
        failures = Failures("demonstrations", len(order), max_failures)
        demos = _bootstrap(
            program, order, accept, lm=lm, size=size, labelled=labelled, rounds=rounds, failures=failures
        )
        kept = {name: shown for name, shown in demos.items() if name.startswith(part) and shown}
        if kept and kept not in found:
            found.append(kept)
        if progress is not None:
            progress(position + 1, len(sizes))
    return found


def _bootstrap(
    program: RAG,
    order: Sequence[Question],
    accept: Callable[..., float],
    *,
    lm: dspy.LM,
    size: int,
    labelled: int,
    rounds: int,
    failures: Failures,
) -> dict[str, list[dict[str, Any]]]:
    watch = Watch(accept)
    optimizer = dspy.BootstrapFewShot(
        metric=watch.accept,
        metric_threshold=1.0,
        max_bootstrapped_demos=size,
        max_labeled_demos=labelled,
        max_rounds=rounds,
        max_errors=failures.allowed + 1,
    )
    examples = [question.to_example() for question in order]
    try:
        with asking(lm), dspy.context(callbacks=[*dspy.settings.callbacks, watch]), quiet():
            compiled = optimizer.compile(student=copy.deepcopy(program), trainset=examples)
    finally:
        for error in watch.errors:
            failures.add("a training question", error)
    return demos_of(compiled)


class Watch(BaseCallback):
    """Sees the failures that an optimizer swallows: of the whole program and of the metric.

    Args:
        accept: The metric that the optimizer is given.
    """

    def __init__(self, accept: Callable[..., float]) -> None:
        self._accept = accept
        self._programs: dict[str, str] = {}
        self.errors: list[Exception] = []

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Remember which calls are of the whole program."""
        if isinstance(instance, RAG):
            self._programs[call_id] = str(inputs.get("kwargs", {}).get("question", ""))

    def on_module_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:
        """Remember what went wrong; an error inside that the program dealt with is none."""
        question = self._programs.pop(call_id, None)
        if question is not None:
            self.ended(question, exception if isinstance(exception, Exception) else None)  # an interrupt goes up itself

    def ended(self, question: str, error: Exception | None) -> None:
        """Note that a question was gone through, or that it failed in the program or in the metric."""
        if error is not None:
            self.errors.append(error)

    def accept(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """The metric."""
        try:
            return self._accept(example, prediction, trace)
        except Exception as error:
            self.ended(example.question, error)
            raise


def demos_of(program: dspy.Module) -> dict[str, list[dict[str, Any]]]:
    """The demonstrations of each predictor as plain data."""
    return {
        name: [{key: value for key, value in dict(demo).items() if key != "augmented"} for demo in predictor.demos]
        for name, predictor in program.named_predictors()
    }


def with_demos(program: RAG, demos: Demos) -> RAG:
    """A copy of the program with these demonstrations; predictors that are not named keep theirs."""
    other = copy.deepcopy(program)
    for name, predictor in other.named_predictors():
        if name in demos:
            predictor.demos = [dspy.Example(**demo) for demo in demos[name]]
    return other


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep an optimizer's progress bars, prints and warnings, and its logging of examples, off the terminal."""
    before = {name: logging.getLogger(name).level for name in ("dspy", "optuna")}
    try:
        for name in before:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        with (
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
