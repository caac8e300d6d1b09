"""Documents as passages: folders and files of Markdown, text, HTML and PDF, read and split by libraries.

Needs the extra ``documents``. A passage has its headings as the title, and in its metadata ``file``, ``start`` and
``end`` (characters of the document's text: a file of Markdown or text as it is, HTML as the Markdown made of it, PDF as
the text of its pages), in a PDF ``page`` (the one it begins on, from 1), and ``version`` (of the file and of how it was
read) where nothing of the file was lost. Its id is ``FILE#START``. A file's name begins with that of the folder it was
looked for in, so that it is the same from everywhere.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from querywright.data.sources import SAMPLES, holds_files
from querywright.data.tables import format_of
from querywright.data.types import Passage
from querywright.errors import DataError, InputError

CHUNK_SIZE, CHUNK_OVERLAP = 150, 20
"""Words: some 200 tokens of English, and the embedded embedder reads 256."""
OF_DOCUMENTS = frozenset({"file", "start", "end"})
"""Keys of the metadata of a passage that is of a document."""
LIBRARIES = ("pypdf", "beautifulsoup4", "markdownify", "semantic-text-splitter")
UNWANTED = "script, style, nav, footer, noscript, template, svg, button, .headerlink, [role=navigation]"
"""Of a web page."""
_WIDE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_WIDE}]|[^\s{_WIDE}]{{1,20}}")
_TITLE = re.compile(r"\s*(\S[^\r\n]{0,78}[^\s.,;:])[ \t]*\r?\n(?:[-=~*_]{3,})?[ \t]*\r?\n")
"""A first line of plain text that stands alone, or is underlined."""
_FRONT = re.compile(r"---\r?\n.*?\n---\r?\n", re.DOTALL)
_WRAPPED = re.compile(r"(?<=[^\W\d_])-\n(?=[a-z])|(?<![.:;!?\n])(\n)(?=[a-z(])")

_logger = logging.getLogger(__name__)

Reading = Callable[[str, int, int], object]
"""Told what is read, how many files are, and how many there are."""


class Documents(NamedTuple):
    """Passages in order, of how many files, how many of these were known, and what was lost: a reason a line."""

    passages: list[Passage]
    files: int
    unchanged: int
    lost: tuple[str, ...]


class _Heading(NamedTuple):
    start: int
    end: int
    level: int
    text: str


class _Text(NamedTuple):
    """The text of a file, its title, its headings, where its pages begin, and what of it is lost."""

    text: str
    title: str = ""
    headings: tuple[_Heading, ...] = ()
    pages: tuple[int, ...] = ()
    lost: str = ""


class _UnreadableError(Exception):
    """Why a file cannot be read, and what helps."""


def names_documents(source: Any) -> bool:
    """Whether a source is documents: a file or folder of them, or a list of these.

    A folder that has passages or a dataset (Parquet, Arrow, or rows beside a README alone) is none.
    """
    if isinstance(source, list | tuple):
        return bool(source) and all(isinstance(one, str | os.PathLike) for one in source)
    if not isinstance(source, str | os.PathLike) or source in SAMPLES:
        return False
    path = Path(source).expanduser()
    if not path.is_dir():
        return path.suffix.lower() in READERS
    if holds_files(path, "passages"):
        return False
    below = list(_below(path))
    rows = [one for one in below if format_of(one.name)[0] or one.suffix == ".arrow"]
    told = [one for one in below if one.suffix.lower() in READERS and one.stem != "README"]
    return not rows or (bool(told) and not any(one.suffix in (".parquet", ".arrow") for one in rows))


def read_documents(
    source: Any,
    *,
    chunk_size: int = CHUNK_SIZE,
    chunk_overlap: int = CHUNK_OVERLAP,
    known: Iterable[Passage] = (),
    progress: Reading | None = None,
) -> Documents:
    """Read documents and split them into passages, at headings, paragraphs and sentences where it can be.

    A file that cannot be read does not end it; what was lost is logged as warnings, too.

    Args:
        source: A file, a folder (with those in it), or a list of these.
        chunk_size: Words of a passage at most, 1 or more. A word is a run of at most 20 signs without a space, or one
            sign of Chinese or Japanese. Default 150.
        chunk_overlap: Words at most that a passage repeats of the one before, less than ``chunk_size``. Default 20.
        known: Passages that were read before: files that have not changed since are taken from them. Default none.
        progress: Called before each file. Default None.

    Raises:
        InputError: The extra is not installed, or a size is out of range.
        DataError: There is no such file, or nothing could be read.
    """
    if chunk_size < 1 or not 0 <= chunk_overlap < chunk_size:
        raise InputError(
            f"chunk_size must be 1 or more and chunk_overlap from 0 to less than it, but got {chunk_size} and "
            f"{chunk_overlap} words"
        )
    try:
        from semantic_text_splitter import MarkdownSplitter, TextSplitter

        libraries = [f"{name} {version(name)}" for name in LIBRARIES]
    except ImportError as error:
        raise InputError("documents need the extra documents: pip install 'querywright[documents]'") from error
    sizes = (lambda text: len(_WORD.findall(text))), chunk_size, chunk_overlap
    plain, marked = TextSplitter.from_callback(*sizes), MarkdownSplitter.from_callback(*sizes)
    for library in ("pypdf", "bs4"):  # what they say names no file
        logging.getLogger(library).setLevel(logging.CRITICAL)
    before: defaultdict[object, list[Passage]] = defaultdict(list)
    for passage in known:
        before[passage.metadata.get("version")].append(passage)
    files = _files(source)
    skipped = Counter(path.suffix.lower() or path.name for path in files.values())
    skipped -= Counter({suffix: skipped[suffix] for suffix in READERS})
    wanted = {name: path for name, path in files.items() if path.suffix.lower() in READERS}
    passages: list[Passage] = []
    lost: defaultdict[str, list[str]] = defaultdict(list)
    unchanged = read = 0
    for number, (name, path) in enumerate(wanted.items()):
        if progress is not None:
            progress("reading", number, len(wanted))
        suffix = path.suffix.lower()
        try:
            data = path.read_bytes()
            stamp = hashlib.sha256(repr([name, chunk_size, chunk_overlap, libraries]).encode() + data).hexdigest()[:16]
            if stamp in before:
                passages += before[stamp]
                unchanged, read = unchanged + 1, read + 1
                continue
            found = READERS[suffix](data)
            if not found.text.strip():
                raise _UnreadableError("not read: empty")
            split = (plain if suffix in PLAIN else marked).chunk_indices(found.text)
            passages += list(_passages(name, found, split, {} if found.lost else {"version": stamp}))
            read += 1
            if found.lost:
                lost[found.lost].append(name)
        except _UnreadableError as error:
            lost[str(error)].append(name)
        except Exception as error:  # noqa: BLE001 - libraries raise anything at a damaged file, which must not end it
            lost[f"not read: damaged ({type(error).__name__}: {' '.join(str(error).split())[:80]})"].append(name)
    if progress is not None and wanted:
        progress("reading", len(wanted), len(wanted))
    lines = [f"{why}: {', '.join(names)}" for why, names in sorted(lost.items())]
    if skipped:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in skipped.most_common())
        lines.append(f"skipped, since only {', '.join(READERS)} are read: {counts}")
    if not passages:
        raise DataError([f"no text could be read from {len(files)} files", *lines])
    for line in lines:
        _logger.warning("%s", line)
    return Documents(passages, read, unchanged, tuple(lines))


def _below(folder: Path) -> Iterator[Path]:
    """The files in a folder and in those in it, without hidden ones."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        yield from (Path(place, name) for name in sorted(names) if not name.startswith("."))


