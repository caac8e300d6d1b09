"""The packaged sample, read and checked."""

from __future__ import annotations

from typing import NamedTuple

from querywright.data.reading import check_evidence, read_passages, read_questions
from querywright.data.types import Passage, Question
from querywright.errors import DataError


class Sample(NamedTuple):
    """The sample's passages and the questions about them."""

    passages: list[Passage]
    questions: list[Question]


def load_sample(*, hard: bool = False) -> Sample:
    """The sample, checked.

    Args:
        hard: The 60 hard questions, ``questions-hard.jsonl``, in place of the 240. Default False.

    Raises:
        DataError: A file is missing or has a problem, or evidence names a card that does not exist.
    """
    name = "sample-hard" if hard else "sample"
    passages, questions = read_passages(name), read_questions(name, multiple_choice=True)
    if problems := check_evidence(questions, [passage.id for passage in passages]):
        raise DataError(problems)
    return Sample(passages, questions)
