"""Save and load judges: one JSON file with prompts, demonstrations, and calibration.

Nothing is unpickled, and no LM addresses, headers, or API keys are saved or read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import JsonValue

from querywright.checksummed import Checksummed
from querywright.errors import ArtifactError, InputError, unknown
from querywright.files import SHARED
from querywright.metrics.calibration import Calibration
from querywright.metrics.judge import Judge
from querywright.metrics.judges import JUDGES, make_judge
from querywright.optimize.program_state import PredictorState, apply_states, predictor_states

NAME = "judge.json"


class JudgeState(Checksummed):
    """The saved form of a judge."""

    LARGEST: ClassVar[int] = 16 * 2**20

    format: Literal[1] = 1
    judge: str
    predictors: dict[str, PredictorState]
    calibration: dict[str, JsonValue] | None


@dataclass(frozen=True, slots=True)
class SavedJudge:
    """A judge and its calibration (None if the judge was not calibrated)."""

    judge: Judge
    calibration: Calibration | None = None

    def standing(self, lm: str, engine: str) -> str:
        """Return the judge's calibration for the LM with this name and ``lm_digest``, or why no calibration applies."""
        known = self.calibration
        if known is None:
            why = ""
        elif known.lm != lm:
            why = f" (the calibration used the LM {known.lm})"
        elif known.engine != engine:
            why = f" (the calibration used a different server or version of {lm})"
        elif known.prompt != self.judge.digest():
            why = " (the calibration used a different prompt)"
        else:
            return known.sentence()
        return f"judge {self.judge.NAME} ({lm}): not calibrated against people{why}"


def judge_file(path: Path) -> Path:
    """Resolve a path to a judge file: the path itself if it ends in .json, otherwise ``judge.json`` in that folder."""
    return path if path.suffix == ".json" else path / NAME


def save_judge(path: Path, judge: Judge, calibration: Calibration | None) -> Path:
    """Write a judge to a path that ``judge_file`` accepts, replacing any older file atomically.

    Raises:
        ArtifactError: The file cannot be written.
    """
    file = judge_file(path)
    measured = None if calibration is None else calibration.to_json()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        state = JudgeState(judge=judge.NAME, predictors=predictor_states(judge), calibration=measured)
        state.write(file, mode=SHARED)
    except OSError as error:
        raise ArtifactError(
            f"could not write the judge file {file.name!r}: {error.strerror}; use a different --out path"
        ) from error
    return file


def load_judge(path: Path) -> SavedJudge:
    """Return a judge saved by ``save_judge``.

    Raises:
        ArtifactError: The file is missing, too large, edited, or in a format that this version does not read.
    """
    file = judge_file(path)
    try:
        state = JudgeState.read(file)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{file.name}: {error}; save the judge again") from error
    if state is None:
        raise ArtifactError(
            f"there is no judge at {str(path)!r}: {file.name} is missing; pass the path of a saved judge"
        )
    if state.judge not in JUDGES:
        raise ArtifactError(f"{file.name}: {unknown('judge', state.judge, JUDGES)}")
    judge = JUDGES[state.judge]()
    apply_states(judge, state.predictors, whose=f"the judge {state.judge}", file=file.name)
    return SavedJudge(judge, None if state.calibration is None else Calibration.from_json(state.calibration))


def resolve_judge(name: str | Path) -> SavedJudge:
    """Return the judge with the given name, or the saved judge at the given path.

    Raises:
        InputError: There is no such judge.
        ArtifactError: See ``load_judge``.
    """
    if name in JUDGES:
        return SavedJudge(make_judge(str(name)))
    if not os.path.isfile(judge_file(Path(name))):
        raise InputError(f"{unknown('judge', str(name), JUDGES)}; or pass the path of a saved judge")
    return load_judge(Path(name))


def resolve_judges(given: str | Path | SavedJudge | Sequence[str | Path | SavedJudge]) -> list[SavedJudge]:
    """Return saved judges from judges, names, or paths; a single judge does not need to be in a list."""
    named = [given] if isinstance(given, str | Path | SavedJudge) else given
    return [one if isinstance(one, SavedJudge) else resolve_judge(one) for one in named]
