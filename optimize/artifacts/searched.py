"""The collection that an artifact searches, held against the one that is here."""

from __future__ import annotations

from pathlib import Path

from querywright.errors import ArtifactError
from querywright.models.embedder import Embedder
from querywright.optimize.artifacts.files import ArtifactManifest
from querywright.retrieval.engines import CollectionRetriever, Engine, open_retriever

_AS_INDEXED = "; index the original passages again"
_AS_THEN: dict[Engine, str] = {
    "questions": ", so its passages, its questions or what questions fill stored are others; index, build, import or "
    "fill them again as they were then",
    "expanded": ", so its passages or its questions are others; index, build or import them again as they were then",
}
"""What is to be done about another fingerprint where an engine searches more than passages."""


def check_named(manifest: ArtifactManifest) -> None:
    """Raise when collection and engine of an artifact do not go together.

    Raises:
        ArtifactError: They do not.
    """
    if (manifest.collection is None) != (manifest.engine is None):
        raise ArtifactError(
            f"manifest.json: the collection {manifest.collection!r} and the engine {manifest.engine!r} do not go "
            "together; compile again"
        )


def open_searched(manifest: ArtifactManifest, embedder: Embedder | None, home: Path | None) -> CollectionRetriever:
    """Open the collection in a working folder, which has to be the one that an artifact was compiled on.

    Args:
        manifest: The artifact's; it names a collection and an engine.
        embedder: The one that the collection was built with; None for an engine that needs none.
        home: The working folder.

    Raises:
        ArtifactError: It is another.
        CollectionError: It is missing or damaged.
    """
    assert manifest.engine is not None
    found = open_retriever(str(manifest.collection), engine=manifest.engine, embedder=embedder, home=home)
    if found.fingerprint != manifest.fingerprint:
        raise ArtifactError(
            f"the collection {manifest.collection!r} is not the one the program was compiled on: its fingerprint is "
            f"{found.fingerprint[:12]}, the artifact names {str(manifest.fingerprint)[:12]}"
            f"{_AS_THEN.get(manifest.engine, _AS_INDEXED)}, compile again, or load it with retriever=..."
        )
    return found
