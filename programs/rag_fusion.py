"""RAG-Fusion: several related queries beside the question, their lists fused by reciprocal rank.

Raudaschl 2023; Rackauckas 2024, arXiv 2402.03367. As in the author's demo the question is searched with four queries.
Where we differ: ranks begin at 1, as in the fusion's own paper, where both public codes begin at 0; the queries ask
from different angles, because mere rewordings find the same again; the reader does not see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import dspy

from querywright.programs.base import MAX_PASSAGES, N_WRITTEN, QUESTION_WEIGHT, TOP_K, Plan, Technique
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.types import Query


class RelatedQueries(dspy.Signature):
    """Write search queries that look at the question from different sides.
    One narrower, one broader, one with the terms of an expert, one on a related point. Do not just reword it.
    """

    question: str = dspy.InputField()
    queries: list[str] = dspy.OutputField()


class RAGFusion(Technique):
    """Searches the question and related queries and fuses what they find by reciprocal rank.

    When no query can be read, the question is the only one (fallback ``queries``).
    """

    NAME = "rag_fusion"
    TITLE = "RAG-Fusion"
    PAPER = "arXiv 2402.03367"
    PROMPTS: ClassVar = {"write_queries": RelatedQueries}
    LM_STAGES = 1
    SEARCHES = "4 (+1)"
    FUSION_RULE = "rrf"
    KNOBS = (
        MAX_PASSAGES,
        Knob("n_queries", 4, "related queries asked for", low=1, high=8),
        N_WRITTEN,
        TOP_K,
        Knob("rrf_k", 60, "constant of reciprocal rank fusion", low=1, high=200),
        Knob("search_question", True, "whether the question itself is searched"),
        QUESTION_WEIGHT,
    )

    async def plan(self, question: str, options: Sequence[str]) -> Plan:
        """The question, where it is searched, and related queries."""
        texts = await self.ask_texts("write_queries", "queries", "{} short search queries", question=question)
        if not texts:
            return Plan((Query(question),), ("queries",))
        own = [Query(question, weight=self.knobs["question_weight"])] if self.knobs["search_question"] else []
        return Plan((*own, *(Query(text, "related") for text in texts)))
