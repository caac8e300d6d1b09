"""Compiled programs on disk: a folder that another process loads and trusts.

``program.json`` (what was tuned), ``golden.jsonl`` (questions with the answers the program gave when it was saved),
``README.md`` (a card for people) and ``manifest.json``, which binds them by SHA-256 and says how the program was
made. JSON only; nothing is ever unpickled, and no address, header or key of an LM is stored or read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
"""The files of an artifact, and bytes of each that are read at most."""

_READS = 5
"""How often reading begins again because the artifact was replaced meanwhile."""


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
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


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

    Returns:
        The manifest that was written.

    Raises:
        ArtifactError: The program cannot be saved as JSON, the folder holds other files, or it cannot be written;
            what stood there stays.
    """
    target = Path(path).resolve()
    try:
        manifest, files = _contents(
            program,
            Manifest(
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
                files={},
            ),
            golden,
            card,
        )
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"the program cannot be saved as JSON: {error}") from error
    try:
        _replace_folder(target, files)
    except OSError as error:
        reason = {errno.ENOSPC: "the disk is full", errno.EROFS: "the file system is read-only"}.get(
            error.errno or 0, error.strerror or type(error).__name__
        )
        raise ArtifactError(
            f"the artifact {target.name!r} could not be written: {reason}; nothing at that place was changed. "
            "Give another --out, or make room"
        ) from error
    return manifest


def _contents(
    program: RAG, manifest: Manifest, golden: Sequence[Golden], card: str
) -> tuple[Manifest, dict[str, bytes]]:
    """The complete manifest, and the bytes of every file."""
    lines = (json.dumps(one.model_dump(), ensure_ascii=False) + "\n" for one in golden)
    files = {
        "program.json": _pretty(state_of(program).model_dump()),
        "golden.jsonl": "".join(lines).encode(),
        "README.md": card.encode(),
    }
    manifest.files = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest.checksum = manifest.digest()
    files["manifest.json"] = _pretty(manifest.model_dump())
    return manifest, files


def read_artifact(path: str | Path) -> Artifact:
    """Read an artifact and check every byte of it. Nothing is written, also while another process replaces it.

    Raises:
        ArtifactError: It is missing, incomplete, too large, edited, or not of a form that this version reads.
    """
    target = Path(path).absolute()
    for _ in range(_READS):
        before = _identity(target)
        try:
            return _checked(_read_files(target))
        except ArtifactError:
            if _identity(target) == before:
                raise
    raise ArtifactError(f"the artifact {target.name!r} is replaced again and again; try later")


def _identity(target: Path) -> tuple[int, ...]:
    """Changes when the artifact is replaced."""
    found: list[int] = []
    for folder in (target, _aside(target)):
        with contextlib.suppress(OSError):
            status = folder.stat()
            found += [status.st_dev, status.st_ino, status.st_mtime_ns]
    return tuple(found)


def _read_files(target: Path) -> dict[str, bytes]:
    """Every file of one and the same artifact: the one in place, else the one set aside by an ended writer."""
    for folder in (target, _aside(target)):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR}:
                continue
            raise ArtifactError(f"the artifact {target.name!r} cannot be read: {error.strerror}") from error
        try:
            return {name: _read(target.name, name, descriptor) for name in _LIMITS}
        finally:
            os.close(descriptor)
    raise ArtifactError(
        f"there is no artifact at {target.name!r}; give the folder that querywright compile wrote (--out)"
    )


def _read(artifact: str, name: str, folder: int) -> bytes:
    try:
        # A link is not followed, and a pipe is not waited for.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ArtifactError(f"the artifact {artifact!r} is not whole: {name} is not a plain file")
            data = file.read(_LIMITS[name] + 1)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"the artifact {artifact!r} is not whole: {name} is missing; copy the whole folder, or compile again"
        ) from error
    except OSError as error:
        reason = "is a link, not a plain file" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise ArtifactError(f"{name} of the artifact {artifact!r} {reason}") from error
    if len(data) > _LIMITS[name]:
        raise ArtifactError(f"{name} has more than the {_LIMITS[name]} bytes that are read")
    return data


