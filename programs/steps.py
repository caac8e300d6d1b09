"""Steps: what a technique awaits, run by a driver that waits in threads or in an event loop.

A technique is written once, as a coroutine that awaits steps (``ask``, ``search`` and the like). ``drive`` runs it
from ``forward`` and ``drive_async`` from ``aforward``. Each step leaves a record, which is what a trace shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError

from querywright.models.transcript import side_by_side
from querywright.pool import bounded_map
from querywright.programs.knn_demos import shown

T = TypeVar("T")

MOST_THREADS = 32
"""Calls of one question that run side by side at most."""


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


class Step(Generic[T]):
    """Something that takes time. ``await`` gives its result."""

    def run(self) -> T:
        """Do it in this thread."""
        raise NotImplementedError

    async def run_async(self) -> T:
        """Do it without holding up the event loop."""
        raise NotImplementedError

    def records(self, result: T, stage: int) -> list[Record]:
        """What a trace says of it."""
        return []

    def __await__(self) -> Generator[Step[T], T, T]:
        return (yield self)


class Call(Step[T]):
    """A function that is no LM call: a search, an embedding, a reranker, or nothing at all but a record.

    Args:
        work: What is called.
        record: Makes the record from its result and the stage. Default: none is kept.
    """

    def __init__(self, work: Callable[[], T], record: Callable[[T, int], Record] | None = None) -> None:
        self._work = work
        self._record = record

    def run(self) -> T:
        """Call it."""
        return self._work()

    async def run_async(self) -> T:
        """Call it in a thread."""
        return await asyncio.to_thread(self._work)

    def records(self, result: T, stage: int) -> list[Record]:
        """The record, where one is kept."""
        return [] if self._record is None else [self._record(result, stage)]


class Use(Step[Any]):
    """Another module, shown the demonstrations that are chosen for the call, where they are (``knn_demos``).

    Args:
        module: What is called.
        inputs: What it is given.
    """

    def __init__(self, module: dspy.Module, **inputs: Any) -> None:
        self._module: Any = module
        self._inputs = inputs

    def run(self) -> Any:
        """Call the module."""
        return self._module(**self._inputs, **shown(self._module, self._inputs))

    async def run_async(self) -> Any:
        """Call the module asynchronously."""
        demos = await asyncio.to_thread(shown, self._module, self._inputs)  # to choose them may take an embedding
        return await self._module.acall(**self._inputs, **demos)


class Ask(Use):
    """One LM step: a prediction, or None when neither the answer nor the adapter's one repair could be read.

    Only an unreadable answer is None: an outage, a budget stop or a bug goes up.

    Args:
        name: The predictor's name, for traces.
        predictor: What is asked.
        inputs: Its inputs; ``signature``, ``config`` and ``lm`` are DSPy's own.
    """

    def __init__(self, name: str, predictor: dspy.Predict, **inputs: Any) -> None:
        super().__init__(predictor, **inputs)
        self._name = name

    def run(self) -> dspy.Prediction | None:
        """Ask."""
        with contextlib.suppress(AdapterParseError):
            return super().run()
        return None

    async def run_async(self) -> dspy.Prediction | None:
        """Ask asynchronously."""
        with contextlib.suppress(AdapterParseError):
            return await super().run_async()
        return None

    def records(self, result: dspy.Prediction | None, stage: int) -> list[Record]:
        """Inputs and outputs."""
        given = {key: value for key, value in self._inputs.items() if key not in {"signature", "config", "lm"}}
        lm = self._inputs.get("lm") or self._module.lm or dspy.settings.lm
        made = None if result is None else result.toDict()
        return [Record("lm", self._name, stage, given, made, lm=getattr(lm, "model", None))]


class Together(Step["list[T]"]):
    """Steps that do not need each other, side by side; results in their order.

    Args:
        steps: Any number of steps.
    """

    def __init__(self, steps: Sequence[Step[T]]) -> None:
        self.steps = tuple(steps)

    def run(self) -> list[T]:
        """In threads; once one has failed no further one is begun.

        The others end with the process: a call that hangs holds up neither it nor Ctrl-C.
        """
        traces: list[list[Any]] = [[] for _ in self.steps]
        failed, apart = threading.Event(), side_by_side()

        def traced(numbered: tuple[int, Step[T]]) -> T | None:
            number, step = numbered
            if failed.is_set():
                return None  # the error is what is raised
            try:
                with _tracing(traces[number]), apart(number):
                    return step.run()
            except BaseException:
                failed.set()
                raise

        def check(_: int, result: object) -> None:
            if isinstance(result, Exception):
                raise result

        numbered = list(enumerate(self.steps))
        results: list[Any] = bounded_map(traced, numbered, threads=MOST_THREADS, on_done=check)
        _add_to_trace(traces)
        return results

    async def run_async(self) -> list[T]:
        """All in the event loop; when one fails the others are cancelled."""
        traces: list[list[Any]] = [[] for _ in self.steps]
        apart = side_by_side()

        async def traced(number: int, step: Step[T]) -> T:
            with _tracing(traces[number]), apart(number):
                return await step.run_async()

        tasks = [asyncio.ensure_future(traced(*numbered)) for numbered in enumerate(self.steps)]
        try:
            results = list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        _add_to_trace(traces)
        return results

    def records(self, result: list[T], stage: int) -> list[Record]:
        """Those of all of them."""
        pairs = zip(self.steps, result, strict=True)
        return [record for step, one in pairs for record in step.records(one, stage)]


def drive(
    work: Coroutine[Step[Any], Any, T], log: list[Record], run: Callable[[Step[Any]], Any] = lambda step: step.run()
) -> T:
    """Run a coroutine of steps in this thread.

    Args:
        work: What awaits steps and nothing else.
        log: Takes the record of each step.
        run: Does a step and gives its result. Default: its own ``run``.
    """

    async def now(step: Step[Any]) -> Any:
        return run(step)

    driven = _driven(work, log, now)
    try:
        driven.send(None)  # nothing in it waits, so it ends here
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise RuntimeError("a technique awaited something that is no step")


async def drive_async(work: Coroutine[Step[Any], Any, T], log: list[Record]) -> T:
    """Run a coroutine of steps in the event loop.

    Args:
        work: What awaits steps and nothing else.
        log: Takes the record of each step.
    """
    return await _driven(work, log, lambda step: step.run_async())


async def _driven(
    work: Coroutine[Step[Any], Any, T], log: list[Record], take: Callable[[Step[Any]], Coroutine[Any, Any, Any]]
) -> T:
    """Give a coroutine what its steps give, or the error of one that fails."""
    stage = 0
    try:
        step = work.send(None)
        while True:
            stage += 1
            try:
                result = await take(step)
            except BaseException as error:  # noqa: BLE001 - the technique decides what to do with it
                step = work.throw(error)
            else:
                log.extend(step.records(result, stage))
                step = work.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        work.close()


@contextlib.contextmanager
def _tracing(trace: list[Any]) -> Iterator[None]:
    """A trace of its own for each of several calls at a time: an optimizer reads the whole trace in order."""
    with contextlib.nullcontext() if dspy.settings.trace is None else dspy.context(trace=trace):
        yield


def _add_to_trace(traces: Sequence[Sequence[Any]]) -> None:
    if dspy.settings.trace is not None:
        dspy.settings.trace.extend(entry for trace in traces for entry in trace)
