"""A question as a stream of events: what was searched and found, and the reader's answer as the LM writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dspy

from querywright.data.types import Passage
from querywright.models.json_stream import FieldText
from querywright.models.pieces import Ear
from querywright.retrieval.types import Query

Kind = Literal["queries", "passages", "text", "restart", "prediction"]
"""In this order, but for ``text`` and ``restart``, which come as often as needed. A ``restart`` takes back the text
before it: the LM had to begin again, or the program gives another answer than the LM wrote. The pieces of text after
the last one are the prediction's answer."""

_FIELD = "answer"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a question has come to.

    Args:
        kind: What it is.
        data: Of ``queries`` a list of ``{"text": ..., "role": ...}``, of ``passages`` a list of Passage, of ``text`` a
            piece of the answer, of ``restart`` None, of ``prediction`` the whole, a ``dspy.Prediction``.
    """

    kind: Kind
    data: Any = None


class Telling:
    """Makes events of one question of what a program and its LM tell.

    Args:
        send: Takes each event; must not raise.
        streams: Whether the answer is sent while it is written.
    """

    def __init__(self, send: Callable[[Event], None], *, streams: bool) -> None:
        self._send = send
        self._streams = streams
        self._text = FieldText(_FIELD)
        self._sent = ""
        self._told_found = False

    @property
    def ear(self) -> Ear | None:
        """Listens to the LM."""
        return self if self._streams else None

    def found(self, queries: Sequence[Query], passages: Sequence[Passage]) -> None:
        """What was searched for and found."""
        if not self._told_found:
            self._told_found = True
            self._send(Event("queries", [{"text": query.text, "role": query.role} for query in queries]))
            self._send(Event("passages", list(passages)))

    def begin(self) -> None:
        """The LM begins, perhaps again."""
        self._text = FieldText(_FIELD)
        self._take_back()

    def hear(self, text: str) -> None:
        """The next piece of what the LM writes."""
        self._say(self._text.feed(text))

    def end(self, prediction: dspy.Prediction) -> None:
        """What came of it; text that was sent is made to agree with it."""
        self.found(prediction.queries, prediction.passages)
        answer = "" if prediction.answer is None else str(prediction.answer)
        if not answer.startswith(self._sent):
            self._take_back()
        self._say(answer[len(self._sent) :])
        self._send(Event("prediction", prediction))

    def _say(self, text: str) -> None:
        if text:
            self._sent += text
            self._send(Event("text", text))

    def _take_back(self) -> None:
        if self._sent:
            self._sent = ""
            self._send(Event("restart"))
