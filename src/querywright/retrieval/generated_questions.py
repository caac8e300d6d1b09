"""The questions generated for the passages of a collection: their records, what further passages answer them, opening.

The questions of the collection ``NAME`` are a collection of their own, ``NAME-questions``: its passages are the kept
questions, each with the id and digest of the passage that it was written for. Beside it lies ``records.jsonl``, the
truth: a line a finished passage, with every question written for it, kept or not. ``answers.json`` says which passages
answer a question beside its own, the part of QB-RAG's dense answerability matrix that was judged or completed.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from querywright.checksummed import Checksummed, first_problem
from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.files import write_file
from querywright.models.embedder import Progress, TextEmbedder
from querywright.retrieval.collection import (
    LONGEST_NAME,
    QUESTIONS_SUFFIX,
    collection_folder,
    index_command,
    published_passages,
)
from querywright.retrieval.index import IndexReport, build_collection

RECORDS = "records.jsonl"
ANSWERS = "answers.json"
LOCK = "questions.lock"
"""Held by whoever writes the records."""
IMPORTED = "imported"
"""Stands for the settings in a record that people edited; a build leaves it as it is until the passage changes."""
COMPLETE, PARTIAL, NONE = "complete", "partial", "none"
"""Whether the passage alone gives the whole answer to a question, a part of it, or nothing (QB-RAG, its three levels
of agreement between model and experts)."""
KEPT = frozenset({COMPLETE, PARTIAL})
"""Labels of the questions that are embedded; a search leaves the partial ones out unless it is told otherwise."""
AT_LEAST = 0.5
"""The least value of a pair that counts as an answer."""

_STRICT = ConfigDict(strict=True, extra="forbid")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, config=_STRICT)
class WrittenQuestion:
    """A question written for a passage.

    Args:
        text: The question, on one line.
        label: ``complete``, ``partial`` or ``none``; empty where the judge's answer could not be read.
        reason: What the judge gave as its reason. Default "".
    """

    text: str
    label: str
    reason: str = ""


@dataclass(frozen=True, config=_STRICT)
class PassageRecord:
    """A finished passage.

    Args:
        passage: Its id.
        digest: Its ``text_digest`` when the questions were written.
        settings: Digest of how they were written and judged.
        questions: All questions written for it, in their order; no two of them nearly the same.
        repeated: Questions dropped because they nearly repeated another of the passage. Default 0.
        unfit: Questions dropped because nobody could be asked them, or because they were copied from an example of the
            prompt, by reason. Default none.
    """

    passage: str
    digest: str
    settings: str
    questions: tuple[WrittenQuestion, ...]
    repeated: Annotated[int, Field(ge=0)] = 0
    unfit: dict[str, Annotated[int, Field(ge=0)]] = field(default_factory=dict)

    def to_json(self) -> str:
        """The record as JSON, on one line."""
        return _RECORD.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> PassageRecord:
        """A record from ``to_json``."""
        return _RECORD.validate_json(text)

    def passages(self) -> list[Passage]:
        """The kept questions as passages to index: id, text, and in the metadata where they come from."""
        return [
            Passage(
                question_id(self.passage, question.text),
                question.text,
                metadata={"passage": self.passage, "digest": self.digest, "label": question.label},
            )
            for question in self.questions
            if question.label in KEPT
        ]


_RECORD = TypeAdapter(PassageRecord)


@dataclass(frozen=True, slots=True, config=_STRICT)
class AnswerPair:
    """How far a passage answers a question that was written for another passage.

    Args:
        question: Id of the question.
        passage: Id of the passage.
        digest: ``text_digest`` of the passage when this was found.
        value: 1 for an answer, 0 for none; between them where it is completed.
        judged: Whether a judge has read the two; False for a completed value.
    """

    question: str
    passage: str
    digest: str
    value: Annotated[float, Field(ge=0, le=1)]
    judged: bool


class _AnswerFile(Checksummed):
    """``answers.json``: each question and passage once, in order of question and passage."""

    LARGEST: ClassVar[int] = 2**30

    pairs: tuple[AnswerPair, ...]


def question_id(passage: str, text: str) -> str:
    """The id of a question: the same for the same text about the same passage, whenever it is written."""
    return hashlib.sha256(json.dumps([passage, text], ensure_ascii=False).encode()).hexdigest()[:24]


def questions_name(collection: str) -> str:
    """Name of the collection that holds the questions of a collection."""
    return f"{collection}{QUESTIONS_SUFFIX}"


def build_command(name: str) -> str:
    """The command that writes the questions of a collection, for messages."""
    return index_command(questions_name(name))


def fill_command(name: str) -> str:
    """The command that finds further passages which answer the questions of a collection, for messages."""
    return f"querywright questions fill {name}"


def questions_folder(collection: str, home: Path | None = None) -> Path:
    """The folder of the questions about a collection, whether it exists or not."""
    collection_folder(collection, home)
    longest = LONGEST_NAME - len(QUESTIONS_SUFFIX)
    if len(collection) > longest:
        raise InputError(
            f"the name of the collection {collection!r} has {len(collection)} characters; one with questions has at "
            f"most {longest}, since these are kept as NAME{QUESTIONS_SUFFIX}. Index its passages under a shorter name"
        )
    return collection_folder(questions_name(collection), home)


def read_records(folder: Path) -> Mapping[str, PassageRecord]:
    """The records of a folder by the passage's id; empty when there are none."""
    if not (folder / RECORDS).exists():
        return {}
    records = {}
    for number, line in enumerate((folder / RECORDS).read_bytes().splitlines(), start=1):
        try:
            record = PassageRecord.from_json(line)
            records[record.passage] = record
        except ValidationError as error:
            raise CollectionError(
                f"line {number} of {RECORDS} in {folder.name!r} is damaged ({first_problem(error)}); remove the "
                "line, and the questions of its passage are written again, from stored answers"
            ) from error
    return records


