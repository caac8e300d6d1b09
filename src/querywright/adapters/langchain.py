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
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnableGenerator
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
        found = self.program.retrieve(query, options)
        return documents(_document, found.passages, found.steps)


class TakenBack(str):
    """The ``answer`` of a part that takes back the text before it: the LM had to begin again.

    Adding up the parts drops that text; who shows them as they come begins anew.
    """

    __slots__ = ()

    def __radd__(self, before: str) -> str:
        return ""


class CompleteDocuments(list[Document]):
    """The documents of the last part, with ``queries`` and ``score``; they replace those of an earlier part."""

    def __radd__(self, before: list[Document]) -> list[Document]:
        return list(self)


def as_runnable(program: GivenProgram) -> RunnableGenerator[Any, dict[str, Any]]:
    """Return a whole program as a step of a chain.

    Its stream is the result in parts that can be added up: queries, documents, the answer as it is written, the rest.
    The first documents of a stream have no ``queries`` and no ``score``; see ``TakenBack`` and ``CompleteDocuments``.

    Args:
        program: The path of an artifact, or a loaded program.

    Returns:
        A Runnable that takes a question, or a dict with ``question`` and ``options``, and returns a dict with
        ``question``, ``answer``, ``support``, ``documents``, ``queries`` and ``fallbacks``.
    """
    loaded = opened(program)

    def parts(inputs: Iterator[Any]) -> Iterator[dict[str, Any]]:
        question, options = _asked(reduce(_added, inputs))
        yield AddableDict(question=question)
        for event in loaded.stream(question, options):
            yield _part(event)

    async def parts_async(inputs: AsyncIterator[Any]) -> AsyncIterator[dict[str, Any]]:
        question, options = _asked(reduce(_added, [one async for one in inputs]))
        yield AddableDict(question=question)
        async for event in loaded.astream(question, options):
            yield _part(event)

    return RunnableGenerator(parts, parts_async, name="querywright")


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
    told = result(event.data, _document)
    unsaid = {} if told["answer"] else {"answer": told["answer"]}
    found = CompleteDocuments(told["documents"])
    return AddableDict(support=told["support"], fallbacks=told["fallbacks"], documents=found, **unsaid)
