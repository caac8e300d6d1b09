"""Write and read artifacts: folders with compiled programs that another process can load and check.

An artifact contains ``program.json`` (the tuned parts), ``golden.jsonl`` (questions with the program's answers when it
was saved), ``README.md`` (a card for people), and ``manifest.json``, which lists the SHA-256 of the other files and
describes how the program was made. The digest of an artifact is the SHA-256 of its ``manifest.json``. All data is JSON.
Nothing is unpickled, and no LM addresses, headers, or API keys are saved or read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from querywright.checksummed import Checksummed, first_problem
from querywright.data.types import Label
from querywright.errors import ArtifactError, InputError
from querywright.files import place_of, replace_folder, write_all, writing
from querywright.optimize.artifacts.writers import WriterRef, ref_of
from querywright.optimize.program_state import ProgramState, state_of
from querywright.programs import RAG
from querywright.retrieval.collection import NAME_PATTERN
from querywright.retrieval.engines import Engine

M = TypeVar("M", bound=BaseModel)

FORMAT: Literal[5] = 5
"""The only format in which artifacts are written and read."""

LIMITS = {
    "manifest.json": 4 * 2**20,
    "program.json": 16 * 2**20,
    "golden.jsonl": 16 * 2**20,
    "README.md": 2**20,
}
"""The files of an artifact and their size limits in bytes."""

_READS = 5
"""Number of attempts to read an incomplete artifact, because another process may be replacing it."""


class Golden(BaseModel):
    """A question with the program's result when it was saved, and the question's evidence."""

    model_config = ConfigDict(extra="forbid", strict=True)

    question: str
    options: list[str]
    history: list[str] = Field(default_factory=list)
    answer: str | None
    passages: list[str]
    evidence: dict[str, Label] = Field(default_factory=dict)


class ArtifactManifest(Checksummed):
    """How a program was made and what it needs.

    Attributes:
        format: The format of the artifact.
        technique: The program's technique.
        reader: The program's reader.
        lm: Id of the LM that the program was compiled for.
        embedder: Id of the collection's embedder, or None without a collection.
        collection: Name of the collection, or None for a custom retriever.
        engine: How the collection is searched; None without a collection.
        where: The search's metadata filter; None without a filter.
        reranker: Id of the program's reranker, or None without a reranker.
        writer: The LM that the technique calls (with a digest if the LM is a rewriter); None if the reader's LM also
            writes.
        fingerprint: Fingerprint of the retriever.
        created: Date of creation, ISO 8601.
        versions: Versions of querywright and of the libraries that affect the program's behavior.
        made: How the program was made: data hashes, split, objective, scores, comparisons, cost.
        files: SHA-256 of the other files.
    """

    LARGEST: ClassVar[int] = LIMITS["manifest.json"]

    format: Literal[5]
    technique: str
    reader: str | None
    lm: str
    embedder: str | None
    collection: str | None
    engine: Engine | None
    where: dict[str, JsonValue] | None = None
    reranker: str | None
    writer: WriterRef | None = None
    fingerprint: str | None
    created: str
    versions: dict[str, str]
    made: dict[str, JsonValue]
    files: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_a_collection(self) -> Self:
        if (self.collection is None) != (self.engine is None):
            raise ValueError(
                f"collection and engine must both be set or both be null, but got {self.collection!r} and "
                f"{self.engine!r}"
            )
        if self.collection is not None and not NAME_PATTERN.fullmatch(self.collection):
            raise ValueError(f"{self.collection!r} is not a valid collection name")
        return self

    @model_serializer(mode="wrap")
    def _without_no_filter(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit ``where`` if there is no filter, so that the digests of older artifacts do not change."""
        return {name: value for name, value in write(self).items() if name != "where" or value is not None}

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Yield the values that distinguish artifacts, for a notebook."""
        return (
            (name, getattr(self, name)) for name in ("technique", "reader", "lm", "collection", "created", "digest")
        )

    @property
    def digest(self) -> str:
        """SHA-256 of ``manifest.json``, which covers every file; applications pin it."""
        return _digest(self.to_bytes())

    @property
    def id(self) -> str:
        """The beginning of the digest, which distinguishes artifacts and their versions."""
        return self.digest.removeprefix("sha256:")[:12]


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact that was read and checked.

    Args:
        manifest: The manifest, which says how the program was made.
        state: The tuned parts.
        golden: The artifact's golden answers.
        data: The bytes of the artifact's files by name.
    """

    manifest: ArtifactManifest
    state: ProgramState
    golden: list[Golden]
    data: Mapping[str, bytes] = field(repr=False)


