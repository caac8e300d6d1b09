"""Contrastive Hypothesis Retrieval: search for the likely answer, and away from its most plausible rival.

Kim et al. 2026, arXiv 2604.04593. One LM call writes a hypothesis for the likely answer and one for the rival. A
passage's score is its cosine similarity to the first hypothesis minus ``rival_weight`` times its similarity to the
second. For unit vectors, searching with the difference of the two vectors gives the same order, so one exact search of
the collection is enough. The hypotheses are hidden from the reader.

Where we differ: the default of ``rival_weight`` is ours, and options are shown if the question has any, but are not
required.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from querywright.data.types import History
from querywright.programs.base import MAX_PASSAGES, Technique, search_sum
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import written_in
from querywright.programs.steps import Predict
from querywright.retrieval.types import Query


class QuestionToContrastingHypotheses(dspy.Signature):
    """Decide which answer to the question is most likely, and which wrong answer is easiest to mistake for it.
    For each of the two, write what a source would say if it were right: its name and the facts that are true of it
    and not of the other.
    """

    question: str = dspy.InputField()
    options: list[str] = dspy.InputField()
    likely: str = dspy.OutputField(desc="one or two sentences of a source on the likely answer", max_length=300)
    rival: str = dspy.OutputField(desc="one or two sentences of a source on its closest rival", max_length=300)


class ContrastiveHypotheses(Technique):
    """Searches with the vector of the likely answer minus the weighted vector of its rival; needs a dense retriever.

    If the rival cannot be read, the likely answer is the only query (fallback ``rival``). If the likely answer cannot
    be read, the question is the only query (fallback ``hypotheses``).
    """

    NAME = "chr"
    TITLE = "Contrastive Hypothesis Retrieval"
    PAPER = "arXiv 2604.04593"
    SHOWS_OPTIONS = True
    LM_STAGES = 1
    SEARCHES = "1 (difference of vectors)"
    NEEDS_VECTORS = True
    KNOBS = (
        MAX_PASSAGES,
        Knob("rival_weight", 0.3, "weight of the rival's similarity, which is subtracted", low=0, high=1),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.write_hypotheses = Predict(QuestionToContrastingHypotheses)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Write both hypotheses and search with the difference of their vectors."""
        made = self.write_hypotheses(question=question, options=list(options or ()), history=history)
        likely, rival = written_in(made, "likely"), written_in(made, "rival")
        if not likely:
            return self.retrieve([Query(question)], ["hypotheses"])
        weight = self.knobs["rival_weight"]
        queries = [Query(likely, "hypothesis")]
        if rival and weight:
            queries.append(Query(rival, "rival", -weight))
        weights = [query.weight for query in queries]
        lists = search_sum(self, queries, weights, name="difference of vectors")
        return dspy.Prediction(
            passages=self.fuse(queries[:1], lists), queries=queries, fallbacks=[] if rival else ["rival"]
        )
