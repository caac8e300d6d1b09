"""Compiled programs on disk: a folder that another process loads and trusts.

``program.json`` (what was tuned), ``golden.jsonl`` (questions with the answers the program gave when it was saved),
``README.md`` (a card for people) and ``manifest.json``, which binds them by SHA-256 and says how the program was
made. JSON only; nothing is ever unpickled, and no address, header or key of an LM is stored or read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from querywright.errors import ArtifactError
from querywright.optimize.state import FORMAT, ProgramState, state_of
from querywright.programs import RAG

M = TypeVar("M", bound=BaseModel)

_LIMITS = {
    "manifest.json": 4 * 2**20,
    "program.json": 16 * 2**20,
    "golden.jsonl": 16 * 2**20,
    "README.md": 2**20,
}


class Golden(BaseModel):
    """A question and what the program made of it when it was saved."""

    model_config = ConfigDict(extra="forbid", strict=True)

    question: str
    options: list[str]
    answer: str | None
    passages: list[str]


class Manifest(BaseModel):
    """How a program was made, and what it needs.

    Args:
        format: Version of the artifact's form.
        technique: The technique of the saved program.
        reader: Its reader.
        lm: Id of the LM that it was compiled for.
        embedder: Id of the embedder of its collection, or None without one.
        collection: Name of its collection.
        fingerprint: Fingerprint of the retriever.
        created: Day, ISO 8601.
        versions: Versions of querywright and of the libraries that decide its behaviour.
        made: How it was made: data hashes, split, objective, scores, comparisons, cost.
        files: SHA-256 of the other files.
        checksum: SHA-256 of this manifest without this field.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    format: int
    technique: str
    reader: str | None
    lm: str
    embedder: str | None
    collection: str | None
    fingerprint: str | None
    created: str
    versions: dict[str, str]
    made: dict[str, JsonValue]
    files: dict[str, str]
    checksum: str = ""

    def digest(self) -> str:
        """The checksum that the manifest must have."""
        data = self.model_dump(exclude={"checksum"})
        return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Artifact(BaseModel):
    """An artifact that was read and checked."""

    manifest: Manifest
    state: ProgramState
    golden: list[Golden]


def write_artifact(
    path: str | Path,
    program: RAG,
    *,
    lm: str,
    embedder: str | None,
    collection: str | None,
    fingerprint: str | None,
    created: str,
    made: Mapping[str, Any],
    golden: Sequence[Golden],
    card: str,
) -> Manifest:
    """Write a program as an artifact; an older one at the same place is replaced whole or not at all.

    Args:
        path: The artifact's folder; its parent is made when missing.
        program: What is saved.
        lm: Id of the LM.
        embedder: Id of the embedder.
        collection: Name of the collection.
        fingerprint: Fingerprint of the retriever.
        created: Day, ISO 8601.
        made: How it was made, as plain data.
        golden: Questions with the program's results.
        card: The text of README.md.

    Raises:
        ArtifactError: The folder cannot be written; what stood there stays.
    """
    target = Path(path)
    files = {
        "program.json": _pretty(state_of(program).model_dump()),
        "golden.jsonl": "".join(json.dumps(one.model_dump(), ensure_ascii=False) + "\n" for one in golden),
        "README.md": card,
    }
    manifest = Manifest(
        format=FORMAT,
        technique=program.technique.NAME,
        reader=None if program.reader is None else program.reader.NAME,
        lm=lm,
        embedder=embedder,
        collection=collection,
        fingerprint=fingerprint,
        created=created,
        versions=_versions(),
        made=json.loads(json.dumps(made, allow_nan=False)),
        files={name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()},
    )
    manifest.checksum = manifest.digest()
    files["manifest.json"] = _pretty(manifest.model_dump())
    try:
        _replace_folder(target, files)
    except OSError as error:
        reason = {errno.ENOSPC: "the disk is full", errno.EROFS: "the file system is read-only"}.get(
            error.errno or 0, error.strerror or str(error)
        )
        raise ArtifactError(
            f"the artifact {target.name!r} could not be written: {reason}; nothing at that place was changed. "
            "Give another --out, or make room"
        ) from error
    return manifest


