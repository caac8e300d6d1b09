"""Compiled programs on disk: a folder that another process loads and trusts.

``program.json`` (what was tuned), ``golden.jsonl`` (questions with the answers the program gave when it was saved),
``README.md`` (a card for people) and ``manifest.json``, which binds them by SHA-256 and says how the program was
made. ``signature.json`` says who vouches for it, where it is signed. JSON only; nothing is ever unpickled, and no
address, header or key of an LM is stored or read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from querywright.errors import ArtifactError
from querywright.optimize.artifacts.folders import LIMITS, SIGNATURE, identity, read_files, replace_folder
from querywright.optimize.artifacts.rewriters import RewriterRef, rewriter_ref
from querywright.optimize.artifacts.signatures import check_signed
from querywright.optimize.artifacts.versions import REWRITERS, check_format, migrated
from querywright.optimize.program_state import FORMAT, ProgramState, state_of
from querywright.programs import RAG
from querywright.retrieval.engines import Engine

M = TypeVar("M", bound=BaseModel)

_READS = 5
"""How often reading begins again because the artifact was replaced meanwhile."""


class Golden(BaseModel):
    """A question and what the program made of it when it was saved."""

    model_config = ConfigDict(extra="forbid", strict=True)

    question: str
    options: list[str]
    answer: str | None
    passages: list[str]


class ArtifactManifest(BaseModel):
    """How a program was made, and what it needs.

    Args:
        format: Version of the form in which the artifact was written.
        technique: The technique of the saved program.
        reader: Its reader.
        lm: Id of the LM that it was compiled for.
        embedder: Id of the embedder of its collection, or None without one.
        collection: Name of its collection, or None for a retriever of the user's own.
        engine: How the collection is searched; None without one.
        reranker: Id of its reranker, or None without one.
        rewriter: Name and digest of its rewriter, or None without one; older forms have no such field.
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
    engine: Engine | None
    reranker: str | None
    rewriter: RewriterRef | None = None
    fingerprint: str | None
    created: str
    versions: dict[str, str]
    made: dict[str, JsonValue]
    files: dict[str, str]
    checksum: str = ""

    @property
    def id(self) -> str:
        """Tells artifacts, and states of one, apart: the beginning of the checksum."""
        return self.checksum[:12]

    def digest(self) -> str:
        """The checksum that the manifest must have."""
        later = {"rewriter"} if self.format < REWRITERS else set()
        data = self.model_dump(exclude={"checksum", *later})
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


class Artifact(BaseModel):
    """An artifact that was read and checked."""

    manifest: ArtifactManifest
    state: ProgramState
    golden: list[Golden]


def write_artifact(
    path: str | Path,
    program: RAG,
    *,
    lm: str,
    embedder: str | None,
    collection: str | None,
    engine: Engine | None,
    reranker: str | None,
    fingerprint: str | None,
    created: str,
    made: Mapping[str, Any],
    golden: Sequence[Golden],
    card: str,
) -> ArtifactManifest:
    """Write a program as an artifact; an older one at the same place is replaced whole or not at all.

    Args:
        path: The artifact's folder; its parent is made when missing.
        program: What is saved.
        lm: Id of the LM.
        embedder: Id of the embedder.
        collection: Name of the collection.
        engine: How the collection is searched; None for a retriever of the user's own.
        reranker: Id of the reranker.
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
            ArtifactManifest(
                format=FORMAT,
                technique=program.technique.NAME,
                reader=None if program.reader is None else program.reader.NAME,
                lm=lm,
                embedder=embedder,
                collection=collection,
                engine=engine,
                reranker=reranker,
                rewriter=rewriter_ref(program),
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
        replace_folder(target, files)
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
    program: RAG, manifest: ArtifactManifest, golden: Sequence[Golden], card: str
) -> tuple[ArtifactManifest, dict[str, bytes]]:
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


def read_artifact(path: str | Path, *, public_key: Path | None = None) -> Artifact:
    """Read an artifact and check every byte of it. Nothing is written, also while another process replaces it.

    Args:
        path: The artifact's folder.
        public_key: Key file of whoever must have signed it. Default None: a signature is not looked at.

    Raises:
        ArtifactError: It is missing, incomplete, too large, edited, not of a form that this version reads, or not
            signed by that key.
    """
    return _read_checked(path, public_key)[1]


def artifact_files(path: str | Path) -> dict[str, bytes]:
    """The bytes of an artifact that is whole, by the name of the file; they are those of one and the same artifact.

    Raises:
        ArtifactError: As ``read_artifact`` has it.
    """
    return _read_checked(path, None)[0]


def _read_checked(path: str | Path, public_key: Path | None) -> tuple[dict[str, bytes], Artifact]:
    target = Path(path).absolute()
    for _ in range(_READS):
        before = identity(target)
        try:
            data = read_files(target)
            return data, checked_artifact(data, public_key=public_key)
        except ArtifactError:
            if identity(target) == before:
                raise
    raise ArtifactError(f"the artifact {target.name!r} is replaced again and again; try later")


def checked_artifact(data: Mapping[str, bytes], *, public_key: Path | None = None) -> Artifact:
    """The artifact that these bytes are, every one of them checked.

    Args:
        data: By the name of the file.
        public_key: Key file of whoever must have signed it. Default None: a signature is not looked at.

    Raises:
        ArtifactError: As ``read_artifact`` has it.
    """
    if public_key is not None:
        check_signed(data["manifest.json"], data.get(SIGNATURE), public_key)
    content = _json("manifest.json", data["manifest.json"])
    check_format(content)
    if isinstance(content, dict) and ("rewriter" in content) != (content["format"] >= REWRITERS):
        raise ArtifactError("manifest.json: field rewriter: is of format 4, and must stand there; compile again")
    manifest = _validated(ArtifactManifest, "manifest.json", content)
    if manifest.checksum != manifest.digest():
        raise ArtifactError("manifest.json was changed after it was written (field checksum); compile again")
    if _pretty(content) != data["manifest.json"]:  # white space is not covered by the checksum
        raise ArtifactError("manifest.json was changed after it was written (its form); compile again")
    expected = set(LIMITS) - {"manifest.json"}
    if set(manifest.files) != expected:
        raise ArtifactError(f"manifest.json: the field files must name {sorted(expected)}")
    for name, digest in manifest.files.items():
        if hashlib.sha256(data[name]).hexdigest() != digest:
            raise ArtifactError(f"{name} was changed after it was written (SHA-256 differs); compile again")
    found = _json("program.json", data["program.json"])
    if isinstance(found, dict) and found.get("format", manifest.format) != manifest.format:
        raise ArtifactError("program.json and manifest.json name different programs; compile again")
    state = _validated(ProgramState, "program.json", migrated(found))
    if (state.technique, state.reader) != (manifest.technique, manifest.reader):
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
