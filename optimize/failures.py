"""Failed questions: their kinds, and how many a run may have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from dspy.utils.exceptions import AdapterParseError, LMError

from querywright.errors import InputError, PromptTooLongError, QuerywrightError
from querywright.metrics.judge import JudgeFailedError
from querywright.models.circuit_breaker import Limits
from querywright.models.usage import Ledger, Unread, metered
from querywright.pool import DeadlineError, bounded_map

if TYPE_CHECKING:
    from querywright.optimize.evaluate import Progress

T = TypeVar("T")
R = TypeVar("R")

ENOUGH = 20
"""Answers after which the share of unreadable ones says something before a run has ended."""


class FailedElsewhereError(Exception):
    """A failure in another process: its kind, as ``failure_kind`` gave it there, and what it said."""

    def __str__(self) -> str:
        return str(self.args[1])


class MetricError(Exception):
    """A metric of the user's own raised, or gave what is no score."""


class TooManyFailuresError(QuerywrightError):
    """More questions failed, or more of the LM's answers could not be read, than the run was allowed.

    Args:
        message: What failed and how.
        kinds: Failed questions by kind; ``unreadable`` counts answers.
    """

    def __init__(self, message: str, kinds: Counter[str]) -> None:
        super().__init__(message)
        self.kinds = kinds


class Failures:
    """Failed questions of a run of this name, up to which share of the total it may have; at least one unless it is 0.

    Raises:
        InputError: The share is out of range.
    """

    def __init__(self, name: str, total: int, share: float, what: str = "questions") -> None:
        if not 0 <= share <= 1:
            raise InputError(f"max_failures is a share from 0 to 1, but got {share}")
        self._name, self._total, self._what = name, total, what
        self.allowed = max(1, math.floor(share * total)) if share else 0
        self.kinds: Counter[str] = Counter()
        self._messages: list[str] = []
        self._met = 0
        self._spent = Ledger()  # of all that is mapped

    def add(self, question_id: str, error: Exception) -> str:
        """Count a failed question and give its kind.

        Raises:
            Exception: The error itself when the whole run must stop for it.
            TooManyFailuresError: It is one more than allowed.
        """
        kind = failure_kind(error)
        if kind is None:
            raise error
        self.kinds[kind] += 1
        self._messages.append(f"{question_id}: {kind}: {error}")
        failed = len(self._messages)
        if failed > self.allowed:
            raise TooManyFailuresError(
                f"{failed} of {self._total} {self._what} failed in {self._name!r}, more than the {self.allowed} "
                "allowed (max_failures); mend this and run again, what was answered is kept. The last ones:\n"
                + "\n".join(self._messages[-3:]),
                self.kinds,
            ) from error
        return kind

    def map(
        self,
        work: Callable[[T], R],
        items: Sequence[T],
        *,
        id_of: Callable[[T], str],
        threads: int,
        deadline: float | None = None,
        progress: Progress | None = None,
        name: str = "",
    ) -> list[R | Exception]:
        """Apply ``work`` to every item as ``bounded_map`` does, each failure counted; it raises what ``add`` raises.

        It also ends where the LM's answers cannot be read: early where this is more than the share of 20 answers, at
        the end where it is more than the share of all, and always where none could be read. ``progress`` is told
        ``name``, by default that of the run.
        """
        done, spent = 0, self._spent

        def on_done(position: int, result: R | Exception) -> None:
            nonlocal done
            done += 1
            if isinstance(result, Exception):
                self.add(id_of(items[position]), result)
            self.check_read(spent, ENOUGH)
            if progress is not None:
                progress(name or self._name, done, len(items))

        with metered(spent):  # the threads work in copies of this context
            results = bounded_map(work, items, threads=threads, deadline=deadline, on_done=on_done)
        self._met += len(items)
        self.check_read(spent, 1 if self._met >= self._total else ENOUGH)
        return results

    def check_read(self, spent: Ledger, least: int = 1) -> None:
        """Raise where more answers of the LM could not be read than the share that it is allowed; one at least may.

        Where there were fewer than ``least`` answers so far, the share is one of so many.
        """
        total, (said, share) = spent.total, spent.unread or Unread("what is not known here", Limits().max_unreadable)
        some = 1 if share and total.answers > 1 else 0
        if total.unreadable > max(some, math.floor(share * max(total.answers, least))):
            raise TooManyFailuresError(
                f"{total.unreadable} of {total.answers} answers of the LM in {self._name!r} could not be read, also "
                f"when asked for again; {share:.0%} may (--max-unreadable, or max_unreadable of Limits). The last one: "
                f"{said}. Nothing was decided from them: name an LM that answers in the form asked for",
                Counter(unreadable=total.unreadable),
            )


def failure_kind(error: Exception) -> str | None:
    """The kind of a question's failure; None when the whole run must stop for it."""
    if isinstance(error, FailedElsewhereError):
        return str(error.args[0])
    if isinstance(error, PromptTooLongError):
        return "prompt_too_long"
    if isinstance(error, QuerywrightError):
        return None
    kinds = (
        (DeadlineError, "deadline"), (JudgeFailedError, "judge"), (MetricError, "metric"),
        (AdapterParseError, "parse"), (LMError, "lm"),
    )  # fmt: skip
    return next((kind for of, kind in kinds if isinstance(error, of)), "bug")