def read_artifact(path: str | Path) -> Artifact:
    """Read an artifact and check every byte of it.

    Raises:
        ArtifactError: It is missing, incomplete, too large, edited, or not of a form that this version reads.
    """
    folder = Path(path)
    _restore(folder)
    if not folder.is_dir():
        raise ArtifactError(
            f"there is no artifact at {folder.name!r}; give the folder that querywright compile wrote (--out)"
        )
    data = {name: _read(folder, name) for name in _LIMITS}
    manifest = _parse(Manifest, "manifest.json", data["manifest.json"])
    if manifest.format != FORMAT:
        raise ArtifactError(
            f"manifest.json: the artifact has format {manifest.format}, this version of querywright reads "
            f"{FORMAT}; compile again, or install the version that wrote it "
            f"({manifest.versions.get('querywright', 'unknown')})"
        )
    if manifest.checksum != manifest.digest():
        raise ArtifactError("manifest.json was changed after it was written (field checksum); compile again")
    expected = set(_LIMITS) - {"manifest.json"}
    if set(manifest.files) != expected:
        raise ArtifactError(f"manifest.json: the field files must name {sorted(expected)}")
    for name, digest in manifest.files.items():
        if hashlib.sha256(data[name]).hexdigest() != digest:
            raise ArtifactError(f"{name} was changed after it was written (SHA-256 differs); compile again")
    state = _parse(ProgramState, "program.json", data["program.json"])
    if (state.technique, state.reader) != (manifest.technique, manifest.reader):
        raise ArtifactError("program.json and manifest.json name different programs; compile again")
    lines = data["golden.jsonl"].decode().splitlines()
    golden = [_parse(Golden, f"golden.jsonl line {n}", line.encode()) for n, line in enumerate(lines, 1)]
    return Artifact(manifest=manifest, state=state, golden=golden)


def _read(folder: Path, name: str) -> bytes:
    file = folder / name
    try:
        if file.is_symlink() or not file.is_file():
            raise ArtifactError(
                f"the artifact {folder.name!r} is not whole: {name} is missing or not a plain file"
            )
        size = file.stat().st_size
        if size > _LIMITS[name]:
            raise ArtifactError(f"{name} has {size} bytes, more than the {_LIMITS[name]} that are read")
        return file.read_bytes()
    except OSError as error:
        raise ArtifactError(
            f"{name} of the artifact {folder.name!r} cannot be read: {error.strerror}"
        ) from error


def _parse(model: type[M], name: str, data: bytes) -> M:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        repeated = {key for key in keys if keys.count(key) > 1}
        if repeated:
            raise ArtifactError(f"{name}: the key {sorted(repeated)[0]!r} stands twice")
        return dict(pairs)

    try:
        content = json.loads(data, object_pairs_hook=unique)
        return model.model_validate(content)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ArtifactError(f"{name}: field {where or '(whole)'}: {first['msg']}") from error
        raise ArtifactError(f"{name} is not valid JSON ({error}); the file was cut off or edited") from error


def _pretty(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("querywright", "dspy", "chromadb", "optuna")}


def _replace_folder(target: Path, files: Mapping[str, str]) -> None:
    """Write files beside the target, then put the folder in its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _restore(target)
    _sweep(target)
    if target.exists() and not (target / "manifest.json").is_file() and any(target.iterdir()):
        raise ArtifactError(f"{target.name!r} exists and is no artifact; give another folder")
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
    try:
        for name, text in files.items():
            with (temporary / name).open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        temporary.chmod(0o755)
        if target.exists():
            target.rename(_aside(target))
        temporary.rename(target)
        _sync(target.parent)
        shutil.rmtree(_aside(target), ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        _restore(target)
        raise


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _restore(target: Path) -> None:
    """Put back an artifact that was set aside by a process that ended before its successor was in place."""
    if _aside(target).is_dir() and not target.exists():
        _aside(target).rename(target)


def _sweep(target: Path) -> None:
    """Remove what processes that were killed left behind."""
    if target.exists():
        shutil.rmtree(_aside(target), ignore_errors=True)
    for left in target.parent.glob(f".{target.name}.new-*"):
        shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
