"""Recognize answers in which a reader declines because the passages do not contain the answer."""

from __future__ import annotations

from querywright.answer_text import words

DECLINED = "The passages do not say."
"""The answer that readers are instructed to give if the passages do not contain the answer."""

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
    """Return whether an answer is blank or contains only a refusal: ``DECLINED`` or a phrase from a short list.

    Longer answers are not recognized. Do not use a reader that may decline if a question's right answer may be
    "unknown".

    Args:
        answer: The answer. Case, punctuation, and spaces are ignored.
    """
    said = words(answer)
    return not said or any(said == words(phrase) for phrase in (DECLINED, *_OTHERS))
