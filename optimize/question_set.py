"""A set of test questions on disk: the questions as JSON lines, and beside them a card that says how they were made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from querywright.data.types import Question
from querywright.errors import CollectionError, InputError
from querywright.files import write_file
from querywright.optimize.question_made import read_made
from querywright.retrieval.question_records import questions_folder

Kind = Literal["rephrase", "out-of-distribution"]

SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A set of test questions, and how it came about.

    Args:
        kind: ``rephrase`` or ``out-of-distribution``.
        collection: The collection whose passages answer them.
        seed: Of the order in which they were asked for.
        wanted: Questions asked for at most; None for all that there could be.
        available: Stored questions that could be rephrased, or passages that could be asked of.
        asked: How many of those were.
        skipped: How many were left out before, by reason: ``stale`` (the passage was changed or removed after its
            questions were written), ``unwritten`` (no questions were written for the passage yet).
        dropped: How many of those asked for are not in the set, by reason: ``indexed`` (it is a question of the
            index), ``repeated`` (an earlier one of the set asks it), ``copied`` (it is of the prompt's example),
            ``empty``, ``unreadable`` (the LM's answer), ``no_words``, ``too_long``, ``no_question``,
            ``points_at_text``, ``other_script`` (nobody could be asked it; see ``question_rules.unfit``),
            ``unanswerable`` (the judge's label), ``unjudged`` (the judge's answer could not be read), ``failed``.
        questions: The set by id; each one's evidence is the passage that answers it.
        parents: Id of the stored question by the id of its rephrasing; empty for new questions.
        lm: The LM that wrote them.
        judge: The LM that judged them, or None where none did.
    """

    kind: Kind
    collection: str
    seed: int
    wanted: int | None
    available: int
    asked: int
    skipped: Mapping[str, int]
    dropped: Mapping[str, int]
    questions: tuple[Question, ...]
    parents: Mapping[str, str]
    lm: str
    judge: str | None = None


def card_file(path: Path) -> Path:
    """Where the card of a set lies: ``NAME.card.json`` beside ``NAME.jsonl``."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}.card.json")


def check_set_file(path: Path) -> None:
    """Raise when a set cannot have this name.

    Raises:
        InputError: It does not end in .jsonl.
    """
    if not path.name.endswith(SUFFIX) or path.name == SUFFIX:
        raise InputError(
            f"a question set is a file of JSON lines; give a name that ends in {SUFFIX}, not {path.name!r}"
        )


def index_models(collection: str, home: Path | None = None) -> dict[str, str]:
    """The LMs that made the index of a collection's questions: ``writer`` and ``judge``; none where it does not tell.

    Args:
        collection: Name of the collection.
        home: The working folder. Default: ``querywright.home.home()``.
    """
    try:
        made = read_made(questions_folder(collection, home))
    except CollectionError:  # only who made them is not known
        made = None
    return {} if made is None else {"writer": made.lm, "judge": made.judge_lm}


def cautions(made: QuestionSet, index: Mapping[str, str]) -> list[str]:
    """What a reader of results on this set must know about its LMs, a sentence each.

    Args:
        made: The set.
        index: From ``index_models``.
    """
    lines = []
    if "writer" not in index:
        lines.append("the index does not tell which LM wrote it; if it is the one of this set, the set is circular")
    elif index["writer"] == made.lm:
        lines.append(f"circular: {made.lm} wrote the index and this set, which favours the index; use another LM")
    if made.judge is not None and made.judge == made.lm:
        lines.append(f"circular: {made.lm} judged the questions that it wrote; use another LM to judge")
    if made.judge is not None and made.judge == index.get("judge"):
        lines.append(f"circular: {made.judge} judged the index and this set")
    return lines


def write_question_set(path: Path, made: QuestionSet, index: Mapping[str, str]) -> dict[str, Any]:
    """Write a set and its card; older ones at the same place are replaced.

    Args:
        path: A file that ends in .jsonl; its folder is made when it is missing.
        made: The set, with at least one question.
        index: From ``index_models``.

    Returns:
        The card.

    Raises:
        InputError: The set is empty, or its file cannot have this name.
    """
    check_set_file(path)
    if not made.questions:
        raise InputError(
            f"not one of {made.asked} questions asked for is left ({_listed(made.dropped)}); nothing was written. "
            "Name a better LM with --lm"
        )
    rows = [
        question.to_json() | ({"parent": made.parents[question.id]} if made.parents else {})
        for question in made.questions
    ]
    data = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
    card = {
        "kind": made.kind,
        "collection": made.collection,
        "seed": made.seed,
        "wanted": made.wanted,
        "available": made.available,
        "skipped": dict(made.skipped),
        "asked": made.asked,
        "dropped": dict(made.dropped),
        "kept": len(made.questions),
        "lm": made.lm,
        "judge": made.judge,
        "index": dict(index),
        "cautions": cautions(made, index),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, data)
    write_file(card_file(path), json.dumps(card, ensure_ascii=False, indent=2).encode() + b"\n")
    return card


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items()) or "none"
