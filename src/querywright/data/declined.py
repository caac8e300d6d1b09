"""Recognize answers that decline: the answer of a reader if the passages do not have the answer."""

from __future__ import annotations

from querywright.answer_text import words

DECLINED = "The passages do not say."
"""The answer that a reader is told to give if the passages do not have the answer."""

_OTHERS = {
    "i cannot answer",
    "i cannot answer that",
    "i cannot answer this question",
    "i do not know",
    "i dont know",
    "no answer",
    "not enough information",
    "not in the passages",
    "unanswerable",
    "unknown",
}


def says_declined(answer: str) -> bool:
    """Return whether an answer is blank or only a refusal: ``DECLINED`` or a phrase from a short list.

    A longer answer is not recognized. Do not use a reader that may decline for questions whose right answer is
    "unknown".

    Args:
        answer: The answer. Case, punctuation, and spaces make no difference.
    """
    said = words(answer)
    return not said or any(said == words(phrase) for phrase in (DECLINED, *_OTHERS))
