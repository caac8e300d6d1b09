"""What every retriever over a collection has in common: its passages, and that a copy is the same object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.retrieval.types import Shared


class HeldPassages(Shared):
    """The passages of a collection, held in memory.

    A subclass sets ``name`` and ``_passages``, which has them by id in the order of their ids.
    """

    name: str
    _made: tuple[tuple[Any, ...], dict[str, Any]]
    _passages: Mapping[str, Passage]

    def passages(self) -> Iterator[Passage]:
        """All passages of the collection, by id."""
        return iter(self._passages.values())

    def get(self, ids: Sequence[str]) -> list[Passage]:
        """The passages of some ids, in their order.

        Raises:
            InputError: When an id is not in the collection; the message names all of them.
        """
        unknown = [id for id in ids if id not in self._passages]
        if unknown:
            raise InputError(f"not in the collection {self.name!r}: {', '.join(map(repr, unknown[:20]))}")
        return [self._passages[id] for id in ids]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Note what it is made with, for a pickle."""
        made = super().__new__(cls)
        made._made = (args, {name: value for name, value in options.items() if name != "progress"})
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle says how the collection is opened, and opens it anew."""
        return _opened, (type(self), *self._made)

    def __contains__(self, id: object) -> bool:
        return id in self._passages


def _opened(kind: type[HeldPassages], args: Sequence[Any], options: Mapping[str, Any]) -> HeldPassages:
    return kind(*args, **options)
