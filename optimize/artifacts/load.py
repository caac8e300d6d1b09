"""Load an artifact into an application."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import dspy

from querywright.errors import ArtifactError, CollectionError, InputError
from querywright.models.embedded import EMBEDDED_ID
from querywright.models.engine import LMEngine
from querywright.models.lm import as_lm, resolve_lm, writer_beside
from querywright.models.recording import PACKAGED, PREFIX
from querywright.models.store import open_store
from querywright.optimize.artifacts.files import Artifact, ArtifactManifest, Golden, check_digest, read_artifact
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.optimize.artifacts.writers import find_rewriter
from querywright.optimize.program_state import program_from
from querywright.programs import technique_class, use_writer
from querywright.retrieval.callable import as_retriever, is_collection
from querywright.retrieval.checks import check_filter, tell_rebuilt
from querywright.retrieval.collection import collection_folder, no_collection, read_manifest
from querywright.retrieval.edits import PASSAGES_SAMPLE, share_changed
from querywright.retrieval.engines import LEXICAL, CollectionRetriever, open_retriever
from querywright.retrieval.rerank import HUB_PREFIX, Reranker, resolve_reranker

ALLOWED = "QUERYWRIGHT_ALLOW_LM"
"""The environment variable with patterns for the remote LMs that artifacts may name."""

MOST_CHANGED = 0.5
"""Share of the passages that may have changed since the compilation. A different chunk size changes more than this."""

_logger = logging.getLogger(__name__)

CHANGED = "differs from the collection that the program was compiled on"
"""Wording for the message about a changed collection."""

_MODEL_NAME = re.compile(r"(?!.*//)[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_.:@/+-]+")
"""A DSPy model string that names a provider and a model but no address."""

_HUB_MODEL = re.compile(r"ce:[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
"""A reranker that can be loaded by its name alone."""


def load(
    path: str | Path | Artifact,
    *,
    lm: dspy.BaseLM | str | None = None,
    retriever: Any = None,
    where: Mapping[str, Any] | None = None,
    reranker: Reranker | str | None = None,
    writer_lm: dspy.BaseLM | str | Path | None = None,
    home: str | Path | None = None,
    verify: bool = False,
    digest: str | None = None,
    accept: bool = False,
    tell: Callable[[str], object] = lambda line: _logger.warning(line.removeprefix("warning: ")),
) -> LoadedProgram:
    """Load an artifact, and check everything before the first answer.

    Args:
        path: Folder of the artifact, or the result of ``read_artifact``.
        lm: An LM or its name. A remote LM reads its API key from an environment variable. Default None: the LM that the
            artifact was compiled for, if it is local or ``QUERYWRIGHT_ALLOW_LM`` has a pattern for its name.
        retriever: What to search instead of the artifact's collection: the name of a different collection, a
            ``chromadb`` collection (object or location), a retriever, or any callable. A collection is searched with
            the same engine as the artifact's collection (dense, hybrid, ...).
        where: A metadata filter that replaces the artifact's filter; ``{}`` for none.
        reranker: A reranker, or the name or folder of a cross-encoder, that replaces the artifact's reranker.
        writer_lm: The LM that the technique calls: an LM, its name, or a rewriter's folder. It shares its cache,
            counts, and budget with ``lm``. Default: the writer that the artifact names (a rewriter comes from the
            workspace), or ``lm`` if it names none.
        home: The workspace with the collection. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        verify: Whether to run the golden questions and compare the answers with the saved answers. Default False.
        digest: The required digest, ``sha256:...`` as in the output of ``querywright artifact show``. Default: any.
        accept: Whether more than half of the collection's passages may have changed. A smaller change only causes a
            warning. Default False.
        tell: Called with a warning if the collection was rebuilt after the retriever was opened. Default: write it to
            the log.

    Raises:
        ArtifactError: The artifact is missing, damaged, or edited; has a different digest; names a remote LM that is
            neither given nor allowed; or does not reproduce its golden answers.
        CollectionError: The collection is missing, damaged, or built with a different embedder.
        ModelError: An LM or the reranker cannot be used.
    """
    artifact = path if isinstance(path, Artifact) else read_artifact(path, digest=digest)
    if artifact is path:
        check_digest(artifact.manifest.digest, digest)
    manifest = artifact.manifest
    program_from(artifact.state)  # report errors in the artifact before opening anything
    if reranker is not None and not technique_class(manifest.technique).USES_RERANKER:
        raise ArtifactError(f"the artifact's technique {manifest.technique} does not rerank; remove the reranker")
    folder = None if home is None else Path(home)
    found: Any
    if retriever is None and where is None:
        found = collection_of(manifest, folder, accept)
    elif retriever is None and manifest.collection is None:
        raise ArtifactError("where= requires a collection, but the artifact does not name one; pass retriever=... too")
    elif retriever is None or isinstance(retriever, str) or is_collection(retriever):
        admitted = manifest.where if where is None else where
        name, engine = retriever or manifest.collection, manifest.engine or "dense"
        found = open_retriever(name, engine=engine, home=folder, where=admitted)
    elif where is not None:
        raise InputError(
            f"where= requires a collection, but got the retriever {retriever!r:.80}; set the filter in the retriever"
        )
    else:
        found = as_retriever(retriever)
    check_filter(found)
    tell_rebuilt([found], tell)
    program = program_from(artifact.state, found, reranker_of(manifest, reranker))
    reads = lm_of(manifest, lm, folder)
    use_writer(program, writer_of(manifest, reads, writer_lm, folder))
    if EMBEDDED_ID == reads.model != manifest.lm and (program.reader or program.technique.LM_STAGES):
        _logger.warning(
            "%s was compiled for the LM %s. The embedded LM (135M parameters) rarely follows its prompts; use a "
            "larger LM, such as lm='openai/gpt-4o-mini' (--lm)", manifest.technique, manifest.lm.removeprefix(PREFIX),
        )  # fmt: skip
    loaded = LoadedProgram(program, reads, manifest, golden=artifact.golden)
    if verify:
        if not artifact.golden:
            raise ArtifactError(
                "golden.jsonl is empty, so the program cannot be verified; load the artifact without verify"
            )
        for number, golden in enumerate(artifact.golden, 1):
            differing = golden_difference(loaded, golden)
            if differing:
                raise ArtifactError(f"golden.jsonl line {number}: {differing}")
    return loaded


def golden_difference(loaded: LoadedProgram, golden: Golden) -> str:
    """Return how the answer to a golden question differs from the saved answer, with the remedy; empty if it is the
    same.
    """
    prediction = loaded(golden.question, golden.options or None, history=golden.history)
    passages = [passage.id for passage in prediction.passages]
    differing = []
    if passages != golden.passages:
        differing.append(f"the program now finds {passages}, but found {golden.passages} when it was saved")
    if prediction.answer != golden.answer:
        differing.append(
            f"the program now answers {prediction.answer!r}, but answered {golden.answer!r} when it was saved"
        )
    if differing:
        differing.append(
            "use the LM that the program was compiled for, with the same settings (current LM: "
            f"{loaded.lm.model}), and the same collection, or recompile"
        )
    return "; ".join(differing)


def lm_of(manifest: ArtifactManifest, given: dspy.BaseLM | str | None, home: Path | None) -> dspy.BaseLM:
    """Return the given LM, or else the LM that the artifact names. A given name may contain an address; the artifact's
    may not.
    """
    if isinstance(given, dspy.BaseLM):
        # An LM that runs on one of this project's engines can also be called in an event loop.
        return as_lm(given) if isinstance(getattr(given, "engine", None), LMEngine) else given
    if given is not None and not isinstance(given, str):
        raise InputError(f"lm must be an LM or its name, but got {given!r:.80}; pass a name or resolve_lm(...)")
    return resolve_lm(given or own_lm(manifest.lm, "lm"), store=open_store(home))


def own_lm(lm: str, option: str, *, api_base: str | None = None) -> str:
    """Return the name under which an artifact's LM can be opened.

    The maker of an artifact does not decide where questions are sent. The caller must name a remote LM, or allow it
    with a pattern in the ``QUERYWRIGHT_ALLOW_LM`` environment variable.

    Args:
        lm: Id of the LM in the manifest.
        option: Name of the argument that sets a different LM.
        api_base: The caller's address of an OpenAI-compatible LM; questions are sent only to this address.

    Raises:
        ArtifactError: The LM cannot be opened by name, or is remote and not allowed.
    """
    name = "embedded" if lm == EMBEDDED_ID else lm
    if name == "embedded" or name in {f"{PREFIX}{packaged}" for packaged in PACKAGED}:
        return name
    if not _MODEL_NAME.fullmatch(name):
        raise ArtifactError(
            f"the artifact was compiled for the LM {name.removeprefix(PREFIX)!r}, but this LM cannot be loaded by name "
            f"alone (the installed embedded LM is {EMBEDDED_ID}); pass an LM or its name as {option}=, or "
            "recompile"
        )
    allowed = os.environ.get(ALLOWED, "").replace(",", " ").split()
    to_the_address = api_base is not None and name.startswith("openai/")
    if not to_the_address and not any(fnmatchcase(name, pattern) for pattern in allowed):
        raise ArtifactError(
            f"the artifact was compiled for the remote LM {name!r}, but for safety an artifact cannot choose where "
            f"your data and API key are sent; pass {option}={name!r} (--{option.replace('_', '-')} {name}), or allow "
            f"this LM for all artifacts by setting {ALLOWED}={name} (comma-separated patterns, such as openai/*)"
        )
    return name


def writer_of(
    manifest: ArtifactManifest, lm: dspy.BaseLM, given: dspy.BaseLM | str | Path | None, home: Path | None
) -> dspy.BaseLM | None:
    """Return the given writer LM, or else the writer that the artifact names; None if the reader's LM also writes."""
    saved = manifest.writer
    if given is None and saved is not None:
        given = find_rewriter(saved, home) if saved.checksum else own_lm(saved.name, "writer_lm")
    return None if given is None else writer_beside(lm, given, store=open_store(home))


