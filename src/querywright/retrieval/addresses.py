"""Collections of Chroma that were made elsewhere: by their place, and what embeds for them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from querywright.errors import CollectionError, InputError, unknown
from querywright.retrieval.chroma_index import close_client, copy_for_reading, open_client, removed_with

SERVER_SECONDS = 60.0
"""A Chroma server answers within so long; ``chromadb`` itself would wait for ever."""
HEARTBEAT_SECONDS = 10.0
FORMS = "FOLDER#NAME, where chromadb.PersistentClient has that folder, or http://HOST:PORT#NAME for a Chroma server"


def is_address(name: str) -> bool:
    """Whether a collection is named by its place; no name of ours holds these marks."""
    return not {"#", "/", os.sep}.isdisjoint(name)


def open_collection(address: str) -> Any:
    """A collection of Chroma by its place, to be read.

    A folder is copied first and the copy removed with the collection, for Chroma writes to what it opens. Its size is
    needed in the folder of temporary files; a larger one is better served: ``chroma run --path FOLDER``.

    Args:
        address: ``FOLDER#NAME`` or ``http://HOST:PORT#NAME``; without ``#NAME`` where there is one collection alone.

    Raises:
        CollectionError: There is no Chroma, or no such collection; it names those that there are.
        InputError: The address has another form.
    """
    place, _, name = address.rpartition("#") if "#" in address else (address, "", "")
    with _opened(place) as (client, copied):
        known = sorted(one.name for one in client.list_collections())
        if name not in known and (name or len(known) != 1):
            told = f"in {place!r}: {unknown('collection', name, known)}"
            several = f"in {place!r} there are {', '.join(known) or 'none'}; name one: {place}#NAME"
            raise CollectionError(told if name else several)
        found = client.get_collection(name or known[0], embedding_function=None)
    if copied is not None:
        removed_with(found, copied)
        weakref.finalize(found, close_client, client, os.getpid()).atexit = False
    return found


def collections_at(place: str) -> dict[str, int]:
    """The collections of a Chroma, ``FOLDER`` or ``http://HOST:PORT``, by name: how many passages each holds.

    Raises:
        CollectionError: There is no Chroma.
        InputError: The place has another form.
    """
    with _opened(place) as (client, _):
        names = sorted(one.name for one in client.list_collections())
        return {name: client.get_collection(name, embedding_function=None).count() for name in names}


def embeds_itself(collection: Any) -> str | None:
    """The name of the function by which Chroma embeds queries for a collection; None where it has none of its own, but
    Chroma's default at most, which is the embedded embedder's model and would be downloaded.
    """
    given = getattr(collection, "_embedding_function", None)
    if given is not None and type(given).__name__ != "DefaultEmbeddingFunction":
        return type(given).__name__
    kept = (getattr(collection, "configuration_json", None) or {}).get("embedding_function") or {}
    return None if kept.get("type") == "legacy" or kept.get("name") == "default" else kept.get("name")


@contextmanager
def _opened(place: str) -> Iterator[tuple[Any, Path | None]]:
    """A client for a Chroma, and the copy of a folder that it reads; what fails is told of the place."""
    import httpx
    from chromadb.errors import ChromaError

    try:
        copied = None if "://" in place else copy_for_reading(_folder(place))
        yield _server(place) if copied is None else open_client(copied), copied
    except (ChromaError, httpx.HTTPError, ValueError, OSError, RuntimeError, KeyError, AttributeError) as error:
        raise CollectionError(f"the Chroma at {place!r} cannot be opened: {error}") from error


def _folder(place: str) -> Path:
    folder = Path(place).expanduser()
    if not (folder / "chroma.sqlite3").is_file():
        raise CollectionError(f"there is no Chroma in the folder {place!r} (no chroma.sqlite3); write {FORMS}")
    return folder


def _server(place: str) -> Any:
    """A client of a server that answers."""
    import chromadb
    import httpx
    from chromadb.config import Settings

    try:
        url = urlsplit(place)
        usual = {"http": 8000, "https": 443}[url.scheme]
        if url.path.strip("/") or url.query or url.username or not url.hostname:
            raise ValueError("it has more than a host and a port")
        port = url.port or usual
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{place!r} is no address of a Chroma server ({error}); write {FORMS}. One with a tenant, a key or "
            "headers: open it in Python and give that (retriever=, --retriever MODULE:FUNCTION)"
        ) from error
    try:
        httpx.get(
            f"{url.scheme}://{url.hostname}:{port}/api/v2/heartbeat", timeout=HEARTBEAT_SECONDS
        ).raise_for_status()
    except httpx.HTTPError as error:
        raise CollectionError(
            f"no Chroma server answers at {place} ({error}); start it: chroma run --path FOLDER, or mend the address"
        ) from error
    settings = Settings(anonymized_telemetry=False)
    client: Any = chromadb.HttpClient(url.hostname, port, ssl=url.scheme == "https", settings=settings)
    with suppress(AttributeError):  # there is no public way to say it
        client._server._session.timeout = SERVER_SECONDS
    return client
