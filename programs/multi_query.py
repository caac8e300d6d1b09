"""Multi-Query: the question in other words, every wording searched, what they find put together.

After LangChain's MultiQueryRetriever. Where we differ: the question itself is searched too
(``search_question``), because paraphrases drift; the lists are interleaved, so that a small budget holds the best of
each wording (``fusion=union`` and ``search_question=false`` are LangChain's order); numbers and bullets before a query
are taken off, and a query that says what another says is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import dspy

from querywright.programs.base import FUSION, MAX_PASSAGES, N_WRITTEN, RRF_K, TOP_K, Plan, Technique
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.types import Query


class Paraphrase(dspy.Signature):
    """Write the question in other words for a search engine.
    Keep its meaning and its names; use words that a source might use instead.
    """

    question: str = dspy.InputField()
    queries: list[str] = dspy.OutputField()


class MultiQuery(Technique):
    """Searches the question and paraphrases of it.

    When none can be read, the question is the only query (fallback ``queries``).
    """

    NAME = "multi_query"
    TITLE = "Multi-Query"
    PAPER = "LangChain MultiQueryRetriever"
    PROMPTS: ClassVar = {"paraphrase": Paraphrase}
    LM_STAGES = 1
    SEARCHES = "3 (+1)"
    KNOBS = (
        MAX_PASSAGES,
        Knob("n_queries", 3, "paraphrases asked for", low=1, high=8),
        N_WRITTEN,
        TOP_K,
        FUSION,
        RRF_K,
        Knob("search_question", True, "whether the question itself is searched, before the paraphrases"),
    )

    async def plan(self, question: str, options: Sequence[str]) -> Plan:
        """The question, where it is searched, and its paraphrases."""
        texts = await self.ask_texts("paraphrase", "queries", "{} different wordings", question=question)
        if not texts:
            return Plan((Query(question),), ("queries",))
        own = [Query(question)] if self.knobs["search_question"] else []
        return Plan((*own, *(Query(text, "paraphrase") for text in texts)))
