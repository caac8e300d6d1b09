"""QB-RAG: find passages through the questions that they answer, written and judged before anyone asks.

Yang et al. 2024, arXiv 2407.18044. The query is matched with stored questions, which it is nearer to than to the
passages, and each question leads to the passage that answers it. Where we differ: the walk over the nearest questions
goes on until there are as many passages as the reader may see; between passages of equal score the newer one is first,
then the one that answers more questions, then the smaller id; draws of fewer questions are nested; a mixture with the
similarity of the passage itself (``hybrid``) reaches passages without a question; the filled matrix, which the paper
describes and does not evaluate, can be searched (``filled``), and so can only the questions around the nearest
prototypes (``prototypes``), as QuIM-RAG does (arXiv 2501.02702).
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

MATCH = Knob("match", NEAREST, "how stored questions lead to passages", choices=MATCHES)


class QBRAG(Technique):
    """Searches the questions of a collection and gives the passages that answer the nearest of them.

    No LM is asked. The matched questions stand in the record of the search and are hidden from the reader.
    """

    NAME = "qb_rag"
    TITLE = "Query-based RAG (QB-RAG)"
    PAPER = "arXiv 2407.18044"
    SEARCHES = "1"
    ENGINE = "questions"
    KNOBS = (
        MAX_PASSAGES,
        MATCH,
        Knob("coverage", 0, "questions per passage on average that take part; 0 is all", low=0, high=50, search=False),
        Knob("keep_partial", False, "whether questions that their passage answers only in part take part"),
        Knob("weight", 0.5, "share of the passage's own similarity", low=0, high=1, when={"match": (HYBRID,)}),
        Knob("depth", 100, "passages taken from each of the two lists", low=10, high=200, when={"match": (HYBRID,)}),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        if retriever is not None:
            self._check_retriever(retriever)
        super().__init__(retriever, **knobs)

    @property
    def searched_knobs(self) -> list[Knob]:
        """The knobs that a study searches; of the ways of matching, those that can be had here."""
        matches = MATCHES if self.retriever is None else self.searched.matches
        return [replace(knob, choices=matches) if knob is MATCH else knob for knob in super().searched_knobs]

    @property
    def matching(self) -> Matching:
        """The knobs as the index takes them."""
        return Matching(**{name: self.knobs[name] for name in ("match", "coverage", "keep_partial", "weight", "depth")})

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Return the passages that the stored questions nearest to the question lead to."""
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
                f"{self.NAME} searches the questions of a collection, which a {kind_of(retriever)} retriever "
                f"({type(retriever).__name__}) does not; open them with the engine questions, and if there are none "
                f"yet run {build_command(name)}"
            )
