"""Read documents as passages: Markdown, reStructuredText, text, HTML, PDF, and Word files, notebooks, and folders.

Requires the ``documents`` extra. A passage's title is the path of headings above it. Its metadata contains ``file``
and, for a PDF, ``page`` (the page on which the passage starts, counted from 1). The file name starts with the name of
the folder that was read, and does not depend on the working directory.

A passage's id is ``FILE#HEADING-DIGEST``: the file, the last heading, and the start of the text's SHA-256. Edits
elsewhere in the file do not change the id. If the same text is repeated under the same heading, the copies are
numbered.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from querywright.data.chunks import Chunk, Heading, count_words, split_text
from querywright.data.sources import holds_files, packaged_set
from querywright.data.tables import format_of
from querywright.data.types import Passage
from querywright.errors import DataError, InputError

CHUNK_SIZE, CHUNK_OVERLAP = 150, 20
"""Defaults, in words. 150 words of English are about 200 tokens, and the embedded embedder reads at most 256 tokens."""
UNWANTED = "script, style, nav, footer, noscript, template, svg, button, .headerlink, [role=navigation]"
"""Elements to remove from web pages."""
LONGEST_SLUG = 40
"""Maximum number of characters of the heading in an id."""
_TITLE = re.compile(r"\s*(\S[^\r\n]{0,78}[^\s.,;:])[ \t]*\r?\n(?:[-=~*_]{3,})?[ \t]*\r?\n")
"""Matches the first line of plain text if it is underlined or followed by a blank line."""
_FRONT = re.compile(r"---\r?\n.*?\n---\r?\n", re.DOTALL)
_WRAPPED = re.compile(r"(?<=[^\W\d_])-\n(?=[a-z])|(?<![.:;!?\n])(\n)(?=[a-z(])")
_ADORNMENT = re.compile(r"([^\w\s])\1+")
_ROLE = re.compile(r"(?::[\w:.+-]+:)?`+~?([^`<]*[^`<\s])(?: ?<[^`>]*>)?`+_{0,2}")
_RST = re.compile(r"^\.\. (?:[\w:-]+::|_[^:\n]+:)|:[\w:.+-]+:`[^`\n]+`|``[^`\n]+``|\S::[ \t]*$", re.MULTILINE)
"""Matches markup that occurs in reStructuredText but not in plain text."""

_logger = logging.getLogger(__name__)

Reading = Callable[[str, int, int], object]
"""Function called with the kind of work, the number of files read so far, and the total number of files."""


class DocumentFile(NamedTuple):
    """A file that was read.

    Args:
        name: The file's name in its passages' ids.
        format: The file's format, such as ``reStructuredText``.
        title: The document's title.
        passages: Number of passages in the file.
    """

    name: str
    format: str
    title: str
    passages: int


class Documents(NamedTuple):
    """Passages from documents.

    Args:
        passages: The passages, in the order of the files.
        files: The files that were read.
        lost: The parts that could not be read and the reasons, one reason per line.
    """

    passages: list[Passage]
    files: tuple[DocumentFile, ...]
    lost: tuple[str, ...]


class _Text(NamedTuple):
    """A file's text, format, title, and headings, the positions of its pages, and the parts that could not be read."""

    text: str
    format: str
    title: str = ""
    headings: tuple[Heading, ...] = ()
    pages: tuple[int, ...] = ()
    lost: str = ""


class _UnreadableError(Exception):
    """A file cannot be read; the message gives the reason and a remedy."""


def names_documents(source: Any) -> bool:
    """Return whether a source consists of documents: a document, a folder of documents, or a list of files and folders.

    A folder does not count if it contains a file of passages or a dataset: Parquet or Arrow files, or files of rows
    without any document except a README.
    """
    if isinstance(source, list | tuple):
        return bool(source) and all(isinstance(one, str | os.PathLike) for one in source)
    if not isinstance(source, str | os.PathLike) or packaged_set(source) is not None:
        return False
    path = Path(source).expanduser()
    if not path.is_dir():
        return path.suffix.lower() in READERS
    if holds_files(path, "passages"):
        return False
    below = list(_below(path))
    rows = [one for one in below if format_of(one.name)[0] or one.suffix == ".arrow"]
    readable = [one for one in below if one.suffix.lower() in READERS and one.stem != "README"]
    return not rows or (bool(readable) and not any(one.suffix in (".parquet", ".arrow") for one in rows))


