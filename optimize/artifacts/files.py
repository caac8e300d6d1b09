"""Artifacts on disk: the folder of a compiled program, which another process loads and trusts.

``program.json`` (what was tuned), ``golden.jsonl`` (questions with the answers the program gave when it was saved),
``README.md`` (a card for people) and ``manifest.json``, which binds them by SHA-256 and says how the program was made.
The digest of an artifact is the SHA-256 of its ``manifest.json``. JSON only; nothing is ever unpickled, and no address,
header or key of an LM is stored or read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from querywright.checksummed import Checksummed, first_problem
from querywright.errors import ArtifactError, InputError
from querywright.files import aside, place_of, replace_folder
from querywright.optimize.artifacts.rewriters import RewriterRef, rewriter_ref
from querywright.optimize.program_state import ProgramState, state_of
from querywright.programs import RAG
from querywright.retrieval.engines import Engine

M = TypeVar("M", bound=BaseModel)

FORMAT: Literal[5] = 5
"""The form in which artifacts are written, and the only one that is read."""

LIMITS = {
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


class ArtifactManifest(Checksummed):
    """How a program was made, and what it needs.

    Attributes:
        format: The form of artifacts, of which one is read.
        technique: The technique of the saved program.
        reader: Its reader.
        lm: Id of the LM that it was compiled for.
        embedder: Id of the embedder of its collection, or None without one.
        collection: Name of its collection, or None for a retriever of the user's own.
        engine: How the collection is searched; None without one.
        reranker: Id of its reranker, or None without one.
        rewriter: Name and digest of its rewriter, or None without one.
        fingerprint: Fingerprint of the retriever.
        created: Day, ISO 8601.
        versions: Versions of querywright and of the libraries that decide its behaviour.
        made: How it was made: data hashes, split, objective, scores, comparisons, cost.
        files: SHA-256 of the other files.
    """

    LARGEST: ClassVar[int] = 4 * 2**20

    format: Literal[5]
    technique: str
    reader: str | None
    lm: str
    embedder: str | None
    collection: str | None
    engine: Engine | None
    reranker: str | None
    rewriter: RewriterRef | None = None
    fingerprint: str | None
    created: str
    versions: dict[str, str]
    made: dict[str, JsonValue]
    files: dict[str, str] = Field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of ``manifest.json``, and by it of every file: what an application pins."""
        return f"sha256:{hashlib.sha256(self.to_bytes()).hexdigest()}"

    @property
    def id(self) -> str:
        """Tells artifacts, and states of one, apart: the beginning of the digest."""
        return self.digest.removeprefix("sha256:")[:12]


class Artifact(BaseModel):
    """An artifact that was read and checked."""

    manifest: ArtifactManifest
    state: ProgramState
    golden: list[Golden]


def write_artifact(
    path: str | Path, program: RAG, *, golden: Sequence[Golden], card: str, **facts: Any
) -> ArtifactManifest:
    """Write a program as an artifact; an older one at the same place is replaced whole or not at all.

    Args:
        path: The artifact's folder; its parent is made when missing.
        program: What is saved.
        golden: Questions with the program's results.
        card: The text of README.md.
        facts: ``lm``, ``embedder``, ``collection``, ``engine``, ``reranker``, ``fingerprint``, ``created`` and ``made``
            of the manifest.

    Returns:
        The manifest that was written.

    Raises:
        ArtifactError: The program cannot be saved as JSON, the folder holds other files, or it cannot be written;
            what stood there stays.
    """
    try:
        files = {
            "program.json": _written(state_of(program), indent=2),
            "golden.jsonl": b"".join(_written(one) for one in golden),
            "README.md": card.encode(),
        }
        manifest = ArtifactManifest(
            format=FORMAT,
            technique=program.technique.NAME,
            reader=None if program.reader is None else program.reader.NAME,
            rewriter=rewriter_ref(program),
            versions={name: version(name) for name in ("querywright", "dspy", "chromadb", "optuna")},
            files={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            **facts | {"made": json.loads(json.dumps(facts["made"], allow_nan=False))},
        )
        files["manifest.json"] = manifest.to_bytes()
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"the program cannot be saved as JSON: {error}") from error
    write_files(Path(path), files)
    return manifest


def write_files(path: Path, files: Mapping[str, bytes]) -> None:
    """Put the files of an artifact in place, whole or not at all."""
    target = path.resolve()

    def fill(folder: Path) -> None:
        for name, data in files.items():
            (folder / name).write_bytes(data)

    try:
        replace_folder(target, fill, check=check_replaceable)
    except OSError as error:
        reason = {errno.ENOSPC: "the disk is full", errno.EROFS: "the file system is read-only"}.get(
            error.errno or 0, error.strerror or type(error).__name__
        )
        raise ArtifactError(
            f"the artifact {target.name!r} could not be written: {reason}; nothing at that place was changed. "
            "Give another --out, or make room"
        ) from error


