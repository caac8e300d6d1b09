"""An LM's answer while it is written: who listens to it, and how its pieces become a response or a field's text."""

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
"""An escape that the next piece may make a LaTeX command."""
_OBJECT = re.compile(r'\{(?=\s*(?:"|\}|$))')


class Ear(Protocol):
    """Listens to the answer of an LM; called from the thread that asks."""

    def begin(self) -> None:
        """An answer begins; whatever was heard before is not part of it."""

    def hear(self, text: str) -> None:
        """The next piece of the answer, as the LM wrote it."""


def heard_by(ear: Ear | None) -> AbstractContextManager[None]:
    """Inside the ``with`` block, in this thread and contexts copied from it, answers are heard as they are written.

    Only answers that are asked for there: one that is stored, or that another thread asked for, is not heard.
    """
    return surrounded(ear=ear)


def told(events: Iterator[Any], request: Request, ear: Ear) -> Response | None:
    """Return the response that a stream makes, and tell its text on the way.

    None if nothing was streamed: DSPy's client streams no refusal, so the whole answer must say why it is empty.
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
    """Reads a JSON answer piece by piece and gives the text of one of its fields as far as it is certain.

    The field is a text among the keys of the first JSON object after the LM's thinking. What stands around the object,
    other fields, escapes and space at the ends of the text are left out. A field that is not a text gives nothing, and
    one that is not valid JSON nothing from there on.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._heard = ""
        self._given = 0

    def feed(self, piece: str) -> str:
        """The part of the field's text that became certain with the next piece of the answer."""
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