def read_documents(
    source: Any,
    *,
    chunk_size: int = CHUNK_SIZE,
    chunk_overlap: int = CHUNK_OVERLAP,
    progress: Reading | None = None,
) -> Documents:
    """Read documents and split them into passages at headings and between paragraphs; see ``chunks.split_text``.

    A file that cannot be read does not stop the run. Everything that cannot be read is listed in the result and logged
    as a warning.

    Args:
        source: A file, a folder (including its subfolders), or a list of files and folders.
        chunk_size: Maximum number of words per passage, 1 or more; see ``chunks.count_words``. Default 150.
        chunk_overlap: Maximum number of words that a passage repeats from the previous one if a paragraph had to be
            split, less than ``chunk_size``. Default 20.
        progress: Called before each file. Default None.

    Raises:
        InputError: The extra is not installed, or a size is out of range.
        DataError: A file does not exist, or no file could be read.
    """
    if chunk_size < 1 or not 0 <= chunk_overlap < chunk_size:
        raise InputError(
            f"cannot split documents into passages of {chunk_size} words with an overlap of {chunk_overlap} words; "
            "chunk_size= must be 1 or more, and chunk_overlap= must be 0 or more and less than the size"
        )
    try:
        import bs4  # noqa: F401
        import markdown_it  # noqa: F401
        import markdownify  # noqa: F401
        import pypdf  # noqa: F401
        from semantic_text_splitter import TextSplitter
    except ImportError as error:
        raise InputError("documents require the 'documents' extra: pip install 'querywright[documents]'") from error
    splitter = TextSplitter.from_callback(count_words, chunk_size, chunk_overlap).chunk_indices
    for library in ("pypdf", "bs4"):  # these libraries' warnings do not name the file
        logging.getLogger(library).setLevel(logging.CRITICAL)
    files = _files(source)
    skipped = Counter(path.suffix.lower() or path.name for path in files.values())
    skipped -= Counter({suffix: skipped[suffix] for suffix in READERS})
    wanted = {name: path for name, path in files.items() if path.suffix.lower() in READERS}
    passages: list[Passage] = []
    read: list[DocumentFile] = []
    lost: defaultdict[str, list[str]] = defaultdict(list)
    for number, (name, path) in enumerate(wanted.items()):
        if progress is not None:
            progress("reading", number, len(wanted))
        try:
            found = READERS[path.suffix.lower()](path.read_bytes())
            if not found.text.strip():
                raise _UnreadableError("not read: empty")
            title = found.title or Path(name).stem
            fences = found.format not in ("reStructuredText", "PDF")
            chunks = split_text(found.text, title, found.headings, chunk_size, splitter, fences)
            made = list(_passages(name, found.pages, chunks))
            passages += made
            read.append(DocumentFile(name, found.format, title, len(made)))
            if found.lost:
                lost[found.lost].append(name)
        except _UnreadableError as error:
            lost[str(error)].append(name)
        except Exception as error:  # noqa: BLE001 - libraries raise all kinds of errors for a damaged file
            lost[f"not read: damaged ({type(error).__name__}: {' '.join(str(error).split())[:80]})"].append(name)
    if progress is not None and wanted:
        progress("reading", len(wanted), len(wanted))
    lines = [f"{why}: {', '.join(names)}" for why, names in sorted(lost.items())]
    if skipped:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in skipped.most_common())
        lines.append(f"skipped unsupported files: {counts} (supported: {', '.join(READERS)})")
    if not passages:
        raise DataError([f"found no readable text (files: {len(files)})", *lines])
    for line in lines:
        _logger.warning("%s", line)
    return Documents(passages, tuple(read), tuple(lines))


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders, except hidden files and folders."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        yield from (Path(place, name) for name in sorted(names) if not name.startswith("."))


