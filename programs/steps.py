"""What a technique does while it answers a question: LM calls, searches, and calls side by side, each recorded.

The record of each step is what a trace shows. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import dspy
from dspy.utils.exceptions import AdapterParseError

from querywright.data.types import History, turns_of
from querywright.models.transcript import side_by_side
from querywright.pool import bounded_map
from querywright.programs.signatures import after_history, with_options

if TYPE_CHECKING:
    from querywright.programs.knn_demos import NearestDemos
    from querywright.programs.rag import Listener

T = TypeVar("T")

MOST_THREADS = 32
"""Calls of one question that run side by side at most."""
MOST_QUESTIONS = 128
"""Questions of event loops that are answered at a time at most; more wait for a thread."""

_threads = ThreadPoolExecutor(MOST_QUESTIONS, thread_name_prefix="querywright-question")


@dataclass(frozen=True, slots=True)
class Record:
    """What one step did.

    Args:
        kind: ``lm``, ``search``, ``rerank`` or ``gate``.
        name: Which predictor, or what was done.
        stage: Steps with the same number ran side by side; from 1.
        given: What went in, as far as a person wants to read it.
        made: What came out; None for an LM's answer that could not be read.
        scores: Of a search: the scores of each query's hits, best first.
        lm: Of an LM step: the model that was asked.
    """

    kind: str
    name: str
    stage: int
    given: Mapping[str, Any] = field(default_factory=dict)
    made: Any = None
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    lm: str | None = None


class Steps:
    """The records of one call of a technique.

    Args:
        technique: Answers the question; None outside of one.
        stage: The stage of every record, for steps side by side. Default None: each record begins a stage.
        canceled: Set once nobody waits for the result any more. Default: never.
        options: The options of the question. Default none.
    """

    def __init__(
        self,
        technique: Any,
        stage: int | None = None,
        canceled: threading.Event | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.technique = technique
        self.options = options
        self.canceled = canceled or threading.Event()
        self.records: list[Record] = []
        self._stage, self._fixed = stage or 0, stage is not None

    def next_stage(self) -> int:
        """The number of the stage that begins now."""
        self._stage += not self._fixed
        return self._stage


@dataclass(frozen=True, slots=True)
class QuestionContext:
    """What surrounds the work on a question, in its thread and in contexts copied from it.

    Args:
        steps: Records what a technique does; None outside of a technique.
        nearest: Chooses demonstrations of each call, and how many; None to show all.
        listener: Hears of the work; None if nobody listens.
    """

    steps: Steps | None = None
    nearest: tuple[NearestDemos, int] | None = None
    listener: Listener | None = None


_question = contextvars.ContextVar("querywright_question", default=QuestionContext())  # noqa: B039 - frozen


def question_context() -> QuestionContext:
    """Return what surrounds the work that is done here."""
    return _question.get()


@contextlib.contextmanager
def _surrounded(**changes: Any) -> Iterator[None]:
    token = _question.set(replace(_question.get(), **changes))
    try:
        yield
    finally:
        _question.reset(token)


def telling(listener: Listener | None) -> AbstractContextManager[None]:
    """Tell a listener of the work inside the ``with`` block; if None, tell nobody."""
    return _surrounded(listener=listener)


def showing(nearest: NearestDemos, count: int) -> AbstractContextManager[None]:
    """Show calls of predictors inside the ``with`` block ``count`` of their demonstrations; 0 for all."""
    return _surrounded(nearest=(nearest, count) if count else None)


def shown_demos(predictor: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a predictor is given besides the inputs of a call: the chosen demonstrations, if any."""
    chosen = _question.get().nearest
    if chosen is None or "demos" in inputs or not getattr(predictor, "demos", None):
        return {}
    nearest, count = chosen
    return {"demos": nearest.choose(predictor, inputs, count)}


def current_technique() -> Any:
    """The technique that answers a question in this thread; None outside of ``recording``."""
    steps = _question.get().steps
    return None if steps is None else steps.technique


def _shown_options() -> Sequence[str]:
    """The options of the question that is answered in this thread."""
    steps = _question.get().steps
    return () if steps is None else steps.options


@contextlib.contextmanager
def recording(technique: Any, options: Sequence[str] = ()) -> Iterator[list[Record]]:
    """Collect the records of the steps inside the ``with`` block, those of ``parallel`` calls included.

    Args:
        technique: Answers a question.
        options: The options of the question. Default none.
    """
    outer = _question.get().steps
    steps = Steps(technique, canceled=None if outer is None else outer.canceled, options=options)
    with _surrounded(steps=steps):
        yield steps.records


def record(kind: str, name: str, given: Mapping[str, Any], made: Any, **more: Any) -> None:
    """Add the record of a step that has ended; outside of ``recording`` nothing is kept.

    Args:
        kind: As of ``Record``.
        name: As of ``Record``.
        given: As of ``Record``.
        made: As of ``Record``.
        more: ``scores`` and ``lm``.
    """
    steps = _question.get().steps
    if steps is not None:
        if steps.canceled.is_set():
            raise asyncio.CancelledError
        steps.records.append(Record(kind, name, steps.next_stage(), given, made, **more))


