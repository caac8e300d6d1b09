"""The questions that an LM generated for a collection: their records, their search index, and known answers.

The questions for the collection ``NAME`` form the collection ``NAME-questions``. Its passages are the kept questions,
and their metadata contains the id and digest of the passage that each question was generated for. The same folder
contains ``records.jsonl``, with all questions generated for each finished passage, and ``answers.json``, with
additional passages that answer a question (the judged or estimated part of QB-RAG's answerability matrix). A build
publishes whatever records the file contains, so people can edit them there.
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
"""Name of the lock that a process holds while writing the records."""
COMPLETE, PARTIAL, NONE = "complete", "partial", "none"
"""Labels of a question: whether its passage alone gives the whole answer, part of it, or none of it."""
KEPT = frozenset({COMPLETE, PARTIAL})
"""Labels of the questions in the index. By default, a search leaves out partial questions."""
AT_LEAST = 0.5
"""Pairs with at least this value count as answers."""

_STRICT = ConfigDict(strict=True, extra="forbid")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, config=_STRICT)
class WrittenQuestion:
    """A question that was generated for a passage.

    Args:
        text: The question, on one line.
        label: ``complete``, ``partial`` or ``none``; empty if the judge's answer could not be parsed.
        reason: The judge's reason. Default "".
    """

    text: str
    label: str
    reason: str = ""


@dataclass(frozen=True, config=_STRICT)
class PassageRecord:
    """All questions that were generated for a passage.

    Args:
        passage: Id of the passage.
        digest: The passage's ``text_digest`` when the questions were generated.
        settings: Digest of the settings of the writer and the judge.
        questions: The questions in the order in which they were generated, without near-duplicates.
        repeated: Number of questions that were dropped as near-duplicates. Default 0.
        unfit: Number of other questions that were dropped before they reached the judge, by reason. Default none.
    """

    passage: str
    digest: str
    settings: str
    questions: tuple[WrittenQuestion, ...]
    repeated: Annotated[int, Field(ge=0)] = 0
    unfit: dict[str, Annotated[int, Field(ge=0)]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return _RECORD.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> PassageRecord:
        """Return the record from a line written by ``to_json``."""
        return _RECORD.validate_json(text)

    def passages(self) -> list[Passage]:
        """Return the kept questions as passages for the index."""
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
    """How well a passage answers a question that was generated for a different passage.

    Args:
        question: Id of the question.
        passage: Id of the passage.
        digest: The passage's ``text_digest`` when the value was determined.
        value: 1 if the passage answers the question, 0 if not; between 0 and 1 if the value is estimated.
        judged: True if the value comes from a judge; False if it is estimated.
    """

    question: str
    passage: str
    digest: str
    value: Annotated[float, Field(ge=0, le=1)]
    judged: bool


class _AnswerFile(Checksummed):
    """``answers.json``: pairs sorted by question and passage."""

    LARGEST: ClassVar[int] = 2**30

    pairs: tuple[AnswerPair, ...]


def question_id(passage: str, text: str) -> str:
    """Return the id of a question, which depends only on its text and the id of its passage."""
    return hashlib.sha256(json.dumps([passage, text], ensure_ascii=False).encode()).hexdigest()[:24]


def questions_name(collection: str) -> str:
    """Return the name of the collection that contains a collection's questions."""
    return f"{collection}{QUESTIONS_SUFFIX}"


def build_command(name: str) -> str:
    """Return the command that generates a collection's questions, for use in messages."""
    return index_command(questions_name(name))


def fill_command(name: str) -> str:
    """Return the command that finds more passages for a collection's questions, for use in messages."""
    return f"querywright questions fill {name}"


def questions_folder(collection: str, home: Path | None = None) -> Path:
    """Return the folder of a collection's questions, whether or not it exists."""
    collection_folder(collection, home)
    longest = LONGEST_NAME - len(QUESTIONS_SUFFIX)
    if len(collection) > longest:
        raise InputError(
            f"the collection name {collection!r} has {len(collection)} characters, but the limit is {longest} for a "
            f"collection with generated questions, because its questions are stored in NAME{QUESTIONS_SUFFIX}; "
            "re-index the passages under a shorter name"
        )
    return collection_folder(questions_name(collection), home)


