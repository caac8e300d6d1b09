"""Judges on disk: one JSON file with prompts, demonstrations and calibration.

Nothing is ever unpickled, and no address, header or key of an LM is stored or read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from querywright.checksummed import first_problem
from querywright.errors import ArtifactError, unknown
from querywright.files import write_file
from querywright.metrics.calibration import Calibration
from querywright.metrics.judge import Judge
from querywright.metrics.judges import JUDGES
from querywright.optimize.program_state import PredictorState, apply_states, predictor_states

NAME = "judge.json"
MOST_BYTES = 16 * 2**20


class JudgeState(BaseModel):
    """A judge as it is saved."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[1]
    judge: str
    predictors: dict[str, PredictorState]
    calibration: dict[str, JsonValue] | None


@dataclass(frozen=True, slots=True)
class SavedJudge:
    """A judge and its calibration; None where it has none."""

    judge: Judge
    calibration: Calibration | None = None

    def standing(self, lm: str, engine: str) -> str:
        """What may be said of the judge when this LM is asked: its calibration, or that there is none.

        Args:
            lm: Name of the LM.
            engine: Its ``lm_digest``.
        """
        known = self.calibration
        if known is None:
            why = ""
        elif known.lm != lm:
            why = f" (its calibration is of the LM {known.lm})"
        elif known.engine != engine:
            why = f" (its calibration is of {lm} somewhere else, or in another version)"
        elif known.prompt != self.judge.digest():
            why = " (its calibration is of another prompt)"
        else:
            return known.sentence()
        return f"judge {self.judge.NAME} by {lm}: not calibrated against people{why}"


def judge_file(path: Path) -> Path:
    """The file that a path names: itself where it ends in .json, else ``judge.json`` in that folder."""
    return path if path.suffix == ".json" else path / NAME


def save_judge(path: Path, judge: Judge, calibration: Calibration | None) -> Path:
    """Write a judge; an older one at the same place is replaced whole or not at all.

    Args:
        path: A file that ends in .json, or a folder; it is made when missing.
        judge: The judge.
        calibration: Its calibration.

    Returns:
        The file.

    Raises:
        ArtifactError: It cannot be written.
    """
    file = judge_file(path)
    state = JudgeState(
        format=1,
        judge=judge.NAME,
        predictors=predictor_states(judge),
        calibration=None if calibration is None else calibration.to_json(),
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, state.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise ArtifactError(
            f"the judge {file.name!r} could not be written: {error.strerror}; give another --out"
        ) from error
    return file


def load_judge(path: Path) -> SavedJudge:
    """Read a judge that ``save_judge`` wrote.

    Args:
        path: The file, or its folder.

    Raises:
        ArtifactError: It is missing, too large, or not of a form that this version reads.
    """
    file = judge_file(path)
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ArtifactError(
            f"there is no judge at {str(path)!r}: {file.name} cannot be read ({error.strerror})"
        ) from error
    if len(data) > MOST_BYTES:
        raise ArtifactError(f"{file.name} has more than the {MOST_BYTES} bytes that are read")
    try:
        state = JudgeState.model_validate_json(data)
    except ValidationError as error:
        raise ArtifactError(f"{file.name}: {first_problem(error)}; save the judge again") from error
    if state.judge not in JUDGES:
        raise ArtifactError(f"{file.name}: {unknown('judge', state.judge, JUDGES)}")
    judge = JUDGES[state.judge]()
    apply_states(judge, state.predictors, whose=f"the judge {state.judge}", file=file.name)
    given = state.calibration
    return SavedJudge(judge, None if given is None else Calibration.from_json(given))