def reranker_of(manifest: ArtifactManifest, given: Reranker | str | None = None) -> Reranker | None:
    """Return the given reranker, or else the reranker that the artifact names, with its model loaded."""
    named = manifest.reranker if given is None else given
    if not isinstance(named, str):
        return named
    found = None
    if given is not None or _HUB_MODEL.fullmatch(named):
        found = resolve_reranker(named.removeprefix(HUB_PREFIX))
        found.load()
    # A local folder with that name would be a different model, because its id differs.
    if found is None or (given is None and found.id != named):
        raise ArtifactError(
            f"the program was compiled with the reranker {named!r}, but this reranker cannot be loaded by name alone; "
            "pass a reranker or the folder of a cross-encoder as reranker="
        )
    return found


def collection_of(manifest: ArtifactManifest, home: Path | None, accept: bool = False) -> CollectionRetriever | None:
    """Open the artifact's collection in the way it was opened for the compilation; None if it names none."""
    if manifest.collection is None or manifest.engine is None:
        if technique_class(manifest.technique).SEARCHES == "0":
            return None
        raise ArtifactError(
            f"the program (technique {manifest.technique}) was compiled with a custom retriever, but an artifact "
            "cannot contain a custom retriever; pass retriever=..."
        )
    published = read_manifest(collection_folder(manifest.collection, home))
    if published is None:
        raise CollectionError(
            f"the program was compiled on a collection that is missing: {no_collection(manifest.collection, home)}. "
            "Or search your own passages: run `querywright index mine passages.jsonl`, and pass "
            'retriever="mine"'
        )
    if manifest.engine not in LEXICAL and published.embedder != manifest.embedder:  # checked before the model is loaded
        raise CollectionError(
            f"the collection {manifest.collection!r} was built with the embedder {published.embedder!r}, but the "
            f"program was compiled with {manifest.embedder!r}; re-index the collection with {manifest.embedder!r}, or "
            "recompile"
        )
    found = open_retriever(manifest.collection, engine=manifest.engine, home=home, where=manifest.where)
    check_compiled_on(manifest, found, accept)
    return found


