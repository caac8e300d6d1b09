"""Lines of a file by their keys, read when they are asked for: however many there are, texts stay on disk."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import BinaryIO, Generic, TypeVar
from weakref import finalize

_T = TypeVar("_T")

RECENT = 4096
"""Lines that were read last and stay in memory."""


class KeyedLines(Mapping[str, _T], Generic[_T]):
    """What the lines of a file say, by key, in their order; keys and places are in memory (some 160 bytes a line).

    The lines that were read last stay in memory. Safe for threads, and for processes that are forked from this one; the
    file is open, and readable without its name, as long as this object exists.

    Args:
        file: From its beginning on; lines that are added go to its end.
        read: Returns what a line says.
    """

    def __init__(self, file: BinaryIO, read: Callable[[bytes], _T]) -> None:
        finalize(self, file.close)
        self._file = file
        self._rows: dict[str, int] = {}
        ends = self._ends = array("Q", [0])

        @lru_cache(RECENT)
        def line(row: int) -> _T:
            file.flush()
            return read(os.pread(file.fileno(), ends[row + 1] - ends[row], ends[row]))

        self._line = line

    def add(self, key: str, line: bytes) -> None:
        """Write a line; an earlier one of its key is out of sight."""
        self._file.write(line)
        self.note(key, len(line))

    def note(self, key: str, length: int) -> None:
        """The next line, so many bytes with its end, is there already."""
        self._rows[key] = len(self._ends) - 1
        self._ends.append(self._ends[-1] + length)

    def at(self, row: int) -> _T:
        """Return what the line with this number says, from 0."""
        return self._line(row)

    def row(self, key: str) -> int:
        """The number of a key's line, from 0; ``KeyError`` where there is none."""
        return self._rows[key]

    def __getitem__(self, key: str) -> _T:
        return self.at(self._rows[key])

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def of_both(keys: Iterable[str], over: Mapping[str, _T], under: Mapping[str, _T]) -> Iterator[_T]:
    """What stands under each key, where both have it in the first."""
    return (over[key] if key in over else under[key] for key in keys)
