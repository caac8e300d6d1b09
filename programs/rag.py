"""A whole program: a technique that finds passages and a reader that answers from them."""

from __future__ import annotations

from collections.abc import Sequence

import dspy

from querywright.programs.base import Technique
from querywright.programs.readers import Reader


class RAG(dspy.Module):
    """A technique and a reader.

    Args:
        technique: Finds passages.
        reader: Answers from them, or None for a program that only retrieves.
    """

    def __init__(self, technique: Technique, reader: Reader | None) -> None:
        super().__init__()
        self.technique = technique
        self.reader = reader

    def forward(self, question: str, options: Sequence[str] | None = None) -> dspy.Prediction:
        """Find passages and answer.

        Args:
            question: The question as it was asked.
            options: Option texts of a multiple-choice question, or None.

        Returns:
            A prediction with ``answer`` (text, as the reader gives it; None without a reader), ``passages``
            (list of Passage, best first), ``queries`` (list of Query), ``notes`` (mapping, for traces) and
            ``fallbacks`` (names of the steps that fell back).

        Raises:
            TechniqueError: The question is blank, or its options are not what technique and reader need.
        """
        found = self.technique(question=question, options=options)
        answer, fallbacks = None, list(found.fallbacks)
        if self.reader is not None:
            # The reader is given the passages and nothing else of what was found or written to find them.
            read = self.reader(question=question, options=options, passages=found.passages)
            answer = read.answer
            fallbacks += read.fallbacks
        return dspy.Prediction(
            answer=answer,
            passages=found.passages,
            queries=found.queries,
            notes=found.notes,
            fallbacks=fallbacks,
        )
