"""Lines of a file by their keys, read when they are asked for: however many there are, texts stay on disk."""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, Generic, TypeVar
from weakref import WeakValueDictionary, finalize

_T = TypeVar("_T")

RECENT = 4096
"""Lines that were read last and stay in memory."""


class KeyedLines(Mapping[str, _T], Generic[_T]):
    """What the lines of a file say, by key, in their order; keys and places are in memory (some 160 bytes a line).

    What somebody still has, and what was read lately, is given again, not read again. Safe for threads, and for
    processes that are forked from this one; the file is open, and readable without its name, for as long as this object
    is there.

    Args:
        file: From its beginning on; lines that are added go to its end.
        read: What a line says; it can be referred to weakly.
    """

    def __init__(self, file: BinaryIO, read: Callable[[bytes], _T]) -> None:
        self._file, self._read = file, read
        finalize(self, file.close)
        self._rows: dict[str, int] = {}
        self._ends = array("Q", [0])
        self._had: WeakValueDictionary[int, _T] = WeakValueDictionary()
        self._recent: deque[_T] = deque(maxlen=RECENT)

    def add(self, key: str, line: bytes) -> None:
        """Write a line; an earlier one of its key is out of sight."""
        self._file.write(line)
        self.note(key, len(line))

    def note(self, key: str, length: int) -> None:
        """The next line, so many bytes with its end, is there already."""
        self._rows[key] = len(self._ends) - 1
        self._ends.append(self._ends[-1] + length)

    def at(self, row: int) -> _T:
        """What the line with this number says, from 0."""
        found = self._had.get(row)
        if found is None:
            self._file.flush()
            start, end = self._ends[row], self._ends[row + 1]
            found = self._had[row] = self._read(os.pread(self._file.fileno(), end - start, start))
            self._recent.append(found)
        return found

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
