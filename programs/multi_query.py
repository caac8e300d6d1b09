"""Multi-Query: paraphrase the question, search with every paraphrase, and fuse the lists.

Modeled on LangChain's MultiQueryRetriever. Where we differ: the question itself is also a query (``search_question``),
because paraphrases drift. The lists are interleaved, so that a small budget includes the best passages for each
paraphrase (``fusion=union`` and ``search_question=false`` give LangChain's order). Numbers and bullets before a query
are removed, and duplicate queries are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from querywright.data.types import History
from querywright.programs.base import FUSION, MAX_PASSAGES, N_WRITTEN, RRF_K, TOP_K, Technique
from querywright.programs.hyperparameters import Knob
from querywright.programs.steps import Predict
from querywright.retrieval.types import Query


class QuestionToParaphrases(dspy.Signature):
    """Write the question in other words for a search engine.
    Keep its meaning and its names; use words that a source might use instead.
    """

    question: str = dspy.InputField()
    queries: list[str] = dspy.OutputField()


class MultiQuery(Technique):
    """Searches with the question and with paraphrases of it.

    If no paraphrase can be read, the question is the only query (fallback ``queries``).
    """

    NAME = "multi_query"
    TITLE = "Multi-Query"
    PAPER = "LangChain MultiQueryRetriever"
    LM_STAGES = 1
    SEARCHES = "3 (+1)"
    KNOBS = (
        MAX_PASSAGES,
        Knob("n_queries", 3, "number of paraphrases", low=1, high=8),
        N_WRITTEN,
        TOP_K,
        FUSION,
        RRF_K,
        Knob("search_question", True, "whether the question itself is also searched, before the paraphrases"),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.paraphrase = Predict(QuestionToParaphrases)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Write paraphrases, then search with them and, if ``search_question`` is on, with the question."""
        texts = self.write_texts(
            self.paraphrase, "queries", "{} different wordings", question=question, history=history
        )
        if not texts:
            return self.retrieve([Query(question)], ["queries"])
        own = [Query(question)] if self.knobs["search_question"] else []
        return self.retrieve([*own, *(Query(text, "paraphrase") for text in texts)])
