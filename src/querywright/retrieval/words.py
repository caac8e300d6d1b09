"""Split texts into words for BM25.

Words are runs of letters, digits, and marks, case-folded and in one Unicode form. Text in scripts without spaces
between words (Chinese, Japanese, and scripts of Southeast Asia) is split into pairs of adjacent characters. So is
Korean, because endings are attached to its words.
"""

from __future__ import annotations

import re
from functools import cache

from querywright.answer_text import fold, marks, unicode_form

TOKENISER = "words-2"
"""Version of the rules in this module. Increase it whenever the rules change, so that old indexes are rebuilt."""

# Kana with the long vowel mark, CJK ideographs with iteration marks, Hangul, Thai, Lao, Myanmar, Khmer.
_SPACELESS = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
    "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3"
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1050-\u108f\u1780-\u17d3"
)


def terms(text: str) -> list[str]:
    """Return a passage's words in order, including repetitions.

    A run in a script without spaces yields each pair of adjacent characters and each character, so that one-character
    queries can find the passage.
    """
    return _terms(text, singles=True)


def query_terms(text: str) -> list[str]:
    """Return a query's words, like ``terms``, but without the single characters from longer runs."""
    return _terms(text, singles=False)


def _terms(text: str, *, singles: bool) -> list[str]:
    word, part = _patterns()
    if text.isascii():
        return re.findall("[a-z0-9]+", text.lower())
    found: list[str] = []
    for run in word.findall(fold(unicode_form(text)).replace("_", " ")):
        if run.isascii():
            found.append(run)
            continue
        for piece, spaceless in ((match.group(), match.group(1)) for match in part.finditer(run)):
            if not spaceless:
                found.append(piece)
                continue
            found.extend(piece[place : place + 2] for place in range(len(piece) - 1))
            if singles or len(piece) == 1:
                found.extend(piece)
    return found


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the pattern for a word, and a pattern for the runs in it, whose group 1 matches scripts without spaces."""
    return re.compile(rf"\w[\w{marks()}]*"), re.compile(f"([{_SPACELESS}]+)|[^{_SPACELESS}]+")
