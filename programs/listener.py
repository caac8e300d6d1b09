"""Who is told of a question while it is worked on: what was found, and the reader's answer as it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from querywright.data.types import Passage
from querywright.models.pieces import Ear
from querywright.retrieval.types import Query


class Listener(Protocol):
    """Told of a question while it is worked on, from the thread that works."""

    @property
    def ear(self) -> Ear | None:
        """Listens to the LM while the reader asks it; None where its answer is of no use before it is whole."""

    def found(self, queries: Sequence[Query], passages: Sequence[Passage]) -> None:
        """What the technique searched for and found, before the reader is asked."""


current: ContextVar[Listener | None] = ContextVar("querywright_listener", default=None)
"""Who is told here."""


@contextmanager
def telling(listener: Listener | None) -> Iterator[None]:
    """Inside the ``with`` block, in this thread and contexts copied from it, a listener is told; with None nobody."""
    token = current.set(listener)
    try:
        yield
    finally:
        current.reset(token)
