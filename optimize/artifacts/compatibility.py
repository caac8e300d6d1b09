"""What a program needs, held against what is here: libraries, the collection, its embedder."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from querywright.errors import CollectionError, QuerywrightError
from querywright.models.embedder import Embedder, embedder_of
from querywright.models.store import open_store
from querywright.optimize.artifacts.files import ArtifactManifest
from querywright.optimize.artifacts.searched import check_named, open_searched
from querywright.programs import technique_class
from querywright.retrieval.collection import collection_folder, read_manifest
from querywright.retrieval.engines import LEXICAL

State = Literal["ok", "warning", "differs", "not possible"]


@dataclass(frozen=True, slots=True)
class Check:
    """What came of one check.

    Args:
        name: What was looked at.
        state: ``ok``, ``differs``, ``not possible``, or ``warning`` for what differs and need not matter.
        said: What was found.
        remedy: What to do about it; empty where there is nothing to do.
    """

    name: str
    state: State
    said: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """A library in another version.

    Args:
        library: Its name.
        saved: Version when the program was saved.
        here: Version that is installed; None where it is not.
    """

    library: str
    saved: str
    here: str | None


def drifted(manifest: ArtifactManifest) -> list[Drift]:
    """The libraries of a manifest that are installed in another version, or not at all."""
    found = [Drift(name, saved, _installed(name)) for name, saved in manifest.versions.items()]
    return [one for one in found if one.here != one.saved]


def failed(name: str, state: State, error: Exception) -> Check:
    """A check that ended in an error, whose message has the remedy at its end."""
    said, _, remedy = " ".join(str(error).split()).partition("; ")
    return Check(name, state, said, remedy)


def version_checks(manifest: ArtifactManifest) -> list[Check]:
    """A warning for each library in another version; one line where there is none."""
    found = drifted(manifest)
    if not found:
        named = ", ".join(f"{name} {number}" for name, number in manifest.versions.items())
        return [Check("versions", "ok", f"as they were: {named}")]
    return [
        Check(
            f"version of {one.library}",
            "warning",
            f"{one.here or 'not installed'} here, {one.saved} when it was saved",
            "nothing, as long as the golden answers are the same",
        )
        for one in found
    ]


def collection_checks(manifest: ArtifactManifest, home: Path | None) -> list[Check]:
    """Whether the collection, its embedder and its content are those that the program was compiled on.

    Args:
        manifest: The artifact's, whose technique is known here.
        home: The working folder that holds the collection.
    """
    try:
        check_named(manifest)
        if manifest.collection is None or manifest.engine is None:
            if technique_class(manifest.technique).SEARCHES == "0":
                return [Check("collection", "ok", "the program searches nothing")]
            return [
                Check(
                    "collection",
                    "not possible",
                    "it was compiled on a retriever of your own",
                    "replay it in Python: querywright.load(path, retriever=..., verify=True)",
                )
            ]
        published = read_manifest(collection_folder(manifest.collection, home))
    except QuerywrightError as error:
        return [failed("collection", "not possible", error)]
    if published is None:
        return [
            Check(
                "collection",
                "not possible",
                f"there is no collection {manifest.collection!r} in the working folder",
                "name the one that has it (--home), build it (querywright index), or unpack a packed artifact",
            )
        ]
    checks: list[Check] = []
    embedder: Embedder | None = None
    try:
        if manifest.engine not in LEXICAL:
            if published.embedder != manifest.embedder:
                return [
                    Check(
                        "embedder",
                        "differs",
                        f"the collection was built with {published.embedder!r}, the program was compiled with "
                        f"{manifest.embedder!r}",
                        "index its passages again with that embedder, or compile again",
                    )
                ]
            embedder = embedder_of(published.embedder, store=open_store(home))
            if embedder is None:
                raise CollectionError(f"the embedder {published.embedder!r} cannot be had by its name; give retriever=")
            checks.append(Check("embedder", "ok", embedder.id))
    except QuerywrightError as error:
        return [failed("embedder", "not possible", error)]
    try:
        open_searched(manifest, embedder, home)
    except QuerywrightError as error:
        return [*checks, failed("collection", "differs", error)]
    said = f"{manifest.collection}, {published.count} passages, fingerprint {str(manifest.fingerprint)[:12]}"
    return [*checks, Check("collection", "ok", said)]


def _installed(library: str) -> str | None:
    try:
        return version(library)
    except (PackageNotFoundError, ValueError):  # ValueError: a name that no library can have
        return None
