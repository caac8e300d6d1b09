"""A loaded program: an application can call it one question at a time, in an event loop, in batches, or streamed."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import dspy

from querywright.data.types import History, Passage, Question, turns_of
from querywright.errors import InputError
from querywright.models.circuit_breaker import INCURABLE
from querywright.models.pieces import Ear, FieldText
from querywright.optimize.artifacts.files import ArtifactManifest, Golden
from querywright.optimize.contexts import asking
from querywright.pool import bounded_map
from querywright.programs import RAG, Ensemble
from querywright.programs.ensemble import without_reader
from querywright.programs.rag import Listener
from querywright.programs.readers import AutoReader, MultipleChoiceReader
from querywright.programs.steps import telling
from querywright.retrieval.types import Query

QuestionForm = str | tuple[str, Sequence[str] | None] | Question
"""A question and its options, if any."""

Options = Sequence[str] | None
Inputs = Mapping[str, Any]
"""``question``, ``options``, and, if there is one, ``history``."""


@dataclass(frozen=True, slots=True)
class Event:
    """A step toward an answer.

    Events arrive in the order listed below; ``text`` and ``restart`` can repeat. A ``restart`` discards the text before
    it, because the LM started again or the program's answer differs from the LM's text. The pieces of text after the
    last restart form the prediction's answer.

    Args:
        kind: ``queries``, ``passages``, ``text``, ``restart``, or ``prediction``.
        data: A list of ``{"text": ..., "role": ...}`` for ``queries``, a list of Passage for ``passages``, a piece of
            the answer for ``text``, None for ``restart``, and the ``dspy.Prediction`` for ``prediction``.
    """

    kind: Literal["queries", "passages", "text", "restart", "prediction"]
    data: Any = None


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """A question in a batch, with its prediction or its error.

    Args:
        question: The question.
        options: The question's options; empty if there are none.
        prediction: The program's prediction; None if the question failed.
        error: Why it failed: an error from querywright, the LM (``dspy.utils.exceptions.LMError``), or a custom
            retriever; None if it succeeded.
    """

    question: str
    options: tuple[str, ...]
    prediction: dspy.Prediction | None
    error: Exception | None


class LoadedProgram:
    """A program with its LM and its retriever, callable from any thread and any event loop.

    Args:
        program: The DSPy program.
        lm: The LM that the program calls.
        manifest: The artifact's manifest. The beginning of its digest is the program's ``id``.
        golden: Questions with the answers that the program gave when it was saved. Default none.
    """

    def __init__(
        self, program: RAG, lm: dspy.BaseLM, manifest: ArtifactManifest, golden: Sequence[Golden] = ()
    ) -> None:
        self.program = program
        self.lm = lm
        self.manifest = manifest
        self.id = manifest.id
        self.golden: tuple[Golden, ...] = tuple(golden)
        self._retrieving = without_reader(program)

    def __call__(self, question: str, options: Options = None, *, history: History = None) -> dspy.Prediction:
        """Answer a question.

        Args:
            question: The question.
            options: Option texts for a multiple-choice program.
            history: The conversation before the question, see ``turns_of``. Default none.

        Returns:
            ``answer``, ``support``, ``passages`` (list of Passage, best first), ``queries``, ``fallbacks``,
            ``findings``, and ``steps``.

        Raises:
            InputError: The question is blank, or its options do not fit the program.
            OutageError: The LM is down.
            dspy.utils.exceptions.LMError: The LM failed.
        """
        return self._ask(self.program, _given(question, options, history))

    async def acall(self, question: str, options: Options = None, *, history: History = None) -> dspy.Prediction:
        """Answer a question without blocking the event loop. The arguments are those of ``__call__``.

        After a cancellation, nothing new starts. A running LM call ends on its own, after its last attempt at the
        latest, and its answer is cached.
        """
        return await self._ask_async(self.program, _given(question, options, history))

    def retrieve(self, question: str, options: Options = None, *, history: History = None) -> dspy.Prediction:
        """Find passages with the technique alone, without the reader. Same as ``__call__``, but the answer is None."""
        return self._ask(self._retrieving, _given(question, options, history))

    async def aretrieve(self, question: str, options: Options = None, *, history: History = None) -> dspy.Prediction:
        """Find passages in an event loop. Same as ``retrieve``."""
        return await self._ask_async(self._retrieving, _given(question, options, history))

    def batch(
        self, questions: Sequence[QuestionForm], *, threads: int = 8, progress: Callable[[int, int], None] | None = None
    ) -> list[BatchAnswer]:
        """Answer many questions in parallel; a failed question does not affect the others.

        Ctrl-C stops the batch at once. Finished answers are in the LM's cache and cost nothing if they are requested
        again.

        Args:
            questions: Texts, pairs of a text and its options, or Questions.
            threads: Number of questions to run at a time, 1 or more. Default 8.
            progress: Called after each question with the number of finished questions and the total. Default none.

        Returns:
            One answer per question, in order.

        Raises:
            InputError: ``threads`` is out of range, or an item is not a question.
        """
        if isinstance(questions, str):
            raise InputError(
                f"batch requires a list of questions, but got a string: {questions[:60]!r}; pass [question]"
            )
        asked = [_as_question(place, question) for place, question in enumerate(questions, 1)]
        done = 0

        def count(_place: int, _result: object) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, len(asked))

        results = bounded_map(
            lambda one: self(one.question, one.options or None, history=one.history), asked, threads=threads,
            on_done=count,
        )  # fmt: skip
        return [
            BatchAnswer(one.question, one.options, None, made)
            if isinstance(made, Exception)
            else BatchAnswer(one.question, one.options, made, None)
            for one, made in zip(asked, results, strict=True)
        ]

    def stream(self, question: str, options: Options = None, *, history: History = None) -> Iterator[Event]:
        """Answer a question, and yield events along the way.

        The answer, without its reasoning, arrives in pieces while the LM writes it. A multiple-choice answer, a cached
        answer, or an answer from an LM that cannot stream arrives as a single piece. If the caller stops listening, the
        answer is still completed and cached.

        Args:
            question: The question.
            options: Option texts for a multiple-choice program.
            history: The conversation before the question, see ``turns_of``. Default none.

        Yields:
            ``queries``, ``passages``, any number of ``text`` and ``restart``, and ``prediction``: see ``Event``.
        """
        events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()

        def work() -> None:
            teller = _Teller(events.put, streams=self._streams(options))
            try:
                teller.end(self._ask(self.program, _given(question, options, history), teller))
                events.put(None)
            except BaseException as error:  # noqa: BLE001 - raised where the events are read
                events.put(error)

        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(work,), daemon=True, name="querywright-stream").start()
        while (event := events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    async def astream(self, question: str, options: Options = None, *, history: History = None) -> AsyncIterator[Event]:
        """Answer a question in an event loop, and yield the events of ``stream``. Closing the generator early cancels
        the answer.
        """
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | None] = asyncio.Queue()

        def send(event: Event | None) -> None:
            with suppress(RuntimeError):  # the loop has ended, so nothing reads the events
                loop.call_soon_threadsafe(events.put_nowait, event)

        async def work() -> None:
            teller = _Teller(send, streams=self._streams(options))
            try:
                teller.end(await self._ask_async(self.program, _given(question, options, history), teller))
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
        retriever = self.program.technique.retriever
        first, *_ = getattr(retriever, "retrievers", [retriever])  # the retrievers in a hybrid share one collection
        searched = getattr(first, "name", self.manifest.collection)
        reader = self.program.reader and self.program.reader.NAME
        return f"LoadedProgram({self.manifest.technique}, lm={self.lm.model!r}, collection={searched!r}, {reader=})"

    def _streams(self, options: Options) -> bool:
        """Return whether the answer to a question arrives in pieces; an option is sent whole."""
        reader = self.program.reader
        chooses = isinstance(reader, MultipleChoiceReader) or (isinstance(reader, AutoReader) and bool(options))
        return not isinstance(self.program, Ensemble) and not chooses

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            with asking(self.lm):
                yield
        except INCURABLE as error:
            remedy = (
                f". The artifact stores only the name of its LM, {self.manifest.lm}, but no address or API key; pass "
                "the LM as lm= (in Python: your dspy.LM, or resolve_lm(NAME, api_base=URL, api_key=KEY))"
            )
            error.message += remedy
            error.args = (f"{error}{remedy}", *error.args[1:])
            raise

    def _ask(self, program: RAG, given: Inputs, listener: Listener | None = None) -> dspy.Prediction:
        with self._asking(), telling(listener):
            return program(**given)

    async def _ask_async(self, program: RAG, given: Inputs, listener: Listener | None = None) -> dspy.Prediction:
        with self._asking(), telling(listener):
            return await program.acall(**given)


class _Teller:
    """Turns what a program and its LM report about one question into events.

    Args:
        send: Function that receives each event; it must not raise.
        streams: Whether the answer is sent while it is written.
    """

    def __init__(self, send: Callable[[Event], None], *, streams: bool) -> None:
        self._send = send
        self._streams = streams
        self._text = FieldText("answer")
        self._sent = ""
        self._told_found = False

    @property
    def ear(self) -> Ear | None:
        """The listener for the LM; None if the answer is not streamed."""
        return self if self._streams else None

    def found(self, queries: Sequence[Query], passages: Sequence[Passage]) -> None:
        """Send the queries and the passages, once."""
        if not self._told_found:
            self._told_found = True
            self._send(Event("queries", [{"text": query.text, "role": query.role} for query in queries]))
            self._send(Event("passages", list(passages)))

    def begin(self) -> None:
        """Start or restart the answer."""
        self._text = FieldText("answer")
        self._take_back()

    def hear(self, text: str) -> None:
        """Send the next piece of the LM's text."""
        self._say(self._text.feed(text))

    def end(self, prediction: dspy.Prediction) -> None:
        """Send the prediction; if the answer differs from the text that was sent, correct the text."""
        self.found(prediction.queries, prediction.passages)
        answer = "" if prediction.answer is None else str(prediction.answer)
        if not answer.startswith(self._sent):
            self._take_back()
        self._say(answer[len(self._sent) :])
        self._send(Event("prediction", prediction))

    def _say(self, text: str) -> None:
        if text:
            self._sent += text
            self._send(Event("text", text))

    def _take_back(self) -> None:
        if self._sent:
            self._sent = ""
            self._send(Event("restart"))


def _given(question: str, options: Options, history: History) -> dict[str, Any]:
    turns = turns_of(history)
    given = {"question": question, "options": options if options is None or isinstance(options, str) else list(options)}
    return {**given, "history": turns} if turns else given


def _as_question(place: int, given: Any) -> Question:
    if isinstance(given, Question):
        return given
    pair = (given, None) if isinstance(given, str) else given
    text, options = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None)
    if not isinstance(text, str) or isinstance(options, str):
        raise InputError(
            f"question {place} must be a string, a pair of a string and its options, or a Question, but got "
            f"{given!r:.80}"
        )
    return Question(str(place), text, tuple(options or ()))
