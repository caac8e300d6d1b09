"""Transcripts: LM prompts and answers, kept word for word for people to read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, NamedTuple

import dspy
from dspy.lm15 import Request, Response

from querywright.models.response_parsing import system_text
from querywright.models.usage import Layer, call_context, surrounded


class Exchange(NamedTuple):
    """A prompt and its answer.

    Args:
        predictor: Name of the DSPy predictor, such as ``reader.predict``; empty if no predictor made the call.
        messages: Role and text of each message in the prompt, starting with the instructions (``system``).
        answer: The LM's answer; None if the call failed.
    """

    predictor: str
    messages: tuple[tuple[str, str], ...]
    answer: str | None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with ``predictor``, ``messages`` (``role`` and ``content``), and ``answer``."""
        messages = [{"role": role, "content": text} for role, text in self.messages]
        return {"predictor": self.predictor, "messages": messages, "answer": self.answer}


Place = tuple[int, ...]
Entry = tuple[Place, Exchange]
_numbers = itertools.count()


class Transcript:
    """Records the LM calls made inside its ``with`` block, in this thread and in copies of its context.

    A transcript contains the full text of the prompts, but no API keys or URLs.
    """

    def __init__(self) -> None:
        self._heard: list[Entry] = []

    def __enter__(self) -> Transcript:
        self._inside = surrounded(transcript=self._heard)
        self._inside.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._inside.__exit__(*raised)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All calls so far; calls made by parallel steps are in the order of the steps."""
        return tuple(one for _, one in sorted(self._heard, key=lambda pair: pair[0]))


def side_by_side() -> Callable[[int], AbstractContextManager[None]]:
    """Return a function that takes a parallel step's number and returns the context manager to run the step in."""
    begun = next_place()
    return lambda number: surrounded(place=(*begun, number))


def next_place() -> Place:
    """Return a position after all earlier ones; positions of parallel calls are in the order of their steps."""
    return (*call_context().place, next(_numbers))


class TranscriptLayer:
    """Records each request and its answer in the transcript, if there is one.

    Args:
        inner: Next layer.
    """

    def __init__(self, inner: Layer) -> None:
        self._inner = inner

    def complete(self, request: Request) -> Response:
        """Return the answer to a request."""
        transcript = call_context().transcript
        if transcript is None:
            return self._inner.complete(request)
        place, answer = next_place(), None
        try:
            response = self._inner.complete(request)
            answer = response.text or ""
            return response
        finally:
            messages = [("system", system_text(request)), *((one.role, one.text or "") for one in request.messages)]
            shown = tuple((role, _same(text)) for role, text in messages if text)
            transcript.append((place, Exchange(_asker(), shown, answer)))


@lru_cache(maxsize=256)
def _same(text: str) -> str:
    """Return the text as an object shared between calls, because every question repeats the same instructions."""
    return text


def _asker() -> str:
    """Return the name, within the program being run, of the predictor that makes the call."""
    modules: list[Any] = list(dspy.settings.caller_modules or [])
    named = modules[0].named_predictors() if modules else ()
    return next((name for name, one in named if one is modules[-1]), "")
