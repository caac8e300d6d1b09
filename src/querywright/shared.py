"""An object that is shared between copies of a program."""

from __future__ import annotations

from typing import Self


class Shared:
    """An object whose copy is the object itself, so that copies of a program share it."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self
