"""Oracle evidence: return the labeled passages themselves, to measure a reader with perfect retrieval."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dspy

from querywright.data.types import History, Label, Passage, Question, turns_of
from querywright.programs.base import MAX_PASSAGES, Technique


class OracleEvidence(Technique):
    """Returns the passages that entail the answer according to the labels, alone or jointly.

    The first passage of each group of alternatives comes before the others. This is a reference, not a technique. Its
    ``recall`` is below 1 for a question that also has USEFUL passages, because ``recall`` counts them although the
    answer does not need them.

    Args:
        passages: The passages in the collection, by id.
        questions: The labeled questions; for any other question, no passages are returned.
        knobs: Knob values that differ from the defaults.
    """

    NAME = "oracle"
    TITLE = "Oracle evidence"
    PAPER = "reference"
    SEARCHES = "0"
    KNOBS = (MAX_PASSAGES,)

    def __init__(self, passages: Mapping[str, Passage], questions: Iterable[Question], **knobs: Any) -> None:
        super().__init__(None, **knobs)
        held = sorted(passage.digest() for passage in passages.values())
        self.fingerprint = hashlib.sha256("\n".join(held).encode()).hexdigest()
        """A digest of the passages."""
        self._evidence = {
            (q.question, tuple(option.strip() for option in q.options), turns_of(q.history)): tuple(
                passages[key]
                for key, label in sorted(q.evidence.items(), key=lambda item: _is_spare(item[0], q))
                if (label == Label.ENTAILED or (q.jointly and label == Label.USEFUL)) and key in passages
            )
            for q in questions
        }

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Return the passages that the question's labels name."""
        found = self._evidence.get((question, tuple(options or ()), turns_of(history)), ())
        return dspy.Prediction(passages=found[: self.limit], queries=[])


def _is_spare(key: str, question: Question) -> bool:
    """Return whether this passage is in a group of alternatives that names a different passage first."""
    return any(key in group[1:] for group in question.alternatives)