def check_compiled_on(manifest: ArtifactManifest, retriever: CollectionRetriever, accept: bool) -> None:
    """Compare an opened collection with the collection that an artifact was compiled on, and report the share that
    changed.

    Raises:
        ArtifactError: More than ``MOST_CHANGED`` of the passages changed, or the share is unknown.
    """
    if retriever.fingerprint == manifest.fingerprint:
        return
    sample, share = manifest.made.get(PASSAGES_SAMPLE), None
    of_questions = manifest.engine in ("questions", "expanded")
    if isinstance(sample, list) and not of_questions:
        share = share_changed([*map(str, sample)], retriever.passages())
    changed = "" if share is None else f"about {share:.0%} of its passages"
    if share is not None and share < 0.01:
        changed = "less than 1% of a sample of its passages"
    if accept or (share is not None and share <= MOST_CHANGED):
        _logger.warning(
            "the collection %r changed after the program was compiled%s. The program searches the current passages; if "
            "its scores matter, recompile it, or check its golden answers with `querywright artifact verify`",
            manifest.collection, changed and f" ({changed})",
        )  # fmt: skip
        return
    parts = "questions or stored answers" if of_questions else "passages"
    raise ArtifactError(
        f"the collection {manifest.collection!r} {CHANGED}: its fingerprint must be "
        f"{str(manifest.fingerprint)[:12]}, but got {retriever.fingerprint[:12]}"
        f"{changed and f', and {changed} changed'}; restore the collection's {parts} (index, questions build, import, "
        "or fill), recompile, pass retriever=..., or accept the change with accept=True"
    )
