"""Rerank: one deep search with the question, the passages then put in order of how well they answer it.

A baseline beside HCQR (arXiv 2603.19008), which reports that reranking one search loses to several good ones but
leaves its pool and its cut open. A pool of 50 suits a cross-encoder. The default pool is 20, because without a
cross-encoder the LM is asked once a passage.
"""

from __future__ import annotations

from collections.abc import Sequence

from querywright.programs.base import MAX_PASSAGES, Found
from querywright.programs.hyperparameters import Knob
from querywright.programs.rerankers import Reranking
from querywright.retrieval.fusion import fuse
from querywright.retrieval.types import Query


class Rerank(Reranking):
    """Searches with the question and keeps the passages that answer it best.

    With a cross-encoder no LM is asked.
    """

    NAME = "rerank"
    TITLE = "Rerank baseline"
    PAPER = "baseline"
    LM_STAGES = 1
    SEARCHES = "1 (deep)"
    WRITES = False
    KNOBS = (
        MAX_PASSAGES,
        Knob("pool", 20, "passages that are reranked; 50 suits a cross-encoder", low=1, high=100),
    )

    @property
    def depth(self) -> int:
        """The pool."""
        return self.knobs.integer("pool")

    async def find(self, question: str, options: Sequence[str]) -> Found:
        """The best of the pool."""
        pool = fuse("union", await self.search([question], self.depth))
        ranked, fallbacks = await self.reranked(question, pool)
        return Found([hit.passage for hit in ranked[: self.max_passages]], [Query(question)], fallbacks)
