"""Rules that sort out written questions before a judge is paid to read them. They look at the text alone.

They are meant to err on the side of keeping: another language, or a question that the passage does not answer, is for
the judge. Only ``points_at_text`` and the words that are passed over are of English.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

import dspy

from querywright.data.types import Passage
from querywright.retrieval.words import query_terms

REPEATED, COPIED, NO_WORDS, TOO_LONG = "repeated", "copied", "no_words", "too_long"
NO_QUESTION, POINTS_AT_TEXT = "no_question", "points_at_text"
"""Reasons to drop a question."""

LONGEST = 300
"""Characters of a question; what is longer is a passage."""

ALIKE = 0.85
"""Share of the words of two questions, taken together, that both have when one repeats the other: the same words in
any order, or six and one of them missing in the other, or thirteen and one of them another."""

_PASSED_OVER = frozenset({
    "a", "an", "the", "of", "to", "in", "on", "for", "by", "with", "at", "and",
    "is", "are", "was", "were", "be", "been", "do", "does", "did", "has", "have",
})  # fmt: skip
_CLOSING = " .!)]\"'`*_\u2019\u201d\u00bb"
_MARKED = re.compile("[A-Za-z\u00c0-\u024f\u0400-\u052f]")
"""A letter of Latin or Cyrillic, whose questions end in "?"; those of others may end in another mark, or in none."""
_MARKS = ("?", "\u061f", "\u1367")
_ENDS = frozenset(".!\u3002\u06d4\u0589\u1362\u0964")
_POINTING = frozenset({
    "what", "which", "who", "whom", "whose", "how", "why", "when", "where",
    "it", "its", "this", "that", "these", "those", "they", "them", "their", "he", "him", "his", "she", "her", "there",
})  # fmt: skip
_TELLING = frozenset({"no", "not", "never", "cannot", "without"})

_TEXT = r"(?:passage|text|excerpt|paragraph|article|document)"
_POINTS = re.compile(
    rf"\b(?:according to (?:the|this|that) (?:given |above )?{_TEXT}"
    rf"|(?:in|by|from) (?:the|this|that) (?:given |above )?(?:passage|text|excerpt|paragraph)"
    rf"|(?:the|this) {_TEXT} (?:\w+ly )?"
    r"(?:says?|mentions?|states?|describes?|discuss(?:es)?|tells?|explains?|about))\b",
    re.IGNORECASE,
)


def unfit(text: str, passage: Passage) -> str:
    """Why a question cannot be asked of anybody; empty when nothing speaks against it.

    Args:
        text: The question, on one line.
        passage: What it was written for.

    Returns:
        ``no_words`` without a word that names something, ``too_long`` beyond 300 characters, ``no_question`` where it
        has no question mark and is of Latin or Cyrillic letters, or is a sentence of the passage that is no question
        there, such as an order, ``points_at_text`` where it speaks of "the passage".
    """
    letters = sum(map(str.isalpha, text))
    if not letters or set(query_terms(text)) <= _PASSED_OVER | _POINTING:
        return NO_WORDS
    if len(text) > LONGEST:
        return TOO_LONG
    marked = unicodedata.normalize("NFKC", text).rstrip(_CLOSING).endswith("?")
    if (not marked and len(_MARKED.findall(text)) * 2 > letters) or _quotes(text, passage.content):
        return NO_QUESTION
    return POINTS_AT_TEXT if _POINTS.search(text) and not _POINTS.search(passage.content) else ""


def example_questions(predictor: dspy.Predict, *fields: str) -> list[str]:
    """The questions in a prompt's examples. A small model writes them down as its own; such a one is ``copied``.

    Args:
        predictor: Whose prompt it is.
        fields: Where the examples have questions: a text or a list of texts. An example may lack any of them.
    """
    values = [demo.get(name) or () for demo in predictor.demos for name in fields]
    return [str(text) for value in values for text in ([value] if isinstance(value, str) else value)]


def repeats(text: str, others: Iterable[str]) -> bool:
    """Whether a question says nearly what one of the others says."""
    return any(alike(text, other) for other in others)


def alike(one: str, other: str) -> bool:
    """Whether two questions are nearly the same: the same words but for few, and none of those a number or a negation.

    The order of words, articles, forms of "be" and "do", and an "s" at a word's end make no difference. The same
    everywhere and whatever embeds the questions, so that another embedder changes no record.

    Args:
        one: A question.
        other: Another one.
    """
    ours, theirs = _words(one), _words(other)
    apart = ours ^ theirs
    if not apart:
        return True
    if any(word in _TELLING or not word.isalpha() for word in apart):
        return False
    return len(ours & theirs) >= ALIKE * len(ours | theirs)


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    words = query_terms(text)
    kept = [word for word in words if word not in _PASSED_OVER] or words
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in kept)


def _quotes(text: str, content: str) -> bool:
    """Whether a text says, word for word, what one sentence or several of some content tell."""
    own, told = _sentences(text).strip(" .?:"), _sentences(content)
    return any(f"{start} {own} ." in told for start in ".?:")


@lru_cache(maxsize=256)
def _sentences(text: str) -> str:
    """The words of a text, and between them ``.`` or ``?`` where a sentence ends, ``:`` where one may begin."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    signs = [
        "." if one in _ENDS else "?" if one in _MARKS else ":" if one in {":", "\n"} else one
        for one in re.findall(r"\w+|[^\w ]", plain)
    ]
    return " ".join((":", *(one for one in signs if one[0].isalnum() or one in ".?:")))