def _checked(data: Mapping[str, bytes]) -> Artifact:
    content = _json("manifest.json", data["manifest.json"])
    if isinstance(content, dict) and isinstance(content.get("format"), int) and content["format"] != FORMAT:
        raise ArtifactError(
            f"manifest.json: the artifact has format {content['format']}, this version of querywright reads {FORMAT}; "
            "compile again, or install the version of querywright that wrote it"
        )
    manifest = _validated(Manifest, "manifest.json", content)
    if manifest.checksum != manifest.digest():
        raise ArtifactError("manifest.json was changed after it was written (field checksum); compile again")
    expected = set(_LIMITS) - {"manifest.json"}
    if set(manifest.files) != expected:
        raise ArtifactError(f"manifest.json: the field files must name {sorted(expected)}")
    for name, digest in manifest.files.items():
        if hashlib.sha256(data[name]).hexdigest() != digest:
            raise ArtifactError(f"{name} was changed after it was written (SHA-256 differs); compile again")
    state = _validated(ProgramState, "program.json", _json("program.json", data["program.json"]))
    if (state.format, state.technique, state.reader) != (manifest.format, manifest.technique, manifest.reader):
        raise ArtifactError("program.json and manifest.json name different programs; compile again")
    # Only a line feed ends a line: a text may hold every other character that Python takes for a line's end.
    lines = data["golden.jsonl"].removesuffix(b"\n").split(b"\n") if data["golden.jsonl"] else []
    golden = [
        _validated(Golden, f"golden.jsonl line {n}", _json(f"golden.jsonl line {n}", line))
        for n, line in enumerate(lines, 1)
    ]
    return Artifact(manifest=manifest, state=state, golden=golden)


def _json(name: str, data: bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ArtifactError(f"{name}: the key {repeated!r} stands twice; compile again")
        return content

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise ArtifactError(f"{name}: {text} is not a number of JSON; compile again")
        return value

    try:
        content = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=number, parse_float=number)
        json.dumps(content, ensure_ascii=False).encode()  # JSON can name half a character, which is no text
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{name} is not valid JSON ({error}); the file was cut off or edited, compile again"
        ) from error
    return content


def _validated(model: type[M], name: str, content: Any) -> M:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(f"{name}: field {where or '(whole)'}: {first['msg']}; compile again") from error


def _pretty(data: Any) -> bytes:
    return (json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n").encode()


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("querywright", "dspy", "chromadb", "optuna")}


def _replace_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write files beside the target, then put the folder in its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_writer(target.parent):
        _clear_up(target)
        _check_replaceable(target)
        temporary = target.with_name(f".{target.name}.new-{secrets.token_hex(6)}")
        try:
            temporary.mkdir()
            for name, data in files.items():
                with (temporary / name).open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            _sync(temporary)
            _swap(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _swap(temporary: Path, target: Path) -> None:
    replaced = target.exists()
    if replaced:
        target.rename(_aside(target))
    try:
        temporary.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        if replaced:
            _aside(target).rename(target)
        raise
    shutil.rmtree(_aside(target), ignore_errors=True)


def _check_replaceable(target: Path) -> None:
    """Only an artifact or an empty folder is replaced."""
    if not target.exists():
        return
    others = sorted({entry.name for entry in target.iterdir()} - set(_LIMITS))
    if others:
        raise ArtifactError(
            f"{target.name!r} holds files that are not of an artifact, such as {others[0]!r}; they would be lost. "
            "Give another folder"
        )


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _clear_up(target: Path) -> None:
    """Put right what writers that were killed left behind."""
    if _aside(target).is_dir():
        if target.exists():
            shutil.rmtree(_aside(target), ignore_errors=True)
        else:
            _aside(target).rename(target)
    for left in target.parent.iterdir():
        if left.name.startswith(f".{target.name}.new-"):
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """One writer at a time in a folder; the lock ends with its process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
