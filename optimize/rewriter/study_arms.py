"""The arms of a recorded study as programs that run on the answers that were kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from querywright.data.splits import Splits, split_questions
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.usage import Ledger
from querywright.optimize.study.building import build_space, prompt_of, reads_for
from querywright.optimize.study.data import data_of
from querywright.optimize.study.engine import snapshot_of
from querywright.optimize.study.objectives import objectives_of
from querywright.optimize.study.resources import Bench, open_lm, open_store_at
from querywright.optimize.study.settling import spec_in, storage_of
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.storage import StudyStorage, open_storage
from querywright.optimize.study.trial import FAILED
from querywright.optimize.study.types import ArmConfig
from querywright.programs import RAG


@dataclass(frozen=True, slots=True)
class StudyArms:
    """Arms of one technique of a study.

    Args:
        name: The study's.
        programs: One an arm, without a reader.
        keys: A hash of each arm.
        questions: The study's train and dev questions.
        lm: The study's LM.
    """

    name: str
    programs: Sequence[RAG]
    keys: list[str]
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
def study_arms(folder: Path, technique: str, *, home: Path | None, storage: str | None = None) -> Iterator[StudyArms]:
    """The arms of a technique that a study completed, each once.

    Args:
        folder: The study's.
        technique: Its name.
        home: The working folder, which has the collection and the answers.
        storage: The study's, where it is not the one in its file.

    Raises:
        InputError: There is no such study, or it completed no arm of the technique.
    """
    spec = spec_in(folder)
    place, answers = open_store_at(home)
    try:
        ledger = Ledger()
        lm = open_lm(spec, answers, ledger)
        splits, readers, _ = data_of(spec)
        space = build_space(spec, readers)
        bench = Bench(spec, splits, space, objectives_of(spec.objectives), lm, ledger, answers, place)
        with open_storage(storage_of(spec, storage), folder, spec.name) as store:
            arms = _arms(spec, store, technique)
            programs = [bench.program(arm, _variant(spec, store, arm), reads=False) for arm in arms]
        yield StudyArms(spec.name, programs, [arm.key for arm in arms], [*splits.train, *splits.dev], lm)
    finally:
        answers.close()


def _arms(spec: StudySpec, store: StudyStorage, technique: str) -> list[ArmConfig]:
    trials = snapshot_of(spec, store).trials
    tried = {one.arm.key: one.arm for one in trials if one.state == "complete" and one.arm is not None}
    found = [arm for arm in tried.values() if arm.technique == technique]
    if not found:
        names = ", ".join(sorted({arm.technique for arm in tried.values()})) or "none"
        raise InputError(
            f"the study {spec.name!r} completed no arm of {technique}; it has: {names}. Give another technique or study"
        )
    return found


def _variant(spec: StudySpec, store: StudyStorage, arm: ArmConfig) -> Any:
    """The prompts of an arm as the study compiled them; None for prompts as they are written."""
    found = prompt_of(spec, arm.prompt)
    if found is None:
        return None
    name = f"prompt:{arm.technique}:{arm.prompt}"
    if reads_for(spec.prompts[found[0]]):
        name += f":{arm.reader}"
    known = store.attribute(name)
    if known is None or FAILED in known:
        raise InputError(f"the study {spec.name!r} has no prompts {arm.prompt!r} of {arm.technique}; run it to its end")
    return known


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