class Predict(dspy.Predict):
    """A ``dspy.Predict`` of a technique: it gives None if the answer cannot be read, and its calls are recorded.

    A call takes what ``dspy.Predict`` takes, and ``history``: the turns of the conversation before the question, which
    the LM is shown if there are any and the technique's knob ``use_history`` is on. A prompt with the question also
    shows its options if the knob ``sees_options`` is on. An answer that cannot be read has been asked for twice (see
    ``PromptAdapter``). An outage, a spent budget or a bug raises as it does in DSPy.

    Args:
        signature: As of ``dspy.Predict``; its docstring is the prompt.
        call_fields: Fields that the signature of a call may have besides, which a demonstration may hold.
        config: As of ``dspy.Predict``.
    """

    def __init__(self, signature: Any, *, call_fields: Sequence[str] = (), **config: Any) -> None:
        super().__init__(signature, **config)
        self.call_fields = ("options", *call_fields)

    def __call__(self, *args: Any, history: History = None, **inputs: Any) -> Any:
        """The prediction, or None."""
        technique, turns = current_technique(), turns_of(history)
        if technique is not None and technique.knobs.get("sees_options", False):
            inputs |= with_options(inputs.get("signature") or self.signature, _shown_options())
        if turns and (technique is None or technique.knobs["use_history"]):
            inputs |= after_history(inputs.get("signature") or self.signature, turns)
        demos: dict[str, Any] = shown_demos(self, inputs)
        name, own = "", cast("list[Any]", self.demos)
        if technique is not None:
            inputs.setdefault("lm", technique.lm_of(self))
            name = next((name for name, one in vars(technique).items() if one is self), "")
            if ours := technique.demonstrations(name):
                demos = {"demos": [*ours, *demos.get("demos", own)]}
        try:
            made = super().__call__(*args, **inputs, **demos)
        except AdapterParseError:
            made = None
        if technique is not None:
            given = {key: value for key, value in inputs.items() if key not in {"signature", "config", "lm"}}
            record("lm", name, given, made and made.toDict(), lm=getattr(inputs["lm"], "model", None))
        return made


def parallel(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Call functions side by side in threads, at most ``MOST_THREADS`` at a time; results in their order.

    Once one has failed no further one begins, and its error is raised. Those that are under way end with the process: a
    call that hangs holds up neither it nor Ctrl-C. The records of all have one stage, and DSPy's trace has their LM
    calls in the order of the functions.

    Args:
        calls: Functions without arguments, such as ``functools.partial``.
    """
    steps = _question.get().steps
    stage = 0 if steps is None else steps.next_stage()
    parts = [
        Steps(None, stage) if steps is None else Steps(steps.technique, stage, steps.canceled, steps.options)
        for _ in calls
    ]
    traces: list[list[Any]] = [[] for _ in calls]
    stops: list[BaseException] = []
    failed, apart = threading.Event(), side_by_side()

    def run(number: int) -> T | None:
        if failed.is_set():
            return None  # the error is what is raised
        if steps is not None:
            _question.set(replace(_question.get(), steps=parts[number]))  # in this thread's own copy of the context
        try:
            with _tracing(traces[number]), apart(number):
                return calls[number]()
        except Exception:
            failed.set()
            raise
        except BaseException as stop:  # noqa: BLE001 - raised once the others have ended
            stops.append(stop)
            return None

    def check(_: int, result: object) -> None:
        if isinstance(result, Exception):
            raise result

    results: list[Any] = bounded_map(run, range(len(calls)), threads=MOST_THREADS, on_done=check)
    if stops:
        raise stops[0]
    if steps is not None:
        steps.records += [one for part in parts for one in part.records]
    if dspy.settings.trace is not None:
        dspy.settings.trace.extend(entry for trace in traces for entry in trace)
    return results


@contextlib.contextmanager
def _tracing(trace: list[Any]) -> Iterator[None]:
    """A trace for each of several calls at a time: an optimizer reads the whole trace in order."""
    with contextlib.nullcontext() if dspy.settings.trace is None else dspy.context(trace=trace):
        yield


class Threaded(dspy.Module):
    """A module whose ``acall`` is its call in a thread, so that an event loop is not held up."""

    async def acall(self, *args: Any, **inputs: Any) -> Any:
        """Call the module in a thread. A call that is canceled ends there after the step under way."""
        steps, context = Steps(None), contextvars.copy_context()
        context.run(_question.set, replace(_question.get(), steps=steps))
        call = partial(context.run, self.__call__, *args, **inputs)
        try:
            return await asyncio.get_running_loop().run_in_executor(_threads, call)
        except asyncio.CancelledError:
            steps.canceled.set()
            raise

    async def aforward(self, *args: Any, **inputs: Any) -> Any:
        """``acall``."""
        return await self.acall(*args, **inputs)
