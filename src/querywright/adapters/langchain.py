"""Programs in LangChain: a retriever, and a Runnable that answers. Needs the extra ``langchain``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import reduce
from typing import Any

from pydantic import field_validator

from querywright.adapters.common import GivenProgram, documents, missing, opened, result
from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.optimize.artifacts.loaded import Event, LoadedProgram

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnableConfig, RunnableLambda
    from langchain_core.runnables.utils import AddableDict
except ImportError as error:
    raise missing("langchain", error) from error


class QuerywrightRetriever(BaseRetriever):
    """A program's technique as a retriever: the reader is not asked.

    A document has the passage's text and id; its metadata are those of the passage, and ``id``, ``title``, ``rank``,
    ``queries`` (the searches that found it) and, where it is known, ``score``. A technique that compares options takes
    them with the question: ``retriever.invoke(question, options=[...])``.

    Args:
        program: The path of an artifact, or a loaded program.
    """

    program: Any

    @field_validator("program", mode="before")
    @classmethod
    def _opened(cls, given: GivenProgram) -> LoadedProgram:
        return opened(given)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, options: list[str] | None = None
    ) -> list[Document]:
        return _found(self.program.retrieve(query, options))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, options: list[str] | None = None
    ) -> list[Document]:
        return _found(await self.program.aretrieve(query, options))


class QuerywrightRunnable(RunnableLambda[Any, dict[str, Any]]):
    """A whole program as a step of a chain; ``as_runnable`` makes it.

    Its stream is the result in parts that can be added up: queries, documents, the answer as it is written, the rest. A
    part whose ``answer`` is a ``TakenBack`` takes back what was written before it. Documents of a stream have no
    ``queries`` and no ``score`` yet.

    Args:
        program: The path of an artifact, or a loaded program.
    """

    def __init__(self, program: GivenProgram) -> None:
        self.program = opened(program)
        super().__init__(self._answer, self._aanswer, name="querywright")

    def transform(self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """The parts of the result."""
        yield from self._transform_stream_with_config(input, self._parts, config, **kwargs)

    async def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """``transform`` in an event loop."""
        async for part in self._atransform_stream_with_config(input, self._aparts, config, **kwargs):
            yield part

    def _answer(self, given: Any) -> dict[str, Any]:
        question, options = _asked(given)
        return {"question": question, **result(self.program(question, options), _document)}

    async def _aanswer(self, given: Any) -> dict[str, Any]:
        question, options = _asked(given)
        return {"question": question, **result(await self.program.acall(question, options), _document)}

    def _parts(self, inputs: Iterator[Any]) -> Iterator[dict[str, Any]]:
        question, options = _asked(reduce(_added, inputs))
        yield AddableDict(question=question)
        for event in self.program.stream(question, options):
            yield _part(event)

    async def _aparts(self, inputs: AsyncIterator[Any]) -> AsyncIterator[dict[str, Any]]:
        question, options = _asked(reduce(_added, [one async for one in inputs]))
        yield AddableDict(question=question)
        async for event in self.program.astream(question, options):
            yield _part(event)


class TakenBack(str):
    """The ``answer`` of a part that takes back the text before it: the LM had to begin again.

    Adding up the parts drops that text; who shows them as they come begins anew.
    """

    __slots__ = ()

    def __radd__(self, before: str) -> str:
        return ""


def as_runnable(program: GivenProgram) -> QuerywrightRunnable:
    """A whole program as a Runnable.

    Args:
        program: The path of an artifact, or a loaded program.

    Returns:
        A Runnable that takes a question, or a dict with ``question`` and ``options``, and gives a dict with
        ``question``, ``answer``, ``support``, ``documents``, ``queries`` and ``fallbacks``.
    """
    return QuerywrightRunnable(program)


def _asked(given: Any) -> tuple[str, list[str] | None]:
    """Question and options of what a chain passes along."""
    if isinstance(given, str):
        return given, None
    if isinstance(given, Mapping) and isinstance(given.get("question"), str):
        options = given.get("options")
        return given["question"], None if options is None else list(options)
    raise InputError(f'give a question, or {{"question": "...", "options": ["...", "..."]}}, but not {given!r}')


def _document(passage: Passage, score: float | None, metadata: dict[str, Any]) -> Document:
    return Document(passage.text, id=passage.id, metadata=metadata | ({} if score is None else {"score": score}))


def _found(prediction: Any) -> list[Document]:
    return documents(_document, prediction.passages, prediction.steps)


def _added(before: Any, chunk: Any) -> Any:
    """Chunks of a chain's input as LangChain adds them up: the last one where they cannot be."""
    try:
        return before + chunk
    except TypeError:
        return chunk


def _part(event: Event) -> dict[str, Any]:
    """What an event adds to the result."""
    if event.kind == "queries":
        return AddableDict(queries=event.data)
    if event.kind == "passages":
        return AddableDict(documents=documents(_document, event.data))
    if event.kind == "text":
        return AddableDict(answer=event.data)
    if event.kind == "restart":
        return AddableDict(answer=TakenBack())
    ended = event.data
    unsaid = {} if ended.answer else {"answer": ended.answer}
    return AddableDict(support=ended.support, fallbacks=list(ended.fallbacks), **unsaid)
