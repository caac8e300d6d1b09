"""An LM's answer while it is written: who listens to it, and how its pieces become a response."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from dspy.lm15 import Request, Response, ResponseStream, StreamAssemblyError, UnsupportedFeatureError
from dspy.utils.exceptions import LMStreamAssemblyError, LMUnsupportedFeatureError


class Ear(Protocol):
    """Listens to the answer of an LM; called from the thread that asks."""

    def begin(self) -> None:
        """An answer begins; whatever was heard before is not part of it."""

    def hear(self, text: str) -> None:
        """The next piece of the answer, as the LM wrote it."""


_ear: ContextVar[Ear | None] = ContextVar("querywright_ear", default=None)


@contextmanager
def heard_by(ear: Ear | None) -> Iterator[None]:
    """Inside the ``with`` block, in this thread and contexts copied from it, answers are heard as they are written.

    Only answers that are asked for there: one that is stored, or that another thread asked for, is not heard.

    Args:
        ear: Who listens, or None for nobody.
    """
    token = _ear.set(ear)
    try:
        yield
    finally:
        _ear.reset(token)


def listening() -> Ear | None:
    """Who listens here."""
    return _ear.get()


def told(events: Iterator[Any], request: Request, ear: Ear) -> Response:
    """The response that the events of a stream make, its text told on the way.

    Args:
        events: As an engine's ``stream`` gives them.
        request: What they answer.
        ear: Told of each piece of text; never of thoughts.

    Raises:
        NothingStreamedError: There was no event at all.
    """
    stream = ResponseStream(events, request)
    begun = False
    try:
        for event in stream.events():
            begun = True
            if event.type == "delta" and event.delta.type == "text":
                ear.hear(event.delta.text)
        return stream.response
    except Exception as error:
        if not begun and _is_no_stream(error):
            raise NothingStreamedError(str(error)) from error
        raise
    finally:
        stream.close()


class NothingStreamedError(LMStreamAssemblyError):
    """A model that was asked to stream its answer sent no stream; it is to be asked for the whole."""


def _is_no_stream(error: Exception) -> bool:
    return isinstance(
        error, StreamAssemblyError | UnsupportedFeatureError | LMStreamAssemblyError | LMUnsupportedFeatureError
    )
