"""The two baselines without rewriting: no retrieval at all, and the question as the only query."""

from __future__ import annotations

from collections.abc import Sequence

import dspy

from querywright.data.types import History
from querywright.programs.base import MAX_PASSAGES, Technique
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.types import Query


class ClosedBook(Technique):
    """Finds nothing: the reader answers from what it knows."""

    NAME = "closed_book"
    TITLE = "Closed book"
    PAPER = "baseline"
    SEARCHES = "0"
    KNOBS = ()

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Search nothing."""
        return self.retrieve([])


class PlainRetrieval(Technique):
    """Searches with the question as it was asked ("simple" or "naive" RAG)."""

    NAME = "plain"
    TITLE = "Plain retrieval"
    PAPER = "baseline"
    KNOBS = (
        MAX_PASSAGES,
        # MIRAGE's protocol (Xiong et al. 2024, arXiv 2402.13178) retrieves with the question alone.
        Knob("query_with_options", False, "append the options to the query"),
    )

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Search the question, with its options if they are asked for."""
        added = list(options or ()) if self.knobs["query_with_options"] else []
        return self.retrieve([Query(" ".join([question, *added]))])