def _files(source: Any) -> dict[str, Path]:
    """Return a source's files, keyed by name."""
    found: dict[str, Path] = {}
    for one in source if isinstance(source, list | tuple) else [source]:
        path = Path(one).expanduser()
        if not path.exists():
            raise DataError(f"{one}: no such file or folder")
        root, paths = (path, _below(path)) if path.is_dir() else (path.parent, iter([path]))
        for file in paths:
            name = (Path(root.resolve().name) / file.relative_to(root)).as_posix()
            if not found.setdefault(name, file).samefile(file):
                raise DataError(f"{found[name]} and {file} would both be named {name}; rename one of their folders")
    if not found:
        raise DataError(f"{source}: no files found; pass a file or a folder with {', '.join(READERS)} files")
    return found


def _passages(name: str, pages: tuple[int, ...], chunks: Iterable[Chunk]) -> Iterator[Passage]:
    """Yield a document's passages."""
    repeated = Counter[str]()
    for start, text, path in chunks:
        slug = re.sub(r"\W+", "-", path[-1].lower())[:LONGEST_SLUG].strip("-")
        id = f"{name}#{slug}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"
        repeated[id] += 1
        page = {"page": sum(place <= start for place in pages)} if pages else {}
        yield Passage(
            id if repeated[id] == 1 else f"{id}-{repeated[id]}", text, " > ".join(path), {"file": name, **page}
        )


def _decoded(data: bytes, *, is_html: bool = False) -> tuple[str, str]:
    """Return a file's text, and a note if its encoding was guessed."""
    lost = ""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        from bs4 import UnicodeDammit

        guess = UnicodeDammit(data, is_html=is_html)
        text = guess.unicode_markup or "\0"
        if not (guess.declared_html_encoding or text.isascii()):
            lost = f"not UTF-8; decoded with a guessed encoding ({guess.original_encoding})"
    if "\0" in text:
        raise _UnreadableError("not read: unknown encoding; save the file as UTF-8")
    return text, lost


def _plain(data: bytes) -> _Text:
    """Read plain text, or reStructuredText if the text has underlined titles and other reStructuredText markup."""
    text, lost = _decoded(data)
    if _RST.search(text) and (headings := tuple(_rst_headings(text))):
        return _Text(text, "reStructuredText", headings[0].text, headings, lost=lost)
    first = _TITLE.match(text)
    return _Text(text, "text", first[1] if first else "", lost=lost)


def _rst(data: bytes) -> _Text:
    text, lost = _decoded(data)
    headings = tuple(_rst_headings(text))
    return _Text(text, "reStructuredText", headings[0].text if headings else "", headings, lost=lost)


def _rst_headings(text: str) -> Iterator[Heading]:
    """Yield the headings in reStructuredText: lines that are underlined, or both overlined and underlined.

    Underline styles get their levels in the order in which they are first used.
    """
    lines, levels = text.splitlines(keepends=True), dict[tuple[str, bool], int]()
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    bare = [line.rstrip() for line in lines] + [""]
    for number, (title, under) in enumerate(pairwise(bare)):
        is_title = title.strip() and not _ADORNMENT.fullmatch(title.strip())
        if not is_title or not _ADORNMENT.fullmatch(under) or len(under) < len(title.strip()):
            continue
        is_over = number > 0 and bare[number - 1] == under
        first = number - is_over
        if (title[0].isspace() and not is_over) or (first > 0 and bare[first - 1]):
            continue
        level = levels.setdefault((under[0], is_over), len(levels) + 1)
        yield Heading(starts[first], starts[number + 2], level, _ROLE.sub(r"\1", title.strip()))


def _markdown(data: bytes) -> _Text:
    text, lost = _decoded(data)
    front = _FRONT.match(text)
    named = re.search(r"^title: *[\"']?(.+?)[\"']?\r?$", front[0], re.MULTILINE) if front else None
    if front:
        text = text[front.end() :]
    return _of_markdown(text, "Markdown", named[1] if named else "", lost)


