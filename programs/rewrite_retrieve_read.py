"""Rewrite-Retrieve-Read with a frozen rewriter: think about what to look up, then search with new queries.

Ma et al. 2023, arXiv 2305.14283. The rewriter writes several queries or none; if it writes none, the reader answers
from what it knows. The reader gets the original question.

Where we differ: there are no demonstrations by default (``demos=3`` shows three of ours; the paper shows one to three
training questions). Lists are interleaved, so that a small budget includes the best passages for each query
(``fusion=union`` concatenates the lists, as the original does). Options are a separate list next to the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from querywright.data.types import History
from querywright.programs.base import FUSION, MAX_PASSAGES, N_WRITTEN, RRF_K, TOP_K, Technique, demos_knob
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import query_texts
from querywright.programs.signatures import tuned_signature
from querywright.programs.steps import Predict
from querywright.retrieval.types import Query


class QuestionToQueries(dspy.Signature):
    """Think about what must be looked up to answer the question, then write search queries for it.
    Each query names one thing to look up.
    """

    question: str = dspy.InputField()
    options: list[str] = dspy.InputField()
    thought: str = dspy.OutputField()
    queries: list[str] = dspy.OutputField(desc="names and key words")


class RewriteRetrieveRead(Technique):
    """Searches with a rewriter's queries; if it writes none, nothing is searched (see ``may_skip``).

    ``rewriter`` is a predictor; set ``rewriter.lm`` to use an LM other than the reader's. If its answer cannot be read,
    the question is the only query (fallback ``rewrite``).
    """

    NAME = "rrr"
    TITLE = "Rewrite-Retrieve-Read (frozen rewriter)"
    PAPER = "arXiv 2305.14283"
    SHOWS_OPTIONS = True
    LM_STAGES = 1
    SEARCHES = "0 to 3"
    KNOBS = (
        MAX_PASSAGES,
        Knob("n_queries", 3, "maximum number of queries", low=1, high=8),
        N_WRITTEN,
        TOP_K,
        FUSION,
        RRF_K,
        demos_knob(3),
        Knob(
            "may_skip",
            True,
            "whether the rewriter may skip the search by writing no query; if false, the question is used as the query",
        ),
        Knob("rewriter_sees_options", True, "whether the rewriter sees the options"),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.rewriter = Predict(QuestionToQueries)

    @property
    def uses_options(self) -> bool:
        """Whether the LM sees a question's options."""
        return bool(self.knobs["rewriter_sees_options"] or self.knobs["select"])

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Search with the rewriter's queries; if it writes none, search with the question unless ``may_skip`` is on."""
        limit, may_skip = self.written(), self.knobs["may_skip"]
        shown = list(options or ()) if self.knobs["rewriter_sees_options"] else []
        # A small LM mistakes a number next to a field for the field's value, so the number comes last.
        number = "one query" if limit == 1 else f"at most {limit} queries"
        none = ", or none if nothing has to be looked up" if may_skip else ""
        signature = tuned_signature(self.rewriter, line=f"Write {number}{none}.")
        written = self.rewriter(signature=signature, question=question, options=shown, history=history)
        if written is None:
            return self.retrieve([Query(question)], ["rewrite"])
        # The original separates queries with semicolons, and models do so inside a list item, too.
        lines = [line for item in written.queries for line in item.split(";")]
        texts = query_texts(lines, self.knobs["n_queries"])
        if not texts and not may_skip:
            return self.retrieve([Query(question)])
        return self.retrieve([Query(text, "rewrite") for text in texts])
