"""Everything about an artifact that can be checked, one line a check, none of them hiding another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError

from querywright.errors import ArtifactError, QuerywrightError
from querywright.optimize.artifacts.files import Artifact, ArtifactManifest, read_artifact
from querywright.optimize.artifacts.load import collection_of, lm_of, loaded_from, reranker_of, rewriter_of
from querywright.optimize.artifacts.loaded import golden_difference
from querywright.optimize.artifacts.rewriters import ref_of
from querywright.optimize.program_state import program_from

Progress = Callable[[str, int, int], None]
State = Literal["ok", "warning", "differs", "not possible"]

_AS_LONG_AS = "nothing, as long as the golden answers are the same"


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


def verify(
    path: Path,
    *,
    lm: dspy.LM | str | None = None,
    rewriter: dspy.LM | Path | None = None,
    home: Path | None = None,
    digest: str | None = None,
    progress: Progress | None = None,
) -> list[Check]:
    """Check an artifact: its files, what it needs here (collection, reranker, rewriter, LM), and each golden answer.

    A library in another version is a warning, and differs where a golden answer does.

    Args:
        path: The artifact's folder.
        lm: An LM, or its name; None for the one that the artifact names.
        rewriter: A rewriter's folder, or an LM; None for the one that the artifact names, if it names one.
        home: The working folder that holds the collection. Default: ``querywright.home.home()``.
        digest: The digest that the artifact must have. Default: any.
        progress: Called as golden questions are asked. Default None.
    """
    try:
        artifact = read_artifact(path, digest=digest)
    except ArtifactError as error:
        return [_failed("files", "differs", error)]
    manifest = artifact.manifest
    checks = [Check("files", "ok", f"as they were written, {manifest.digest}"), *_versions(manifest)]
    try:
        program_from(artifact.state)
    except QuerywrightError as error:
        return [*checks, _failed("program", "differs", error)]
    checks.append(Check("program", "ok", f"{manifest.technique}, reader {manifest.reader or 'none'}"))

    parts: dict[str, Any] = {}

    def look(name: str, part: str, find: Callable[[], Any], say: Callable[[Any], tuple[str, str]]) -> None:
        try:
            parts[part] = find()
        except QuerywrightError as error:
            differs = "is not the one the program was compiled on" in str(error)
            checks.append(_failed(name, "differs" if differs else "not possible", error))
            return
        here, saved = say(parts[part])
        checks.append(
            Check(name, "ok", here)
            if here == saved
            else Check(name, "warning", f"{here} here, {saved} when it was saved", _AS_LONG_AS)
        )

    look("collection", "retriever", lambda: collection_of(manifest, home), lambda found: _searched(manifest, found))
    if manifest.reranker is not None:
        look("reranker", "reranker", lambda: reranker_of(manifest), lambda found: (found.id, str(manifest.reranker)))
    if manifest.rewriter is not None or rewriter is not None:
        look(
            "rewriter", "rewriter", lambda: rewriter_of(manifest, rewriter, home),
            lambda found: (str(ref_of(found)), str(manifest.rewriter)),
        )  # fmt: skip
    look("LM", "lm", lambda: lm_of(manifest, lm, home), lambda found: (found.model, manifest.lm))
    checks += _golden(artifact, parts, home, progress) if passed(checks) else [_unreached()]
    if any(one.name.startswith("golden answer") and one.state == "differs" for one in checks):
        remedy = "have it as it was, or compile again"
        checks = [replace(one, state="differs", remedy=remedy) if one.state == "warning" else one for one in checks]
    return checks


def passed(checks: Sequence[Check]) -> bool:
    """Whether every check is ok, or a warning."""
    return all(one.state in ("ok", "warning") for one in checks)


def drifted(manifest: ArtifactManifest) -> dict[str, tuple[str, str | None]]:
    """The libraries of a manifest that are installed in another version (then and here), or not at all."""
    found: dict[str, tuple[str, str | None]] = {}
    for name, saved in manifest.versions.items():
        try:
            here = version(name)
        except (PackageNotFoundError, ValueError):  # ValueError: a name that no library can have
            here = None
        if here != saved:
            found[name] = saved, here
    return found


def _versions(manifest: ArtifactManifest) -> list[Check]:
    others = drifted(manifest)
    named = ", ".join(f"{name} {number}" for name, number in manifest.versions.items())
    return [
        Check(
            f"version of {name}", "warning", f"{here or 'not installed'} here, {saved} when it was saved", _AS_LONG_AS
        )
        for name, (saved, here) in others.items()
    ] or [Check("versions", "ok", f"as they were: {named}")]


def _searched(manifest: ArtifactManifest, retriever: Any) -> tuple[str, str]:
    if retriever is None:
        return "the program searches nothing", "the program searches nothing"
    embedder = "" if manifest.embedder is None else f", embedder {manifest.embedder}"
    named = f"{manifest.collection}{embedder}, fingerprint {str(manifest.fingerprint)[:12]}"
    return named, named


def _golden(artifact: Artifact, parts: dict[str, Any], home: Path | None, progress: Progress | None) -> list[Check]:
    if not artifact.golden:
        return [Check("golden answers", "not possible", "there are none", "compile again with golden questions")]
    if parts["retriever"] is None:
        del parts["retriever"]
    loaded = loaded_from(artifact, home=home, **parts)
    checks = []
    for number, golden in enumerate(artifact.golden, 1):
        name = f"golden answer {number}"
        try:
            said, _, remedy = golden_difference(loaded, golden).rpartition("; ")
            checks.append(Check(name, "differs", said, remedy) if said else Check(name, "ok", "as it was"))
        except (QuerywrightError, LMError, AdapterParseError) as error:
            checks.append(_failed(name, "not possible", error))
        if progress is not None:
            progress("golden answers", number, len(artifact.golden))
    return checks


def _failed(name: str, state: State, error: Exception) -> Check:
    """A check that ended in an error, whose message has the remedy at its end."""
    said, _, remedy = " ".join(str(error).split()).partition("; ")
    return Check(name, state, said, remedy)


def _unreached() -> Check:
    return Check("golden answers", "not possible", "what they need is not at hand", "put right what stands above")
