"""Everything about an artifact that can be checked, one line a check, none of them hiding another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError

from querywright.data.types import Passage
from querywright.errors import ArtifactError, QuerywrightError
from querywright.optimize.artifacts.compatibility import Check, State, collection_checks, failed, version_checks
from querywright.optimize.artifacts.files import Artifact, ArtifactManifest, Golden, artifact_files, checked_artifact
from querywright.optimize.artifacts.folders import SIGNATURE
from querywright.optimize.artifacts.golden import GOLDEN, golden_check
from querywright.optimize.artifacts.load import check_rewriter_for, loaded_from, opened_rewriter, reranker_of
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.optimize.artifacts.rewriters import RewriterRef, ref_of
from querywright.optimize.artifacts.signatures import check_signed, signature_parts
from querywright.optimize.program_state import program_from
from querywright.programs import technique_class
from querywright.retrieval.rerank import Reranker

Progress = Callable[[str, int, int], None]

STEPS = ("program", "collection", "LM", f"{GOLDEN}s")


def verify(
    path: Path,
    *,
    lm: dspy.LM | str | None = None,
    rewriter: dspy.LM | Path | None = None,
    home: Path | None = None,
    public_key: Path | None = None,
    progress: Progress | None = None,
) -> list[Check]:
    """Check an artifact: its files, its signature, what it needs here (a reranker too), and each golden answer.

    A library in another version is a warning, and differs where a golden answer does.

    Args:
        path: The artifact's folder.
        lm: An LM, or its name; None for the one that the artifact names.
        rewriter: A rewriter's folder, or an LM; None for the one that the artifact names, if it names one.
        home: The working folder that holds the collection. Default: ``querywright.home.home()``.
        public_key: Key file of whoever must have signed it. Default None.
        progress: Called as golden questions are asked. Default None.

    Raises:
        InputError: There is no such key file.
    """
    try:
        data = artifact_files(path)
        artifact = checked_artifact(data)
    except ArtifactError as error:
        return [failed("files", "differs", error), *_unreached("the files are not those that were written", STEPS)]
    checks = [Check("files", "ok", f"{len(artifact.manifest.files) + 1} files, as they were written")]
    signature = _signature(data, public_key)
    if signature is not None:
        checks.append(signature)
        if signature.state == "differs":
            return [*checks, *_unreached("the signature does not fit", STEPS)]
    checks += version_checks(artifact.manifest)
    checks += _replayed(artifact, lm, rewriter, home, progress)
    if any(one.name.startswith(GOLDEN) and one.state == "differs" for one in checks):
        checks = [
            replace(one, state="differs", remedy="have it as it was, or compile again")
            if one.state == "warning" and one.name != "signature"
            else one
            for one in checks
        ]
    return checks


def passed(checks: Sequence[Check]) -> bool:
    """Whether every check is ok, or a warning."""
    return all(one.state in ("ok", "warning") for one in checks)


def _signature(data: dict[str, bytes], public_key: Path | None) -> Check | None:
    signature = data.get(SIGNATURE)
    try:
        if public_key is not None:
            check_signed(data["manifest.json"], signature, public_key)
            return Check("signature", "ok", f"made with the key {public_key.name}")
        if signature is None:
            return None
        owner = signature_parts(signature)[1]
    except ArtifactError as error:
        return failed("signature", "differs", error)
    return Check(
        "signature", "warning", f"there is one, of the key {owner[:16]}, not checked",
        "give the public key of whoever you trust: --public-key",
    )  # fmt: skip


def _replayed(
    artifact: Artifact,
    lm: dspy.LM | str | None,
    rewriter: dspy.LM | Path | None,
    home: Path | None,
    progress: Progress | None,
) -> list[Check]:
    """The program, what it needs, and its golden answers."""
    try:
        program_from(artifact.state)
    except QuerywrightError as error:
        return [failed("program", "differs", error), *_unreached("the program cannot be made", STEPS[1:])]
    checks = [Check("program", "ok", f"{artifact.state.technique}, reader {artifact.state.reader or 'none'}")]
    found = collection_checks(artifact.manifest, home)
    searchable = passed(found)
    reranker, reranking = _reranker(artifact.manifest)
    checks += [*found, *reranking]
    rewriting = None
    if artifact.manifest.rewriter is not None or rewriter is not None:
        try:
            check_rewriter_for(artifact.manifest, rewriter)
            rewriting = opened_rewriter(artifact.manifest, rewriter, home)
        except QuerywrightError as error:
            missing = _unreached("the rewriter is not at hand", STEPS[2:])
            return [*checks, failed("rewriter", "not possible", error), *missing]
        checks.append(_rewriter(ref_of(rewriting), artifact.manifest))
    try:
        loaded = loaded_from(
            artifact,
            lm=lm,
            retriever=None if searchable else _nothing,
            reranker=reranker,
            rewriter=rewriting,
            home=home,
        )
    except QuerywrightError as error:
        return [*checks, failed("LM", "not possible", error), *_unreached("the LM is not at hand", STEPS[3:])]
    checks.append(_lm(loaded.lm.model, artifact.manifest))
    if not searchable:
        return [*checks, *_unreached("the collection is not at hand", STEPS[3:])]
    if not passed(reranking):
        return [*checks, *_unreached("the reranker is not at hand", STEPS[3:])]
    if not artifact.golden:
        return [*checks, Check(f"{GOLDEN}s", "not possible", "there are none", "compile again with golden questions")]
    for number, golden in enumerate(artifact.golden, 1):
        checks.append(_golden(loaded, number, golden))
        if progress is not None:
            progress(f"{GOLDEN}s", number, len(artifact.golden))
    return checks


def _rewriter(found: RewriterRef, manifest: ArtifactManifest) -> Check:
    if found == manifest.rewriter:
        return Check("rewriter", "ok", str(found))
    return Check(
        "rewriter", "warning", f"{found} here, {manifest.rewriter or 'none'} when it was saved",
        "nothing, as long as the golden answers are the same",
    )  # fmt: skip


def _lm(model: str, manifest: ArtifactManifest) -> Check:
    if model == manifest.lm:
        return Check("LM", "ok", model)
    return Check(
        "LM", "warning", f"{model} here, {manifest.lm} when it was saved",
        "nothing, as long as the golden answers are the same",
    )  # fmt: skip


def _golden(loaded: LoadedProgram, number: int, golden: Golden) -> Check:
    try:
        return golden_check(loaded, number, golden)
    except (QuerywrightError, LMError, AdapterParseError) as error:
        return failed(f"{GOLDEN} {number}", "not possible", error)


def _reranker(manifest: ArtifactManifest) -> tuple[Reranker | None, list[Check]]:
    """The reranker that a program needs, or what stands in for one that cannot be had; and what was found."""
    if manifest.reranker is None or not technique_class(manifest.technique).USES_RERANKER:
        return None, []
    try:
        found = reranker_of(manifest)
    except QuerywrightError as error:
        return _Unsorted(), [failed("reranker", "not possible", error)]
    return found, [Check("reranker", "ok", manifest.reranker)]


class _Unsorted:
    """Scores nothing: in place of a reranker, where only the LM is looked for."""

    id = "none"

    def score(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """All the same."""
        return [0.0] * len(passages)


def _nothing(query: str, k: int) -> list[str]:
    """Finds nothing: in place of a collection, where only the LM is looked for."""
    return []


def _unreached(why: str, steps: Sequence[str]) -> list[Check]:
    state: State = "not possible"
    return [Check(name, state, why, "put right what stands above") for name in steps]
