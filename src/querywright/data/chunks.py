"""Split a document into chunks: by section first, then between blocks, and inside a block only if necessary.

A section that fits, including its subsections, becomes one chunk. A larger section is split into its own text and its
subsections. Edits in one section therefore leave the chunks in other sections unchanged. A block is a paragraph, a list
item, a table, a fenced code block, or a reStructuredText directive with its indented content.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

_WIDE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_LETTERS = rf"[^\W\d_{_WIDE}]"
_UNIT = re.compile(
    rf"([{_WIDE}]|(?<!\S)[(\"'\u201c]?{_LETTERS}{{1,20}}(?:[-'\u2019/]{_LETTERS}{{1,20}})?[.,;:!?)\"'\u201d]*(?!\S))"
    rf"|{_LETTERS}{{1,5}}|\d|[^\w\s]|_"
)
"""Matches a word of prose, or a piece of code: about one token for the embedder."""
PIECES_PER_WORD = 1.2
"""Number of code pieces that count as a word.

Prose has about 1.3 tokens per word, so a chunk of code has no more tokens than a chunk of prose.
"""
_SIMPLE = r"=+(?:[ \t]+=+)+"
_BORDER = re.compile(rf"^[ \t]*(?:\+(?:[-=]+\+)+|{_SIMPLE})[ \t]*$", re.MULTILINE)
"""Matches a border of a reStructuredText table. It counts as one word, because it has no content."""
_FENCE = re.compile(r"\s*(```+|~~~+)")
_TARGET = r"\.\. _[^\n]+:(?:[ \t][^\n]*)?|\[[^\]\n^][^\]\n]*\]:[ \t]*<?(?:\w+:|[/.#])\S*(?:[ \t][^\n]*)?"
_TARGETS = re.compile(rf"(?:[ \t]*(?:{_TARGET})?(?:\n|\Z))+")
"""Matches a text that contains only link targets, which are not text for a reader."""
_RULES = re.compile(r"[\s\-=*_|`~:+]*")
"""Matches a text that contains only rules, table borders, and code fences."""
_DIRECTIVE = re.compile(r"(?:\A|\n)[ \t]*\.\. [\w:-]+::[^\n]{0,99}(?:\n[ \t]+:[^\n]*)*\s*\Z")
"""Matches a reStructuredText directive without its content, but with its options, at the end of a text."""
_ITEM = re.compile(r"[ \t]*(?:[-*+\u2022]|\d{1,3}[.)]|#\.)[ \t]+\S")
"""Matches the beginning of a list item."""
DEEPEST = 40
"""Indentation, in columns, from which indented text counts as equally deep."""

Splitter = Callable[[str], Sequence[tuple[int, str]]]
"""Splits a text that is too large, and returns the pieces with their positions."""


class Heading(NamedTuple):
    """A heading in a document.

    Args:
        start: Position of its first character in the document's text.
        end: Position after the heading's line or lines.
        level: Heading level; 1 is the highest.
        text: The heading without markup.
    """

    start: int
    end: int
    level: int
    text: str


class Chunk(NamedTuple):
    """A chunk of a document's text.

    Args:
        start: Position of its first character in the document's text.
        text: The text, unchanged except that blank lines around it are removed.
        path: The headings above the text, highest level first.
    """

    start: int
    text: str
    path: tuple[str, ...]


def count_words(text: str) -> int:
    """Return a text's size in words.

    A word is a run of at most 20 letters, or one Chinese or Japanese character. Text with symbols or digits, such as
    code, counts as more words: about as many as prose with the same number of tokens.
    """
    units = _UNIT.findall(_BORDER.sub("border", text))
    words = sum(map(bool, units))
    return words + math.ceil((len(units) - words) / PIECES_PER_WORD)


def split_text(
    text: str, title: str, headings: Sequence[Heading], size: int, splitter: Splitter, fences: bool = True
) -> Iterator[Chunk]:
    """Yield a document's chunks, except chunks that would contain only headings, rules, or link targets.

    Args:
        text: The document's text.
        title: First part of the path if the document has no level-1 heading.
        headings: The document's headings, in order.
        size: Maximum number of words per chunk.
        splitter: Splits a block that is larger than ``size``.
        fences: Whether lines of backticks or tildes mark code blocks. Default True.
    """
    top = min((heading.level for heading in headings), default=1)
    path = () if headings and top == 1 else (title,)
    yield from _section(_Document(text, title, headings, size, splitter, fences), 0, len(text), path, 0)


class _Document(NamedTuple):
    text: str
    title: str
    headings: Sequence[Heading]
    size: int
    splitter: Splitter
    fences: bool


class _Break(NamedTuple):
    """A position where a block can be split: the beginning of a line after a blank line, or of a list item.

    Args:
        place: The position.
        depth: Twice the line's indentation, plus 1 for a list item without a blank line before it, because a list is
            split there only if it is too large.
    """

    place: int
    depth: int


def _section(document: _Document, start: int, end: int, path: tuple[str, ...], level: int) -> Iterator[Chunk]:
    """Yield the chunks in the section between two positions; ``level`` is the section heading's level."""
    inside = [one for one in document.headings if start <= one.start < end and one.level > level]
    children: list[Heading] = []
    for heading in inside:
        if not children or heading.level <= children[-1].level:
            children.append(heading)
    *starts, last = [*(child.start for child in children), end]
    own_end = starts[0] if starts else last
    if len(children) == 1 and not document.text[start:own_end].strip():
        pass  # the only subsection is the whole section, so its heading joins the path
    elif _fits(document, start, end):
        yield from _chunk(document, start, end, path)
        return
    else:
        yield from _pack(document, start, own_end, path)
    for child, child_end in zip(children, [*starts[1:], last], strict=False):
        yield from _section(document, child.start, child_end, (*path, child.text), child.level)


