"""The two baselines without rewriting: no retrieval at all, and the question as the only query."""

from __future__ import annotations

from collections.abc import Sequence

from querywright.programs.base import MAX_PASSAGES, Plan, Technique
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.types import Query


class ClosedBook(Technique):
    """Finds nothing: the reader answers from what it knows."""

    NAME = "closed_book"
    TITLE = "Closed book"
    PAPER = "baseline"
    SEARCHES = "0"
    KNOBS = ()

    async def plan(self, question: str, options: Sequence[str]) -> Plan:
        """No query."""
        return Plan(())


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

    async def plan(self, question: str, options: Sequence[str]) -> Plan:
        """The question, with its options when asked for."""
        with_options = self.knobs["query_with_options"] and options
        return Plan((Query(" ".join([question, *options]) if with_options else question),))
