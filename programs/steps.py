"""Run and record the steps of a technique while it answers a question: LM calls, searches, and parallel calls.

A trace shows the record of each step. This module contains no technique-specific logic.
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
"""Maximum number of parallel calls per question."""
MOST_QUESTIONS = 128
"""Maximum number of questions from event loops that are answered at a time; others wait for a thread."""

_threads = ThreadPoolExecutor(MOST_QUESTIONS, thread_name_prefix="querywright-question")


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one step.

    Args:
        kind: ``lm``, ``search``, ``rerank`` or ``gate``.
        name: The predictor, or the action.
        stage: The number of the stage, from 1; steps in the same stage ran in parallel.
        given: The inputs that a person may want to read.
        made: The output; None for an LM answer that could not be read.
        scores: For a search, the scores of each query's hits, best first.
        lm: For an LM step, the name of the LM.
    """

    kind: str
    name: str
    stage: int
    given: Mapping[str, Any] = field(default_factory=dict)
    made: Any = None
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    lm: str | None = None


class Steps:
    """The records of one call to a technique.

    Args:
        technique: The technique that answers the question; None outside of a technique.
        stage: The stage of every record, for parallel steps. Default None: each record starts a new stage.
        canceled: Event that is set when the result is no longer needed. Default: never set.
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
        """Return the number of the stage that starts now."""
        self._stage += not self._fixed
        return self._stage


@dataclass(frozen=True, slots=True)
class QuestionContext:
    """The state of the question that a thread is answering; contexts copied from the thread share this state.

    Args:
        steps: The technique's records; None outside of a technique.
        nearest: The object that chooses the demonstrations for each call, and their number; None to show all.
        listener: Receives events; None for no listener.
    """

    steps: Steps | None = None
    nearest: tuple[NearestDemos, int] | None = None
    listener: Listener | None = None


_question = contextvars.ContextVar("querywright_question", default=QuestionContext())  # noqa: B039 - frozen


def question_context() -> QuestionContext:
    """Return the context of the question that this thread is answering."""
    return _question.get()


@contextlib.contextmanager
def _surrounded(**changes: Any) -> Iterator[None]:
    token = _question.set(replace(_question.get(), **changes))
    try:
        yield
    finally:
        _question.reset(token)


def telling(listener: Listener | None) -> AbstractContextManager[None]:
    """Send the events inside the ``with`` block to a listener; if None, do not send them."""
    return _surrounded(listener=listener)


def showing(nearest: NearestDemos, count: int) -> AbstractContextManager[None]:
    """Inside the ``with`` block, show ``count`` demonstrations in each predictor call; 0 for all."""
    return _surrounded(nearest=(nearest, count) if count else None)


def shown_demos(predictor: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the demonstrations chosen for a call, as an additional input; empty if none need to be chosen."""
    chosen = _question.get().nearest
    if chosen is None or "demos" in inputs or not getattr(predictor, "demos", None):
        return {}
    nearest, count = chosen
    return {"demos": nearest.choose(predictor, inputs, count)}


def current_technique() -> Any:
    """Return the technique that is answering a question in this thread; None outside of ``recording``."""
    steps = _question.get().steps
    return None if steps is None else steps.technique


def _shown_options() -> Sequence[str]:
    """Return the options of the question that this thread is answering."""
    steps = _question.get().steps
    return () if steps is None else steps.options


@contextlib.contextmanager
def recording(technique: Any, options: Sequence[str] = ()) -> Iterator[list[Record]]:
    """Collect the records of all steps inside the ``with`` block, including ``parallel`` calls.

    Args:
        technique: The technique that answers a question.
        options: The options of the question. Default none.
    """
    outer = _question.get().steps
    steps = Steps(technique, canceled=None if outer is None else outer.canceled, options=options)
    with _surrounded(steps=steps):
        yield steps.records


def record(kind: str, name: str, given: Mapping[str, Any], made: Any, **more: Any) -> None:
    """Add the record of a finished step; outside of ``recording``, do nothing.

    Args:
        kind: See ``Record``.
        name: See ``Record``.
        given: See ``Record``.
        made: See ``Record``.
        more: ``scores`` and ``lm``; see ``Record``.
    """
    steps = _question.get().steps
    if steps is not None:
        if steps.canceled.is_set():
            raise asyncio.CancelledError
        steps.records.append(Record(kind, name, steps.next_stage(), given, made, **more))


class Predict(dspy.Predict):
    """A ``dspy.Predict`` for techniques: it records its calls, and returns None if the answer cannot be read.

    A call takes the same arguments as ``dspy.Predict``, plus ``history``: the turns of the conversation before the
    question. The LM sees them if the technique's ``use_history`` knob is on. If the ``sees_options`` knob is on, a
    prompt with the question also shows its options. If an answer cannot be read, ``PromptAdapter`` asks once more
    before this predictor returns None. An outage, a spent budget, or a bug raises an error, as in DSPy.

    Args:
        signature: The signature; its docstring is the prompt.
        call_fields: Additional fields that the signature for a call may have and that demonstrations may contain.
        config: Additional arguments for ``dspy.Predict``.
    """

    def __init__(self, signature: Any, *, call_fields: Sequence[str] = (), **config: Any) -> None:
        super().__init__(signature, **config)
        self.call_fields = ("options", *call_fields)

    def __call__(self, *args: Any, history: History = None, **inputs: Any) -> Any:
        """Return the prediction, or None."""
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
    """Call functions in parallel threads, at most ``MOST_THREADS`` at a time, and return their results in order.

    After the first failure, no further call starts, and the error is raised. Calls that are still running end with the
    process, so a call that hangs blocks neither the process nor Ctrl-C. All records have the same stage, and in DSPy's
    trace, the LM calls are in the order of the functions.

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
            return None  # the error is raised instead
        if steps is not None:
            _question.set(replace(_question.get(), steps=parts[number]))  # only in this thread's copy of the context
        try:
            with _tracing(traces[number]), apart(number):
                return calls[number]()
        except Exception:
            failed.set()
            raise
        except BaseException as stop:  # noqa: BLE001 - raised after the other calls have ended
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
    """Give each parallel call a separate trace, because an optimizer reads the joined trace in order."""
    with contextlib.nullcontext() if dspy.settings.trace is None else dspy.context(trace=trace):
        yield


class Threaded(dspy.Module):
    """A module whose ``acall`` runs the call in a thread, so that it does not block the event loop."""

    async def acall(self, *args: Any, **inputs: Any) -> Any:
        """Call the module in a thread. If the call is canceled, it ends after its current step."""
        steps, context = Steps(None), contextvars.copy_context()
        context.run(_question.set, replace(_question.get(), steps=steps))
        call = partial(context.run, self.__call__, *args, **inputs)
        try:
            return await asyncio.get_running_loop().run_in_executor(_threads, call)
        except asyncio.CancelledError:
            steps.canceled.set()
            raise

    async def aforward(self, *args: Any, **inputs: Any) -> Any:
        """Do the same as ``acall``."""
        return await self.acall(*args, **inputs)
