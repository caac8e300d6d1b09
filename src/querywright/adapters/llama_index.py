"""Programs in LlamaIndex: a retriever and a query engine. Requires the ``llama-index`` extra."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from querywright.adapters.common import ProgramSource, documents, missing, opened, result
from querywright.data.types import Passage

try:
    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.response.schema import Response
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ImportError as error:
    raise missing("llama-index", error) from error


@dataclass
class ChoiceQuery(QueryBundle):
    """A query with a multiple-choice question's options, for programs that compare options.

    Args:
        options: The options' texts.
    """

    options: list[str] = field(default_factory=list)


class QuerywrightRetriever(BaseRetriever):
    """Retrieves with a program's technique, without calling the reader.

    A node has its passage's text and id. Its metadata is the passage's metadata, plus ``id``, ``title``, ``rank``, and
    ``queries`` (the searches that found it). Of the metadata, only the title is included in prompts and embeddings. A
    node's score is its best score, or None if the retriever does not report scores.

    Args:
        program: Path of an artifact, or a loaded program.
    """

    def __init__(self, program: ProgramSource) -> None:
        super().__init__()
        self.program = opened(program)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self.program.retrieve(*_question(query_bundle)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(await self.program.aretrieve(*_question(query_bundle)))


class QuerywrightQueryEngine(BaseQueryEngine):
    """Answers questions with a whole program.

    A response contains the answer and the passages (``source_nodes``). Its metadata contains ``support``, ``queries``,
    and ``fallbacks``.

    Args:
        program: Path of an artifact, or a loaded program.
    """

    def __init__(self, program: ProgramSource) -> None:
        super().__init__(callback_manager=None)
        self.program = opened(program)

    def _query(self, query_bundle: QueryBundle) -> Response:
        return _response(self.program(*_question(query_bundle)))

    async def _aquery(self, query_bundle: QueryBundle) -> Response:
        return _response(await self.program.acall(*_question(query_bundle)))

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}


def _question(query: QueryBundle) -> tuple[str, Sequence[str] | None]:
    return query.query_str, (query.options or None) if isinstance(query, ChoiceQuery) else None


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
    found = result(prediction, _node)
    return Response(response=found.pop("answer"), source_nodes=found.pop("documents"), metadata=found)
