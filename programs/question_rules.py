"""Rules that drop unusable questions based on their text alone, so that a judge does not have to read them.

When in doubt, the rules keep a question. Questions in other languages, and questions that the passage does not answer,
are left to the judge. Only ``points_at_text`` and the lists of ignored words are specific to English.
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
"""Reasons for dropping a question."""

LONGEST = 300
"""Maximum length of a question, in characters."""

ALIKE = 0.85
"""Two questions are near-duplicates if they share at least this fraction of their distinct words. For example, the
second question may have the same words in a different order, lack one of six words, or replace one of thirteen words.
"""

_PASSED_OVER = frozenset({
    "a", "an", "the", "of", "to", "in", "on", "for", "by", "with", "at", "and",
    "is", "are", "was", "were", "be", "been", "do", "does", "did", "has", "have",
})  # fmt: skip
_CLOSING = " .!)]\"'`*_\u2019\u201d\u00bb"
_MARKED = re.compile("[A-Za-z\u00c0-\u024f\u0400-\u052f]")
"""A Latin or Cyrillic letter. Questions in these scripts end with "?"; questions in other scripts may not."""
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
    """Return the reason why a question is unusable, or an empty string if it is usable.

    Args:
        text: The question, on one line.
        passage: The passage that it was written for.

    Returns:
        ``no_words`` if the question has only function words; ``too_long`` if it has more than 300 characters;
        ``no_question`` if it is in Latin or Cyrillic letters and has no question mark, or if it copies a sentence from
        the passage that is not a question (such as a command); ``points_at_text`` if it refers to "the passage".
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
    """Return the questions in a prompt's examples. A small model may copy them, and such copies are dropped.

    Args:
        predictor: The predictor with the prompt.
        fields: Names of the fields that contain a question or a list of questions. An example may lack any of them.
    """
    values = [demo.get(name) or () for demo in predictor.demos for name in fields]
    return [str(text) for value in values for text in ([value] if isinstance(value, str) else value)]


def repeats(text: str, others: Iterable[str]) -> bool:
    """Return whether a question is a near-duplicate of one of the others."""
    return any(alike(text, other) for other in others)


def alike(one: str, other: str) -> bool:
    """Return whether two questions differ only in a few words, none of which is a number or a negation.

    Word order, articles, forms of "be" and "do", and a final "s" are ignored. The result does not depend on an
    embedder, so it stays the same if you switch embedders.

    Args:
        one: The first question.
        other: The second question.
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
    """Return whether a text repeats, word for word, one or more sentences in the content that are not questions."""
    own, told = _sentences(text).strip(" .?:"), _sentences(content)
    return any(f"{start} {own} ." in told for start in ".?:")


@lru_cache(maxsize=256)
def _sentences(text: str) -> str:
    """Return the words of a text, with ``.`` or ``?`` after each sentence and ``:`` where a sentence may start."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    signs = [
        "." if one in _ENDS else "?" if one in _MARKS else ":" if one in {":", "\n"} else one
        for one in re.findall(r"\w+|[^\w ]", plain)
    ]
    return " ".join((":", *(one for one in signs if one[0].isalnum() or one in ".?:")))