def read_records(folder: Path) -> Mapping[str, PassageRecord]:
    """Return the records in a folder, keyed by passage id; empty if there are none."""
    if not (folder / RECORDS).exists():
        return {}
    records = {}
    for number, line in enumerate((folder / RECORDS).read_bytes().splitlines(), start=1):
        try:
            record = PassageRecord.from_json(line)
            records[record.passage] = record
        except ValidationError as error:
            raise CollectionError(
                f"line {number} of {RECORDS} in {folder.name!r} is damaged ({first_problem(error)}); remove the line, "
                "and the next build will regenerate that passage's questions from cached answers"
            ) from error
    return records


def write_records(folder: Path, records: Iterable[PassageRecord]) -> None:
    """Replace the records in a folder, which is created if it is missing."""
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
    """Replace a collection's question records, and rebuild the index of its questions.

    Raises:
        CollectionError: No questions were kept.
    """
    folder, records = questions_folder(collection, home), list(records)
    kept = [question for record in records for question in record.passages()]
    if not kept:
        raise CollectionError(
            f"no generated question was kept for the collection {collection!r} (questions: "
            f"{sum(len(record.questions) for record in records)}, passages: {len(records)}), so nothing was published; "
            "generate more questions per passage, or use a better LM as the writer or the judge"
        )
    write_records(folder, records)
    return build_collection(
        questions_name(collection), kept, embedder=embedder, home=home, prune=True, progress=progress
    )


def write_pairs(folder: Path, pairs: Iterable[AnswerPair]) -> None:
    """Replace the stored answer pairs in an existing folder, in one step."""
    _AnswerFile(pairs=tuple(sorted(pairs, key=lambda pair: (pair.question, pair.passage)))).write(folder / ANSWERS)


def read_pairs(folder: Path) -> Sequence[AnswerPair]:
    """Return the stored answer pairs in a folder, sorted by question and passage; empty if there is no file."""
    try:
        stored = _AnswerFile.read(folder / ANSWERS)
    except ValueError as error:
        raise CollectionError(
            f"{ANSWERS} in {folder.name!r} is damaged ({error}); remove the file and rerun querywright questions fill "
            "(the judgments so far are cached)"
        ) from error
    return () if stored is None else stored.pairs


def stored_answers(
    name: str, questions: Container[str], passages: Mapping[str, Passage], home: Path | None
) -> dict[str, tuple[str, ...]] | None:
    """Return, for each question, the additional passages that answer it, best first; None if no pairs are stored.

    Pairs are ignored if their question or passage is not in ``questions`` or ``passages``, or if the passage has
    changed.

    Raises:
        CollectionError: The stored pairs are damaged.
    """
    folder = questions_folder(name, home)
    if not (folder / ANSWERS).exists():
        return None
    pairs = read_pairs(folder)
    digests = {id: passages[id].text_digest() for id in {pair.passage for pair in pairs} & passages.keys()}
    held = [pair for pair in pairs if pair.question in questions and digests.get(pair.passage) == pair.digest]
    _warn_of_stale(name, "stored answers", len(pairs), len(held), fill_command(name))
    answers: defaultdict[str, list[str]] = defaultdict(list)
    for pair in sorted(held, key=lambda pair: (-pair.value, pair.passage)):
        if pair.value >= AT_LEAST:
            answers[pair.question].append(pair.passage)
    return {question: tuple(found) for question, found in answers.items()}


def published_questions(name: str, home: Path | None) -> dict[str, Passage]:
    """Return a collection's published questions, keyed and sorted by id."""
    return published_passages(questions_folder(name, home), home)[1]


def fresh(questions: Iterable[Passage], passages: Mapping[str, Passage]) -> Iterator[Passage]:
    """Yield the questions whose passage exists and has not changed since they were generated."""
    digests = {id: passage.text_digest() for id, passage in passages.items()}
    return (one for one in questions if digests.get(str(one.metadata["passage"])) == one.metadata["digest"])


def live_questions(name: str, questions: Mapping[str, Passage], passages: Mapping[str, Passage]) -> Iterator[Passage]:
    """Yield a collection's fresh questions, and log a warning with the number of stale ones."""
    live = 0
    for one in fresh(questions.values(), passages):
        live += 1
        yield one
    _warn_of_stale(name, "questions", len(questions), live, build_command(name))


def _warn_of_stale(name: str, what: str, every: int, live: int, remedy: str) -> None:
    if live < every:
        _logger.warning(
            "ignoring %d of %d %s for the collection %r because the passages changed or were removed; to replace "
            "them, run %s", every - live, every, what, name, remedy,
        )  # fmt: skip