def _of_markdown(text: str, format: str, title: str = "", lost: str = "") -> _Text:
    headings = tuple(_headings(text))
    return _Text(text, format, title or next((one.text for one in headings if one.level == 1), ""), headings, lost=lost)


def _notebook(data: bytes) -> _Text:
    """Read a notebook's text and code cells, with the code fenced and the output left out."""
    text, lost = _decoded(data)
    notebook = json.loads(text)
    if not isinstance(notebook.get("cells"), list):
        raise _UnreadableError("not read: old notebook format; open the notebook in Jupyter and save it")
    language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"]).strip("\n")
        if cell["cell_type"] == "code" and source.strip():
            source = f"```{language}\n{source}\n```"
        parts += [source] if source.strip() else []
    return _of_markdown("\n\n".join(parts), "notebook", lost=lost)


def _word(data: bytes) -> _Text:
    try:
        import mammoth
    except ImportError as error:
        raise _UnreadableError("not read: Word files require mammoth (pip install 'querywright[documents]')") from error
    page = mammoth.convert_to_html(io.BytesIO(data)).value
    return _html(page.encode())._replace(format="Word")


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
    return _of_markdown(text, "HTML", title, lost)


def _headings(text: str) -> Iterator[Heading]:
    """Yield the headings in Markdown text."""
    from markdown_it import MarkdownIt

    lines = [0, *(end.end() for end in re.finditer(r"\r\n?|\n", text)), len(text)]
    for token, inline in pairwise(MarkdownIt().parse(text)):
        if token.type == "heading_open" and token.map and inline.content.strip():
            yield Heading(lines[token.map[0]], lines[token.map[1]], int(token.tag[1]), inline.content.strip())


def _pdf(data: bytes) -> _Text:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    said: list[str] = []
    try:
        reader = PdfReader(io.BytesIO(data))
        for page in reader.pages:
            said.append("")
            with suppress(Exception):  # the other pages may be fine
                said[-1] = _WRAPPED.sub(lambda cut: " " if cut[1] else "", _clean(page.extract_text())).strip()
    except (FileNotDecryptedError, DependencyError):
        raise _UnreadableError("not read: encrypted; save the file without a password (qpdf --decrypt)") from None
    empty = sum(not text for text in said)
    if empty == len(said):
        raise _UnreadableError("not read: no text (probably a scan); add text with OCR (ocrmypdf)")
    pages = [0]
    for text in said:
        pages.append(pages[-1] + len(text) + 2)
    headings: list[Heading] = []
    with suppress(Exception):  # a damaged outline is left out
        for number, level, text in _outline(reader, reader.outline):
            place = pages[number] + max(0, said[number].find(text))
            headings.append(Heading(place, place, level, text))
    title = ""
    with suppress(Exception):
        title = _clean(str(dict(reader.metadata or ())["/Title"])).strip()
    lost = f"no text on {empty} of {len(said)} pages (probably scans)" if empty else ""
    return _Text("\n\n".join(said), "PDF", title, tuple(sorted(headings)), tuple(pages[:-1]), lost)


def _outline(reader: Any, entries: Iterable[Any], level: int = 2) -> Iterator[tuple[int, int, str]]:
    """Yield the page (from 0), level, and text of each entry in a PDF's outline. Level 1 is the document's title."""
    for entry in entries:
        if isinstance(entry, list):
            yield from _outline(reader, entry, level + 1)
        elif (number := reader.get_destination_page_number(entry)) is not None and number >= 0 and entry.title:
            yield number, level, " ".join(_clean(entry.title).split())


def _clean(text: str) -> str:
    """Return text from a PDF without characters that are not allowed in passages."""
    return text.replace("\0", " ").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


READERS: dict[str, Callable[[bytes], _Text]] = {
    **dict.fromkeys((".md", ".markdown"), _markdown),
    ".rst": _rst,
    **dict.fromkeys((".txt", ".text"), _plain),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _html),
    ".pdf": _pdf,
    ".docx": _word,
    ".ipynb": _notebook,
}
"""Function that reads each format, by file suffix."""
