"""Which passages answer a written question beside the one that it was written for, and where that is kept.

``answers.jsonl`` lies in the folder of a collection's questions: a line that says what follows, then a line a pair. It
is written whole or not at all. QB-RAG calls the matrix of all pairs the dense answerability matrix; this is the part
of it that was judged or completed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from querywright.errors import CollectionError, InputError
from querywright.files import write_file

ANSWERS = "answers.jsonl"
SCHEMA = 1
AT_LEAST = 0.5


@dataclass(frozen=True, slots=True)
class Pair:
    """How far a passage answers a question that was written for another passage.

    Args:
        question: Id of the question.
        passage: Id of the passage.
        digest: ``text_digest`` of the passage when this was found.
        value: 1 for an answer, 0 for none; between them where it is completed.
        judged: Whether a judge has read the two; False for a completed value.

    Raises:
        InputError: When the value is not within 0 and 1.
    """

    question: str
    passage: str
    digest: str
    value: float
    judged: bool

    def __post_init__(self) -> None:
        if not 0 <= self.value <= 1:
            raise InputError(f"the value of a pair is from 0 to 1, but got {self.value}")


def write_pairs(folder: Path, pairs: Iterable[Pair]) -> None:
    """Replaces the pairs of a folder; from one moment to the next they are the new ones.

    Args:
        folder: From ``questions_folder``; there already.
        pairs: Each question and passage once; they are stored in order of question and passage.

    Raises:
        InputError: When a question and a passage are given twice.
    """
    ordered = sorted(pairs, key=lambda pair: (pair.question, pair.passage))
    for one, other in pairwise(ordered):
        if (one.question, one.passage) == (other.question, other.passage):
            raise InputError(f"the question {one.question!r} and the passage {one.passage!r} are a pair twice")
    body = "".join(f"{json.dumps(asdict(pair), ensure_ascii=False, sort_keys=True)}\n" for pair in ordered).encode()
    write_file(folder / ANSWERS, json.dumps(_head(body), sort_keys=True).encode() + b"\n" + body)


def read_pairs(folder: Path) -> list[Pair]:
    """The pairs of a folder in order of question and passage; none where there is no file.

    Args:
        folder: From ``questions_folder``.

    Raises:
        CollectionError: When the file is damaged, edited or of another version.
    """
    try:
        head, _, body = (folder / ANSWERS).read_bytes().partition(b"\n")
    except FileNotFoundError:
        return []
    try:
        if json.loads(head) != _head(body):
            raise ValueError("its first line does not fit what follows")
        return [_pair(json.loads(line)) for line in body.splitlines()]
    except (ValueError, KeyError, TypeError, RecursionError, InputError) as error:
        raise CollectionError(
            f"{ANSWERS} in {folder.name!r} is damaged ({type(error).__name__}: {error}); remove it and fill it again: "
            "pairs that were judged cost nothing"
        ) from error


def current_pairs(
    pairs: Iterable[Pair], questions: Container[str], passages: Mapping[str, str]
) -> tuple[list[Pair], int]:
    """The pairs that still hold, in their order, and how many are stale.

    A pair is stale when its question is gone, or its passage is gone or has changed.

    Args:
        pairs: From ``read_pairs``.
        questions: Ids of the questions there are.
        passages: Digest of each passage there is, by its id.
    """
    given = list(pairs)
    held = [pair for pair in given if pair.question in questions and passages.get(pair.passage) == pair.digest]
    return held, len(given) - len(held)


def answers(pairs: Iterable[Pair], at_least: float = AT_LEAST) -> dict[str, tuple[str, ...]]:
    """The passages that answer each question, beside the one that it was written for.

    That one is not among them, since it is no pair here: whoever walks the questions has it in the question's
    metadata and puts it first.

    Args:
        pairs: From ``current_pairs``.
        at_least: The least value that counts as an answer, above 0 to 1. Default 0.5.

    Returns:
        Ids of passages by id of question, highest value first, equal ones in order of ids; questions without any are
        left out.

    Raises:
        InputError: When ``at_least`` is out of range.
    """
    if not 0 < at_least <= 1:
        raise InputError(f"at_least is above 0 and at most 1, but got {at_least}")
    found: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if pair.value >= at_least:
            found[pair.question].append(pair)
    return {
        question: tuple(pair.passage for pair in sorted(ones, key=lambda pair: (-pair.value, pair.passage)))
        for question, ones in found.items()
    }


def _head(body: bytes) -> dict[str, object]:
    return {"schema": SCHEMA, "pairs": body.count(b"\n"), "sha256": hashlib.sha256(body).hexdigest()}


def _pair(row: Mapping[str, object]) -> Pair:
    question, passage, digest = row["question"], row["passage"], row["digest"]
    value, judged = row["value"], row["judged"]
    if not (isinstance(question, str) and isinstance(passage, str) and isinstance(digest, str)):
        raise TypeError("ids and digest must be texts")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("a value must be a number")
    if not isinstance(judged, bool):
        raise TypeError("judged must be true or false")
    return Pair(question, passage, digest, float(value), judged)
