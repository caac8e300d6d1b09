"""The two baselines: no retrieval, and the question as the only query."""

from __future__ import annotations

from collections.abc import Sequence

import dspy

from querywright.data.types import History
from querywright.programs.base import MAX_PASSAGES, Technique
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.types import Query


class ClosedBook(Technique):
    """Retrieves nothing: the reader answers from memory."""

    NAME = "closed_book"
    TITLE = "Closed book"
    PAPER = "baseline"
    SEARCHES = "0"
    KNOBS = ()

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Return no passages."""
        return self.retrieve([])


class PlainRetrieval(Technique):
    """Searches with the unchanged question ("simple" or "naive" RAG).

    With ``query_with_options=true``, the query contains the question and its options. This is the second baseline for
    techniques that see the options.
    """

    NAME = "plain"
    TITLE = "Plain retrieval"
    PAPER = "baseline"
    KNOBS = (
        MAX_PASSAGES,
        # MIRAGE's protocol (Xiong et al. 2024, arXiv 2402.13178) retrieves with the question alone.
        Knob("query_with_options", False, "whether the query contains the options"),
    )

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Search with the question, plus its options if ``query_with_options`` is on."""
        added = list(options or ()) if self.knobs["query_with_options"] else []
        return self.retrieve([Query(" ".join([question, *added]))])
