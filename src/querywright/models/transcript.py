"""What LMs were asked and answered, kept word for word where somebody wants to read it."""

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
    """One prompt and its answer.

    Args:
        predictor: Name of the predictor that asked, as DSPy has it (``reader.predict``); empty where none did.
        messages: Role and text of each message of the prompt, the instructions (``system``) first.
        answer: What the LM wrote; None where the call failed.
    """

    predictor: str
    messages: tuple[tuple[str, str], ...]
    answer: str | None

    def to_json(self) -> dict[str, Any]:
        """The call as a JSON object: ``predictor``, ``messages`` (``role`` and ``content``) and ``answer``."""
        messages = [{"role": role, "content": text} for role, text in self.messages]
        return {"predictor": self.predictor, "messages": messages, "answer": self.answer}


Place = tuple[int, ...]
Entry = tuple[Place, Exchange]
_numbers = itertools.count()


class Transcript:
    """Keeps what is asked inside its ``with`` block, in this thread and contexts copied from it.

    It holds no key and no address, but all the text of the prompts.
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
        """All of them until now, calls of steps side by side in the order of the steps."""
        return tuple(one for _, one in sorted(self._heard, key=lambda pair: pair[0]))


def side_by_side() -> Callable[[int], AbstractContextManager[None]]:
    """Makes, for steps that begin now and run side by side, the ``with`` block of each from its number."""
    begun = next_place()
    return lambda number: surrounded(place=(*begun, number))


def next_place() -> Place:
    """A place after all that were given before, calls side by side in the order of their steps."""
    return (*call_context().place, next(_numbers))


class TranscriptLayer:
    """Enters each request and its answer in the transcript, if there is one.

    Args:
        inner: Answers the request.
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
    """The text, as the object that it was before: instructions and demonstrations come again with each question."""
    return text


def _asker() -> str:
    """Name of the predictor that asks, within the program that was called."""
    modules: list[Any] = list(dspy.settings.caller_modules or [])
    named = modules[0].named_predictors() if modules else ()
    return next((name for name, one in named if one is modules[-1]), "")