def write_records(folder: Path, records: Iterable[PassageRecord]) -> None:
    """Replaces the records of a folder, which is made when it is missing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(folder / RECORDS, (f"{record.to_json()}\n".encode() for record in records))


def publish_questions(
    collection: str,
    records: Iterable[PassageRecord],
    *,
    embedder: TextEmbedder,
    home: Path | None = None,
    progress: Progress | None = None,
) -> IndexReport:
    """Make records the questions of a collection, the file and the index that is searched, and no others.

    Raises:
        CollectionError: No question of the records is kept.
    """
    folder, records = questions_folder(collection, home), list(records)
    kept = [question for record in records for question in record.passages()]
    if not kept:
        raise CollectionError(
            f"of {sum(len(record.questions) for record in records)} questions written for {len(records)} passages of "
            f"{collection!r} none is kept; nothing was published. Write more questions for each passage, or name a "
            "better LM to write or to judge"
        )
    write_records(folder, records)
    return build_collection(
        questions_name(collection), kept, embedder=embedder, home=home, prune=True, progress=progress
    )


def write_pairs(folder: Path, pairs: Iterable[AnswerPair]) -> None:
    """Replaces what is known of further answers in a folder that is there, from one moment to the next."""
    _AnswerFile(pairs=tuple(sorted(pairs, key=lambda pair: (pair.question, pair.passage)))).write(folder / ANSWERS)


def read_pairs(folder: Path) -> Sequence[AnswerPair]:
    """The pairs of a folder in order of question and passage; none where there is no file."""
    try:
        stored = _AnswerFile.read(folder / ANSWERS)
    except ValueError as error:
        raise CollectionError(
            f"{ANSWERS} in {folder.name!r} is damaged ({error}); remove it and fill it again: pairs that were judged "
            "cost nothing"
        ) from error
    return () if stored is None else stored.pairs


def stored_answers(
    name: str, questions: Container[str], passages: Mapping[str, Passage], home: Path | None
) -> dict[str, tuple[str, ...]] | None:
    """By question the further passages that are known to answer it, best first; None where nobody has looked.

    What is known of questions or passages that are not given, or of passages that have changed since, does not count.

    Raises:
        CollectionError: What is stored is damaged.
    """
    folder = questions_folder(name, home)
    if not (folder / ANSWERS).exists():
        return None
    pairs = read_pairs(folder)
    digests = {id: passages[id].text_digest() for id in {pair.passage for pair in pairs} & passages.keys()}
    held = [pair for pair in pairs if pair.question in questions and digests.get(pair.passage) == pair.digest]
    _warn_of_stale(name, "stored answers to questions", len(pairs), len(held), f"look again: {fill_command(name)}")
    answers: defaultdict[str, list[str]] = defaultdict(list)
    for pair in sorted(held, key=lambda pair: (-pair.value, pair.passage)):
        if pair.value >= AT_LEAST:
            answers[pair.question].append(pair.passage)
    return {question: tuple(found) for question, found in answers.items()}


def published_questions(name: str, home: Path | None) -> dict[str, Passage]:
    """The published questions of a collection by id, in the order of their ids."""
    return published_passages(questions_folder(name, home), home)[1]


def fresh(questions: Iterable[Passage], passages: Mapping[str, Passage]) -> Iterator[Passage]:
    """The questions whose passage is there and reads as it did when they were written, in their order."""
    digests = {id: passage.text_digest() for id, passage in passages.items()}
    return (one for one in questions if digests.get(str(one.metadata["passage"])) == one.metadata["digest"])


def live_questions(name: str, questions: Mapping[str, Passage], passages: Mapping[str, Passage]) -> Iterator[Passage]:
    """Yield the fresh ones of a collection's published questions; a warning counts the others."""
    live = 0
    for one in fresh(questions.values(), passages):
        live += 1
        yield one
    _warn_of_stale(name, "questions", len(questions), live, f"replace them: {build_command(name)}")


def _warn_of_stale(name: str, what: str, every: int, live: int, remedy: str) -> None:
    if live < every:
        _logger.warning(
            "%d of %d %s of the collection %r are of passages that are gone or were changed since, and left out; %s",
            every - live, every, what, name, remedy,
        )  # fmt: skip
