"""JSON files that carry their checksum, read through pydantic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from querywright.files import json_digest, write_file


class Checksummed(BaseModel):
    """A JSON file that carries the SHA-256 of what is in it, under ``sha256``.

    A subclass has the fields; unknown ones and other types are refused. Reading gives ``ValueError`` with one line for
    whatever is wrong: who reads says which file it is and what to do.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    LARGEST: ClassVar[int] = 2**20
    """Bytes of such a file that are read at most."""

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        content = self.model_dump(mode="json")
        return json.dumps(content | {"sha256": json_digest(content)}, indent=2, sort_keys=True).encode() + b"\n"

    def write(self, path: Path, *, mode: int = 0o600) -> None:
        """Writes the file, whole or not at all; see ``write_file``."""
        write_file(path, self.to_bytes(), mode=mode)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What ``to_bytes`` wrote.

        Raises:
            ValueError: It was cut, edited or is something else.
        """
        if len(data) > cls.LARGEST:
            raise ValueError(f"it has more than the {cls.LARGEST} bytes that are read")
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON ({error})") from error
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        if content.pop("sha256", None) != json_digest(content):
            raise ValueError("its checksum does not fit: it was changed after it was written")
        try:
            return cls.model_validate_json(json.dumps(content))
        except ValidationError as error:
            raise ValueError(first_problem(error)) from error

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What ``write`` wrote; None where there is no file.

        Raises:
            ValueError: It was cut, edited or is something else.
        """
        try:
            with path.open("rb") as file:
                return cls.from_bytes(file.read(cls.LARGEST + 1))
        except FileNotFoundError:
            return None


def first_problem(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, on one line: where, and what."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"field {where}: {first['msg']}" if where else str(first["msg"])