def write_artifact(
    path: str | Path, program: RAG, *, golden: Sequence[Golden], card: str, **facts: Any
) -> ArtifactManifest:
    """Write a program as an artifact; an older artifact at the same place is replaced whole or not at all.

    Args:
        path: Folder of the artifact; its parent is created if it is missing.
        program: The program.
        golden: Questions with the program's results.
        card: Text of README.md.
        facts: ``lm``, ``embedder``, ``collection``, ``engine``, ``where``, ``reranker``, ``fingerprint``, ``created``,
            and ``made`` of the manifest.

    Returns:
        The manifest that was written.

    Raises:
        ArtifactError: The program cannot be saved as JSON, or the folder contains other files or cannot be written to;
            nothing in the folder changes.
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
            writer=None if program.technique.writer_lm is None else ref_of(program.technique.writer_lm),
            versions={name: version(name) for name in ("querywright", "dspy", "chromadb", "optuna")},
            files={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            **facts | {"made": json.loads(json.dumps(facts["made"], allow_nan=False))},
        )
        files["manifest.json"] = manifest.to_bytes()
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"the program cannot be saved as JSON: {error}") from error
    _put(Path(path).resolve(), files)
    return manifest


def copy_artifact(source: str | Path, path: str | Path, *, replace: bool = False) -> ArtifactManifest:
    """Copy an artifact to a folder, whole or not at all.

    Args:
        source: Folder of the artifact.
        path: Folder of the copy.
        replace: Whether to replace an existing artifact. Default False.

    Raises:
        ArtifactError: The artifact is damaged, or the folder contains something else or cannot be written to.
    """
    manifest, target = read_artifact(source).manifest, Path(path).resolve()
    if not replace and (target / "manifest.json").exists() and read_artifact(target).manifest.digest != manifest.digest:
        raise ArtifactError(
            f"{target.name!r} already contains a different artifact; use a different folder, or replace the artifact "
            "with replace=True"
        )
    _put(target, {file.name: file.read_bytes() for file in Path(source).iterdir()})
    return manifest


def _put(target: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of an artifact; an older artifact at the same place is replaced whole or not at all."""
    with writing(f"the artifact {target.name!r}", "nothing in that folder was changed"):
        replace_folder(target, lambda folder: write_all(folder, files), check=_check_replaceable)


def _check_replaceable(target: Path) -> None:
    """Raise if a folder has files that are not part of an artifact."""
    others = sorted({entry.name for entry in target.iterdir()} - set(LIMITS)) if target.exists() else []
    if others:
        raise ArtifactError(
            f"{target.name!r} contains files that are not part of an artifact, such as {others[0]!r}; replacing the "
            "folder would delete these files. Use a different folder"
        )


def read_artifact(path: str | Path, *, digest: str | None = None) -> Artifact:
    """Read an artifact and check every byte of it, even while another process replaces it. Nothing is written.

    Args:
        path: Folder of the artifact.
        digest: The required digest, ``sha256:...`` as in the output of ``artifact show``. Default: any.

    Raises:
        ArtifactError: The artifact is missing, incomplete, too large, edited, in a format that this version does not
            read, or has a different digest.
        InputError: ``digest`` is not a digest.
    """
    target = Path(path).absolute()
    for left in reversed(range(_READS)):
        try:
            data = {name: _read_file(place_of(target) / name, str(path), limit) for name, limit in LIMITS.items()}
            return _checked(data, digest)
        except ArtifactError:
            if not left:
                raise
    raise AssertionError("unreachable")


def check_digest(found: str, digest: str | None) -> None:
    """Raise if an artifact does not have the required digest; None accepts any.

    Raises:
        ArtifactError: The artifact has a different digest.
        InputError: ``digest`` is not a digest.
    """
    if digest is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise InputError(
            f"the digest {digest!r} is not valid; pass sha256: followed by 64 hexadecimal digits, as printed by "
            "`querywright artifact show`"
        )
    if digest not in (None, found):
        raise ArtifactError(
            f"the artifact's digest must be {digest}, but got {found}: this is a different artifact, or it was "
            "changed; get the artifact from its author"
        )


def _checked(data: Mapping[str, bytes], digest: str | None) -> Artifact:
    """Return the artifact with these files after checking every byte."""
    check_digest(_digest(data["manifest.json"]), digest)
    try:
        manifest = ArtifactManifest.from_bytes(data["manifest.json"])
        if manifest.to_bytes() != data["manifest.json"]:  # the checksum does not cover white space
            raise ValueError("the file was changed after it was written")
    except ValueError as error:
        raise ArtifactError(
            f"manifest.json: {error}; recompile, or install the version of querywright that wrote the artifact"
        ) from error
    if set(manifest.files) != set(LIMITS) - {"manifest.json"}:
        raise ArtifactError("manifest.json: the field `files` must list the other files in the artifact; recompile")
    for name, its in manifest.files.items():
        if hashlib.sha256(data[name]).hexdigest() != its:
            raise ArtifactError(f"{name} was changed after it was written (its SHA-256 differs); recompile")
    state = _parsed(ProgramState, "program.json", data["program.json"])
    if (state.technique, state.reader) != (manifest.technique, manifest.reader):
        raise ArtifactError("program.json and manifest.json name different programs; recompile")
    # Only a line feed ends a line: a text may contain other characters that Python treats as line ends.
    lines = data["golden.jsonl"].removesuffix(b"\n").split(b"\n") if data["golden.jsonl"] else []
    golden = [_parsed(Golden, f"golden.jsonl line {n}", line) for n, line in enumerate(lines, 1)]
    return Artifact(manifest, state, golden, data)


def _read_file(path: Path, artifact: str, limit: int) -> bytes:
    """Return the bytes of a file; do not follow links or wait for pipes."""
    if not os.path.isdir(path.parent):
        raise ArtifactError(
            f"there is no artifact at {artifact!r}; pass the folder that `querywright compile` wrote (--out)"
        )
    if path.is_symlink() or not os.path.isfile(path):
        raise ArtifactError(
            f"the artifact {artifact!r} is incomplete: {path.name} is missing or is not a regular file; copy the whole "
            "folder, or recompile"
        )
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ArtifactError(f"cannot read {path.name} in the artifact {artifact!r}: {error.strerror}") from error
    if len(data) > limit:
        raise ArtifactError(f"{path.name} is larger than the {limit}-byte limit")
    return data


def _digest(manifest: bytes) -> str:
    return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def _parsed(model: type[M], name: str, data: bytes) -> M:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise ArtifactError(f"{name}: {first_problem(error)}; recompile") from error


def _written(data: BaseModel, indent: int | None = None) -> bytes:
    return (json.dumps(data.model_dump(), ensure_ascii=False, indent=indent, allow_nan=False) + "\n").encode()
