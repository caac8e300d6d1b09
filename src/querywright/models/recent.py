"""What was used lately, in memory: so many entries at most."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, safe for threads; of more than there may be, those go that were not used for longest.

    Args:
        most: Entries, 1 or more; None for any number, where nothing else has them.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._values: dict[K, V] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value of a key, which was used with this; None where there is none."""
        if self._most is None or len(self._values) < self._most // 2:  # none goes soon, so the order is nothing to keep
            return self._values.get(key)
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def update(self, values: Mapping[K, V]) -> None:
        """Put values, or put others in their place."""
        with self._lock:
            for key, value in values.items():
                self._values.pop(key, None)
                self._values[key] = value
            while self._most is not None and len(self._values) > self._most:
                del self._values[next(iter(self._values))]
