"""What is known of a judge: how far it agreed with people, on what, with which LM and prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError, model_validator

from querywright.checksummed import first_problem
from querywright.data.judged import Judged, judged_hash
from querywright.errors import ArtifactError
from querywright.metrics.agreement import FIGURES, Figure, agreement_figures, shown, tables_of

if TYPE_CHECKING:
    from querywright.metrics.judge import Judge

_FigureWithoutNan = Annotated[
    Figure,
    BeforeValidator(
        lambda data: {k: math.nan if v is None else v for k, v in data.items()} if isinstance(data, dict) else data
    ),
    PlainSerializer(lambda figure: {k: None if v != v else v for k, v in asdict(figure).items()}),
]


class Calibration(BaseModel):
    """How far a judge agreed with people.

    Args:
        judge: Name of the judge.
        lm: Name of its LM.
        engine: SHA-256 of its LM and where it was asked.
        prompt: SHA-256 of its prompts.
        data: SHA-256 of what it was held against.
        labels: The labels, worst first.
        table: Counts by the label of people (rows) and of the judge (columns), in the order of the labels.
        n: Judgements in the table.
        questions: Questions they belong to.
        unreadable: Judgements whose answer could not be read; left out of the table.
        failed: Judgements that failed, such as a passage too long for the LM; left out too.
        figures: By name, see ``FIGURES``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: str
    lm: str
    engine: str
    prompt: str
    data: str
    labels: tuple[str, ...]
    table: tuple[tuple[int, ...], ...]
    n: int
    questions: int
    unreadable: int
    failed: int
    figures: dict[str, _FigureWithoutNan]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        sizes = {len(row) for row in (self.table, *self.table)}
        if sizes != {len(self.labels)} or sum(map(sum, self.table)) != self.n:
            raise ValueError("the table does not fit the labels or n")
        if set(self.figures) != set(FIGURES):
            raise ValueError(f"the figures are not {', '.join(FIGURES)}")
        return self

    def sentence(self) -> str:
        """The calibration in one sentence, to stand beside what the judge judged."""
        kappa, agreement = self.figures["kappa"], self.figures["agreement"]
        counts = {"unreadable": self.unreadable, "failed": self.failed}
        facts = "; ".join([f"n = {self.n}", *(f"{count} {what}" for what, count in counts.items() if count)])
        share = "undefined" if math.isnan(agreement.value) else f"{100 * agreement.value:.0f} %"
        return (
            f"judge {self.judge} by {self.lm}: kappa {shown(kappa)}, agreement {share} "
            f"against people on {self.questions} {'question' if self.questions == 1 else 'questions'} ({facts})"
        )

    def to_json(self) -> dict[str, Any]:
        """The calibration as a JSON object; NaN becomes null."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """The calibration that ``to_json`` wrote.

        Raises:
            ArtifactError: The data is not of that form.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            said = first_problem(error)
            raise ArtifactError(f"the calibration of a judge cannot be read: {said}; calibrate again") from error


def calibration(
    judge: Judge,
    judged: Sequence[Judged],
    labels: Sequence[str | None],
    *,
    lm: str,
    engine: str,
    failed: int = 0,
    seed: int = 0,
) -> Calibration:
    """Holds a judge's labels against those of people.

    Args:
        judge: The judge.
        judged: Cases with labels of people.
        labels: The judge's label of each case, in the same order; None where there is none.
        lm: Name of its LM.
        engine: SHA-256 of its LM and where it was asked.
        failed: How many of the missing labels are failures; the others were unreadable. Default 0.
        seed: Of the resampling. Default 0.
    """
    pairs = zip(judged, labels, strict=True)
    read = [(one.label, label, one.case.question.id) for one, label in pairs if label is not None]
    tables = tables_of(read, tuple(judge.SCALE))
    return Calibration(
        judge=judge.NAME,
        lm=lm,
        engine=engine,
        prompt=judge.digest(),
        data=judged_hash(judged),
        labels=tuple(judge.SCALE),
        table=tuple(map(tuple, tables.sum(axis=0).astype(int).tolist())),
        n=len(read),
        questions=len(tables),
        unreadable=len(judged) - len(read) - failed,
        failed=failed,
        figures=agreement_figures(tables, seed=seed),
    )