def check_replaceable(target: Path) -> None:
    """Raise when something else than an artifact or an empty folder would be replaced."""
    others = sorted({entry.name for entry in target.iterdir()} - set(LIMITS)) if target.exists() else []
    if others:
        raise ArtifactError(
            f"{target.name!r} holds files that are not of an artifact, such as {others[0]!r}; they would be lost. "
            "Give another folder"
        )


def read_artifact(path: str | Path, *, digest: str | None = None) -> Artifact:
    """Read an artifact and check every byte of it. Nothing is written, also while another process replaces it.

    Args:
        path: The artifact's folder.
        digest: The digest that it must have, ``sha256:...`` as ``artifact show`` prints it. Default: any.

    Raises:
        ArtifactError: It is missing, incomplete, too large, edited, not of the form that this version reads, or has
            another digest.
        InputError: ``digest`` is none.
    """
    return checked_artifact(artifact_files(path), digest=digest)


def artifact_files(path: str | Path) -> dict[str, bytes]:
    """The bytes of an artifact that is whole, by the name of the file; they are those of one and the same artifact."""
    target = Path(path).absolute()
    for _ in range(_READS):
        before = _identity(target)
        try:
            data = {name: _read_file(place_of(target) / name, target.name, limit) for name, limit in LIMITS.items()}
            checked_artifact(data)
            return data
        except ArtifactError:
            if _identity(target) == before:
                raise
    raise ArtifactError(f"the artifact {target.name!r} is replaced again and again; try later")


def checked_artifact(data: Mapping[str, bytes], *, digest: str | None = None) -> Artifact:
    """The artifact that these bytes are, every one of them checked."""
    found = f"sha256:{hashlib.sha256(data['manifest.json']).hexdigest()}"
    if digest is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise InputError(f"a digest is sha256: and 64 hexadecimal digits, as artifact show prints it, not {digest!r}")
    if digest is not None and digest != found:
        raise ArtifactError(
            f"the artifact's digest is {found}, but {digest} is asked for: it is another one, or was changed; get it "
            "again from its maker"
        )
    try:
        manifest = ArtifactManifest.from_bytes(data["manifest.json"])
        if manifest.to_bytes() != data["manifest.json"]:  # white space is not covered by the checksum
            raise ValueError("it was changed after it was written")
    except ValueError as error:
        raise ArtifactError(
            f"manifest.json: {error}; compile again, or install the version of querywright that wrote it"
        ) from error
    if set(manifest.files) != set(LIMITS) - {"manifest.json"}:
        raise ArtifactError("manifest.json: the field files must name the other files of an artifact; compile again")
    for name, its in manifest.files.items():
        if hashlib.sha256(data[name]).hexdigest() != its:
            raise ArtifactError(f"{name} was changed after it was written (SHA-256 differs); compile again")
    state = _read(ProgramState, "program.json", data["program.json"])
    if (state.technique, state.reader) != (manifest.technique, manifest.reader):
        raise ArtifactError("program.json and manifest.json name different programs; compile again")
    # Only a line feed ends a line: a text may hold every other character that Python takes for a line's end.
    lines = data["golden.jsonl"].removesuffix(b"\n").split(b"\n") if data["golden.jsonl"] else []
    golden = [_read(Golden, f"golden.jsonl line {n}", line) for n, line in enumerate(lines, 1)]
    return Artifact(manifest=manifest, state=state, golden=golden)


def _read(model: type[M], name: str, data: bytes) -> M:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise ArtifactError(f"{name}: {first_problem(error)}; compile again") from error


def _written(data: BaseModel, indent: int | None = None) -> bytes:
    return (json.dumps(data.model_dump(), ensure_ascii=False, indent=indent, allow_nan=False) + "\n").encode()


def _identity(target: Path) -> list[tuple[int, int]]:
    """Changes when the artifact is replaced."""
    found = []
    for folder in (target, aside(target)):
        with contextlib.suppress(OSError):
            status = folder.stat()
            found.append((status.st_ino, status.st_mtime_ns))
    return found


def _read_file(path: Path, artifact: str, limit: int) -> bytes:
    if not path.parent.is_dir():
        raise ArtifactError(
            f"there is no artifact at {artifact!r}; give the folder that querywright compile wrote (--out)"
        )
    try:
        # A link is not followed, and a pipe is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ArtifactError(f"the artifact {artifact!r} is not whole: {path.name} is not a plain file")
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"the artifact {artifact!r} is not whole: {path.name} is missing; copy the whole folder, or compile again"
        ) from error
    except OSError as error:
        reason = "is a link, not a plain file" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise ArtifactError(f"{path.name} of the artifact {artifact!r} {reason}") from error
    if len(data) > limit:
        raise ArtifactError(f"{path.name} has more than the {limit} bytes that are read")
    return data
