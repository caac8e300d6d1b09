"""Programs in Haystack: a component that answers, and one that only retrieves. Requires the ``haystack`` extra.

Importing Haystack turns on its usage statistics. This module turns them off, unless the environment variable
HAYSTACK_TELEMETRY_ENABLED is set or the application has already imported Haystack.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from querywright.adapters.common import ProgramSource, missing, opened, result
from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.optimize.artifacts.loaded import LoadedProgram

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "false")
try:
    from haystack import Document, component
except ImportError as error:
    raise missing("haystack", error) from error


class _Component:
    """A component with a program that is loaded when the pipeline is warmed up.

    A saved pipeline contains the path and the names that it was created with, but no API keys or URLs, so a pipeline
    from somebody else cannot send your API key to a different server. Haystack loads our classes only with your
    consent: ``Pipeline.loads(text, allowed_modules=["querywright.adapters.haystack"])``.
    """

    def __init__(
        self, program: ProgramSource, lm: str | None = None, home: str | None = None, verify: bool = False
    ) -> None:
        if lm is not None and "//" in lm:
            raise InputError(
                f"lm must be a name without a URL, but got {lm!r}; pipelines are saved to files, so set the URL in the "
                "provider's environment variable, or pass a program from querywright.load"
            )
        self.program = program if isinstance(program, LoadedProgram) else str(program)
        self.lm, self.home, self.verify = lm, home, verify

    @cached_property
    def _loaded(self) -> LoadedProgram:
        return opened(self.program, lm=self.lm, home=self.home, verify=self.verify)

    def warm_up(self) -> None:
        """Load the artifact."""
        _ = self._loaded


@component
class QuerywrightProgram(_Component):
    """Answers ``query``, and returns ``answer``, ``documents``, and ``queries``.

    The answer is empty if the program has no reader. A document's metadata is its passage's metadata, plus ``id``,
    ``title``, ``rank``, and ``queries`` (the searches that found it).

    Args:
        program: Path of an artifact, or a loaded program. A pipeline with a loaded program cannot be saved.
        lm: Name of an LM to use instead of the artifact's LM. Default None.
        home: Workspace that contains the collection. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        verify: Whether to replay the artifact's golden answers when it is loaded. Default False.

    Raises:
        InputError: ``lm`` contains a URL.
    """

    @component.output_types(answer=str, documents=list[Document], queries=list[str])
    def run(self, query: str, options: list[str] | None = None) -> dict[str, Any]:
        """Answer a question.

        Args:
            query: The question.
            options: The options' texts, if the program compares options.
        """
        prediction = self._loaded(query, options)
        return {"answer": prediction.answer or "", **_outputs(prediction)}


@component
class QuerywrightRetriever(_Component):
    """Retrieves with a program's technique, and returns ``documents`` and ``queries``; the reader is not called.

    The arguments and the documents are the same as for ``QuerywrightProgram``.
    """

    @component.output_types(documents=list[Document], queries=list[str])
    def run(self, query: str, options: list[str] | None = None) -> dict[str, Any]:
        """Find documents for a question.

        Args:
            query: The question.
            options: The options' texts, if the technique compares options.
        """
        return _outputs(self._loaded.retrieve(query, options))


def _document(passage: Passage, score: float | None, metadata: dict[str, Any]) -> Document:
    return Document(id=passage.id, content=passage.text, meta=metadata, score=score)


def _outputs(prediction: Any) -> dict[str, Any]:
    found = result(prediction, _document)
    return {"documents": found["documents"], "queries": [query["text"] for query in found["queries"]]}
