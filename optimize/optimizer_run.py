"""How a DSPy optimizer is run here: on a copy, one part of it, draws numbered, and no failure swallowed."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import LMError, is_retryable_lm_error

from querywright.data.splits import split_questions
from querywright.data.types import Question
from querywright.errors import InputError, OutageError, PromptTooLongError, QuerywrightError
from querywright.metrics.dspy_metrics import Metric
from querywright.optimize.demonstrations import Watch, quiet
from querywright.optimize.evaluate import asking
from querywright.optimize.failures import Failures, failure_kind
from querywright.programs import RAG, Ensemble
from querywright.programs.hyperparameters import Value

NO_LIMIT = 1_000_000
"""Errors after which DSPy would stop by itself; here the run's own account of failures decides."""


class OptimizerError(QuerywrightError):
    """An optimizer came to nothing: no run succeeded, or the LM wrote no instructions that could be read."""


class _StopError(BaseException):
    """Ends an optimizer at once: its own ``except Exception`` lets it pass, as it does an interrupt."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an optimizer is given.

    Args:
        name: Its name.
        program: The program as it stands; never changed.
        train: Training questions.
        metric: A measure from 0 to 1.
        feedback: A metric with feedback, as GEPA takes it.
        lm: An LM made by ``resolve_lm``.
        arguments: The optimizer's own, defaults filled in.
        part: ``technique``, ``reader`` or ``all``.
        seed: Of everything that is drawn.
        threads: Questions under way at a time.
        max_failures: Share of the questions that may fail.
        runs: Runs of the program at most, for ``progress``.
        progress: Called with how much is done and how much there is at most.
    """

    name: str
    program: RAG
    train: Sequence[Question]
    metric: Metric
    feedback: Callable[..., Any]
    lm: dspy.LM
    arguments: Mapping[str, Value]
    part: str
    seed: int
    threads: int
    max_failures: float
    runs: int
    progress: Callable[[int, int], None] | None = None

    def number(self, *names: str) -> int:
        """A seed for something, other than that for anything else; never 0, which DSPy takes for none."""
        digest = hashlib.sha256(":".join([str(self.seed), self.name, *names]).encode()).digest()
        return 1 + int.from_bytes(digest[:4], "big") % (2**31 - 2)

    @property
    def prefix(self) -> str:
        """How the names of the predictors begin that may change."""
        return "" if self.part == "all" else f"{self.part}."

    def student(self) -> RAG:
        """A copy whose other part DSPy takes for compiled, and leaves alone."""
        student = copy.deepcopy(self.program)
        if self.part == "technique" and student.reader is not None:
            student.reader._compiled = True
        if self.part == "reader":
            student.technique._compiled = True
        return student

    def accepts(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """1.0 if a run is good enough to be shown as a demonstration."""
        return float(self.score(example, prediction) >= float(self.arguments.get("metric_threshold", 1.0)))

    def score(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """The measure; 0 for a run that failed, and for what cannot be scored, which no prompt changes."""
        value = 0.0 if prediction is None else float(self.metric(example, prediction))
        return 0.0 if math.isnan(value) else value

    def scores_or_accepts(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """The measure, or while demonstrations are gathered (a trace is given) whether it is enough."""
        return (self.score if trace is None else self.accepts)(example, prediction)

    def with_prompts_of(self, tuned: dspy.Module) -> RAG:
        """The program with the instructions and demonstrations of another, of the part that may change."""
        other = copy.deepcopy(self.program)
        found: dict[str, Any] = dict(tuned.named_predictors())
        own: dict[str, Any] = dict(other.named_predictors())
        for name, predictor in own.items():
            if name in found and name.startswith(self.prefix):
                predictor.signature = predictor.signature.with_instructions(found[name].signature.instructions)
                predictor.demos = demonstrations(predictor, found[name].demos)
        return other

    @contextlib.contextmanager
    def watched(self, metric: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
        """Settings under which a DSPy optimizer runs; gives the metric to hand it.

        Raises:
            OutageError: The LM is out of reach.
            BudgetError: The limit of calls is reached.
            TooManyFailuresError: More questions failed than allowed.
            OptimizerError: The optimizer could make nothing of what the LM wrote.
        """
        watch = _Stopping(self, metric)
        lm = DrawnLM(self.lm, self.number("draws"), watch.stop)
        settings = {
            "callbacks": [*dspy.settings.callbacks, watch],
            "max_errors": NO_LIMIT,
            "num_threads": self.threads,
        }
        try:
            with asking(lm), dspy.context(**settings), quiet():
                yield watch.accept
        except _StopError:
            pass
        except Exception as error:
            if isinstance(error, QuerywrightError) and not isinstance(error, PromptTooLongError):
                raise
            if watch.stopped is None:
                raise OptimizerError(
                    f"{self.name} came to nothing: {type(error).__name__}: {str(error)[:300]}. A larger LM may do "
                    "better, or give other arguments"
                ) from error
        if watch.stopped is not None:
            raise watch.stopped


class DrawnLM(dspy.LM):
    """An LM whose samples are numbered: each has a seed of its own, so that the store gives it again.

    DSPy tells samples of one prompt apart by ``rollout_id`` and ``n``, which never reach the model, and a sample
    without a seed is asked for anew each time. What is asked at temperature 0 is the same request as ever.

    Args:
        lm: An LM made by ``resolve_lm``.
        seed: Of all samples.
        stop: Called before each request, and with what a request raised; it may raise.
    """

    def __init__(self, lm: dspy.LM, seed: int, stop: Callable[[Exception | None], None]) -> None:
        self.__dict__.update(lm.copy().__dict__)
        self._seed = seed
        self._stop = stop
        self._seeded = "seed" in lm.supported_params

    def __deepcopy__(self, memo: dict[int, Any]) -> DrawnLM:
        return self

    def drawn_alike(self, lm: dspy.BaseLM) -> dspy.BaseLM:
        """Another LM that a technique asks of its own, numbered and stopped as this one is.

        Args:
            lm: It is drawn from anew where this one is, and not asked under our account where it is no ``dspy.LM``.
        """
        if not isinstance(lm, dspy.LM):
            return lm
        again = self.kwargs.get("rollout_id") is not None
        sampling = {name: self.kwargs.get(name) for name in ("rollout_id", "temperature")} if again else {}
        return DrawnLM(lm.copy(**sampling), self._seed, self._stop)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Ask; each of several samples on its own."""
        settings = {**self.kwargs, **kwargs}
        rollout, count = settings.get("rollout_id"), int(settings.get("n") or 1)
        outputs: list[Any] = []
        for number in range(count):
            self._stop(None)
            own = {**kwargs, **({"n": 1} if "n" in settings else {})}
            drawn = bool(settings.get("temperature")) and self._seeded
            if drawn and (settings.get("seed") is None or rollout is not None):
                own["seed"] = _hashed(f"{self._seed}:{settings.get('seed')}:{rollout}:{number}")
            try:
                outputs += super().__call__(prompt, messages=messages, **own)
            except LMError as error:
                self._stop(_outage(error) if is_retryable_lm_error(error) and not _is_in_program() else error)
                raise
        return outputs


class _Stopping(Watch):
    """Counts the questions that failed, and ends the optimizer when there are too many or the LM is gone.

    A prompt that is too long is the fault of the prompt that was tried, which then scores nothing.
    """

    def __init__(self, work: Work, accept: Callable[..., Any]) -> None:
        super().__init__(accept)
        self.stopped: Exception | None = None
        self._failures = Failures(work.name, len(work.train), work.max_failures)
        self._failed: set[str] = set()
        self._work = work
        self._runs = 0
        self._lock = threading.Lock()

    def ended(self, question: str, error: Exception | None) -> None:
        """Count a run, and a question that failed for the first time."""
        with self._lock:
            self._runs += error is None
            runs = min(self._runs, self._work.runs)
            if error is not None and not (failure_kind(error) == "prompt_too_long" or question in self._failed):
                self._failed.add(question)
                try:
                    self._failures.add("a training question", error)
                except Exception as stop:  # noqa: BLE001 - it is raised where nothing swallows it
                    self.stopped = self.stopped or stop
        if error is None and self._work.progress is not None:
            self._work.progress(runs, self._work.runs)

    def stop(self, error: Exception | None) -> None:
        """Go no further when something stopped the run, or an LM call says that it must."""
        if error is not None and failure_kind(error) is None:
            with self._lock:
                self.stopped = self.stopped or error
        if self.stopped is not None:
            raise _StopError

    def accept(self, example: Any, prediction: Any, trace: Any = None, *others: Any) -> Any:
        """The metric."""
        self.stop(None)
        try:
            return self._accept(example, prediction, trace, *others)
        except Exception as error:
            self.ended(example.question, error)
            self.stop(None)
            raise


def halves(train: Sequence[Question], share: float, seed: int) -> tuple[list[Question], list[Question]]:
    """Questions to learn from, and questions to choose on, both out of the training questions.

    The last so many by the stable hash of seed and id; the order of the questions makes no difference.

    Args:
        train: Two or more questions.
        share: Share to choose on; each part has one question at least.
        seed: Another seed is another split.

    Raises:
        InputError: There is only one question.
    """
    if len(train) < 2:
        raise InputError(f"{len(train)} training question cannot be split in two; give 2 or more")
    ordered = split_questions(train, train=1.0, dev=0.0, seed=seed).train
    kept = min(max(1, round(len(ordered) * (1 - share))), len(ordered) - 1)
    return ordered[:kept], ordered[kept:]


def demonstrations(predictor: Any, demos: Sequence[Any]) -> list[Any]:
    """The demonstrations that a predictor can show: those with an input and an output of its own, and no more."""
    signature = predictor.signature
    kept = []
    for demo in demos:
        data = {name: value for name, value in dict(demo).items() if name in signature.fields and value is not None}
        if set(data) & set(signature.input_fields) and set(data) & set(signature.output_fields):
            kept.append(dspy.Example(**data))
    return kept


def check_program(program: RAG, part: str) -> None:
    """Refuse a program in which there is nothing to tune.

    Raises:
        InputError: It is an ensemble, has no such part, or the part asks no LM.
    """
    if isinstance(program, Ensemble):
        raise InputError("an ensemble is not tuned further; tune its members")
    if part not in {"technique", "reader", "all"}:
        raise InputError(f"part must be technique, reader or all, but got {part!r}")
    if part == "reader" and program.reader is None:
        raise InputError("the program has no reader to tune; give it one, or take part=technique")
    prefix = "" if part == "all" else f"{part}."
    if not any(name.startswith(prefix) for name, _ in program.named_predictors()):
        raise InputError(f"{program.technique.NAME} asks no LM, so it has no prompt to tune; leave prompts out for it")


def _is_in_program() -> bool:
    """Whether a request belongs to a run of the program, whose failures are counted by question."""
    return any(isinstance(module, RAG) for module in dspy.settings.caller_modules or ())


def _outage(error: LMError) -> OutageError:
    return OutageError(
        f"the LM failed while instructions were written, after all attempts: {error}. Check the model's service and "
        "run again: answers received so far are kept"
    )


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