def _files(source: Any) -> dict[str, Path]:
    """The files of a source by their names."""
    found: dict[str, Path] = {}
    for one in source if isinstance(source, list | tuple) else [source]:
        path = Path(one).expanduser()
        if not path.exists():
            raise DataError(f"{one}: no such file or folder")
        root, paths = (path, _below(path)) if path.is_dir() else (path.parent, iter([path]))
        for file in paths:
            name = (Path(root.resolve().name) / file.relative_to(root)).as_posix()
            if not found.setdefault(name, file).samefile(file):
                raise DataError(f"{found[name]} and {file} would both be called {name}; rename one of their folders")
    if not found:
        raise DataError(f"{source}: holds no file; give a file or a folder of {', '.join(READERS)}")
    return found


def _passages(name: str, found: _Text, split: Iterable[tuple[int, str]], stamp: dict[str, str]) -> Iterator[Passage]:
    """The passages of a document, without those that are headings alone."""
    title = found.title or Path(name).stem
    paths: list[tuple[int, tuple[str, ...]]] = [(0, (title,))]
    open_: list[_Heading] = []
    for heading in found.headings:
        open_ = [one for one in open_ if one.level < heading.level] + [heading]
        root = () if open_[0].level == 1 else (title,)
        paths.append((heading.start, (*root, *(one.text for one in open_))))
    end = 0
    for start, text in split:
        begin, end = max(start, end), start + len(text)  # what it repeats has the title of the one before
        for heading in found.headings:
            if begin <= heading.start < end and not found.text[begin : heading.start].strip():
                begin = heading.end
        if not found.text[begin:end].strip():
            continue
        at = [path for place, path in paths if place <= begin][-1:]
        inside = [path for place, path in paths if begin < place < end]
        shared = os.path.commonprefix(at + inside)  # noqa: RUF071 - of tuples
        page = {"page": sum(place <= start for place in found.pages)} if found.pages else {}
        yield Passage(
            f"{name}#{start}", text, " > ".join(shared) or title,
            {"file": name, "start": start, "end": end, **page, **stamp},
        )  # fmt: skip


