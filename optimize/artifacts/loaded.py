"""A loaded program, which an application asks: a question at a time, in an event loop, many at once, as a stream."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import dspy

from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.models.usage import metered
from querywright.optimize.artifacts.batch import Answered, Asked, answer_all
from querywright.optimize.artifacts.files import ArtifactManifest, Golden
from querywright.optimize.artifacts.streaming import Event, Telling
from querywright.optimize.artifacts.watchers import Exchange, Watcher, exchange_of, tell, tell_later
from querywright.optimize.dspy_context import asking
from querywright.programs import RAG, Ensemble
from querywright.programs.listener import Listener, telling
from querywright.programs.readers import MultipleChoiceReader

_THREAD = "querywright-stream"

logger = logging.getLogger("querywright.watching")


class LoadedProgram:
    """A program with its LM and its retriever, ready to be asked from any thread and any event loop.

    Args:
        program: The DSPy program.
        lm: The LM that it asks.
        manifest: How it was made. The beginning of its digest is the program's ``id``.
        watchers: Each is called with an ``Exchange`` after every question, from the thread that asked (of a stream:
            from the thread that works on it; of an event loop: soon afterwards, from one thread that does nothing
            else). An error of a watcher is logged and goes no further.
    """

    def __init__(
        self, program: RAG, lm: dspy.BaseLM, manifest: ArtifactManifest, watchers: Sequence[Watcher] = ()
    ) -> None:
        self.program = program
        self.lm = with_async_face(lm)
        self.manifest = manifest
        self.id = manifest.id
        self.watchers: tuple[Watcher, ...] = tuple(watchers)
        self._retrieving = _without_reader(program)
        self._streams = not isinstance(program, Ensemble) and not isinstance(program.reader, MultipleChoiceReader)

    def __call__(
        self, question: str, options: Sequence[str] | None = None, *, metadata: Mapping[str, str] | None = None
    ) -> dspy.Prediction:
        """Ask.

        Args:
            question: The question.
            options: Option texts for a multiple-choice program.
            metadata: Given to the watchers, such as the id of a request.

        Returns:
            ``answer``, ``support``, ``passages`` (list of Passage, best first), ``queries``, ``fallbacks``,
            ``findings`` and ``steps``.

        Raises:
            InputError: The question is blank, or its options are not what the program needs.
            OutageError: The LM is down.
            dspy.utils.exceptions.LMError: The LM failed.
        """
        return self._ask(self.program, question, options, metadata)

    async def acall(
        self, question: str, options: Sequence[str] | None = None, *, metadata: Mapping[str, str] | None = None
    ) -> dspy.Prediction:
        """``__call__`` in an event loop, which is never held up.

        When it is cancelled nothing further is begun. An LM call that is under way ends by itself, after its last
        attempt at the latest, and its answer is kept.
        """
        return await self._ask_async(self.program, question, options, metadata)

    def retrieve(
        self, question: str, options: Sequence[str] | None = None, *, metadata: Mapping[str, str] | None = None
    ) -> dspy.Prediction:
        """The technique alone: find passages, and ask no reader.

        Args:
            question: The question.
            options: Option texts, for a technique that compares them.
            metadata: Given to the watchers.

        Returns:
            As ``__call__``, with None as the answer.
        """
        return self._ask(self._retrieving, question, options, metadata)

    async def aretrieve(
        self, question: str, options: Sequence[str] | None = None, *, metadata: Mapping[str, str] | None = None
    ) -> dspy.Prediction:
        """``retrieve`` in an event loop."""
        return await self._ask_async(self._retrieving, question, options, metadata)

    def batch(
        self, questions: Sequence[Asked], *, threads: int = 8, progress: Callable[[int, int], None] | None = None
    ) -> list[Answered]:
        """Ask many questions side by side; a failure is that question's own.

        Ctrl-C ends it at once. What was answered until then is in the LM's store, and asked for again it costs
        nothing.

        Args:
            questions: Texts, pairs of a text and its options, or Questions.
            threads: Questions that are asked at a time, 1 or more. Default 8.
            progress: Called with how many are done and how many there are, as each ends. Default none.

        Returns:
            One a question, in their order.

        Raises:
            InputError: ``threads`` is out of range, or a question is none.
        """
        return answer_all(self, questions, threads=threads, progress=progress)

    def stream(
        self, question: str, options: Sequence[str] | None = None, *, metadata: Mapping[str, str] | None = None
    ) -> Iterator[Event]:
        """Ask, and be told on the way.

        The answer comes in pieces as the LM writes it, without what it reasons. A multiple-choice answer, one that is
        stored and one of an LM that cannot stream is a single piece. Who stops listening stops nothing: the answer
        is written to its end and kept.

        Args:
            question: The question.
            options: Option texts for a multiple-choice program.
            metadata: Given to the watchers.

        Yields:
            ``queries``, ``passages``, any number of ``text`` and ``restart``, and ``prediction``: see ``Event``.
        """
        events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()

        def work() -> None:
            teller = Telling(events.put, streams=self._streams)
            try:
                teller.end(self._ask(self.program, question, options, metadata, teller))
            except BaseException as error:  # noqa: BLE001 - raised where the events are read
                events.put(error)
            else:
                events.put(None)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work,), daemon=True, name=_THREAD).start()
        while (event := events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    async def astream(
        self, question: str, options: Sequence[str] | None = None, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[Event]:
        """``stream`` in an event loop. Closed before its end, it is a cancelled ``acall``."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | None] = asyncio.Queue()

        def send(event: Event | None) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody listens any more
                loop.call_soon_threadsafe(events.put_nowait, event)

        async def work() -> None:
            teller = Telling(send, streams=self._streams)
            try:
                teller.end(await self._ask_async(self.program, question, options, metadata, teller))
            finally:
                send(None)

        task = asyncio.ensure_future(work())
        try:
            while (event := await events.get()) is not None:
                yield event
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def __repr__(self) -> str:
        return (
            f"LoadedProgram({self.manifest.technique}, lm={self.lm.model!r}, collection={self.manifest.collection!r})"
        )

    def _ask(
        self,
        program: RAG,
        question: str,
        options: Sequence[str] | None,
        metadata: Mapping[str, str] | None,
        listener: Listener | None = None,
    ) -> dspy.Prediction:
        with self._watched(question, options, metadata) as made, asking(self.lm), telling(listener):
            made.append(program(question=question, options=None if options is None else list(options)))
        return made[0]

    async def _ask_async(
        self,
        program: RAG,
        question: str,
        options: Sequence[str] | None,
        metadata: Mapping[str, str] | None,
        listener: Listener | None = None,
    ) -> dspy.Prediction:
        with self._watched(question, options, metadata, tell_later) as made, asking(self.lm), telling(listener):
            made.append(await program.acall(question=question, options=None if options is None else list(options)))
        return made[0]

    @contextmanager
    def _watched(
        self,
        question: str,
        options: Sequence[str] | None,
        metadata: Mapping[str, str] | None,
        tell: Callable[[Sequence[Watcher], Exchange], None] = tell,
    ) -> Iterator[list[dspy.Prediction]]:
        """Takes the prediction, and tells the watchers of the question when it ends, however it ends."""
        made: list[dspy.Prediction] = []
        failure: BaseException | None = None
        at, began = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
        with metered() as meter:
            try:
                yield made
            except BaseException as error:
                failure = error
                raise
            finally:
                seconds = time.monotonic() - began
                if self.watchers:
                    try:
                        exchange = exchange_of(
                            made[0] if made else None,
                            at=at,
                            artifact=self.id,
                            question=question,
                            options=options,
                            seconds=seconds,
                            lm_calls=meter.total.calls,
                            lm_saved=meter.total.saved,
                            error=failure,
                            metadata=dict(metadata or {}),
                        )
                        tell(self.watchers, exchange)
                    except Exception as error:  # noqa: BLE001 - whoever watches must not spoil an answer
                        logger.warning("watchers could not be told of a question: %s", type(error).__name__)


