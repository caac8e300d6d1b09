"""The packaged sample: cards on type 2 diabetes and high blood pressure, and questions that a card decides.

``cards.jsonl``: id, title, text. ``questions.jsonl``: id, question, options, answer, evidence (label by card
id), why (one sentence for people; not read).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from querywright.data.reading import check_evidence, read_passages, read_questions
from querywright.data.types import Passage, Question
from querywright.errors import DataError


class Sample(NamedTuple):
    """The sample's passages and the questions about them."""

    passages: list[Passage]
    questions: list[Question]


def load_sample(folder: str | os.PathLike[str] | None = None) -> Sample:
    """The sample, checked.

    Args:
        folder: A folder with ``cards.jsonl`` and ``questions.jsonl``. Default None: the packaged one.

    Raises:
        DataError: A file is missing or has a problem, or evidence names a card that does not exist.
    """
    if folder is None:
        passages, questions = read_passages("sample"), read_questions("sample", multiple_choice=True)
    else:
        passages = read_passages(Path(folder) / "cards.jsonl")
        questions = read_questions(Path(folder) / "questions.jsonl", multiple_choice=True)
    problems = check_evidence(questions, [passage.id for passage in passages])
    if problems:
        raise DataError(problems)
    return Sample(passages, questions)
