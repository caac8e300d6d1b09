"""Loading an artifact into an application."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy

from querywright.errors import ArtifactError, CollectionError, InputError
from querywright.models.embedded import EMBEDDED_ID
from querywright.models.embedder import Embedder, embedder_of
from querywright.models.lm import resolve_lm
from querywright.models.store import open_store
from querywright.optimize.artifacts.files import Artifact, ArtifactManifest, read_artifact
from querywright.optimize.artifacts.golden import golden_check
from querywright.optimize.artifacts.loaded import LoadedProgram, with_async_face
from querywright.optimize.artifacts.rewriters import find_rewriter, open_rewriter
from querywright.optimize.artifacts.searched import check_named, open_searched
from querywright.optimize.artifacts.watchers import Watcher
from querywright.optimize.program_state import program_from
from querywright.programs import takes_rewriter, technique_class, use_rewriter
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.collection import (
    NAME_PATTERN,
    Generation,
    collection_folder,
    index_command,
    list_collections,
    read_manifest,
)
from querywright.retrieval.engines import LEXICAL, CollectionRetriever
from querywright.retrieval.rerank import HUB_PREFIX, Reranker, resolve_reranker

_MODEL_NAME = re.compile(r"(?!.*//)[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_.:@/+-]+")
"""A DSPy model string that names a provider and a model, and no address."""

_HUB_MODEL = re.compile(r"ce:[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
"""A reranker that can be had by its name alone."""


def load(
    path: str | Path,
    *,
    lm: dspy.BaseLM | str | None = None,
    retriever: Any = None,
    reranker: Reranker | str | None = None,
    rewriter: dspy.BaseLM | str | Path | None = None,
    home: str | Path | None = None,
    verify: bool = False,
    public_key: str | Path | None = None,
    watchers: Sequence[Watcher] = (),
) -> LoadedProgram:
    """Load an artifact; everything is checked before the first answer.

    Args:
        path: The artifact's folder.
        lm: An LM, or its name; None for the one that the artifact was compiled for. A remote LM takes its key from
            its environment variable; an artifact never names an address.
        retriever: What to search instead of the artifact's own collection: a retriever or any callable.
        reranker: A reranker, or the name or folder of a cross-encoder, instead of the artifact's own.
        rewriter: A rewriter's folder, or any LM, that the technique asks in place of the rewriter that the artifact
            was compiled with. Default: that one, from the working folder; none where it names none.
        home: The working folder that holds the collection. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        verify: Ask the golden questions and compare with what the program answered when it was saved.
        public_key: A file with the public key of who signed the artifact; one that is not signed with it is refused.
            Default: signatures are not looked at.
        watchers: Each is called with an ``Exchange`` after every question.

    Raises:
        ArtifactError: The artifact is missing, damaged or edited, is not signed as asked, or does not give its golden
            answers.
        CollectionError: The collection is missing, damaged or was built with another embedder.
        ModelError: The LM, the reranker or the rewriter cannot be used.
    """
    artifact = read_artifact(path, public_key=None if public_key is None else Path(public_key))
    return loaded_from(
        artifact, lm=lm, retriever=retriever, reranker=reranker, rewriter=rewriter, home=home, verify=verify,
        watchers=watchers,
    )  # fmt: skip


def loaded_from(
    artifact: Artifact,
    *,
    lm: dspy.BaseLM | str | None = None,
    retriever: Any = None,
    reranker: Reranker | str | None = None,
    rewriter: dspy.BaseLM | str | Path | None = None,
    home: str | Path | None = None,
    verify: bool = False,
    watchers: Sequence[Watcher] = (),
) -> LoadedProgram:
    """``load`` of an artifact that was read and checked already.

    Args:
        artifact: The artifact.
        lm: As ``load`` has it, like all that follows.
        retriever: What to search.
        reranker: A reranker.
        rewriter: A rewriter.
        home: The working folder.
        verify: Whether the golden questions are asked.
        watchers: Told of every question.

    Raises:
        ArtifactError: It cannot be used, or does not give its golden answers.
        CollectionError: The collection is missing, damaged or was built with another embedder.
        ModelError: The LM, the reranker or the rewriter cannot be used.
    """
    manifest = artifact.manifest
    program_from(artifact.state)  # what is wrong with the artifact itself is said before anything is opened
    if reranker is not None and not technique_class(manifest.technique).USES_RERANKER:
        raise ArtifactError(f"the artifact's technique {manifest.technique} does not rerank; leave the reranker out")
    check_rewriter_for(manifest, rewriter)
    folder = None if home is None else Path(home)
    found = _retriever(manifest, folder) if retriever is None else as_retriever(retriever)
    program = program_from(artifact.state, found, reranker_of(manifest, reranker))
    use_rewriter(program, opened_rewriter(manifest, rewriter, folder))
    loaded = LoadedProgram(program, lm if isinstance(lm, dspy.BaseLM) else _lm(manifest, lm, folder), manifest)
    if verify:
        _verify(loaded, artifact)
    loaded.watchers = tuple(watchers)  # who watches is told of the application's questions, not of ours
    return loaded


def _lm(manifest: ArtifactManifest, name: str | None, home: Path | None) -> dspy.LM:
    """The LM of that name, or the one that the artifact names. A name can hold an address; an artifact's may not."""
    if name is not None and not isinstance(name, str):
        raise InputError(f"lm must be an LM or its name, but got {name!r:.80}; give lm=resolve_lm(...) or a name")
    if name is None:
        name = manifest.lm
        if name == EMBEDDED_ID:
            name = "embedded"
        elif name.startswith("embedded:"):
            raise ArtifactError(
                f"the artifact was compiled for the LM {name!r}, but the embedded LM here is {EMBEDDED_ID!r}; compile "
                "again, or give lm=..."
            )
        elif not _MODEL_NAME.fullmatch(name):
            raise ArtifactError(
                f"the artifact was compiled for the LM {name!r}, which cannot be had by its name alone; give lm=..., "
                "an LM made by resolve_lm or its name"
            )
    return resolve_lm(name, store=open_store(home))


