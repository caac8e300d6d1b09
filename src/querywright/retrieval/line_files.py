"""Files of JSON lines that are read one line at a time: in memory are the keys, and where their lines stand."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class LineFile(Mapping[str, T]):
    """The values of a file's lines by key, the last line of each key, in the order in which the keys came first.

    A value is read anew each time it is asked for. What the file held when it was opened stays, also after another was
    put in its place; it may only grow. A last line without an end, as a killed process leaves it, is passed over. Safe
    for threads.

    Args:
        path: The file; one that is missing has no lines.
        read: Called with the number of a line, from 1, and the line; gives key and value. What it raises is raised.
    """

    def __init__(self, path: Path, read: Callable[[int, bytes], tuple[str, T]]) -> None:
        self._read = read
        self._places: dict[str, tuple[int, int, int]] = {}
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        weakref.finalize(self, os.close, self._descriptor)
        place = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                key, _ = read(number, line)
                self._places[key] = (number, place, len(line))
                place += len(line)

    def __getitem__(self, key: str) -> T:
        number, place, size = self._places[key]
        return self._read(number, os.pread(self._descriptor, size, place))[1]

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Edited(Mapping[str, T]):
    """A mapping with some values replaced or added and some left out, none of it copied.

    Args:
        values: The mapping.
        changes: What is in it instead.
        without: Keys that are left out; those of ``changes`` are not.
    """

    def __init__(
        self, values: Mapping[str, T], changes: Mapping[str, T] | None = None, without: Collection[str] = frozenset()
    ) -> None:
        self._values, self._changes = values, changes or {}
        stay = (key for key in values if key not in without or key in self._changes)
        self._kept = dict.fromkeys((*stay, *self._changes))

    def __getitem__(self, key: str) -> T:
        if key not in self._kept:
            raise KeyError(key)
        return self._changes[key] if key in self._changes else self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
