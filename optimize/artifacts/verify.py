"""Run every possible check of an artifact and report one line per check; a failed check does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError

from querywright.errors import ArtifactError, QuerywrightError
from querywright.optimize.artifacts.files import ArtifactManifest, read_artifact
from querywright.optimize.artifacts.load import (
    CHANGED,
    collection_of,
    golden_difference,
    lm_of,
    load,
    reranker_of,
    writer_of,
)
from querywright.optimize.artifacts.writers import ref_of
from querywright.optimize.program_state import program_from

Progress = Callable[[str, int, int], None]
State = Literal["ok", "warning", "differs", "not possible"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Args:
        name: What was checked.
        state: ``ok``, ``differs``, ``not possible``, or ``warning`` for a difference that may not matter.
        said: The result in words.
        remedy: What to do about the problem; empty if there is nothing to do.
    """

    name: str
    state: State
    said: str
    remedy: str = ""


def verify(
    path: Path,
    *,
    lm: dspy.LM | str | None = None,
    writer_lm: dspy.LM | str | Path | None = None,
    home: Path | None = None,
    digest: str | None = None,
    progress: Progress | None = None,
) -> list[Check]:
    """Check an artifact: its files, the parts that it needs (collection, reranker, LMs), and each golden answer.

    A different version of a library is only a warning, unless a golden answer differs; then it counts as a difference.

    Args:
        path: Folder of the artifact.
        lm: An LM or its name. Default: the LM that the artifact names.
        writer_lm: The LM that the technique calls (see ``load``). Default: the writer that the artifact names, if any.
        home: The workspace with the collection. Default: ``querywright.home.home()``.
        digest: The required digest. Default: any.
        progress: Called after each golden question. Default None.
    """
    try:
        artifact = read_artifact(path, digest=digest)
    except ArtifactError as error:
        return [_failed("files", "differs", error)]
    manifest = artifact.manifest
    checks = [Check("files", "ok", f"unchanged, {manifest.digest}"), *_versions(manifest)]
    parts: dict[str, Any] = {}

    def look(name: str, part: str, find: Callable[[], Any], found: Callable[[Any], str], saved: str) -> None:
        try:
            parts[part] = find()
        except QuerywrightError as error:
            differs = part == "program" or CHANGED in str(error)
            checks.append(_failed(name, "differs" if differs else "not possible", error))
        else:
            checks.append(_same(name, found(parts[part]), saved))

    program = f"{manifest.technique}, reader {manifest.reader or 'none'}"
    look("program", "program", lambda: program_from(artifact.state), lambda _: program, program)
    if not passed(checks):
        return checks
    del parts["program"]
    embedder = "" if manifest.embedder is None else f", embedder {manifest.embedder}"

    def searched(fingerprint: str | None) -> str:
        return f"{manifest.collection}{embedder}, fingerprint {str(fingerprint)[:12]}"

    nothing = "the program does not search"
    look(
        "collection", "retriever", lambda: collection_of(manifest, home),
        lambda one: searched(one.fingerprint) if one else nothing,
        searched(manifest.fingerprint) if manifest.collection else nothing,
    )  # fmt: skip
    if manifest.reranker is not None:
        look("reranker", "reranker", lambda: reranker_of(manifest), lambda one: str(one.id), manifest.reranker)
    look("LM", "lm", lambda: lm_of(manifest, lm, home), lambda one: str(one.model), manifest.lm)
    if "lm" in parts and (manifest.writer is not None or writer_lm is not None):
        look(
            "writer", "writer_lm", lambda: writer_of(manifest, parts["lm"], writer_lm, home),
            lambda one: str(ref_of(one or parts["lm"])), str(manifest.writer or manifest.lm),
        )  # fmt: skip
    if not passed(checks):
        remedy = "fix the problems above"
        return [*checks, Check("golden answers", "not possible", "a required part is missing", remedy)]
    if not artifact.golden:
        return [
            *checks,
            Check("golden answers", "not possible", "the artifact has none", "recompile with golden questions"),
        ]
    loaded = load(artifact, home=home, **parts)
    answers = []
    for number, golden in enumerate(artifact.golden, 1):
        name = f"golden answer {number}"
        try:
            said, _, remedy = golden_difference(loaded, golden).rpartition("; ")
            answers.append(Check(name, "differs", said, remedy) if said else Check(name, "ok", "unchanged"))
        except (QuerywrightError, LMError, AdapterParseError) as error:
            answers.append(_failed(name, "not possible", error))
        if progress is not None:
            progress("golden answers", number, len(artifact.golden))
    if any(one.state == "differs" for one in answers):
        remedy = "restore the saved version, or recompile"
        checks = [replace(one, state="differs", remedy=remedy) if one.state == "warning" else one for one in checks]
    return [*checks, *answers]


def passed(checks: Sequence[Check]) -> bool:
    """Return whether every check is ok or a warning."""
    return all(one.state in ("ok", "warning") for one in checks)


def drifted(manifest: ArtifactManifest) -> dict[str, tuple[str, str]]:
    """Return the libraries whose installed version differs from the manifest: the saved version and the installed
    version, or "not installed".
    """
    here: dict[str, str] = {}
    for name in manifest.versions:
        try:
            here[name] = version(name)
        except (PackageNotFoundError, ValueError):  # ValueError: not a valid library name
            here[name] = "not installed"
    return {name: (saved, here[name]) for name, saved in manifest.versions.items() if here[name] != saved}


def _versions(manifest: ArtifactManifest) -> list[Check]:
    named = ", ".join(f"{name} {number}" for name, number in manifest.versions.items())
    others = [_same(f"version of {name}", here, saved) for name, (saved, here) in drifted(manifest).items()]
    return others or [Check("versions", "ok", f"unchanged: {named}")]


def _same(name: str, here: str, saved: str) -> Check:
    if here == saved:
        return Check(name, "ok", here)
    said = f"now {here}, but {saved} when the program was saved"
    return Check(name, "warning", said, "no action is needed if the golden answers match")


def _failed(name: str, state: State, error: Exception) -> Check:
    """Return a failed check for an error whose message ends with the remedy."""
    said, _, remedy = " ".join(str(error).split()).partition("; ")
    return Check(name, state, said, remedy)
