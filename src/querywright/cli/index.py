"""``querywright index``: put passages into a collection."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from querywright.cli.options import DataOptions, Flag, Name, Output
from querywright.cli.show import note, print_json, progress, say
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
    prune: Flag = False,
    embedder: Name = "embedded",
    data: DataOptions = DataOptions(),
    output: Output = Output(),
) -> None:
    """Put passages into a collection; the same passages again cost nothing.

    Example: querywright index textbooks corpus.jsonl --column text=contents

    Args:
        collection: Name of the collection.
        prune: Remove passages that are not in the source.
        embedder: embedded, or a sentence-transformers name or path.
    """
    from querywright.data import read_passages
    from querywright.home import home as working_folder
    from querywright.models.embedder import resolve_embedder
    from querywright.models.store import open_store
    from querywright.retrieval.collection import collection_folder
    from querywright.retrieval.generated_questions import check_indexed_name
    from querywright.retrieval.index import build_collection

    folder = working_folder(output.home)
    collection_folder(collection, folder)
    check_indexed_name(collection)
    found = read_passages(passages, **data.given)
    with progress() as update:
        report = build_collection(
            collection,
            found,
            embedder=resolve_embedder(embedder, store=open_store(folder)),
            home=folder,
            prune=prune,
            progress=lambda done, total: update("embedding", done, total),
        )
    if output.as_json:
        print_json(asdict(report))
    else:
        state = "built" if report.rebuilt else "unchanged"
        say(
            f"{report.name}: {report.count} passages, {state}; {report.added} added, {report.changed} changed, "
            f"{report.removed} removed; {report.embedded} embedded, {report.cached} taken from the store; "
            f"{report.seconds:.1f} s"
        )
    others = report.count - len(found)
    if others > 0 and not prune:
        note(f"{others} passages of earlier sources stay; --prune removes them")
