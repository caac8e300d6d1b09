"""Programs in LlamaIndex: a retriever and a query engine. Needs the extra ``llama-index``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from querywright.adapters.common import GivenProgram, documents, missing, opened, result
from querywright.data.types import Passage

try:
    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.response.schema import Response
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ImportError as error:
    raise missing("llama-index", error) from error


@dataclass
class ChoiceQuery(QueryBundle):
    """A query with the options of a multiple-choice question, for programs that compare options.

    Args:
        options: Option texts.
    """

    options: list[str] = field(default_factory=list)


class QuerywrightRetriever(BaseRetriever):
    """A program's technique as a retriever: the reader is not asked.

    A node has the passage's text and id; its metadata are those of the passage, and ``id``, ``title``, ``rank`` and
    ``queries`` (the searches that found it), none of which a prompt or an embedding shows but the title. Its score is
    the best one that it was found with, or None where no score was kept.

    Args:
        program: The path of an artifact, or a loaded program.
        callback_manager: LlamaIndex's own. Default: a new one.
    """

    def __init__(self, program: GivenProgram, callback_manager: CallbackManager | None = None) -> None:
        super().__init__(callback_manager=callback_manager)
        self.program = opened(program)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self.program.retrieve(*_asked(query_bundle)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(await self.program.aretrieve(*_asked(query_bundle)))


class QuerywrightQueryEngine(BaseQueryEngine):
    """A whole program as a query engine.

    The response holds the answer, the passages as ``source_nodes``, and ``support``, ``queries`` and ``fallbacks`` in
    its metadata.

    Args:
        program: The path of an artifact, or a loaded program.
        callback_manager: LlamaIndex's own. Default: a new one.
    """

    def __init__(self, program: GivenProgram, callback_manager: CallbackManager | None = None) -> None:
        super().__init__(callback_manager=callback_manager)
        self.program = opened(program)

    def _query(self, query_bundle: QueryBundle) -> Response:
        return _response(self.program(*_asked(query_bundle)))

    async def _aquery(self, query_bundle: QueryBundle) -> Response:
        return _response(await self.program.acall(*_asked(query_bundle)))

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}


def _asked(query: QueryBundle) -> tuple[str, list[str] | None]:
    return query.query_str, (list(query.options) or None) if isinstance(query, ChoiceQuery) else None


def _node(passage: Passage, score: float | None, metadata: dict[str, Any]) -> NodeWithScore:
    hidden = [key for key in metadata if key != "title"]
    node = TextNode(
        id_=passage.id,
        text=passage.text,
        metadata=metadata,
        excluded_llm_metadata_keys=hidden,
        excluded_embed_metadata_keys=hidden,
    )
    return NodeWithScore(node=node, score=score)


def _nodes(prediction: Any) -> list[NodeWithScore]:
    return documents(_node, prediction.passages, prediction.steps)


def _response(prediction: Any) -> Response:
    told = result(prediction, _node)
    return Response(response=told.pop("answer"), source_nodes=told.pop("documents"), metadata=told)
