"""Programs as tools of the Model Context Protocol. Needs the extra ``mcp``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from dspy.utils.exceptions import LMError
from pydantic import BaseModel, Field

from querywright import __version__
from querywright.adapters.common import GivenProgram, missing, opened, result
from querywright.errors import QuerywrightError

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations
except ImportError as error:
    raise missing("mcp", error) from error

Question = Annotated[str, Field(description="The question, in full.")]
Options = Annotated[
    list[str] | None, Field(description="The options of a multiple-choice question; leave out where it has none.")
]


class Passage(BaseModel):
    """A passage that was found."""

    id: str
    title: str
    text: str
    rank: int = Field(description="1 for the best.")
    queries: list[str] = Field(description="The searches that found it.")


class Query(BaseModel):
    """A search that was made."""

    text: str
    role: str = Field(description="Why it was asked.")


class Retrieved(BaseModel):
    """What was found."""

    passages: list[Passage] = Field(description="Best first.")
    queries: list[Query]
    fallbacks: list[str] = Field(description="Steps that fell back to something plainer.")


class Answer(Retrieved):
    """An answer and what it comes from."""

    answer: str | None = Field(description="None where the program has no reader.")
    support: list[str] | None = Field(description="Ids of the passages it rests on; None where none are named.")


def server(program: GivenProgram, *, name: str = "querywright") -> MCPServer[Any]:
    """A server with the tools ``ask`` and ``retrieve``; ``server(...).run()`` serves over standard input and output.

    What goes wrong on purpose, such as a question without the options that the program needs, is told to the client;
    of any other error it learns nothing but that there was one.

    Args:
        program: The path of an artifact, or a loaded program.
        name: The server's name. Default ``querywright``.
    """
    loaded = opened(program)
    manifest = loaded.manifest
    made = MCPServer[Any](
        name,
        version=__version__,
        instructions=f"Answers questions from the passages of {manifest.collection or 'a collection of the user'}; "
        f"technique {manifest.technique}, reader {manifest.reader or 'none'}.",
        log_level="WARNING",
    )
    reads = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)

    @made.tool(title="Ask", annotations=reads)
    async def ask(question: Question, options: Options = None) -> Answer:
        """Answer a question from the passages that it finds, and name them."""
        with _errors_told():
            return Answer(**_told(await loaded.acall(question, options)))

    @made.tool(title="Retrieve", annotations=reads)
    async def retrieve(question: Question, options: Options = None) -> Retrieved:
        """Find the passages that help to answer a question, without answering it."""
        with _errors_told():
            return Retrieved(**_told(await loaded.aretrieve(question, options)))

    return made


@contextmanager
def _errors_told() -> Iterator[None]:
    """Give errors that were raised on purpose, and an LM's failure, as something that the client may read."""
    try:
        yield
    except QuerywrightError as error:
        raise ToolError(str(error)) from error
    except LMError as error:
        raise ToolError(f"the LM did not answer ({type(error).__name__})") from error


def _told(prediction: Any) -> dict[str, Any]:
    told = result(prediction, lambda one, _, metadata: Passage.model_validate({**metadata, "text": one.text}))
    return {**told, "passages": told["documents"]}
