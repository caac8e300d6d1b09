"""Failed questions: their kinds, and how many a run may have."""

from __future__ import annotations

import math
from collections import Counter

from dspy.utils.exceptions import AdapterParseError, LMError

from querywright.errors import InputError, PromptTooLongError, QuerywrightError
from querywright.optimize.pool import DeadlineError


class FailedElsewhereError(Exception):
    """A failure in another process.

    Args:
        kind: As ``failure_kind`` gave it there.
        message: What the failure said.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class TooManyFailuresError(QuerywrightError):
    """More questions failed than the run was allowed.

    Args:
        message: What failed and how.
        kinds: Failed questions by kind.
    """

    def __init__(self, message: str, kinds: Counter[str]) -> None:
        super().__init__(message)
        self.kinds = kinds


class Failures:
    """Failed questions of a run, up to how many it may have.

    Args:
        name: What is run, for messages.
        total: Questions in all.
        share: Share of them that may fail, 0 to 1; at least one may unless it is 0.
        what: What they are, in the plural. Default "questions".

    Raises:
        InputError: The share is out of range.
    """

    def __init__(self, name: str, total: int, share: float, what: str = "questions") -> None:
        if not 0 <= share <= 1:
            raise InputError(f"max_failures is a share from 0 to 1, but got {share}")
        self._name = name
        self._total = total
        self._what = what
        self.allowed = max(1, math.floor(share * total)) if share else 0
        self._kinds: Counter[str] = Counter()
        self._messages: list[str] = []

    def add(self, question_id: str, error: Exception) -> str:
        """Count a failed question and give its kind.

        Raises:
            Exception: The error itself when the whole run must stop for it.
            TooManyFailuresError: It is one more than allowed.
        """
        kind = failure_kind(error)
        if kind is None:
            raise error
        self._kinds[kind] += 1
        self._messages.append(f"{question_id}: {kind}: {error}")
        failed = len(self._messages)
        if failed > self.allowed:
            raise TooManyFailuresError(
                f"{failed} of {self._total} {self._what} failed in {self._name!r}, more than the {self.allowed} "
                "allowed; the last ones:\n" + "\n".join(self._messages[-3:]),
                self._kinds,
            ) from error
        return kind


def failure_kind(error: Exception) -> str | None:
    """The kind of a question's failure; None when the whole run must stop for it."""
    if isinstance(error, FailedElsewhereError):
        return error.kind
    if isinstance(error, PromptTooLongError):
        return "prompt_too_long"
    if isinstance(error, QuerywrightError):
        return None
    if isinstance(error, DeadlineError):
        return "deadline"
    if isinstance(error, AdapterParseError):
        return "parse"
    return "lm" if isinstance(error, LMError) else "bug"
