"""What wrote and judged the questions of a collection, and what that cost: ``questions.json`` beside the records."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import dspy
from pydantic import BaseModel, ConfigDict, ValidationError

from querywright.errors import CollectionError
from querywright.files import write_file
from querywright.metrics.judge import Judge
from querywright.models.lm import engine_of, lm_digest
from querywright.models.usage import Cost
from querywright.optimize.program_state import predictor_states
from querywright.programs.question_writer import QuestionWriter

MADE = "questions.json"
FORMAT = 1
RULES = 3
"""Raised when the same answers of the LMs would make other records."""
MOST_BYTES = 2**20


class QuestionsMade(BaseModel):
    """How the questions of a collection were made.

    Args:
        format: Version of this form.
        settings: SHA-256 of how they were written and judged, as the records have it.
        lm: Name of the LM that wrote them.
        engine: SHA-256 of that LM and where it was asked.
        judge: Name of the judge.
        judge_lm: Name of the judge's LM.
        judge_engine: SHA-256 of that LM and where it was asked.
        num_questions: Questions asked for a passage.
        batch_size: Questions asked for in one call.
        seconds: How long it took, all builds with these settings together, killed ones up to their last entry.
        cost: LM calls, tokens and dollars of these builds, as ``Cost.to_json`` gives them. Calls that were under way
            when a build was stopped are not in it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    format: int
    settings: str
    lm: str
    engine: str
    judge: str
    judge_lm: str
    judge_engine: str
    num_questions: int
    batch_size: int
    seconds: float = 0.0
    cost: dict[str, int | float] = {}

    def with_cost(self, seconds: float, cost: Cost) -> QuestionsMade:
        """The same with a build's time and cost added."""
        total = (Cost.from_json(self.cost) + cost).to_json()
        return self.model_copy(update={"seconds": round(self.seconds + seconds, 3), "cost": total})

    def save(self, folder: Path) -> None:
        """Write it, whole or not at all."""
        write_file(folder / MADE, (self.model_dump_json(indent=2) + "\n").encode())


def questions_made(writer: QuestionWriter, judge: Judge, lm: dspy.LM, judge_lm: dspy.LM) -> QuestionsMade:
    """How questions are made with these, at no cost so far.

    Raises:
        ModelError: An LM was not made by ``resolve_lm``.
    """
    return QuestionsMade(
        format=FORMAT,
        settings=settings_digest(writer, judge, lm, judge_lm),
        lm=lm.model,
        engine=lm_digest(lm),
        judge=judge.NAME,
        judge_lm=judge_lm.model,
        judge_engine=lm_digest(judge_lm),
        num_questions=writer.num_questions,
        batch_size=writer.batch_size,
    )


def settings_digest(writer: QuestionWriter, judge: Judge, lm: dspy.LM, judge_lm: dspy.LM) -> str:
    """SHA-256, as hex, of all that a record depends on beside its passage."""
    parts = {
        "format": FORMAT,
        "rules": RULES,
        "writer": {name: state.model_dump() for name, state in predictor_states(writer).items()},
        "asked": [writer.num_questions, writer.batch_size, writer.temperature],
        "judge": judge.digest(),
        "lms": [
            [engine_of(one).identity, *(one.kwargs.get(name) for name in ("temperature", "max_tokens"))]
            for one in (lm, judge_lm)
        ],
    }
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


def read_made(folder: Path) -> QuestionsMade | None:
    """What ``save`` wrote in a folder; None where nothing was.

    Raises:
        CollectionError: The file is damaged.
    """
    try:
        with (folder / MADE).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    try:
        if len(data) > MOST_BYTES:
            raise ValueError("it is too large")
        made = QuestionsMade.model_validate_json(data)
        if made.format != FORMAT:
            raise ValueError(f"its format is {made.format}, this version reads {FORMAT}")
        Cost.from_json(made.cost)
    except (ValidationError, ValueError, TypeError) as error:
        raise CollectionError(
            f"{MADE} in {folder.name!r} is damaged ({str(error).splitlines()[0]}); remove it, and only what the "
            "questions cost is forgotten"
        ) from error
    return made
