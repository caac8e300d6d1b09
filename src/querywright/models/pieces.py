"""Streaming of an LM's answer: listeners, and functions that turn pieces into a response or a field's text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dspy.lm15 import Request, Response, ResponseStream, StreamAssemblyError, UnsupportedFeatureError
from dspy.utils.exceptions import LMStreamAssemblyError, LMUnsupportedFeatureError
from pydantic_core import from_json

from querywright.models.response_parsing import is_empty, is_only_thinking, restore_latex, strip_thinking
from querywright.models.usage import surrounded

_UNCERTAIN = re.compile(r"\\.?[A-Za-z0-9]*\Z", re.DOTALL)
"""An escape sequence that the next piece may turn into a LaTeX command."""
_OBJECT = re.compile(r'\{(?=\s*(?:"|\}|$))')


class Ear(Protocol):
    """Listens to an LM's answer; its methods are called in the thread that made the LM call."""

    def begin(self) -> None:
        """Start a new answer, and discard the pieces received so far."""

    def hear(self, text: str) -> None:
        """Receive the next piece of the answer."""


def heard_by(ear: Ear | None) -> AbstractContextManager[None]:
    """Let an ear listen to answers inside the ``with`` block, in this thread and in copies of its context.

    The ear hears only answers to calls made in this context. It does not hear cached answers, or answers to calls that
    a different thread made.
    """
    return surrounded(ear=ear)


def read_stream(events: Iterator[Any], request: Request, ear: Ear) -> Response | None:
    """Return a stream's response, and pass its text to the ear piece by piece.

    Return None if nothing was streamed. DSPy's client does not stream refusals, so if the stream is empty, the caller
    must request the whole answer again.
    """
    stream = ResponseStream(events, request)
    begun = False
    try:
        for event in stream.events():
            begun = True
            if event.type == "delta" and event.delta.type == "text":
                ear.hear(event.delta.text)
        response = stream.response
        says_nothing = is_empty(response) and not is_only_thinking(response)
        return None if says_nothing and response.finish_reason == "stop" else response
    except (StreamAssemblyError, UnsupportedFeatureError, LMStreamAssemblyError, LMUnsupportedFeatureError):
        if begun:
            raise
        return None
    finally:
        stream.close()


class FieldText:
    """Reads a JSON answer piece by piece, and returns the text of one field as soon as it is certain.

    The field must be a string in the first JSON object after the LM's thinking. Text around the object, other fields,
    escapes, and whitespace at either end of the string are left out. If the field is not a string, no text is returned.
    Invalid JSON ends the text.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._heard = ""
        self._given = 0

    def feed(self, piece: str) -> str:
        """Read the next piece of the answer, and return the part of the field's text that became certain with it."""
        self._heard += piece
        answer = restore_latex(_UNCERTAIN.sub("", strip_thinking(self._heard)))
        found = _OBJECT.search(answer)
        try:
            value = from_json(answer[found.start() :], allow_partial="trailing-strings") if found else None
        except ValueError:
            return ""
        text = value.get(self._name) if isinstance(value, dict) else None
        certain = text.strip() if isinstance(text, str) else ""
        new, self._given = certain[self._given :], max(self._given, len(certain))
        return new
