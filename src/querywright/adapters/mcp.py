"""Programs as Model Context Protocol (MCP) tools. Requires the ``mcp`` extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from dspy.utils.exceptions import LMError
from pydantic import BaseModel, Field

from querywright import __version__
from querywright.adapters.common import ProgramSource, missing, opened, result
from querywright.errors import QuerywrightError

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations
except ImportError as error:
    raise missing("mcp", error) from error

Question = Annotated[str, Field(description="The full question.")]
Options = Annotated[
    list[str] | None, Field(description="The options for a multiple-choice question; omit them for other questions.")
]


class Passage(BaseModel):
    """A retrieved passage."""

    id: str
    title: str
    text: str
    rank: int = Field(description="Rank of the passage, starting from 1 for the best.")
    queries: list[str] = Field(description="Search queries that found the passage.")


class Query(BaseModel):
    """A search query."""

    text: str
    role: str = Field(description="Purpose of the query.")


class RetrievalResult(BaseModel):
    """Passages, and how they were found."""

    passages: list[Passage] = Field(description="Retrieved passages, best first.")
    queries: list[Query]
    fallbacks: list[str] = Field(description="Steps that failed; each was replaced with a simpler step.")


class Answer(RetrievalResult):
    """An answer, and the passages that it is based on."""

    answer: str | None = Field(description="The answer; null if the program has no reader.")
    support: list[str] | None = Field(description="IDs of the passages that support the answer; null if unknown.")


def server(program: ProgramSource, *, name: str = "querywright") -> MCPServer[Any]:
    """Return a server with the tools ``ask`` and ``retrieve``; ``server(...).run()`` uses standard input and output.

    The client sees the messages of errors that it can fix, such as missing options, but no messages of unexpected
    errors.

    Args:
        program: Path of an artifact, or a loaded program.
        name: Name of the server. Default ``querywright``.
    """
    loaded = opened(program)
    manifest = loaded.manifest
    made = MCPServer[Any](
        name,
        version=__version__,
        instructions=f"Answers questions from passages in {manifest.collection or 'your collection'}. "
        f"Technique: {manifest.technique}. Reader: {manifest.reader or 'none'}.",
        log_level="WARNING",
    )
    reads = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)

    @made.tool(title="Ask", annotations=reads)
    async def ask(question: Question, options: Options = None) -> Answer:
        """Answer a question, and return the passages that the answer is based on."""
        with _readable_errors():
            return Answer(**_contents(await loaded.acall(question, options)))

    @made.tool(title="Retrieve", annotations=reads)
    async def retrieve(question: Question, options: Options = None) -> RetrievalResult:
        """Find passages that help to answer a question, without answering it."""
        with _readable_errors():
            return RetrievalResult(**_contents(await loaded.aretrieve(question, options)))

    return made


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Convert our errors and LM failures to errors that the client may see."""
    try:
        yield
    except QuerywrightError as error:
        raise ToolError(str(error)) from error
    except LMError as error:
        raise ToolError(f"the LM did not answer ({type(error).__name__})") from error


def _contents(prediction: Any) -> dict[str, Any]:
    found = result(prediction, lambda one, _, metadata: Passage.model_validate({**metadata, "text": one.text}))
    return {**found, "passages": found["documents"]}