def _decoded(data: bytes, *, is_html: bool = False) -> tuple[str, str]:
    """A file's text, and what must be said of it."""
    lost = ""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        from bs4 import UnicodeDammit

        guess = UnicodeDammit(data, is_html=is_html)
        text = guess.unicode_markup or "\0"
        if not (guess.declared_html_encoding or text.isascii()):
            lost = f"not UTF-8, and read as {guess.original_encoding} by a guess"
    if "\0" in text:
        raise _UnreadableError("not read: no text in a known encoding; save it as UTF-8")
    return text, lost


def _plain(data: bytes) -> _Text:
    text, lost = _decoded(data)
    told = _TITLE.match(text)
    return _Text(text, told[1] if told else "", lost=lost)


def _markdown(data: bytes) -> _Text:
    text, lost = _decoded(data)
    front = _FRONT.match(text)
    told = re.search(r"^title: *[\"']?(.+?)[\"']?\r?$", front[0], re.MULTILINE) if front else None
    if front:
        text = "\n" * front.end() + text[front.end() :]
    return _Text(text, told[1] if told else "", tuple(_headings(text)), lost=lost)


def _html(data: bytes) -> _Text:
    from bs4 import BeautifulSoup
    from markdownify import ATX, MarkdownConverter

    markup, lost = _decoded(data, is_html=True)
    soup = BeautifulSoup(markup, "html.parser")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    for tag in soup.select(UNWANTED):
        tag.decompose()
    converter = MarkdownConverter(
        heading_style=ATX, strip=["a", "img", "title"], escape_underscores=False, escape_asterisks=False
    )
    text = converter.convert_soup(soup.find("main") or soup.find(role="main") or soup.body or soup).strip()
    return _Text(text, title, tuple(_headings(text)), lost=lost)


def _headings(text: str) -> Iterator[_Heading]:
    """The headings of Markdown."""
    from markdown_it import MarkdownIt

    lines = [0, *(end.end() for end in re.finditer(r"\r\n?|\n", text)), len(text)]
    for token, inline in pairwise(MarkdownIt().parse(text)):
        if token.type == "heading_open" and token.map and inline.content.strip():
            yield _Heading(lines[token.map[0]], lines[token.map[1]], int(token.tag[1]), inline.content.strip())


def _pdf(data: bytes) -> _Text:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    said: list[str] = []
    try:
        reader = PdfReader(io.BytesIO(data))
        for page in reader.pages:
            said.append("")
            with suppress(Exception):  # the rest of the pages may be sound
                said[-1] = _WRAPPED.sub(lambda cut: " " if cut[1] else "", _clean(page.extract_text())).strip()
    except (FileNotDecryptedError, DependencyError):
        raise _UnreadableError("not read: encrypted; save it without a password (qpdf --decrypt)") from None
    empty = sum(not text for text in said)
    if empty == len(said):
        raise _UnreadableError("not read: no text in it, such as a scan; add text by OCR (ocrmypdf)")
    pages = [0]
    for text in said:
        pages.append(pages[-1] + len(text) + 2)
    headings: list[_Heading] = []
    with suppress(Exception):  # an outline that is damaged is none
        for number, level, text in _outline(reader, reader.outline):
            place = pages[number] + max(0, said[number].find(text))
            headings.append(_Heading(place, place, level, text))
    title = ""
    with suppress(Exception):
        title = _clean(str(dict(reader.metadata or ())["/Title"])).strip()
    lost = f"{empty} of {len(said)} pages without text, such as scans" if empty else ""
    return _Text("\n\n".join(said), title, tuple(sorted(headings)), tuple(pages[:-1]), lost)


def _outline(reader: Any, entries: Iterable[Any], level: int = 2) -> Iterator[tuple[int, int, str]]:
    """Page from 0, level and text of the entries of a PDF's outline; below the document's own title."""
    for entry in entries:
        if isinstance(entry, list):
            yield from _outline(reader, entry, level + 1)
        elif (number := reader.get_destination_page_number(entry)) is not None and number >= 0 and entry.title:
            yield number, level, " ".join(_clean(entry.title).split())


def _clean(text: str) -> str:
    """Text of a PDF without what no passage may hold."""
    return text.replace("\0", " ").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


READERS: dict[str, Callable[[bytes], _Text]] = {
    **dict.fromkeys((".md", ".markdown", ".rst"), _markdown),
    **dict.fromkeys((".txt", ".text"), _plain),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _html),
    ".pdf": _pdf,
}
"""The formats that are read, by suffix."""
PLAIN = (".txt", ".text", ".pdf")
"""Those that have no marks of Markdown."""
