"""The arms of a recorded study as programs that run on the answers that were kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dspy

from querywright.data.splits import Splits, split_questions
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.cached import stored_only
from querywright.optimize.study.engine import snapshot, spec_in, storage_of
from querywright.optimize.study.resources import open_bench
from querywright.optimize.study.storage import storage_kind
from querywright.programs import RAG


@dataclass(frozen=True, slots=True)
class StudyArms:
    """Arms of one technique of a study.

    Args:
        name: The study's.
        programs: One an arm, without a reader.
        questions: The study's train and dev questions.
        lm: The study's LM.
    """

    name: str
    programs: Sequence[RAG]
    questions: Sequence[Question]
    lm: dspy.LM

    def met(self, questions: Sequence[Question]) -> list[Question]:
        """Those of the questions that are the study's.

        Args:
            questions: Of a training.

        Raises:
            InputError: There are none.
        """
        known = {question.id for question in self.questions}
        found = [one for one in questions if one.id in known]
        if not found:
            raise InputError(
                f"the study {self.name!r} met none of the {len(questions)} train questions in train or dev; give the "
                "questions of the study"
            )
        return found


@contextmanager
def study_arms(folder: Path, technique: str, *, home: Path | None) -> Iterator[StudyArms]:
    """The arms of a technique that a study completed, each once.

    Args:
        folder: The study's.
        technique: Its name.
        home: The working folder, which has the collection and the answers.

    Raises:
        InputError: There is no such study, or it completed no arm of the technique.
    """
    found = snapshot(folder)
    name = found.spec.name
    tried = {one.arm.key: one.arm for one in found.trials if one.state == "complete" and one.arm is not None}
    arms = [arm for arm in tried.values() if arm.technique == technique]
    if not arms:
        names = ", ".join(sorted({arm.technique for arm in tried.values()})) or "none"
        raise InputError(
            f"the study {name!r} completed no arm of {technique}; it has: {names}. Give another technique or study"
        )
    where = storage_of(found.spec, None)
    bench = open_bench(found.spec, home, where if storage_kind(where) == "postgresql" else None)
    assert bench.store is not None
    try:
        with stored_only():  # its prompts were compiled when it ran
            programs = [bench.program(arm, reads=False) for arm in arms]
        met = [*bench.splits.train, *bench.splits.dev]
        yield StudyArms(name, programs, met, bench.lm)
    finally:
        bench.store.close()


def splits_after(study: Path, questions: Sequence[Question]) -> Splits:
    """Train, dev and test of a training that learns from the answers of a study.

    The study's trials met its dev questions, so the first half of these is learnt from, as are its train questions. The
    other half is dev; test is the study's.

    Args:
        study: The study's folder, whose seed and sizes hold.
        questions: All that it was given.

    Raises:
        InputError: There is no such study.
        DataError: There are fewer questions than the study's sizes.
    """
    spec = spec_in(study)
    train, dev, test = split_questions(questions, seed=spec.seed, sizes=spec.sizes)
    half = len(dev) // 2
    return Splits([*train, *dev[:half]], dev[half:], test)
