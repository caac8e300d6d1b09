"""Joins calls that wait at the same time into one, without a pause and without a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from querywright.errors import ModelError

T = TypeVar("T")


class JoinedCalls(Generic[T]):
    """Calls ``compute`` once for all callers that wait.

    A caller that finds nobody at work leads: it computes for itself and for all who came while the one before
    it computed. A caller that is alone therefore waits for nobody.

    Args:
        compute: Distinct texts to the answer of each; never called twice at the same time.
    """

    def __init__(self, compute: Callable[[list[str]], Mapping[str, T]]) -> None:
        self._compute = compute
        self._changed = threading.Condition()
        self._waiting: list[_Call[T]] = []
        self._busy = False

    def call(self, texts: list[str]) -> dict[str, T]:
        """The answers of some texts; an error in ``compute`` is raised in every caller it was to serve."""
        mine: _Call[T] = _Call(texts)
        batch = self._wait(mine)
        if batch:
            self._lead(batch)
        elif mine.error is not None:
            raise mine.error
        return mine.answers or {}

    def _wait(self, mine: _Call[T]) -> list[_Call[T]]:
        """Waits until another caller has served this one (no batch), or until it is to lead (its batch)."""
        with self._changed:
            self._waiting.append(mine)
            try:
                while self._busy and not mine.done:
                    self._changed.wait()
            except BaseException:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                raise
            if mine.done:
                return []
            self._busy = True
            batch, self._waiting = self._waiting, []
            return batch

    def _lead(self, batch: list[_Call[T]]) -> None:
        try:
            answers = self._compute(list(dict.fromkeys(text for call in batch for text in call.texts)))
            for call in batch:
                call.answers = {text: answers[text] for text in call.texts}
        except BaseException as error:
            for call in batch:
                call.error = error if isinstance(error, Exception) else ModelError("the call was interrupted")
            raise
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()


class _Call(Generic[T]):
    """One caller's texts, and in the end its answers or the error."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.answers: dict[str, T] | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.answers is not None or self.error is not None
