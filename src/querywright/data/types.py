"""Passages and questions, the data that every program works with."""

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
"""The conversation before a question, in a form that ``turns_of`` accepts."""

SHOWN = 60
"""Number of characters of the text in a passage's ``repr``."""

PERSON = "person"
"""The assessor assumed for a label that does not name its assessors."""


class Label(StrEnum):
    """How much a passage helps to answer a question (HCQR, arXiv 2603.19008).

    ENTAILED: the passage alone determines the right answer. USEFUL: it helps partly. NOT_USEFUL: it does not help.
    """

    ENTAILED = "ENTAILED"
    USEFUL = "USEFUL"
    NOT_USEFUL = "NOT_USEFUL"


@dataclass(frozen=True, slots=True, repr=False)
class Passage:
    """A text that a retriever can find.

    Args:
        id: Unique in the collection.
        text: The text that is embedded and shown to the reader. Not empty.
        title: Embedded and shown before the text. Default "": no title.
        metadata: Flat values to filter by. Default none.
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The text to embed: title and text."""
        return f"{self.title}\n{self.text}" if self.title else self.text

    @property
    def is_of_document(self) -> bool:
        """Whether the passage is from ``read_documents``, which starts each id with the file name."""
        return self.id.startswith(f"{self.metadata.get('file')}#")

    def __repr__(self) -> str:
        """Return the id, title, and beginning of the text, so that lists of passages stay readable."""
        text = self.text if len(self.text) <= SHOWN else f"{self.text[:SHOWN]}..."
        return f"Passage(id={self.id!r}, title={self.title!r}, text={text!r})"

    def digest(self) -> str:
        """Return the SHA-256 of all fields, as hex."""
        data = [self.id, self.title, self.text, dict(sorted(self.metadata.items()))]
        return hashlib.sha256(json.dumps(data, ensure_ascii=False).encode()).hexdigest()

    def text_digest(self) -> str:
        """Return the SHA-256 of all fields except the metadata, as hex."""
        return replace(self, metadata={}).digest()


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with its labels if there are any.

    Args:
        id: Unique in the question set.
        question: The text of the question.
        options: Texts of the multiple-choice options, in order (2 or more, all different). Default none.
        answer: The right answer; for multiple choice, the text of an option. Default None: unknown.
        aliases: Other right answers.
        evidence: Labels, keyed by passage id. Default empty: no labels.
        jointly: Whether the answer needs all helpful passages together, as in a multi-hop question: one passage alone
            is USEFUL, and all of them together are ENTAILED. Default False: each label is about its passage alone.
        assessors: The assessors of each label in ``evidence``, by passage id: ``person`` or the names of judges. If
            this is not empty, passages not in ``evidence`` are unjudged. Default empty: a person assigned all labels,
            and passages not in ``evidence`` are NOT_USEFUL.
        history: The turns of the conversation before the question, the earliest first. Default none.
        alternatives: Groups of passages in ``evidence``. Any one passage in a group is enough; recall, nDCG, and
            ``jointly`` count a group as one passage. Default none.
        slices: Values in additional columns of the data, by column name, used to break down results. They are neither
            saved nor part of the question's hash. Default none.
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
    slices: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def in_words(self) -> str:
        """The id with the first 60 characters of the text, for messages."""
        text = " ".join(self.question.split())
        return f"{self.id!r} ({text[:60] + ' ...' * (len(text) > 60)!r})"

    @property
    def answers(self) -> tuple[str, ...]:
        """All right answers, starting with ``answer``."""
        return () if self.answer is None else (self.answer, *self.aliases)

    @property
    def inputs(self) -> dict[str, Any]:
        """A program's inputs: ``question``, ``options``, and ``history`` if there is one."""
        given = {"question": self.question, "options": list(self.options)}
        return {**given, "history": list(self.history)} if self.history else given

    def to_example(self) -> Any:
        """Return the question as a ``dspy.Example`` with a program's inputs."""
        import dspy

        return dspy.Example(**self._fields | self.inputs).with_inputs(*self.inputs)

    def to_json(self) -> dict[str, Any]:
        """Return the question in querywright's JSON form, without empty fields."""
        return {name: value for name, value in self._fields.items() if value or name in ("id", "question")}

    @property
    def _fields(self) -> dict[str, Any]:
        """Return all fields as plain data; history and alternatives only if they are not empty."""
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
    """Return the turns of a conversation, the earliest first.

    Args:
        history: A string with one turn per line; or a list of turns, each a string or an object with the text as
            ``content`` and, optionally, the speaker as ``role``. None or empty means no turns.

    Raises:
        DataError: The history is in a different form.
    """
    turns = list(filter(str.strip, history.splitlines())) if isinstance(history, str) else history or ()
    if isinstance(turns, Sequence):
        turns = [_turn(turn).strip() for turn in turns]
        if all(turns):
            return tuple(turns)
    raise DataError(
        f"cannot read the history {history!r:.80}; pass a string, or a list of turns in which each turn is a string or "
        "an object with role and content"
    )


def _turn(turn: Any) -> str:
    """Return a turn as one string, or "" if it is not in one of these forms."""
    if not isinstance(turn, Mapping):
        return turn if isinstance(turn, str) else ""
    role, said = turn.get("role"), turn.get("content")
    return (f"{role}: {said}" if role else said) if isinstance(said, str) else ""
