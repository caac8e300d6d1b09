"""Count failed questions by kind, and stop a run that has too many failures."""

from __future__ import annotations

import math
import os
import sysconfig
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from dspy.utils.exceptions import AdapterParseError, LMError

from querywright.errors import InputError, ModelError, PromptTooLongError, QuerywrightError
from querywright.metrics.judge import JudgeFailedError
from querywright.models.circuit_breaker import Limits
from querywright.models.usage import Ledger, UnreadableAnswer, metered
from querywright.pool import bounded_map

if TYPE_CHECKING:
    from querywright.optimize.evaluate import Progress

T = TypeVar("T")
R = TypeVar("R")

ENOUGH = 20
"""Minimum number of answers before the share of unreadable answers can end a run early."""

_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class FailedElsewhereError(Exception):
    """A failure in a different process, with its kind (from ``failure_kind`` in that process) and its message."""

    def __str__(self) -> str:
        return str(self.args[1])


class MetricError(Exception):
    """A custom metric raised an error or returned a value that is not a score."""


class TooManyFailuresError(QuerywrightError):
    """More questions failed, or more of the LM's answers could not be parsed, than the run allows.

    Args:
        message: What failed, and how.
        kinds: The number of failed questions of each kind; ``unreadable`` counts answers.
    """

    def __init__(self, message: str, kinds: Counter[str]) -> None:
        super().__init__(message)
        self.kinds = kinds


class Failures:
    """Counts a run's failed questions, and ends the run if they exceed the allowed share.

    Raises:
        InputError: The share is out of range.
    """

    def __init__(self, name: str, total: int, share: float, what: str = "questions") -> None:
        if not 0 <= share <= 1:
            raise InputError(f"max_failures must be between 0 and 1, but got {share}")
        self.name, self._total, self._what = name, total, what
        self.allowed = max(1, math.floor(share * total)) if share else 0
        self.kinds: Counter[str] = Counter()
        self._messages: list[str] = []
        self._met = 0
        self._spent = Ledger()  # for all items

    def add(self, question_id: str, error: Exception) -> str:
        """Count a failed question and return its kind.

        Raises:
            Exception: The error itself, if the whole run must stop; a user's mistake is raised with the run's name.
            TooManyFailuresError: More questions failed than allowed.
        """
        kind = failure_kind(error)
        if kind is None:
            if isinstance(error, InputError) and not isinstance(error, ModelError):  # the runs share their LM
                error.args = (f"{self.name}: {error}",)
            raise error
        self.kinds[kind] += 1
        self._messages.append(f"{question_id}: {kind}: {failure_message(error)}")
        failed = len(self._messages)
        if failed > self.allowed:
            raise TooManyFailuresError(
                f"{failed} of {self._total} {self._what} failed in {self.name!r} (limit: {self.allowed}, "
                "set by max_failures). Fix the cause and rerun the same command; finished answers are cached. Last "
                "errors:\n" + ";\n".join(self._messages[-3:]),
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
        """Apply ``work`` to each item in this run; see ``map_runs``."""
        runs = [self] * len(items)
        return map_runs(work, items, runs, id_of=id_of, threads=threads, progress=progress)

    def ended(self, item_id: str, result: object, *, last: bool) -> None:
        """Count the result or the error of an item.

        Raises:
            TooManyFailuresError: More items failed, or more of the LM's answers could not be parsed, than allowed. The
                check of answers runs early, as soon as more than the allowed share of 20 answers could not be parsed,
                and again at the end of a ``map_runs`` call (``last``).
        """
        self._met += 1
        if isinstance(result, Exception):
            self.add(item_id, result)
        self.check_read(self._spent, 1 if last and self._met >= self._total else ENOUGH)

    def check_read(self, spent: Ledger, least: int = 1) -> None:
        """Raise if more than the allowed share of the LM's answers could not be parsed; one unreadable answer is always
        allowed.

        If there are fewer than ``least`` answers so far, the share is computed from ``least``.
        """
        total = spent.total
        said, share = spent.unread or UnreadableAnswer("unknown", Limits().max_unreadable)
        some = 1 if share and total.answers > 1 else 0
        if total.unreadable > max(some, math.floor(share * max(total.answers, least))):
            raise TooManyFailuresError(
                f"{total.unreadable} of {total.answers} LM answers in {self.name!r} could not be read, even after a "
                f"second request (limit: {share:.0%}, set by --max-unreadable or Limits.max_unreadable). Last answer: "
                f"{said}. No program was chosen. Use an LM that answers in the requested format",
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
    """Apply ``work`` to the items of several runs in one thread pool, like ``bounded_map``.

    Args:
        work: Called once for each item.
        items: The items, in the order in which they start.
        runs: The run of each item, which counts its failures and the LM's unreadable answers.
        id_of: Function that returns the name of an item for messages.
        threads: Number of items to run at a time, 1 or more.
        progress: Called after each item with the name of its run.
        on_done: Called with the position and the result of each item that was counted.
        on_out: Called with a run that has too many failures, and with the error. The run's remaining items are skipped,
            and the other runs continue. Default None: raise the error.

    Raises:
        TooManyFailuresError: See ``Failures.ended``.
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
    """Return the kind of a question's failure; None if the whole run must stop."""
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


def failure_message(error: Exception) -> str:
    """Return the message of a question's failure; for a bug, with the error's type and place."""
    if failure_kind(error) != "bug" or isinstance(error, FailedElsewhereError):
        return str(error)
    return with_place(error)


def with_place(error: Exception) -> str:
    """Return an error's type, the file and line that raised it, and its message.

    The line is the last one outside querywright and the libraries, or the last line if there is no such line.
    """
    calls = [
        (frame.f_code.co_filename, line, frame.f_globals.get("__name__", "").partition(".")[0])
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [one for one in calls if one[2] != "querywright" and not one[0].startswith((*_LIBRARIES, "<frozen"))]
    here = os.getcwd() + os.sep
    place = "".join(f" at {file.removeprefix(here)}:{line}" for file, line, _ in (own or calls)[-1:])
    return f"{type(error).__name__}{place}: {error}"
