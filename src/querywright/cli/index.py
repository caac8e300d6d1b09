"""``querywright index``: put passages into a collection."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from querywright.cli.common import (
    ColumnOption,
    EmbedderOption,
    HomeOption,
    JsonOption,
    LimitOption,
    err,
    out,
    pairs,
    print_json,
    progress,
)


def index(
    collection: Annotated[str, typer.Argument(help="Name of the collection.")],
    source: Annotated[
        str, typer.Argument(help="A .jsonl, .csv, .tsv, .json or .parquet file, hf:NAME, or sample.")
    ],
    column: ColumnOption = None,
    limit: LimitOption = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Split of a dataset.", show_default=False)
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove passages that are not in the source.")
    ] = False,
    embedder: EmbedderOption = "embedded",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put passages into a collection; the same passages again cost nothing.

    Example: querywright index textbooks corpus.jsonl --column text=contents
    """
    from querywright.data import read_passages
    from querywright.home import home as working_folder
    from querywright.models.embedder import resolve_embedder
    from querywright.models.store import open_store
    from querywright.retrieval.index import build_collection

    passages = read_passages(source, columns=pairs(column, "--column"), limit=limit, split=split)
    folder = working_folder(home)
    with progress() as update:
        report = build_collection(
            collection,
            passages,
            embedder=resolve_embedder(embedder, store=open_store(folder)),
            home=folder,
            prune=prune,
            progress=lambda done, total: update("embedding", done, total),
        )
    if as_json:
        print_json(asdict(report))
        return
    state = "built" if report.rebuilt else "unchanged"
    out.print(
        f"{report.name}: {report.count} passages, {state}; {report.added} added, {report.changed} changed, "
        f"{report.removed} removed; {report.embedded} embedded, {report.cached} taken from the store; "
        f"{report.seconds:.1f} s",
        highlight=False,
    )
    if report.count > len(passages) and not prune:
        others = report.count - len(passages)
        err.print(f"{others} passages of earlier sources stay; --prune removes them", highlight=False)
