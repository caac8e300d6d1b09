"""RAG-Fusion: several related queries beside the question, their lists fused by reciprocal rank.

Raudaschl 2023; Rackauckas 2024, arXiv 2402.03367. As in the author's demo the question is searched with four queries.
Where we differ: ranks begin at 1, as in the fusion's own paper, where both public codes begin at 0; the queries ask
from different angles, because mere rewordings find the same again; the reader does not see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from querywright.programs.base import MAX_PASSAGES, N_WRITTEN, TOP_K, Plan, Technique
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
        Knob(
            "question_weight",
            1.0,
            "weight of the question, where it is searched, beside 1 for each query",
            low=0.25,
            high=4,
            when={"search_question": (True,)},
        ),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.write_queries = dspy.Predict(RelatedQueries)

    async def plan(self, question: str, options: Sequence[str]) -> Plan:
        """The question, where it is searched, and related queries."""
        count, kept = self.written(), self.knobs.integer("n_queries")
        texts = await self.ask_texts(
            self.write_queries, "queries", count, f"{count} short search queries", question=question, kept=kept
        )
        if not texts:
            return Plan((Query(question),), ("queries",))
        own = []
        if self.knobs.flag("search_question"):
            own.append(Query(question, weight=self.knobs.number("question_weight")))
        return Plan((*own, *(Query(text, "related") for text in texts)))
