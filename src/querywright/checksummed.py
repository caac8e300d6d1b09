"""JSON files that include a checksum, parsed with pydantic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from querywright.files import json_digest, write_file


class Checksummed(BaseModel):
    """A JSON file with the SHA-256 of its content under ``sha256``.

    A subclass declares the fields. Unknown fields and values of the wrong type are errors. Each error is a
    ``ValueError`` with a one-line message; the caller adds the file's name and the remedy.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    LARGEST: ClassVar[int] = 2**20
    """Maximum size of such a file, in bytes."""

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        content = self.model_dump(mode="json")
        return json.dumps(content | {"sha256": json_digest(content)}, indent=2, sort_keys=True).encode() + b"\n"

    def write(self, path: Path, *, mode: int = 0o600) -> None:
        """Write the file completely or not at all; see ``write_file``."""
        write_file(path, self.to_bytes(), mode=mode)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the object from the bytes that ``to_bytes`` returned.

        Raises:
            ValueError: The file was truncated or edited, or is a different kind of file.
        """
        if len(data) > cls.LARGEST:
            raise ValueError(f"larger than the {cls.LARGEST}-byte limit")
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not valid JSON ({error})") from error
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        if content.pop("sha256", None) != json_digest(content):
            raise ValueError("wrong checksum, because the file was changed after it was written")
        try:
            return cls.model_validate_json(json.dumps(content))
        except ValidationError as error:
            raise ValueError(first_problem(error)) from error

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the object from a file written by ``write``, or None if there is no file.

        Raises:
            ValueError: The file was truncated or edited, or is a different kind of file.
        """
        try:
            with path.open("rb") as file:
                return cls.from_bytes(file.read(cls.LARGEST + 1))
        except FileNotFoundError:
            return None


def first_problem(error: ValidationError) -> str:
    """Return pydantic's first error as one line: the field and the message."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"field {where}: {first['msg']}" if where else str(first["msg"])
