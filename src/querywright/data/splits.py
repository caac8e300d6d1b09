"""Split questions into train, dev, and test, and hash question sets."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from querywright.answer_text import fold, unicode_form
from querywright.data.types import Question
from querywright.errors import DataError, InputError


class Splits(NamedTuple):
    """Three question sets that do not overlap.

    Args:
        train: Questions for the optimizers.
        dev: Questions for selecting programs.
        test: Questions to use only once, at the end.
    """

    train: list[Question]
    dev: list[Question]
    test: list[Question]


def split_questions(
    questions: Iterable[Question],
    *,
    train: float = 0.3,
    dev: float = 0.3,
    seed: int = 0,
    sizes: tuple[int, int, int] | None = None,
) -> Splits:
    """Split questions by a hash of the seed and their id, so that a question always goes into the same split.

    A question's place in [0, 1) is given by the first 53 bits of the SHA-256 of ``"{seed}:{id}"``. Places below
    ``train`` are in the train split, places below ``train + dev`` are in the dev split, and the rest are in the test
    split. A question's split therefore does not depend on the order or on the other questions. A share p of n questions
    is n p questions only on average (standard deviation sqrt(n p (1 - p))). Questions with the same text, options, and
    history (see ``marks``) all get the place of the smallest of their ids.

    Args:
        questions: Questions with distinct ids.
        train: Share of questions for training, in [0, 1]. Default 0.3.
        dev: Share of questions for selection, in [0, 1]. ``train + dev`` must be at most 1. Default 0.3.
        seed: Seed of the hash; a different seed results in a different split. Default 0.
        sizes: Exact numbers of questions in train, dev, and test, each 0 or more. Each split keeps its first questions
            by place, so a smaller split is a subset of a larger one. Default None: all questions.

    Returns:
        Train, dev, and test, each sorted by place.

    Raises:
        InputError: A share or size is out of range.
        DataError: Two questions have the same id, or a split has fewer questions than ``sizes`` requires.
    """
    for name, share in (("train", train), ("dev", dev)):
        if not 0 <= share <= 1:
            raise InputError(f"{name} must be a share from 0 to 1, but got {share}; for exact numbers, use sizes=")
    if train + dev > 1 + 1e-9:
        raise InputError(f"train + dev must be at most 1, but got {train} + {dev}; the rest is the test split")
    found = [(asked_of(one), one) for one in questions]
    counts = Counter(question.id for _, question in found)
    repeated = [
        f"question ID {name!r} occurs {count} times; expected once" for name, count in counts.items() if count > 1
    ]
    if repeated:
        raise DataError(sorted(repeated))
    first: dict[str, str] = {}
    for asked, question in found:
        first[asked] = min(first.get(asked, question.id), question.id)
    placed = [(_place(seed, first[asked]), question) for asked, question in found]
    splits = Splits([], [], [])
    for place, question in sorted(placed, key=lambda placed: (placed[0], placed[1].id)):
        splits[0 if place < train else 1 if place < train + dev else 2].append(question)
    return splits if sizes is None else _cut(splits, sizes)


def data_hash(questions: Iterable[Question]) -> str:
    """Return the SHA-256 of questions with all their fields, as hex, regardless of their order.

    Args:
        questions: Any number of questions.
    """
    lines = sorted(json.dumps(question.to_json(), sort_keys=True) for question in questions)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _place(seed: int, question_id: str) -> float:
    digest = hashlib.sha256(f"{seed}:{question_id}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def left_over(questions: Sequence[Question], splits: Splits, seed: int = 0) -> list[Question]:
    """Return the questions that are not in any split, without duplicates, sorted by place.

    Two questions are the same if they have the same id, or the same text, options, and history (see ``marks``).
    """
    used = {mark for part in splits for question in part for mark in marks(question)}
    left = []
    for question in (one for part in split_questions(questions, seed=seed) for one in part):
        own = marks(question)
        if not used & own:
            left.append(question)
            used |= own
    return left


def marks(question: Question) -> set[tuple[str, ...]]:
    """Return the keys that identify a question: one for the id, and one for the text, options, and history.

    Case, spaces, Unicode form, quote style, final punctuation, and the order of the options are ignored.
    """
    text, *history = map(folded, (question.question, *question.history))
    return {("id", question.id), ("text", text, *sorted(map(folded, question.options)), *history)}


def repeated(questions: Iterable[Question]) -> list[list[Question]]:
    """Return lists of two or more questions that have the same text, options, and history."""
    found: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        found[asked_of(question)].append(question)
    return [same for same in found.values() if len(same) > 1]


def folded(text: str) -> str:
    """Return a text normalized for case, spaces, Unicode form, quote style, and final punctuation."""
    return " ".join(fold(unicode_form(text)).split()).rstrip(" .?!")


def asked_of(question: Question) -> str:
    """Return a hash of a question's text, options, and history, regardless of its id."""
    (text,) = (mark for mark in marks(question) if mark[0] == "text")
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()[:16]


def _cut(splits: Splits, sizes: tuple[int, int, int]) -> Splits:
    if min(sizes) < 0:
        raise InputError(f"sizes (train, dev, test) must be 0 or more, but got {sizes}")
    most = [*map(len, splits)]
    if any(size > there for size, there in zip(sizes, most, strict=True)):
        asked, can = (",".join(map(str, numbers)) for numbers in (sizes, most))
        raise DataError(
            f"sizes (train,dev,test) must be at most {can}, but got {asked}. Question IDs determine the splits "
            f"(questions: {sum(most)}); pass smaller sizes=..., more questions, or a different seed=..."
        )
    return Splits(*(part[:size] for part, size in zip(splits, sizes, strict=True)))
