"""``querywright collections``: list, show, and delete collections."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from querywright.cli import options as opt
from querywright.cli.show import emit, note, say, show_facts, show_table
from querywright.errors import CollectionError, InputError

SHOWN_VALUES = 5
"""Number of values to show per metadata key."""

collections_app = opt.make_app("collections", "List, show, and delete collections.")


@collections_app.command(name="list")
def list_command(place: str | None = None, /, *, output: opt.Output = opt.Output()) -> None:
    """List the collections in a workspace or in Chroma.

    Example: querywright collections list

    Args:
        place: A different workspace, or a Chroma database: FOLDER or http://HOST:PORT.
    """
    from querywright.retrieval.addresses import collections_at
    from querywright.retrieval.collection import list_collections

    home = output.folder if place is None else Path(place)
    if place is not None and ("://" in place or (home / "chroma.sqlite3").is_file()):
        rows: list[dict[str, Any]] = [{"collection": name, "passages": n} for name, n in collections_at(place).items()]
    elif not home.is_dir():
        raise InputError(f"the folder {place!r} does not exist; pass the folder of a workspace or of a Chroma database")
    else:
        rows = [_facts(name, home) for name in list_collections(home)]

    def shown() -> None:
        if not rows:
            say(f"no collections in {place or home}; to create one, run querywright index NAME SOURCE")
            return
        short = [{**row, "fingerprint": row["fingerprint"][:12]} if "fingerprint" in row else row for row in rows]
        show_table("Collections", [{name: str(value) for name, value in row.items()} for row in short])

    emit(output.as_json, rows, shown)


@collections_app.command(name="show")
def show_command(collection: str, /, *, passages: opt.Whole = 3, output: opt.Output = opt.Output()) -> None:
    """Show a collection's facts, its metadata, and its first passages.

    Example: querywright collections show mine

    Args:
        collection: The collection's name, or a collection in Chroma: FOLDER#NAME or http://HOST:PORT#NAME.
        passages: Number of passages to show.
    """
    from querywright.retrieval.addresses import is_address, open_collection
    from querywright.retrieval.chroma import passages_of
    from querywright.retrieval.collection import collection_folder, published_passages

    facts: dict[str, Any]
    if is_address(collection):
        table = open_collection(collection)
        settings = table.configuration_json
        facts = {
            "collection": table.name, "passages": table.count(), "metadata": table.metadata,
            "space": (settings.get("hnsw") or settings.get("spann") or {}).get("space"),
            "embedding function": (settings.get("embedding_function") or {}).get("name"),
        }  # fmt: skip
        held = list(passages_of(table))
    else:
        _, found = published_passages(collection_folder(collection, output.folder), output.folder)
        facts, held = _facts(collection, output.folder), list(found.values())
    keys: dict[str, Counter[Any]] = {}
    for one in held:
        for key, value in one.metadata.items():
            keys.setdefault(key, Counter())[value] += 1
    told: dict[str, dict[str, Any]] = {
        key: {"passages": found.total(), "values": [value for value, _ in found.most_common(SHOWN_VALUES)]}
        for key, found in sorted(keys.items())
    }
    first = [{"id": one.id, "title": one.title, "text": one.text, **one.metadata} for one in held[:passages]]

    def shown() -> None:
        show_facts(facts)
        for key, about in told.items():
            values = ", ".join(map(str, about["values"]))
            say(f"metadata key {key!r}; passages: {about['passages']}; common values: {values}", hang=4)
        show_facts({"passage": first} if first else {})

    emit(output.as_json, {**facts, "keys": told, "first": first}, shown)


@collections_app.command(name="delete")
def delete_command(collection: str, /, *, yes: opt.Flag = False, output: opt.Output = opt.Output()) -> None:
    """Delete a collection and its questions.

    The vectors stay in the cache.

    Example: querywright collections delete mine --yes

    Args:
        collection: The collection's name.
        yes: Delete without asking.
    """
    from querywright.retrieval.collection import collection_folder, delete_collection, no_collection

    folder = collection_folder(collection, output.folder)
    if not folder.is_dir():
        raise no_collection(collection, output.folder)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"cannot ask for confirmation without a terminal; to delete {collection!r}, add --yes")
        passages = _facts(collection, output.folder)["passages"]
        note(f"Delete the collection {collection!r} (passages: {passages})? [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise InputError(f"the collection {collection!r} was not deleted")
    delete_collection(collection, output.folder)
    emit(output.as_json, {"deleted": collection}, lambda: say(f"deleted the collection {collection!r}"))


def _facts(name: str, home: Path) -> dict[str, Any]:
    """Return a collection's facts; a damaged collection is reported as damaged."""
    from querywright.retrieval.chroma import dense_fingerprint
    from querywright.retrieval.collection import collection_folder, read_manifest

    folder = collection_folder(name, home)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    try:
        manifest = read_manifest(folder)
    except CollectionError:
        manifest = None
    return {
        "collection": name,
        "passages": "damaged" if manifest is None else manifest.count,
        "embedder": "-" if manifest is None else manifest.embedder,
        "size": f"{size / 1e6:.1f} MB",
        "fingerprint": "-" if manifest is None else dense_fingerprint(manifest),
    }
