"""``querywright index``: put passages into a collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.show import emit, note, progress, say
from querywright.data import Passage, read_passages
from querywright.data.hub import names_of

Passages = Annotated[
    str,
    Parameter(
        help="A .jsonl, .csv, .tsv, .json or .parquet file, a folder with one (BEIR, AutoRAG), sample, or hf:NAME: a "
        f"dataset of the hub, or {names_of('passages')}."
    ),
]


def index(
    collection: str,
    passages: Passages,
    /,
    *,
    prune: opt.Flag = False,
    embedder: opt.Name = "embedded",
    data: opt.RowOptions = opt.RowOptions(),
    output: opt.Output = opt.Output(),
) -> None:
    """Put passages into a collection; the same passages again cost nothing.

    Example: querywright index textbooks corpus.jsonl --column text=contents

    Args:
        collection: Name of the collection.
        prune: Remove passages that are not in the source.
        embedder: embedded, or a sentence-transformers name or path.
    """
    from querywright.retrieval.collection import collection_folder

    collection_folder(collection, output.folder)
    found = read_passages(passages, **data.given)
    report = build(collection, found, output, embedder, prune=prune)
    state = "built" if report.rebuilt else "unchanged"
    emit(output.as_json, asdict(report), lambda: say(
        f"{report.name}: {report.count} passages, {state}; {report.added} added, {report.changed} changed, "
        f"{report.removed} removed; {report.embedded} embedded, {report.cached} taken from the store; "
        f"{report.seconds:.1f} s"
    ))  # fmt: skip
    others = report.count - len(found)
    if others > 0 and not prune:
        note(f"{others} passages of earlier sources stay; --prune removes them")


def build(
    collection: str, passages: Sequence[Passage], output: opt.Home, embedder: str = "embedded", *, prune: bool
) -> Any:
    """Build a collection, with progress; gives what ``build_collection`` reports."""
    from querywright.retrieval.index import build_collection

    with progress("comparing with what is there") as update:
        return build_collection(
            collection, passages, embedder=output.embedder(embedder), home=output.folder, prune=prune,
            progress=lambda done, total: update("embedding", done, total),
        )  # fmt: skip