def golden_difference(loaded: LoadedProgram, golden: Golden) -> str:
    """How the answer to a golden question differs from the saved one, and what to do; empty where it does not."""
    prediction = loaded(golden.question, golden.options or None)
    passages = [passage.id for passage in prediction.passages]
    differing = []
    if passages != golden.passages:
        differing.append(f"it now finds {passages}, but found {golden.passages} when it was saved")
    if prediction.answer != golden.answer:
        differing.append(f"it now answers {prediction.answer!r}, but answered {golden.answer!r} when it was saved")
    if differing:
        differing.append(
            f"ask the LM that it was compiled for, with the same settings ({loaded.lm.model} was asked), search what "
            "it searched, or compile again"
        )
    return "; ".join(differing)


def with_async_face(lm: dspy.BaseLM) -> dspy.BaseLM:
    """The LM, able to be asked in an event loop where its engine is ours and it was made without."""
    engine: Any = getattr(lm, "engine", None)
    if isinstance(lm, dspy.LM) and isinstance(engine, LMEngine) and getattr(lm, "_async_engine_spec", None) is None:
        return lm.copy(async_engine=AsyncLMEngine(engine))
    return lm


def _without_reader(program: RAG) -> RAG:
    """The same techniques, objects and all, without their readers."""
    if isinstance(program, Ensemble):
        return Ensemble([_without_reader(member) for member in program.members])
    return RAG(program.technique, None, nearest=program.nearest)
