"""Oracle evidence: the labelled passages themselves, to see what a reader makes of perfect retrieval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import dspy

from querywright.data.types import Label, Passage, Question
from querywright.programs.base import MAX_PASSAGES, Technique, checked_options


class OracleEvidence(Technique):
    """Gives the passages that entail the answer, by label. A reference for comparisons, not a technique.

    Args:
        passages: The passages of the collection, by id.
        questions: Labelled questions; others find nothing.
        knobs: Values of knobs that differ from their defaults.
    """

    NAME = "oracle"
    TITLE = "Oracle evidence"
    PAPER = "reference"
    SEARCHES = "0"
    KNOBS = (MAX_PASSAGES,)

    def __init__(self, passages: Mapping[str, Passage], questions: Iterable[Question], **knobs: object) -> None:
        super().__init__(None, **knobs)
        self._evidence = {
            (q.question, tuple(option.strip() for option in q.options)): tuple(
                passages[key] for key, label in q.evidence.items() if label == Label.ENTAILED and key in passages
            )
            for q in questions
        }

    def forward(self, question: str, options: Sequence[str] | None = None) -> dspy.Prediction:
        """The labelled passages of a question."""
        found = self._evidence.get((question, tuple(checked_options(question, options))), ())
        return dspy.Prediction(
            passages=list(found[: self.knobs.integer("max_passages")]), queries=[], notes={}, fallbacks=[]
        )
