"""``querywright index``: put passages into a collection."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from querywright.cli.checks import pairs
from querywright.cli.options import ColumnOption, EmbedderOption, HomeOption, JsonOption, LimitOption, SplitOption
from querywright.cli.show import note, print_json, progress, say
from querywright.data.hub import names_of


def index(
    collection: Annotated[str, typer.Argument(metavar="COLLECTION", help="Name of the collection.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="PASSAGES",
            help="A .jsonl, .csv, .tsv, .json or .parquet file, a folder with one (BEIR, AutoRAG), sample, or hf:NAME: "
            f"a dataset of the hub, or {names_of('passages')}.",
        ),
    ],
    column: ColumnOption = None,
    limit: LimitOption = None,
    split: SplitOption = None,
    prune: Annotated[bool, typer.Option("--prune", help="Remove passages that are not in the source.")] = False,
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
    from querywright.retrieval.collection import collection_folder
    from querywright.retrieval.index import build_collection
    from querywright.retrieval.question_records import check_indexed_name

    folder = working_folder(home)
    collection_folder(collection, folder)
    check_indexed_name(collection)
    passages = read_passages(source, columns=pairs(column, "--column"), limit=limit, split=split)
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
    else:
        state = "built" if report.rebuilt else "unchanged"
        say(
            f"{report.name}: {report.count} passages, {state}; {report.added} added, {report.changed} changed, "
            f"{report.removed} removed; {report.embedded} embedded, {report.cached} taken from the store; "
            f"{report.seconds:.1f} s"
        )
    others = report.count - len(passages)
    if others > 0 and not prune:
        note(f"{others} passages of earlier sources stay; --prune removes them")
