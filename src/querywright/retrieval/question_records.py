"""The questions written for the passages of a collection, and where they are kept.

The questions of the collection ``NAME`` are a collection of their own, ``NAME-questions``: its passages are the kept
questions, each with the id and digest of the passage that it was written for. Beside it lies ``records.jsonl``, the
truth: a line a finished passage, with every question written for it, kept or not. A line is added as soon as a passage
is done, so a build that was killed goes on with the next one; publishing rewrites the file whole, in order of ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.files import append_line, write_file
from querywright.models.embedder import Progress, TextEmbedder
from querywright.retrieval.collection import (
    LONGEST_NAME,
    MANIFEST,
    QUESTIONS_SUFFIX,
    collection_folder,
)
from querywright.retrieval.index import IndexReport, build_collection
from querywright.retrieval.line_files import LineFile

RECORDS = "records.jsonl"
LOCK = "questions.lock"
"""Held by whoever writes the records."""
IMPORTED = "imported"
"""Stands for the settings in a record that people edited; a build leaves it as it is until the passage changes."""
COMPLETE, PARTIAL, NONE = "complete", "partial", "none"
"""Whether the passage alone gives the whole answer to a question, a part of it, or nothing (QB-RAG, its three levels
of agreement between model and experts)."""
KEPT = frozenset({COMPLETE, PARTIAL})
"""Labels of the questions that are embedded; a search leaves the partial ones out unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    repeated: int = 0
    unfit: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> PassageRecord:
        """A record from ``to_json``.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        questions = tuple(WrittenQuestion(**question) for question in row["questions"])
        record = cls(
            row["passage"], row["digest"], row["settings"], questions, row["repeated"], dict(row.get("unfit", {}))
        )
        record._check_types()
        return record

    def _check_types(self) -> None:
        texts: list[object] = [self.passage, self.digest, self.settings, *self.unfit]
        for question in self.questions:
            texts += [question.text, question.label, question.reason]
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"{text!r} is no text")
        counts: list[object] = [self.repeated, *self.unfit.values()]
        for count in counts:
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise TypeError(f"{count!r} is no whole number from 0")

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


def question_id(passage: str, text: str) -> str:
    """The id of a question: the same for the same text about the same passage, whenever it is written.

    Args:
        passage: Id of the passage.
        text: The question.
    """
    return hashlib.sha256(json.dumps([passage, text], ensure_ascii=False).encode()).hexdigest()[:24]


def questions_name(collection: str) -> str:
    """Name of the collection that holds the questions of a collection."""
    return f"{collection}{QUESTIONS_SUFFIX}"


def questions_folder(collection: str, home: Path | None = None) -> Path:
    """The folder of a collection's questions, whether it exists or not.

    Args:
        collection: Name of the collection whose passages the questions are about.
        home: The working folder. Default: ``querywright.home.home()``.

    Raises:
        InputError: When the name has a form that no collection may have, or is too long for that of the questions.
    """
    collection_folder(collection, home)
    longest = LONGEST_NAME - len(QUESTIONS_SUFFIX)
    if len(collection) > longest:
        raise InputError(
            f"the name of the collection {collection!r} has {len(collection)} characters; one with questions has at "
            f"most {longest}, since these are kept as NAME{QUESTIONS_SUFFIX}. Index its passages under a shorter name"
        )
    return collection_folder(questions_name(collection), home)


def check_indexed_name(name: str) -> None:
    """Raise when passages of one's own cannot be indexed under a name, since it is that of questions.

    Args:
        name: Of the collection to be.

    Raises:
        InputError: It ends in -questions.
    """
    if name.endswith(QUESTIONS_SUFFIX):
        raise InputError(
            f"a name that ends in {QUESTIONS_SUFFIX} is that of the questions written for a collection, but got "
            f"{name!r}; give the collection another name"
        )


def check_unclaimed(folder: Path) -> None:
    """Raise when a collection that is not of questions lies where the questions would be published.

    Args:
        folder: From ``questions_folder``.

    Raises:
        CollectionError: A collection is published there, and there are no records of questions.
    """
    if (folder / MANIFEST).exists() and not (folder / RECORDS).exists():
        raise CollectionError(
            f"the collection {folder.name!r} is in the way: it has no {RECORDS}, so it was not made of written "
            "questions, which would replace it. Index its passages under another name if you need them, and remove "
            f"the folder collections/{folder.name} of the working folder"
        )


def read_records(folder: Path) -> Mapping[str, PassageRecord]:
    """The records of a folder by the passage's id, the last one of each; empty when there are none.

    All are looked at, and none stays in memory: each is read when it is asked for, as it was at this moment. A last
    line that is not whole, as a killed build leaves it, is passed over.

    Args:
        folder: From ``questions_folder``.

    Raises:
        CollectionError: When another line is damaged.
    """

    def read(number: int, line: bytes) -> tuple[str, PassageRecord]:
        try:
            record = PassageRecord.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CollectionError(
                f"line {number} of {RECORDS} in {folder.name!r} is damaged ({type(error).__name__}: {error}); "
                "remove the line, and the questions of its passage are written again, from stored answers"
            ) from error
        return record.passage, record

    return LineFile(folder / RECORDS, read)


def add_record(folder: Path, record: PassageRecord) -> None:
    """Adds the record of a finished passage; it is on disk when this returns. One process at a time.

    Args:
        folder: From ``questions_folder``; there already.
        record: The record.
    """
    append_line(folder / RECORDS, _line(record))


def publish_questions(
    collection: str,
    records: Mapping[str, PassageRecord] | Iterable[PassageRecord],
    *,
    embedder: TextEmbedder,
    home: Path | None = None,
    progress: Progress | None = None,
) -> IndexReport:
    """Makes records the questions of a collection: the file, and the index that is searched.

    Args:
        collection: Name of the collection whose passages they are about.
        records: All of them; any that are not among them are gone. Of a mapping by the passage's id one at a time is
            in memory, if it reads them when they are asked for.
        embedder: Embeds the kept questions.
        home: The working folder. Default: ``querywright.home.home()``.
        progress: Called with (texts embedded, texts in all). Default None.

    Raises:
        CollectionError: When not one question is kept, another process builds the index, or a collection that is not
            of questions has their name.
    """
    folder = questions_folder(collection, home)
    check_unclaimed(folder)
    if isinstance(records, Mapping):
        by_id = cast("Mapping[str, PassageRecord]", records)
    else:
        by_id = {record.passage: record for record in records}
    kept: list[Passage] = []

    def lines() -> Iterator[bytes]:
        written = 0
        for id in sorted(by_id):
            record = by_id[id]
            written += len(record.questions)
            kept.extend(record.passages())
            yield _line(record) + b"\n"
        if not kept:
            raise CollectionError(
                f"of {written} questions written for {len(by_id)} passages of {collection!r} none is kept; nothing was "
                "published. Write more a passage, or name a better LM to write or to judge"
            )

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(folder / RECORDS, lines())
    return build_collection(
        questions_name(collection), kept, embedder=embedder, home=home, prune=True, progress=progress
    )


def _line(record: PassageRecord) -> bytes:
    return json.dumps(record.to_json(), ensure_ascii=False, sort_keys=True).encode()
