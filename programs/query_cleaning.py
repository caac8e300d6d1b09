"""Clean the queries in an LM's answer: one line per query, no duplicates, and no more than a given number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import dspy

from querywright.models.response_parsing import apostrophes, ended

LONGEST_QUERY = 120
"""Maximum number of characters per query if a grammar constrains the LM's output."""

_NOUN = (
    r"(?:(?:search|web|sub|simpler|step[\s-]?back|rephrased|reworded|rewritten|alternative|follow[\s-]?up|new|final|"
    r"original)[\s-]*)*(?:quer(?:y|ies)|questions?|search terms?|such(?:an)?fragen?|(?:teil|unter)?fragen?|anfragen?|"
    r"requ\u00eates?|consultas?|preguntas?|perguntas?|domand[ae]|\u0437\u0430\u043f\u0440\u043e\u0441\w*|"
    r"\u0432\u043e\u043f\u0440\u043e\u0441\w*|\u67e5\u8be2|\u95ee\u9898|\u8cea\u554f|\u30af\u30a8\u30ea)"
)
_OFFER = (
    r"(?:(?:sure|certainly|of course|absolutely|okay|ok|gerne|nat\u00fcrlich|bien s\u00fbr|claro|certo)\b[!,.:]*\s*)?"
    r"(?:here|below|hier|voici|aqu[i\u00ed]|ecco|\u0432\u043e\u0442)"
)
_MARK = re.compile(
    r"^(?:[*\u2022\u00b7\u25e6\u25aa\u2023\u25cf]\s+|[\u2460-\u2473]\s*|[->\u2013\u2014]\s+(?=[^\W\d]|[\"'(\[`\u201c\u00ab])|#{2,6}\s+"
    r"|\(\d{1,2}\)(?!\d)\s+|\d{1,2}(?:[)\uff09\u3001](?!\d)|\\[.)])\s*|\[\d{1,2}\]:?\s+"
    r"|(?:q\s?)?\d{1,2}\.\s+(?=[\"'\u201c]?(?:the|an|what|which|who|whom|whose|when|where|why|how|is|are|was|were|"
    r"does|did|wie|wer|wann|warum|welche[mnrs]?|quel(?:le)?s?|comment|pourquoi|qu\u00e9|cu\u00e1l|c\u00f3mo|qui\u00e9n)\b)"
    rf"|{_NOUN}(?:\s*#?\s*\d{{1,2}}\s*[:.)\uff1a]|\s*[:\uff1a]|\s+\d{{1,2}}\s+[-\u2013])\s*"
    rf"|{_OFFER}\b[^:?]{{0,80}}\b{_NOUN}\b[^:?]{{0,40}}[:\uff1a]\s*)+",
    re.IGNORECASE,
)
"""Prefixes that are never part of a query: bullets, bracketed or escaped numbers, numbers before an article or a
question word, and labels such as "Query 1:"."""
_SIGN = re.compile(r"^[->\u2013\u2014]\s+")
_NUMBER = re.compile(
    r"^(?:[-\u2013\u2014]\s+)?(?:q\s?)?(\d{1,2})(?:\s*[.:\uff0e\uff1a](?!\d)\s*|\s+[-\u2013]\s+)", re.IGNORECASE
)
"""Numbers and signs that may belong to a query, such as ordinals. They are removed only if the queries form a list."""
_LEAD_IN = re.compile(
    rf"(?:{_OFFER}\b.*[:\uff1a]|{_OFFER}\b.*\b{_NOUN}[.!]?|(?:sure|certainly|of course|absolutely|okay)[!,]"
    rf"|(?=.*\b{_NOUN}\b).*\b(?:following|these|folgenden?|suivantes?|siguientes|seguenti)\b.*[:\uff1a]"
    rf"|\u4ee5\u4e0b.*[:\uff1a]|#{{0,6}}\s*{_NOUN})$",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"\W*(?:(?:please )?let me know (?:if|whether|how|which|what|should)\b|(?:i )?hope (?:this|these|that|it) helps?\b"
    r"|feel free to (?:ask|adjust|change|combine|modify|refine|use)\b|would you like me to\b"
    r"|if you (?:need|want|would like|have) (?:any|further|me|more|other|another)\b"
    r"|th(?:is|ese) (?:[\w-]+ )?(?:quer(?:y|ies)|questions?|searches) "
    r"(?:aims?|are|asks?|can|covers?|focus\w*|helps?|is|should|targets?|will)\b"
    r"|lass(?:t|en sie)? (?:mich|es mich) wissen|sag(?:en sie)? (?:mir )?bescheid|ich hoffe,? (?:das|dass|dies)\b"
    r"|n'h\u00e9sitez pas|j'esp\u00e8re que|espero que|av\u00edsame si|hazme saber)",
    re.IGNORECASE,
)
_TAG = re.compile(rf"</?{_NOUN}\d*>", re.IGNORECASE)
_FRAME = re.compile(r"(?:```|~~~)\w*$|(?:---|\*\*\*|___)[-*_]*$")
_BOLD = re.compile(r"(?<!\w)\*\*(?=\S)(.+?)(?<=\S)\*\*(?!\w)")
_ITALIC = re.compile(r"([*_])(?=[^\s*_])([^*_]*)(?<=[^\s*_])\1$")
_QUOTES = "\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb\u300c\u300d"
_OPENING = '"\u201c\u00ab\u300c\u300e'
_NOTHING = frozenset({"", "none", "null", "n/a", "no query", "-"})


