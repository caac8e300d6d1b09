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
from querywright.models.usage import Ledger, UnreadableAnswer, metered
from querywright.pool import bounded_map

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
        self.name, self._total, self._what = name, total, what
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
                f"{failed} of {self._total} {self._what} failed in {self.name!r}, more than the {self.allowed} "
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
        progress: Progress | None = None,
    ) -> list[R | Exception]:
        """Apply ``work`` to every item as ``map_runs`` does, all of them items of this run."""
        runs = [self] * len(items)
        return map_runs(work, items, runs, id_of=id_of, threads=threads, progress=progress)

    def ended(self, item_id: str, result: object, *, last: bool) -> None:
        """Count the result of an item, an error or not, the last one of a call of ``map_runs`` or not.

        It raises what ``add`` raises, and also ends a run whose LM answers cannot be read: early if this is more than
        the share of 20 answers, at the end if it is more than the share of all, and always if none could be read.
        """
        self._met += 1
        if isinstance(result, Exception):
            self.add(item_id, result)
        self.check_read(self._spent, 1 if last and self._met >= self._total else ENOUGH)

    def check_read(self, spent: Ledger, least: int = 1) -> None:
        """Raise where more answers of the LM could not be read than the share that it is allowed; one at least may.

        Where there were fewer than ``least`` answers so far, the share is one of so many.
        """
        total = spent.total
        said, share = spent.unread or UnreadableAnswer("what is not known here", Limits().max_unreadable)
        some = 1 if share and total.answers > 1 else 0
        if total.unreadable > max(some, math.floor(share * max(total.answers, least))):
            raise TooManyFailuresError(
                f"{total.unreadable} of {total.answers} answers of the LM in {self.name!r} could not be read, also "
                f"when asked for again; {share:.0%} may (max_unreadable=). The last one: "
                f"{said}. Nothing was decided from them: name an LM that answers in the form asked for",
                Counter(unreadable=total.unreadable),
            )


def map_runs(
    work: Callable[[T], R],
    items: Sequence[T],
    runs: Sequence[Failures],
    *,
    id_of: Callable[[T], str],
    threads: int,
    progress: Progress | None = None,
    on_done: Callable[[int, R | Exception], object] = lambda *_: None,
    on_out: Callable[[Failures, TooManyFailuresError], object] | None = None,
) -> list[R | Exception]:
    """Apply ``work`` to the items of several runs in one pool of threads, as ``bounded_map`` does.

    Args:
        work: Called once an item.
        items: In the order in which they begin.
        runs: The run of each item, which counts its failures and the LM answers that could not be read.
        id_of: Names an item in a message.
        threads: Items under way at a time, 1 or more.
        progress: Called after each item with the name of its run.
        on_done: Called with position and result of each item that was counted.
        on_out: Called with a run that has too many failures, and the error; its other items are left out, and the
            other runs go on. Default None: the error is raised.

    It raises what ``Failures.ended`` raises.
    """
    left, out = Counter(runs), dict[Failures, TooManyFailuresError]()

    def ask(position: int) -> R:
        run = runs[position]
        if run in out:
            raise out[run]
        with metered(run._spent):
            return work(items[position])

    def ended(position: int, result: R | Exception) -> None:
        run = runs[position]
        left[run] -= 1
        if run not in out:
            try:
                run.ended(id_of(items[position]), result, last=not left[run])
                on_done(position, result)
            except TooManyFailuresError as error:
                if on_out is None:
                    raise
                out[run] = error
                on_out(run, error)
        if progress is not None:
            progress(run.name, len(items) - left.total(), len(items))

    return bounded_map(ask, range(len(items)), threads=threads, on_done=ended)


def failure_kind(error: Exception) -> str | None:
    """The kind of a question's failure; None when the whole run must stop for it."""
    if isinstance(error, FailedElsewhereError):
        return str(error.args[0])
    if isinstance(error, PromptTooLongError):
        return "prompt_too_long"
    if isinstance(error, QuerywrightError):
        return None
    kinds = (
        (JudgeFailedError, "judge"), (MetricError, "metric"),
        (AdapterParseError, "parse"), (LMError, "lm"),
    )  # fmt: skip
    return next((kind for of, kind in kinds if isinstance(error, of)), "bug")
