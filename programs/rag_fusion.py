"""RAG-Fusion: search with several related queries and the question, and fuse the lists by reciprocal rank.

Raudaschl 2023; Rackauckas 2024, arXiv 2402.03367. As in the author's demo, there are four queries plus the question.
Where we differ: ranks start at 1, as in the paper on reciprocal rank fusion, whereas both public implementations start
at 0. The queries ask from different angles, because mere rewordings find the same passages. The reader does not see the
queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from querywright.data.types import History
from querywright.programs.base import MAX_PASSAGES, N_WRITTEN, QUESTION_WEIGHT, TOP_K, Technique
from querywright.programs.hyperparameters import Knob
from querywright.programs.steps import Predict
from querywright.retrieval.types import Query


class QuestionToRelatedQueries(dspy.Signature):
    """Write search queries that look at the question from different sides.
    One narrower, one broader, one with the terms of an expert, one on a related point. Do not just reword it.
    """

    question: str = dspy.InputField()
    queries: list[str] = dspy.OutputField()


class RAGFusion(Technique):
    """Searches with the question and related queries, and fuses the lists by reciprocal rank.

    If no query can be read, the question is the only query (fallback ``queries``).
    """

    NAME = "rag_fusion"
    TITLE = "RAG-Fusion"
    PAPER = "arXiv 2402.03367"
    LM_STAGES = 1
    SEARCHES = "4 (+1)"
    FUSION_RULE = "rrf"
    KNOBS = (
        MAX_PASSAGES,
        Knob("n_queries", 4, "number of related queries", low=1, high=8),
        N_WRITTEN,
        TOP_K,
        Knob("rrf_k", 60, "constant k in reciprocal rank fusion", low=1, high=200),
        Knob("search_question", True, "whether the question itself is also searched"),
        QUESTION_WEIGHT,
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.write_queries = Predict(QuestionToRelatedQueries)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Write related queries, then search with them and, if ``search_question`` is on, with the question."""
        texts = self.write_texts(
            self.write_queries, "queries", "{} short search queries", question=question, history=history
        )
        if not texts:
            return self.retrieve([Query(question)], ["queries"])
        own = [Query(question, weight=self.knobs["question_weight"])] if self.knobs["search_question"] else []
        return self.retrieve([*own, *(Query(text, "related") for text in texts)])
