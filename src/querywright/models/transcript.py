"""What LMs were asked and answered, kept word for word where somebody wants to read it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

import dspy
from dspy.lm15 import Request, Response

from querywright.models.response_parsing import system_text


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


_Place = tuple[int, ...]
_numbers = itertools.count()
_at: ContextVar[_Place] = ContextVar("querywright_place", default=())
_kept: ContextVar[list[tuple[_Place, Exchange]] | None] = ContextVar("querywright_transcript", default=None)


class Transcript:
    """Keeps what is asked inside its ``with`` block, in this thread and contexts copied from it.

    It holds no key and no address, but all the text of the prompts.
    """

    def __init__(self) -> None:
        self._heard: list[tuple[_Place, Exchange]] = []

    def __enter__(self) -> Transcript:
        self._token = _kept.set(self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        _kept.reset(self._token)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All of them until now, calls of steps side by side in the order of the steps."""
        return tuple(one for _, one in sorted(self._heard, key=lambda pair: pair[0]))


def side_by_side() -> Callable[[int], AbstractContextManager[None]]:
    """Makes, for steps that begin now and run side by side, the ``with`` block of each from its number."""
    begun = (*_at.get(), next(_numbers))

    @contextmanager
    def step(number: int) -> Iterator[None]:
        token = _at.set((*begun, number))
        try:
            yield
        finally:
            _at.reset(token)

    return step


def next_place() -> _Place:
    """A place after all that were given before, calls side by side in the order of their steps."""
    return (*_at.get(), next(_numbers))


def transcribed(ask: Callable[[Request], Response], request: Request) -> Response:
    """The answer to a request, kept with it where there is a transcript."""
    kept = _kept.get()
    if kept is None:
        return ask(request)
    place, answer = next_place(), None
    try:
        response = ask(request)
        answer = response.text or ""
        return response
    finally:
        messages = [("system", system_text(request)), *((one.role, one.text or "") for one in request.messages)]
        shown = tuple((role, _same(text)) for role, text in messages if text)
        kept.append((place, Exchange(_asker(), shown, answer)))


@lru_cache(maxsize=256)
def _same(text: str) -> str:
    """The text, as the object that it was before: instructions and demonstrations come again with each question."""
    return text


def _asker() -> str:
    """Name of the predictor that asks, within the program that was called."""
    modules: list[Any] = list(dspy.settings.caller_modules or [])
    named = modules[0].named_predictors() if modules else ()
    return next((name for name, one in named if one is modules[-1]), "")