def plain_line(value: Any) -> str:
    """Return a field's value on one line, without surrounding quotation marks; numbers and signs are kept.

    Args:
        value: The value of a field in an LM's answer. If it means "no value" (such as ``none``), the result is empty.
    """
    text = " ".join(str(value if value is not None else "").split())
    inside = text[1:-1].strip()
    quoted = len(text) > 1 and text[0] in _QUOTES and text[-1] in _QUOTES
    text = inside if quoted and not any(quote in inside for quote in _OPENING) else text
    return "" if text.casefold().rstrip(".") in _NOTHING else text


def one_line(value: Any) -> str:
    """Return a query or a sentence on one line, without Markdown, lead-ins, or closing remarks."""
    return plain_line(" ".join(_cleaned(str("" if value is None else value).splitlines())))


def listed(written: Any) -> list[str]:
    """Return the queries in an LM's answer, each on one line.

    Lead-ins, headings, closing remarks, and Markdown are removed. A number or a sign at the beginning of a query is
    removed only if the numbers count up from 1 or all queries are in a single string; the "2." of an ordinal stays in
    the query.

    Args:
        written: The value of a field in an LM's answer: a list of strings, or one string with queries separated by line
            breaks or semicolons.
    """
    if isinstance(written, str):
        return _cleaned(re.split(r"[\n;]", written), in_one_text=True)
    return _cleaned([line for item in written or () for line in _lines_of(item)])


def _lines_of(item: Any) -> list[str]:
    """Return the lines of an item if every line has a list marker; otherwise, return the item on one line."""
    lines = [line for line in str("" if item is None else item).splitlines() if line.strip()]
    is_list = len(lines) > 1 and all(map(_is_marked, map(str.strip, lines)))
    return lines if is_list else [" ".join(lines)]


def _is_marked(line: str) -> bool:
    return any(mark.match(line) for mark in (_MARK, _SIGN, _NUMBER))


def _cleaned(lines: Iterable[str], *, in_one_text: bool = False) -> list[str]:
    texts = [_without_emphasis(plain_line(_TAG.sub("", line))) for line in lines if not _FRAME.match(line.strip())]
    texts = [text for text in texts if text and not _LEAD_IN.match(text)]
    texts = [text for text in texts if len(texts) == 1 or not _CLOSING.match(text)]
    headings = [text for text in texts if text.endswith((":", "\uff1a")) and not _is_marked(text)]
    if in_one_text or all(_is_marked(text) for text in texts if text not in headings):
        texts = [text for text in texts if text not in headings] or texts
    if in_one_text and len(texts) > 1 and all(map(_SIGN.match, texts)):
        texts = [_SIGN.sub("", text) for text in texts]
    numbers = [int(found[1]) for found in map(_NUMBER.match, texts) if found]
    if len(texts) == len(numbers) > 1 and (in_one_text or numbers == list(range(1, len(texts) + 1))):
        texts = [_NUMBER.sub("", text) for text in texts]
    bare = (plain_line(_MARK.sub("", _without_emphasis(text))) for text in texts)
    return [text for text in bare if text and not _NUMBER.fullmatch(text)]


def _without_emphasis(text: str) -> str:
    return _ITALIC.sub(r"\2", _BOLD.sub(r"\1", text))


def written_in(made: dspy.Prediction | None, field: str) -> str:
    """Return ``plain_line`` of a field in an LM's answer; empty if the answer could not be read."""
    return "" if made is None else plain_line(made.get(field))


def query_in(made: dspy.Prediction | None, field: str) -> str:
    """Return ``one_line`` of a field in an LM's answer; empty if the answer could not be read."""
    return "" if made is None else one_line(made.get(field))


def query_texts(written: Any, limit: int, *, besides: Iterable[str] = ()) -> list[str]:
    """Return the distinct queries in an LM's answer, in order.

    Args:
        written: See ``listed``.
        limit: Maximum number of queries, 0 or more.
        besides: Other texts to search with. A query that repeats one of them, in full or truncated to
            ``LONGEST_QUERY``, is dropped.
    """
    seen = {folded(one) for text in besides for one in (text, _cut_off(text))}
    kept: list[str] = []
    for text in listed(written):
        if len(kept) >= limit:
            break
        if folded(text) not in seen:
            seen.add(folded(text))
            kept.append(text)
    return kept


def _cut_off(text: str) -> str:
    """Return a text as an LM would copy it under a grammar that limits the length of a query."""
    return ended(" ".join(text.split())[:LONGEST_QUERY], LONGEST_QUERY)


def folded(text: str) -> str:
    """Normalize a text for comparison: case, spacing, quotation mark styles, and final punctuation do not count."""
    return " ".join(apostrophes(text).split()).casefold().rstrip(".?!\u3002\uff1f\uff01 ")
