"""Programs in Haystack: a component that answers, and one that only retrieves. Needs the extra ``haystack``.

Importing Haystack switches its usage statistics on; they stay off here unless HAYSTACK_TELEMETRY_ENABLED says otherwise
or the application has imported Haystack before.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from querywright.adapters.common import GivenProgram, lm_by_name, missing, opened, result
from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.optimize.artifacts.loaded import LoadedProgram

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "false")
try:
    from haystack import Document, component, default_to_dict
except ImportError as error:
    raise missing("haystack", error) from error


class _Component:
    """A program that is loaded when the pipeline is warmed up.

    Saved are the path and the names as they were given, and never a key or an address: a pipeline from elsewhere cannot
    send a key away. Haystack asks for consent before it loads a class of ours: ``Pipeline.loads(text,
    allowed_modules=["querywright.adapters.haystack"])``.
    """

    def __init__(
        self, program: GivenProgram, lm: str | None = None, home: str | None = None, verify: bool = False
    ) -> None:
        self.program = program if isinstance(program, LoadedProgram) else str(program)
        self.lm, self.home, self.verify = lm_by_name(lm), home, verify

    @cached_property
    def _loaded(self) -> LoadedProgram:
        return opened(self.program, lm=self.lm, home=self.home, verify=self.verify)

    def warm_up(self) -> None:
        """Load the artifact, once."""
        _ = self._loaded

    def to_dict(self) -> dict[str, Any]:
        """The component as plain data.

        Raises:
            InputError: It was made with a loaded program, which has no path.
        """
        if isinstance(self.program, LoadedProgram):
            raise InputError(
                "a component made with a loaded program cannot be saved; give the path of the artifact instead"
            )
        return default_to_dict(self, program=self.program, lm=self.lm, home=self.home, verify=self.verify)


@component
class QuerywrightProgram(_Component):
    """A whole program as a component: ``query`` and ``options`` in, ``answer``, ``documents`` and ``queries`` out.

    The answer is empty where the program has no reader. The metadata of a document are those of the passage, and
    ``id``, ``title``, ``rank`` and ``queries`` (the searches that found it).

    Args:
        program: The path of an artifact, or a loaded program, which cannot be saved with a pipeline.
        lm: Name of an LM instead of the artifact's own. Default None.
        home: The working folder that holds the collection. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        verify: Replay the artifact's golden answers when it is loaded. Default False.

    Raises:
        InputError: ``lm`` holds an address.
    """

    @component.output_types(answer=str, documents=list[Document], queries=list[str])
    def run(self, query: str, options: list[str] | None = None) -> dict[str, Any]:
        """Answer a question.

        Args:
            query: The question.
            options: Option texts for a program that compares options.
        """
        prediction = self._loaded(query, options)
        return {"answer": prediction.answer or "", **_found(prediction)}


@component
class QuerywrightRetriever(_Component):
    """A program's technique as a component: the reader is not asked. ``query`` and ``options`` in, ``documents`` and
    ``queries`` out. It is made as ``QuerywrightProgram`` is, and gives documents as that does.
    """

    @component.output_types(documents=list[Document], queries=list[str])
    def run(self, query: str, options: list[str] | None = None) -> dict[str, Any]:
        """Find documents for a question.

        Args:
            query: The question.
            options: Option texts for a technique that compares options.
        """
        return _found(self._loaded.retrieve(query, options))


def _document(passage: Passage, score: float | None, metadata: dict[str, Any]) -> Document:
    return Document(id=passage.id, content=passage.text, meta=metadata, score=score)


def _found(prediction: Any) -> dict[str, Any]:
    told = result(prediction, _document)
    return {"documents": told["documents"], "queries": [query["text"] for query in told["queries"]]}
