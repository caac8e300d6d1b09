"""Open Chroma collections outside the workspace by their address."""

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
"""Timeout for requests to a Chroma server, in seconds. Without it, ``chromadb`` would wait forever."""
HEARTBEAT_SECONDS = 10.0
FORMS = "FOLDER#NAME for a chromadb.PersistentClient folder, or http://HOST:PORT#NAME for a Chroma server"


def is_address(name: str) -> bool:
    """Return whether a string is the address of a Chroma collection; workspace names contain no ``#`` or ``/``."""
    return not {"#", "/", os.sep}.isdisjoint(name)


def open_collection(address: str) -> Any:
    """Open a Chroma collection by its address, for reading.

    A folder is first copied to a temporary folder, because Chroma writes to the folders that it opens. The copy is
    removed with the collection object. For large folders, run a server instead: ``chroma run --path FOLDER``.

    Args:
        address: ``FOLDER#NAME`` or ``http://HOST:PORT#NAME``; ``#NAME`` is optional if there is only one collection.

    Raises:
        CollectionError: Chroma cannot be opened, or has no such collection; the message lists the existing collections.
        InputError: The address has neither form.
    """
    place, _, name = address.rpartition("#") if "#" in address else (address, "", "")
    with _opened(place) as (client, copied):
        known = sorted(one.name for one in client.list_collections())
        if name not in known and (name or len(known) != 1):
            missing = f"in {place!r}: {unknown('collection', name, known)}"
            several = f"{place!r} has the collections {', '.join(known) or '(none)'}; choose one with {place}#NAME"
            raise CollectionError(missing if name else several)
        found = client.get_collection(name or known[0], embedding_function=None)
    if copied is not None:
        removed_with(found, copied)
        weakref.finalize(found, close_client, client, os.getpid()).atexit = False
    return found


def collections_at(place: str) -> dict[str, int]:
    """Return the number of records in each collection of a Chroma folder or server, by collection name.

    Args:
        place: ``FOLDER`` or ``http://HOST:PORT``.

    Raises:
        CollectionError: Chroma cannot be opened.
        InputError: The place has neither form.
    """
    with _opened(place) as (client, _):
        names = sorted(one.name for one in client.list_collections())
        return {name: client.get_collection(name, embedding_function=None).count() for name in names}


def embeds_itself(collection: Any) -> str | None:
    """Return the name of a Chroma collection's embedding function; None if it has none or only Chroma's default.

    Chroma's default is the same model as the embedded model, but Chroma would download it.
    """
    given = getattr(collection, "_embedding_function", None)
    if given is not None and type(given).__name__ != "DefaultEmbeddingFunction":
        return type(given).__name__
    kept = (getattr(collection, "configuration_json", None) or {}).get("embedding_function") or {}
    return None if kept.get("type") == "legacy" or kept.get("name") == "default" else kept.get("name")


@contextmanager
def _opened(place: str) -> Iterator[tuple[Any, Path | None]]:
    """Yield a client for a folder or server, and the copy that it reads (for a folder); errors name the place."""
    import httpx
    from chromadb.errors import ChromaError

    try:
        copied = None if "://" in place else copy_for_reading(_folder(place))
        yield _server(place) if copied is None else open_client(copied), copied
    except (ChromaError, httpx.HTTPError, ValueError, OSError, RuntimeError, KeyError, AttributeError) as error:
        raise CollectionError(f"cannot open Chroma at {place!r}: {error}") from error


def _folder(place: str) -> Path:
    folder = Path(place).expanduser()
    if not (folder / "chroma.sqlite3").is_file():
        raise CollectionError(f"the folder {place!r} has no Chroma data (no chroma.sqlite3); use {FORMS}")
    return folder


def _server(place: str) -> Any:
    """Return a client for a server, after checking that the server responds."""
    import chromadb
    import httpx
    from chromadb.config import Settings

    try:
        url = urlsplit(place)
        usual = {"http": 8000, "https": 443}[url.scheme]
        if url.path.strip("/") or url.query or url.username or not url.hostname:
            raise ValueError("only a host and a port are allowed")
        port = url.port or usual
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{place!r} is not the address of a Chroma server ({error}); use {FORMS}. If the server needs a "
            "tenant, an API key, or headers, open the collection in Python, and pass it as the retriever (on the "
            "command line: --retriever MODULE:FUNCTION)"
        ) from error
    try:
        httpx.get(
            f"{url.scheme}://{url.hostname}:{port}/api/v2/heartbeat", timeout=HEARTBEAT_SECONDS
        ).raise_for_status()
    except httpx.HTTPError as error:
        raise CollectionError(
            f"no Chroma server responds at {place} ({error}); start the server with chroma run --path FOLDER, or "
            "correct the address"
        ) from error
    settings = Settings(anonymized_telemetry=False)
    client: Any = chromadb.HttpClient(url.hostname, port, ssl=url.scheme == "https", settings=settings)
    with suppress(AttributeError):  # chromadb has no public setting for the timeout
        client._server._session.timeout = SERVER_SECONDS
    return client
