"""QB-RAG: find passages through the questions that they answer, which were generated and judged in advance.

Yang et al. 2024, arXiv 2407.18044. The technique searches stored questions, which are more similar to a query than
passages are. Each stored question leads to the passage that answers it.

Where we differ: the search continues until it has as many passages as the reader may see. Among passages with equal
scores, newer passages come first, then those that answer more questions, then those with smaller ids. Smaller samples
of questions are subsets of larger ones. ``hybrid`` adds the passage's own similarity, so it can also find passages
without questions. ``filled`` searches the filled matrix, which the paper describes but does not evaluate.
``prototypes`` searches only the questions near the nearest prototypes, as QuIM-RAG does (arXiv 2501.02702).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dspy

from querywright.data.types import History
from querywright.errors import TechniqueError
from querywright.programs.base import MAX_PASSAGES, Technique, record_search
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.types import HYBRID, MATCHES, NEAREST, Hit, Matching, Query, kind_of

MATCH = Knob("match", NEAREST, "method for finding passages from stored questions", choices=MATCHES)


class QBRAG(Technique):
    """Searches a collection's stored questions, and returns the passages that answer the nearest ones.

    No LM is called. The search record contains the matched questions; the reader does not see them.
    """

    NAME = "qb_rag"
    TITLE = "Query-based RAG (QB-RAG)"
    PAPER = "arXiv 2407.18044"
    SEARCHES = "1"
    ENGINE = "questions"
    KNOBS = (
        MAX_PASSAGES,
        MATCH,
        Knob(
            "coverage",
            0,
            "average number of stored questions per passage that are searched; 0: all",
            low=0,
            high=50,
            search=False,
        ),
        Knob("keep_partial", False, "whether to search stored questions that their passage answers only partly"),
        Knob("weight", 0.5, "weight of the passage's similarity", low=0, high=1, when={"match": (HYBRID,)}),
        Knob(
            "depth", 100, "number of passages from each of the two lists", low=10, high=200, when={"match": (HYBRID,)}
        ),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        if retriever is not None:
            self._check_retriever(retriever)
        super().__init__(retriever, **knobs)

    @property
    def searched_knobs(self) -> list[Knob]:
        """The knobs that a study tunes; ``match`` has only the values that the retriever supports."""
        matches = MATCHES if self.retriever is None else self.searched.matches
        return [replace(knob, choices=matches) if knob is MATCH else knob for knob in super().searched_knobs]

    @property
    def matching(self) -> Matching:
        """The matching settings from the knobs."""
        return Matching(**{name: self.knobs[name] for name in ("match", "coverage", "keep_partial", "weight", "depth")})

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Return the passages that the nearest stored questions lead to."""
        lists: list[list[Hit]] = self.searched.match([question], self.depth, self.matching)
        through = {hit.passage.id: hit.question for hits in lists for hit in hits if hit.question}
        record_search([question], lists, {"queries": [question], "through": through}, name="questions")
        queries = [Query(question)]
        return dspy.Prediction(passages=self.fuse(queries, lists), queries=queries)

    def _check_values(self) -> None:
        super()._check_values()
        if self.retriever is not None:
            self.searched.check(self.matching)

    def _check_retriever(self, retriever: Any) -> None:
        from querywright.retrieval.generated_questions import build_command
        from querywright.retrieval.question_index import QuestionIndex
        from querywright.retrieval.replay import searched_by

        if not isinstance(searched_by(retriever), QuestionIndex):
            name = getattr(retriever, "name", "NAME")
            raise TechniqueError(
                f"{self.NAME} searches a collection's generated questions, but got a {kind_of(retriever)} retriever "
                f"({type(retriever).__name__}); open the collection with the engine 'questions'. If the collection "
                f"has no questions yet, first run {build_command(name)}"
            )
