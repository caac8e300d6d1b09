"""Answers that decline: what a reader says when the passages do not hold the answer, and how that is seen."""

from __future__ import annotations

from querywright.answer_text import words

DECLINED = "The passages do not say."
"""What a reader is to answer when the passages do not hold the answer."""

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
    """Whether an answer is blank or nothing but a refusal: the sentinel ``DECLINED`` or one of a few set phrases.

    An answer that says more needs a reader of its own to tell. A question to which "unknown" is the right answer
    is not asked of a reader that may decline.

    Args:
        answer: The answer given; case, punctuation and spaces do not matter.
    """
    said = words(answer)
    return not said or any(said == words(phrase) for phrase in (DECLINED, *_OTHERS))
