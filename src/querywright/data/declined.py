"""Answers that decline: what a reader says when the passages do not hold the answer, and how that is seen."""

from __future__ import annotations

import re

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
_MARKS = re.compile(r"[^\w\s]")


def says_declined(answer: str) -> bool:
    """Whether an answer is blank or nothing but a refusal: the sentinel ``DECLINED`` or one of a few set phrases.

    An answer that says more needs a reader of its own to tell. A question to which "unknown" is the right answer
    is not asked of a reader that may decline.

    Args:
        answer: The answer given; case, punctuation and spaces do not matter.
    """
    plain = _bare(answer)
    return not plain or plain == _bare(DECLINED) or plain in _OTHERS


def _bare(text: str) -> str:
    return " ".join(_MARKS.sub("", text).casefold().split())