def check_rewriter_for(manifest: ArtifactManifest, given: dspy.BaseLM | str | Path | None) -> None:
    """Refuse a rewriter beside an artifact that has no place for one: it can only replace the artifact's own.

    Args:
        manifest: The artifact's.
        given: A rewriter's folder, or an LM; None for the artifact's own.

    Raises:
        ArtifactError: The technique takes none, or was compiled without one.
    """
    if (given or manifest.rewriter) is not None and not takes_rewriter(technique_class(manifest.technique)):
        raise ArtifactError(f"the artifact's technique {manifest.technique} takes no rewriter; leave the rewriter out")
    if given is not None and manifest.rewriter is None:
        raise ArtifactError(
            "the artifact was compiled without a rewriter, so its prompts and scores are those of its LM; leave the "
            "rewriter out (--rewriter), or compile with it"
        )


def opened_rewriter(
    manifest: ArtifactManifest, given: dspy.BaseLM | str | Path | None, home: Path | None
) -> dspy.BaseLM | None:
    """The LM of the rewriter that was given, or of the one that an artifact names; None where there is none.

    Args:
        manifest: The artifact's.
        given: A rewriter's folder, or an LM.
        home: The working folder.

    Raises:
        ArtifactError: The working folder does not have the one that the artifact names.
        InputError: It cannot be used.
    """
    if given is None:
        if manifest.rewriter is None:
            return None
        given = find_rewriter(manifest.rewriter, home)
    if isinstance(given, dspy.BaseLM):
        return with_async_face(given)
    if not isinstance(given, str | Path):
        raise InputError(f"rewriter must be a rewriter's folder or an LM, but got {given!r:.80}; give one of them")
    return open_rewriter(Path(given), store=open_store(home))


def reranker_of(manifest: ArtifactManifest, given: Reranker | str | None = None) -> Reranker | None:
    """The reranker that was given, or the one that the artifact names; its model is loaded.

    Args:
        manifest: The artifact's.
        given: A reranker, or the name or folder of a cross-encoder. Default: the artifact's own.

    Raises:
        ArtifactError: The artifact names one that cannot be had by its name.
        ModelError: It cannot be loaded.
    """
    if isinstance(given, str):
        given = _ready(given)
    if given is not None or manifest.reranker is None:
        return given
    # A folder of that name here would be another model: its id differs.
    found = _ready(manifest.reranker) if _HUB_MODEL.fullmatch(manifest.reranker) else None
    if found is None or found.id != manifest.reranker:
        raise ArtifactError(
            f"the program was compiled with the reranker {manifest.reranker!r}, which cannot be had by its name alone; "
            "give reranker=..., a reranker or the folder of a cross-encoder"
        )
    return found


def _ready(name: str) -> Reranker:
    reranker = resolve_reranker(name.removeprefix(HUB_PREFIX))
    reranker.load()
    return reranker


def _retriever(manifest: ArtifactManifest, home: Path | None) -> CollectionRetriever | None:
    check_named(manifest)
    if manifest.collection is None or manifest.engine is None:
        if technique_class(manifest.technique).SEARCHES == "0":
            return None
        raise ArtifactError(
            f"the program was compiled on a retriever of your own, which the artifact cannot hold; give retriever=... "
            f"(technique {manifest.technique})"
        )
    if not NAME_PATTERN.fullmatch(manifest.collection):
        raise ArtifactError(f"manifest.json: {manifest.collection!r} cannot be a collection's name; compile again")
    published = read_manifest(collection_folder(manifest.collection, home))
    if published is None:
        known = ", ".join(list_collections(home)) or "none"
        raise CollectionError(
            f"the artifact needs the collection {manifest.collection!r}, but there is none (known: {known}); build it: "
            f"{index_command(manifest.collection)}, name its working folder with home=, or give retriever=..."
        )
    return open_searched(manifest, _embedder(manifest, published, home), home)


def _embedder(manifest: ArtifactManifest, published: Generation, home: Path | None) -> Embedder | None:
    """The embedder that the artifact names; None for an engine that needs none."""
    if manifest.engine in LEXICAL:
        return None
    name = str(manifest.embedder)
    if published.embedder != name:  # before a model of that name is looked for
        raise CollectionError(
            f"the collection {manifest.collection!r} was built with the embedder {published.embedder!r}, but the "
            f"program was compiled with {name!r}; build the collection again with that embedder, or compile again"
        )
    found = embedder_of(name, store=open_store(home))
    if found is None:
        raise ArtifactError(
            f"the collection was embedded by {name!r}, which cannot be had by its name alone; open it yourself and "
            "give retriever=..."
        )
    return found


def _verify(loaded: LoadedProgram, artifact: Artifact) -> None:
    if not artifact.golden:
        raise ArtifactError("golden.jsonl is empty, so the program cannot be verified; load it without verify")
    for number, golden in enumerate(artifact.golden, 1):
        check = golden_check(loaded, number, golden)
        if check.state != "ok":
            raise ArtifactError(f"golden.jsonl line {number}: {check.said}; {check.remedy}")
