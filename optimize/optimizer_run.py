"""Run a DSPy optimizer on one part of a copy of a program, with numbered samples and without ignoring failures."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import logging
import math
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import LMError, is_retryable_lm_error

from querywright.data.splits import split_questions
from querywright.data.types import Question
from querywright.errors import InputError, OutageError, PromptTooLongError, QuerywrightError
from querywright.metrics.dspy_metrics import Metric
from querywright.models.usage import Ledger, metered
from querywright.optimize.contexts import asking, quiet_optuna
from querywright.optimize.failures import ENOUGH, Failures, TooManyFailuresError, failure_kind
from querywright.optimize.program_state import demo_fields, standalone
from querywright.programs import RAG
from querywright.programs.hyperparameters import Value

_NO_LIMIT = 1_000_000
"""Error limit for DSPy, so high that DSPy never stops on its own; the run's own failure count decides when to stop."""


class OptimizerError(QuerywrightError):
    """An optimizer failed: no run succeeded, the LM's instructions could not be parsed, or the prompts copy training
    text.
    """


class _StopError(BaseException):
    """Ends an optimizer at once. Like an interrupt, it is not caught by the optimizer's own ``except Exception``."""


@dataclass(frozen=True, slots=True)
class OptimizerRun:
    """The inputs of an optimizer.

    Args:
        name: Name of the optimizer in ``OPTIMIZERS``.
        program: The program before tuning.
        train: Training questions, never questions from dev or test.
        metric: A function of ``(example, prediction)`` that returns a value from 0 to 1.
        lm: An LM from ``resolve_lm``; it also writes the instructions.
        feedback: Feedback for GEPA, from ``feedback_metric``. Default: derived from ``metric``.
        arguments: Arguments of the optimizer; ``run_optimizer`` fills in the defaults.
        part: Predictors that may change: ``technique``, ``reader``, or ``all``.
        seed: Seed for all random choices.
        threads: Number of questions to run at a time, if DSPy runs several.
        max_failures: Share of the training questions that may fail.
        progress: Called with the amount done and the maximum amount.
        runs: Maximum number of program runs, for ``progress``.
    """

    name: str
    program: RAG
    train: Sequence[Question]
    metric: Metric
    lm: dspy.LM
    feedback: Callable[..., Any] | None = None
    arguments: Mapping[str, Value] = field(default_factory=dict)
    part: str = "technique"
    seed: int = 0
    threads: int = 1
    max_failures: float = 0.05
    progress: Callable[[int, int], None] | None = None
    runs: int = 0

    def number(self, *names: str) -> int:
        """Return a different seed for each purpose; never 0, which DSPy treats as no seed."""
        return 1 + _hashed(":".join([str(self.seed), self.name, *names])) % (2**31 - 2)

    @property
    def prefix(self) -> str:
        """The name prefix of the predictors that may change."""
        return "" if self.part == "all" else f"{self.part}."

    def student(self) -> RAG:
        """Return a copy of the program whose other part is marked as compiled, so that DSPy leaves it unchanged."""
        student = copy.deepcopy(self.program)
        if self.part == "technique" and student.reader is not None:
            student.reader._compiled = True
        if self.part == "reader":
            student.technique._compiled = True
        return student

    def examples(self, place: int | None = None) -> list[Any]:
        """Return the training questions as DSPy examples, in an order that depends on the seed and ``place``."""
        return _examples(self.train, self.number("order") if place is None else f"{self.number('sets')}:{place}")

    def learn_and_choose(self) -> tuple[list[Any], list[Any]]:
        """Return training questions to learn from (in a seeded order) and to choose on, at least one of each.

        Raises:
            InputError: There is only one question.
        """
        if len(self.train) < 2:
            raise InputError(
                f"this optimizer requires at least 2 training questions, but got {len(self.train)}; add questions"
            )
        ordered = split_questions(self.train, train=1.0, dev=0.0, seed=self.seed).train
        kept = learnt_from(len(ordered), float(self.arguments["validation"]))
        return _examples(ordered[:kept], self.number("order")), [one.to_example() for one in ordered[kept:]]

    def accepts(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """Return 1.0 if a run is good enough to become a demonstration."""
        return float(self.score(example, prediction) >= float(self.arguments.get("metric_threshold", 1.0)))

    def score(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """Return the metric's value; 0 for a failed run or for a question that cannot be scored (no prompt can change
        that).
        """
        value = 0.0 if prediction is None else float(self.metric(example, prediction))
        return 0.0 if math.isnan(value) else value

    def scores_or_accepts(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """Return the metric's value, or ``accepts`` while DSPy collects demonstrations (it then passes a trace)."""
        return (self.score if trace is None else self.accepts)(example, prediction)

    def with_prompts_of(self, tuned: dspy.Module) -> RAG:
        """Return the program with another program's instructions and demonstrations for the part that may change."""
        other, found = copy.deepcopy(self.program), dict(tuned.named_predictors())
        predictors: dict[str, Any] = dict(other.named_predictors())
        for name, predictor in predictors.items():
            if name in found and name.startswith(self.prefix):
                source: Any = found[name]
                predictor.signature = predictor.signature.with_instructions(source.signature.instructions)
                predictor.demos = demonstrations(predictor, source.demos)
        return other

    @contextlib.contextmanager
    def watched(self, metric: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
        """Set up DSPy for an optimizer, and yield the metric to pass to it. Raises the same errors as
        ``run_optimizer``.
        """
        watch = _Watch(self, metric)
        lm = DrawnLM(self.lm, self.number("draws"), watch.stop)
        callbacks = [*dspy.settings.callbacks, watch]
        settings = dspy.context(callbacks=callbacks, max_errors=_NO_LIMIT, num_threads=self.threads)
        try:
            with metered(watch.spent), asking(lm), settings, _quiet():
                yield watch.scored
        except _StopError:
            pass
        except Exception as error:
            if isinstance(error, QuerywrightError) and not isinstance(error, PromptTooLongError):
                raise
            if watch.stopped is None:
                raise OptimizerError(
                    f"{self.name} failed: {type(error).__name__}: {str(error)[:300]}. Use a larger LM, or "
                    "change the optimizer's arguments"
                ) from error
        if watch.stopped is not None:
            raise watch.stopped


class DrawnLM(dspy.LM):
    """An LM with numbered samples: each sample has its own seed, so that a repeated run finds it in the cache.

    DSPy distinguishes samples of the same prompt by ``rollout_id`` and ``n``, which never reach the model, and a sample
    without a seed is requested again each time. A request at temperature 0 is not changed. ``stop`` is called with None
    before each request, and with the error after a failed request; it may raise.
    """

    def __init__(self, lm: dspy.LM, seed: int, stop: Callable[[Exception | None], None]) -> None:
        self.__dict__.update(lm.copy().__dict__)
        self._seed, self._stop = seed, stop
        self._seeded = "seed" in lm.supported_params

    def __deepcopy__(self, memo: dict[int, Any]) -> DrawnLM:
        return self

    def drawn_alike(self, lm: dspy.BaseLM) -> dspy.BaseLM:
        """Return a technique's LM with the same numbering, sampling, and ``stop``."""
        if not isinstance(lm, dspy.LM):
            return lm
        again = self.kwargs.get("rollout_id") is not None
        sampling = {name: self.kwargs.get(name) for name in ("rollout_id", "temperature")} if again else {}
        return DrawnLM(lm.copy(**sampling), self._seed, self._stop)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Call the LM; each of several samples is a separate request."""
        settings = {**self.kwargs, **kwargs}
        rollout, seed = settings.get("rollout_id"), settings.get("seed")
        drawn = bool(settings.get("temperature")) and self._seeded and (seed is None or rollout is not None)
        outputs: list[Any] = []
        for number in range(int(settings.get("n") or 1)):
            self._stop(None)
            own = {**kwargs, **({"n": 1} if "n" in settings else {})}
            if drawn:
                own["seed"] = _hashed(f"{self._seed}:{seed}:{rollout}:{number}") >> 1
            try:
                outputs += super().__call__(prompt, messages=messages, **own)
            except LMError as error:
                # An error in a run counts as a failure of its question; an error while writing instructions is an
                # outage.
                in_program = any(isinstance(module, RAG) for module in dspy.settings.caller_modules or ())
                self._stop(error if in_program or not is_retryable_lm_error(error) else _outage(error))
                raise
        return outputs


class _Watch(BaseCallback):
    """Records the failures that an optimizer ignores, and stops it if too many questions failed, too many of the LM's
    answers could not be parsed, or the LM cannot be reached.

    A prompt that is too long does not count as a failed question; the tried prompt scores 0 instead.
    """

    def __init__(self, work: OptimizerRun, metric: Callable[..., Any]) -> None:
        self.stopped: Exception | None = None
        self.spent = Ledger()
        self._work, self._metric = work, metric
        self._failures = Failures(work.name, len(work.train), work.max_failures)
        self._failed: set[str] = set()
        self._under_way: dict[str, str] = {}
        self._runs = 0
        self._lock = threading.Lock()

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Record the calls that run the whole program."""
        if isinstance(instance, RAG):
            self._under_way[call_id] = str(inputs.get("kwargs", {}).get("question", ""))

    def on_module_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:
        """Count a run. Errors that the program handled do not count, and an interrupt propagates on its own."""
        question = self._under_way.pop(call_id, None)
        if question is None:
            return
        if isinstance(exception, Exception):
            self._fail(question, exception)
            return
        with self._lock:
            self._runs += 1
            runs = min(self._runs, self._work.runs)
            try:
                self._failures.check_read(self.spent, ENOUGH)
            except TooManyFailuresError as stop:
                self.stopped = self.stopped or stop
        if self._work.progress is not None:
            self._work.progress(runs, self._work.runs)

    def stop(self, error: Exception | None) -> None:
        """Stop if an earlier error ended the run, or if this error from an LM call must end it."""
        if error is not None and failure_kind(error) is None:
            with self._lock:
                self.stopped = self.stopped or error
        if self.stopped is not None:
            raise _StopError

    def scored(self, example: Any, prediction: Any, trace: Any = None, *others: Any) -> Any:
        """Return the value of the metric."""
        self.stop(None)
        try:
            return self._metric(example, prediction, trace, *others)
        except Exception as error:
            self._fail(example.question, error)
            self.stop(None)
            raise

    def _fail(self, question: str, error: Exception) -> None:
        """Count a failed question, but only the first time it fails."""
        with self._lock:
            if failure_kind(error) == "prompt_too_long" or question in self._failed:
                return
            self._failed.add(question)
            try:
                self._failures.add("a training question", error)
            except Exception as stop:  # noqa: BLE001 - raised later, where no code catches it
                self.stopped = self.stopped or stop


def learnt_from(n_train: int, share: float) -> int:
    """Return the number of training questions to learn from if the given share is reserved for choosing."""
    return min(max(1, round(n_train * (1 - share))), max(1, n_train - 1))


def demonstrations(predictor: Any, demos: Sequence[Any]) -> list[Any]:
    """Return the demonstrations that a predictor can show: those with at least one of its input fields and one of its
    output fields.

    Demonstrations that need a conversation history are left out.
    """
    signature, fields = predictor.signature, demo_fields(predictor)
    kept = []
    for demo in standalone(predictor, demos):
        data = {name: value for name, value in dict(demo).items() if name in fields and value is not None}
        if set(data) & set(signature.input_fields) and set(data) & set(signature.output_fields):
            kept.append(dspy.Example(**data))
    return kept


def _examples(questions: Sequence[Question], seed: int | str) -> list[Any]:
    order = list(questions)
    random.Random(seed).shuffle(order)
    return [one.to_example() for one in order]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep an optimizer's progress bars, printed output, warnings, and example logs off the terminal."""
    logger, output = logging.getLogger("dspy"), io.StringIO()
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with (
            quiet_optuna(),
            contextlib.redirect_stderr(output),
            contextlib.redirect_stdout(output),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        logger.setLevel(before)


def _outage(error: LMError) -> OutageError:
    return OutageError(
        f"the LM failed while it was writing instructions, after all retries: {error}. Check the LM's server and "
        "rerun; finished answers are cached"
    )


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
