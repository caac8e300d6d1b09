"""Many questions at once, each with its own answer or its own failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from querywright.data.types import Question
from querywright.errors import InputError, QuerywrightError
from querywright.optimize.failures import failure_kind
from querywright.optimize.pool import bounded_map

Asked = str | tuple[str, Sequence[str] | None] | Question
"""A question, with its options where it has any."""


class FailedQuestionError(QuerywrightError):
    """A question failed for a reason that is no error of querywright's own; that one is its ``__cause__``.

    Args:
        kind: ``lm``, ``parse``, ``prompt_too_long`` or ``bug``, which is what a retriever of the user's own raises too.
        message: What the failure said.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Answered:
    """A question and what came of it.

    Args:
        question: The question.
        options: Its options; empty without.
        prediction: What the program gave; None when the question failed.
        error: Why it failed; None when it did not.
    """

    question: str
    options: tuple[str, ...]
    prediction: dspy.Prediction | None
    error: QuerywrightError | None


def answer_all(
    ask: Callable[[str, Sequence[str] | None], dspy.Prediction],
    questions: Sequence[Asked],
    *,
    threads: int,
    progress: Callable[[int, int], None] | None,
) -> list[Answered]:
    """Ask many questions side by side: ``LoadedProgram.batch``."""
    if isinstance(questions, str):
        raise InputError(f"batch takes a list of questions, but got one text: {questions[:60]!r}; write [question]")
    asked = [_read(place, question) for place, question in enumerate(questions, 1)]
    done = 0

    def count(_place: int, _result: object) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(asked))

    results = bounded_map(lambda one: ask(one[0], one[1] or None), asked, threads=threads, on_done=count)
    return [
        Answered(question, options, None, _typed(made))
        if isinstance(made, Exception)
        else Answered(question, options, made, None)
        for (question, options), made in zip(asked, results, strict=True)
    ]


def _read(place: int, question: Asked) -> tuple[str, tuple[str, ...]]:
    if isinstance(question, Question):
        return question.question, tuple(question.options)
    given: Any = (question, None) if isinstance(question, str) else question
    text, options = given if isinstance(given, tuple | list) and len(given) == 2 else (None, None)
    if not isinstance(text, str) or isinstance(options, str):
        raise InputError(
            f"question {place} is {question!r:.80}; give a text, a pair of a text and its options, or a Question"
        )
    return text, tuple(options or ())


def _typed(error: Exception) -> QuerywrightError:
    if isinstance(error, QuerywrightError):
        return error
    typed = FailedQuestionError(failure_kind(error) or "bug", str(error) or type(error).__name__)
    typed.__cause__ = error
    return typed
