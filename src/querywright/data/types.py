"""The two things every program is about: passages that can be found, and questions to answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from querywright.errors import DataError

Scalar = str | int | float | bool
History = str | Sequence[Any] | None
"""A conversation before a question, in any form that ``turns_of`` reads."""

SHOWN = 60
"""Characters of a passage's text in its ``repr``."""

PERSON = "person"
"""Who gave a label where nothing else is said."""


class Label(StrEnum):
    """How far a passage helps to decide a question (HCQR, arXiv 2603.19008).

    ENTAILED: the passage alone settles the right answer. USEFUL: it helps partly. NOT_USEFUL: it does not help.
    """

    ENTAILED = "ENTAILED"
    USEFUL = "USEFUL"
    NOT_USEFUL = "NOT_USEFUL"


@dataclass(frozen=True, slots=True, repr=False)
class Passage:
    """A piece of text that can be retrieved.

    Args:
        id: Unique in its collection.
        text: What is embedded and shown to the reader. Not empty.
        title: Shown and embedded in front of the text when it is not empty. Default "".
        metadata: Flat values to filter by. Default none.
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """What is embedded: title and text."""
        return f"{self.title}\n{self.text}" if self.title else self.text

    @property
    def is_of_document(self) -> bool:
        """Whether ``read_documents`` made the passage: its id begins with its file."""
        return self.id.startswith(f"{self.metadata.get('file')}#")

    def __repr__(self) -> str:
        """Id, title and the beginning of the text: a list of passages stays readable."""
        text = self.text if len(self.text) <= SHOWN else f"{self.text[:SHOWN]}..."
        return f"Passage(id={self.id!r}, title={self.title!r}, text={text!r})"

    def digest(self) -> str:
        """SHA-256 of everything in the passage, as hex."""
        data = [self.id, self.title, self.text, dict(sorted(self.metadata.items()))]
        return hashlib.sha256(json.dumps(data, ensure_ascii=False).encode()).hexdigest()

    def text_digest(self) -> str:
        """SHA-256 of what can be read in it, as hex: other metadata makes no difference."""
        return replace(self, metadata={}).digest()


@dataclass(frozen=True, slots=True)
class Question:
    """A labelled question.

    Args:
        id: Unique in its set.
        question: The question as its asker wrote it.
        options: Option texts in order for multiple choice (2 or more, distinct), empty otherwise.
        answer: The right answer: for multiple choice the text of one option; None when it is not known.
        aliases: Further accepted spellings of a short answer.
        evidence: Label of each labelled passage by its id; empty means that nothing is labelled.
        jointly: Whether it takes all the passages that help, as for a question of several hops: one of them alone is
            USEFUL, all together ENTAILED. Default False: each label says what its passage does alone.
        assessors: Who gave the label in ``evidence``, by passage id: ``person``, or the names of judges. Where it is
            given a passage that ``evidence`` does not name is unjudged. Default empty: a person gave all labels, and
            a passage that is not named is NOT_USEFUL.
        history: The turns of the conversation before the question, the earliest first. Default none.
        alternatives: Groups of passages of ``evidence`` of which any one is enough; recall, nDCG and ``jointly`` count
            a group as one passage. Default none.
    """

    id: str
    question: str
    options: tuple[str, ...] = ()
    answer: str | None = None
    aliases: tuple[str, ...] = ()
    evidence: Mapping[str, Label] = field(default_factory=dict)
    jointly: bool = False
    assessors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    history: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        """All accepted answers, the main one first."""
        return () if self.answer is None else (self.answer, *self.aliases)

    @property
    def inputs(self) -> dict[str, Any]:
        """What a program is given: ``question``, ``options`` and, where there is one, ``history``."""
        given = {"question": self.question, "options": list(self.options)}
        return {**given, "history": list(self.history)} if self.history else given

    def to_example(self) -> Any:
        """The question as a ``dspy.Example`` whose inputs are those of a program."""
        import dspy

        return dspy.Example(**self._fields | self.inputs).with_inputs(*self.inputs)

    def to_json(self) -> dict[str, Any]:
        """The question in querywright's own JSON form, without empty fields."""
        return {name: value for name, value in self._fields.items() if value or name in ("id", "question")}

    @property
    def _fields(self) -> dict[str, Any]:
        """All fields as plain data; history and alternatives only if there are some."""
        history = {"history": list(self.history)} if self.history else {}
        alternatives = {"alternatives": [list(group) for group in self.alternatives]} if self.alternatives else {}
        return {
            "id": self.id,
            "question": self.question,
            "options": list(self.options),
            "answer": self.answer,
            "aliases": list(self.aliases),
            "evidence": {key: str(value) for key, value in self.evidence.items()},
            "jointly": self.jointly,
            "assessors": {key: list(names) for key, names in self.assessors.items()},
            **history,
            **alternatives,
        }


def turns_of(history: History) -> tuple[str, ...]:
    """The turns of a conversation, the earliest first.

    Args:
        history: A text, whose lines are the turns; or a list of turns, each a text or an object with its text as
            ``content`` and, where it is known, the ``role`` of who said it. None or empty: none.

    Raises:
        DataError: It has another form.
    """
    turns = list(filter(str.strip, history.splitlines())) if isinstance(history, str) else history or ()
    if isinstance(turns, Sequence):
        turns = [_turn(turn).strip() for turn in turns]
        if all(turns):
            return tuple(turns)
    raise DataError(
        "a history must be a text, or a list of turns that are texts or objects of role and content, but got "
        f"{history!r:.80}"
    )


def _turn(turn: Any) -> str:
    """A turn as one text; "" for what is none."""
    if not isinstance(turn, Mapping):
        return turn if isinstance(turn, str) else ""
    role, said = turn.get("role"), turn.get("content")
    return (f"{role}: {said}" if role else said) if isinstance(said, str) else ""
