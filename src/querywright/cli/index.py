"""``querywright index``: put passages into a collection."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.show import emit, note, progress, say
from querywright.data import Passage
from querywright.data.documents import DocumentFile, names_documents, read_documents
from querywright.data.hub import names_of
from querywright.data.reading import read_passages
from querywright.data.sources import packaged_set
from querywright.errors import InputError

SHOWN_FILES = 50

Passages = Annotated[
    str,
    Parameter(
        help="Documents (.md, .rst, .txt, .html, .pdf, .docx, .ipynb): files or a folder. Or rows: a .jsonl, .csv, "
        ".tsv, .json, or .parquet file, a folder with such a file (BEIR, AutoRAG), sample or handbook (packaged; "
        "yours is ./sample or ./handbook), hf:NAME (a dataset on the "
        f"Hugging Face Hub), or one of {names_of('passages')}."
    ),
]


def index(
    collection: str,
    passages: Passages,
    /,
    *others: Annotated[str, Parameter(help="More documents.")],
    chunk_size: opt.Count | None = None,
    chunk_overlap: opt.Whole | None = None,
    prune: opt.Flag = False,
    workers: opt.Count | None = None,
    embedder: opt.Embedder = "embedded",
    data: opt.RowOptions = opt.RowOptions(),
    output: opt.Output = opt.Output(),
) -> None:
    """Put passages into a collection.

    Only new and changed passages are embedded.

    Example: querywright index textbooks corpus.jsonl --column text=contents

    Args:
        collection: Name of the collection.
        chunk_size: Maximum number of words in a passage when documents are split. Default: 150.
        chunk_overlap: Maximum number of words that a passage repeats from the previous passage if a paragraph is split.
            Default: 20.
        prune: Remove passages that are not in the source.
        workers: Number of Ray processes for embedding; needs the ray extra. Default: only this process.
    """
    from querywright.retrieval.collection import collection_folder

    collection_folder(collection, output.folder)
    source = [passages, *others] if others else passages
    given = {"chunk_size": chunk_size, "chunk_overlap": chunk_overlap}
    sizes = {name: size for name, size in given.items() if size is not None}
    documents = None
    is_read = names_documents(source)
    if (data != opt.RowOptions()) if is_read else sizes:
        raise InputError(
            "--chunk-size and --chunk-overlap apply only to documents; --column, --limit, and --split apply only to "
            "rows. Remove the options that do not fit the source"
        )
    if not is_read:
        found = read_passages(passages, **data.given)
    else:
        with progress("reading") as update:
            documents = read_documents(source, progress=update, **sizes)
        found = documents.passages
    if workers is not None:
        _embed(found, embedder, workers, output)
    report = build(collection, found, output, embedder, prune=prune)
    read: dict[str, Any] = {}
    if documents is not None:
        read = {"files": [one._asdict() for one in documents.files], "lost": documents.lost}
    state = "built" if report.rebuilt else "unchanged"
    emit(output.as_json, asdict(report) | read, lambda: say(
        f"{report.name}: {report.count} passages, {state}; {report.added} added, {report.changed} changed, "
        f"{report.removed} removed; {report.embedded} embedded, {report.cached} cached; "
        f"{report.seconds:.1f} s"
    ))  # fmt: skip
    if documents is not None:
        _note_files(documents.files)
    elif packaged_set(passages) is not None:
        note(f"source: the packaged set {passages!r} (not one of your files or folders)")
    for line in report.notes:
        note(f"warning: {line}")
    if report.stayed:
        note(f"passages kept from earlier sources: {report.stayed_text} (to remove these passages, use --prune)")


def _note_files(files: Sequence[DocumentFile]) -> None:
    """Report the result for each file, or for each format if there are many files."""
    for one in files[:SHOWN_FILES]:
        note(f"{one.name}: {one.format}, {one.title!r}, passages: {one.passages}")
    formats = ", ".join(f"{count} {name}" for name, count in Counter(one.format for one in files).most_common())
    more = "; --json lists all files" if len(files) > SHOWN_FILES else ""
    note(f"files read: {len(files)} ({formats}){more}")


def _embed(passages: Sequence[Passage], embedder: str, workers: int, output: opt.Home) -> None:
    """Embed passages in Ray processes, and put the vectors into the store."""
    from querywright.models.store import open_store
    from querywright.optimize.question_ray import embed_in_ray

    # Ray writes to standard output if a process dies.
    with progress("embedding") as update, contextlib.redirect_stdout(sys.stderr):
        embed_in_ray(
            passages, embedder, open_store(output.folder), workers=workers,
            progress=lambda done, total: update("embedding", done, total),
        )  # fmt: skip


def build(
    collection: str, passages: Iterable[Passage], output: opt.Home, embedder: str = "embedded", *, prune: bool
) -> Any:
    """Build a collection, show progress, and return the report from ``build_collection``."""
    from querywright.retrieval.index import build_collection

    with progress("comparing with the collection") as update:
        return build_collection(
            collection, passages, embedder=output.embedder(embedder), home=output.folder, prune=prune,
            progress=lambda done, total: update("embedding", done, total),
        )  # fmt: skip
