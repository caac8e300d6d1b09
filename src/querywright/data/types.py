"""The two things every program is about: passages that can be found, and questions to answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

Scalar = str | int | float | bool

PERSON = "person"
"""Who gave a label where nothing else is said."""


class Label(StrEnum):
    """How far a passage helps to decide a question (HCQR, arXiv 2603.19008).

    ENTAILED: the passage alone settles the right answer. USEFUL: it helps partly. NOT_USEFUL: it does not help.
    """

    ENTAILED = "ENTAILED"
    USEFUL = "USEFUL"
    NOT_USEFUL = "NOT_USEFUL"


@dataclass(frozen=True, slots=True)
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
    """

    id: str
    question: str
    options: tuple[str, ...] = ()
    answer: str | None = None
    aliases: tuple[str, ...] = ()
    evidence: Mapping[str, Label] = field(default_factory=dict)
    jointly: bool = False
    assessors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def answers(self) -> tuple[str, ...]:
        """All accepted answers, the main one first."""
        return () if self.answer is None else (self.answer, *self.aliases)

    def to_example(self) -> Any:
        """The question as a ``dspy.Example`` whose inputs are ``question`` and ``options``."""
        import dspy

        return dspy.Example(
            id=self.id,
            question=self.question,
            options=list(self.options),
            answer=self.answer,
            aliases=list(self.aliases),
            evidence={key: str(value) for key, value in self.evidence.items()},
            jointly=self.jointly,
            assessors={key: list(names) for key, names in self.assessors.items()},
        ).with_inputs("question", "options")

    def to_json(self) -> dict[str, Any]:
        """The question in querywright's own JSON form, without empty fields."""
        data: dict[str, Any] = {"id": self.id, "question": self.question}
        if self.options:
            data["options"] = list(self.options)
        if self.answer is not None:
            data["answer"] = self.answer
        if self.aliases:
            data["aliases"] = list(self.aliases)
        if self.evidence:
            data["evidence"] = {key: str(value) for key, value in self.evidence.items()}
        if self.jointly:
            data["jointly"] = True
        if self.assessors:
            data["assessors"] = {key: list(names) for key, names in self.assessors.items()}
        return data
