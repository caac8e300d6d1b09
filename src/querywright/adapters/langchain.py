"""Programs in LangChain: a retriever, and a Runnable that answers. Requires the ``langchain`` extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import field_validator

from querywright.adapters.common import ProgramSource, documents, missing, opened, result
from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.optimize.artifacts.loaded import LoadedProgram

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnableLambda
except ImportError as error:
    raise missing("langchain", error) from error


class QuerywrightRetriever(BaseRetriever):
    """Retrieves with a program's technique, without calling the reader.

    A document has its passage's text and id. Its metadata is the passage's metadata, plus ``id``, ``title``, ``rank``,
    ``queries`` (the searches that found it), and ``score`` if the retriever reports one. If the technique compares
    options, pass them with the question: ``retriever.invoke(question, options=[...])``.

    Args:
        program: Path of an artifact, or a loaded program.
    """

    program: Any

    @field_validator("program", mode="before")
    @classmethod
    def _opened(cls, given: ProgramSource) -> LoadedProgram:
        return opened(given)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, options: list[str] | None = None
    ) -> list[Document]:
        prediction = self.program.retrieve(query, options)
        return documents(_document, prediction.passages, prediction.steps)


def as_runnable(program: ProgramSource) -> RunnableLambda[Any, dict[str, Any]]:
    """Return a whole program as a step in a chain.

    Args:
        program: Path of an artifact, or a loaded program.

    Returns:
        A Runnable that takes a question, or a dict with ``question`` and ``options``, and returns a dict with
        ``question``, ``answer``, ``support``, ``documents``, ``queries``, and ``fallbacks``.
    """
    loaded = opened(program)

    def invoke(given: Any) -> dict[str, Any]:
        question, options = _question(given)
        return {"question": question, **result(loaded(question, options), _document)}

    async def ainvoke(given: Any) -> dict[str, Any]:
        question, options = _question(given)
        return {"question": question, **result(await loaded.acall(question, options), _document)}

    return RunnableLambda(invoke, ainvoke, name="querywright")


def _question(given: Any) -> tuple[str, Sequence[str] | None]:
    """Return the question and the options in a chain's input."""
    if isinstance(given, str):
        return given, None
    if isinstance(given, Mapping) and isinstance(given.get("question"), str):
        return given["question"], given.get("options")
    raise InputError(
        f'the input must be a question or a dict such as {{"question": "...", "options": ["...", "..."]}}, but got '
        f"{given!r}"
    )


def _document(passage: Passage, score: float | None, metadata: dict[str, Any]) -> Document:
    return Document(passage.text, id=passage.id, metadata=metadata | ({} if score is None else {"score": score}))