def _pack(document: _Document, start: int, end: int, path: tuple[str, ...]) -> Iterator[Chunk]:
    """Yield the chunks of a text without subsections, each with as many whole blocks as fit."""
    first, size = start, 0
    for begin, stop in _blocks(document, start, end):
        words = count_words(document.text[begin:stop])
        if size + words > document.size and document.text[_after_headings(document, first, begin) : begin].strip():
            yield from _chunk(document, first, begin, path)
            first, size = begin, 0
        size += words
        if size > document.size:
            directive = None  # the position of a directive that waits for its content
            for place, piece in document.splitter(document.text[first:stop]):
                begin, piece_end = place if directive is None else directive, place + len(piece)
                if _DIRECTIVE.fullmatch(document.text[first + begin : first + piece_end].lstrip()):
                    directive = begin
                else:
                    yield from _chunk(document, first + begin, first + piece_end, path)
                    directive = None
            if directive is not None:
                yield from _chunk(document, first + directive, stop, path)
            first, size = stop, 0
    yield from _chunk(document, first, end, path)


def _chunk(document: _Document, start: int, end: int, path: tuple[str, ...]) -> Iterator[Chunk]:
    """Yield the chunk between two positions, unless it contains only headings, rules, or link targets."""
    text = document.text[start:end].rstrip()
    blank = re.match(r"(?:[^\S\n]*\n)*", text)
    first = blank.end() if blank else 0
    below = document.text[_after_headings(document, start, end) : end]
    if not _RULES.fullmatch(below) and not _TARGETS.fullmatch(text, first):
        yield Chunk(start + first, text[first:], path or (document.title,))


def _after_headings(document: _Document, start: int, end: int) -> int:
    """Return the position after the headings at the beginning of the text between two positions."""
    place = start
    for heading in document.headings:
        if start <= heading.start < end and not document.text[place : heading.start].strip():
            place = max(place, heading.end)
    return place


def _blocks(document: _Document, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield each block's start and end position, without gaps between blocks.

    A blank line (see ``_breaks``) ends a block unless an indented line follows. A block that is too large is split into
    its first lines and the indented text below them, and between list items, so a code block, a list item, or a
    paragraph of a list item stays whole if it fits.
    """
    return _level(document, [*_breaks(document, start, end)], start, end, 0)


def _level(
    document: _Document, breaks: Sequence[_Break], start: int, end: int, depth: int
) -> Iterator[tuple[int, int]]:
    """Yield the blocks at a depth. A block that is too large is yielded in parts.

    A directive's first line stays with the first part of its content.
    """
    for begin, stop, inside in _cut(breaks, start, end, depth):
        if not inside or _fits(document, begin, stop):
            yield begin, stop
            continue
        first, deeper = inside[0]
        if _DIRECTIVE.search(document.text[begin:first]):
            first = begin
        else:
            yield begin, first
        for below, last, within in _cut(inside[1:], inside[0].place, stop, deeper - 1):
            fits = _fits(document, below, last)
            for _, part_end in [(below, last)] if fits else _level(document, within, below, last, deeper):
                yield first, part_end
                first = part_end


def _fits(document: _Document, start: int, end: int) -> bool:
    return count_words(document.text[start:end]) <= document.size


def _cut(breaks: Sequence[_Break], start: int, end: int, depth: int) -> Iterator[tuple[int, int, Sequence[_Break]]]:
    """Yield the start and end of each range between breaks with at most the given depth, and its other breaks."""
    inside: list[_Break] = []
    for one in breaks:
        if one.depth <= depth:
            yield start, one.place, inside
            start, inside = one.place, []
        else:
            inside.append(one)
    yield start, end, inside


def _breaks(document: _Document, start: int, end: int) -> Iterator[_Break]:
    """Yield each line after a blank line, and each list item, except in fenced code and simple RST tables."""
    place = start
    fence, is_blank, in_table, is_border = "", False, False, False
    for line in document.text[start:end].splitlines(keepends=True):
        if not fence and not in_table and place > start and (line.strip() if is_blank else _ITEM.match(line)):
            indent = len(line.expandtabs()) - len(line.expandtabs().lstrip())
            yield _Break(place, 2 * min(indent, DEEPEST) + (not is_blank))
        if document.fences and (mark := _FENCE.match(line)):
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        is_blank = not line.strip()
        in_table = in_table and not (is_blank and is_border)  # a simple table ends with a border and a blank line
        is_border = re.fullmatch(_SIMPLE, line.strip()) is not None
        in_table = in_table or is_border
        place += len(line)
