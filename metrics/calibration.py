"""The calibration of a judge: how far the judge agreed with people, with the LM, the prompt, and the cases used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError, model_validator

from querywright.checksummed import first_problem
from querywright.data.judged import JudgedCase, judged_hash
from querywright.errors import ArtifactError
from querywright.metrics.agreement import (
    FIGURES,
    Figure,
    agreement_figures,
    resampled_figure,
    shown,
    tables_of,
)

if TYPE_CHECKING:
    import numpy as np

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
        lm: Name of the judge's LM.
        engine: SHA-256 of the judge's LM and the LM's location.
        prompt: SHA-256 of the judge's prompts.
        data: SHA-256 of the cases.
        labels: The labels, worst first.
        table: Counts by people's label (rows) and the judge's label (columns), in the order of the labels.
        n: Number of judgments in the table.
        questions: Number of questions in the table.
        unreadable: Number of judgments that could not be read; not in the table.
        failed: Number of judgments that failed (for example, because a passage was too long for the LM); not in the
            table.
        figures: The figures by name; see ``FIGURES``.
        between_people: The same figures for a second person compared with the first, on the cases that two people
            labeled; empty without such cases.
        graded: ``spearman`` and ``pearson`` for scores that combine several labels, such as the points of an answer;
            empty for other judges.
        arms: Each program's mean score over questions, by people and by the judge, if the cases name programs.
        order: Kendall's tau-b between the two rankings of the programs; None with fewer than two programs.
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
    between_people: dict[str, _FigureWithoutNan] = {}
    graded: dict[str, _FigureWithoutNan] = {}
    arms: dict[str, tuple[float, float]] = {}
    order: _FigureWithoutNan | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        sizes = {len(row) for row in (self.table, *self.table)}
        if sizes != {len(self.labels)} or sum(map(sum, self.table)) != self.n:
            raise ValueError("the table does not match the labels or n")
        if set(self.figures) != set(FIGURES):
            raise ValueError(f"the figures must be {', '.join(FIGURES)}")
        return self

    def sentence(self) -> str:
        """Return a one-sentence summary of the calibration, to show next to the judge's results."""
        kappa, agreement = self.figures["kappa"], self.figures["agreement"]
        counts = {"unreadable": self.unreadable, "failed": self.failed}
        facts = "; ".join([f"n = {self.n}", *(f"{count} {what}" for what, count in counts.items() if count)])
        share = "undefined" if math.isnan(agreement.value) else f"{100 * agreement.value:.0f}%"
        order = f", order of {len(self.arms)} arms: tau {shown(self.order)}" if self.order else ""
        return (
            f"judge {self.judge} ({self.lm}) compared with people on {self.questions} "
            f"{'question' if self.questions == 1 else 'questions'}: kappa {shown(kappa)}, agreement {share}{order} "
            f"({facts})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the calibration as a JSON object; NaN becomes null."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """Return the calibration from the output of ``to_json``.

        Raises:
            ArtifactError: The data does not have that form.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            said = first_problem(error)
            raise ArtifactError(f"cannot read the judge's calibration ({said}); rerun the calibration") from error


def calibration(
    judge: Judge,
    judged: Sequence[JudgedCase],
    labels: Sequence[str | None],
    *,
    lm: str,
    engine: str,
    failed: int = 0,
    seed: int = 0,
) -> Calibration:
    """Calibrate a judge by comparing its labels with people's labels.

    Args:
        judge: The judge.
        judged: Cases with people's labels.
        labels: The judge's label for each case, in the same order; None for a missing label.
        lm: Name of the judge's LM.
        engine: SHA-256 of the judge's LM and that LM's location.
        failed: Number of labels that are missing because a call failed; the others were unreadable. Default 0.
        seed: Random seed for the resampling. Default 0.
    """
    pairs = list(zip(judged, labels, strict=True))
    read = [(one.label, label, one.case.question.id) for one, label in pairs if label is not None]
    twice = [(one.label, one.second, one.case.question.id) for one in judged if one.second is not None]
    tables, scale = tables_of(read, tuple(judge.SCALE)), tuple(judge.SCALE)
    arms, order = _arms(judge, pairs, seed)
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
        between_people=agreement_figures(tables_of(twice, scale), seed=seed) if twice else {},
        graded=_graded(judge, pairs, seed) if pairs and "point" in judge.needs() else {},
        arms=arms,
        order=order,
    )


def _scores(judge: Judge, rows: Iterable[tuple[str, str, str, str | None]]) -> tuple[list[str], np.ndarray]:
    """Return people's and the judge's scores from rows of question, unit (a program or an answer), and two labels.

    Returns:
        The units and the scores, shape (questions, units, 2); NaN if there is no label, or if a label that matters for
        the score is unreadable.
    """
    import numpy as np

    found: dict[str, dict[str, list[tuple[str, str | None]]]] = {}
    for question, unit, *labels in rows:
        found.setdefault(question, {}).setdefault(unit, []).append((str(labels[0]), labels[1]))
    units = list(dict.fromkeys(unit for one in found.values() for unit in one))
    scores = np.full((len(found), len(units), 2), np.nan)
    for row, one in enumerate(found.values()):
        for unit, pairs in one.items():
            scores[row, units.index(unit)] = [judge.score(side) for side in zip(*pairs, strict=True)]
    return units, scores


def _arms(
    judge: Judge, pairs: Sequence[tuple[JudgedCase, str | None]], seed: int
) -> tuple[dict[str, tuple[float, float]], Figure | None]:
    """Return each program's scores by people and by the judge, and how far the two rankings agree."""
    import numpy as np
    from scipy.stats import kendalltau

    read = [(one, label) for one, label in pairs if label is not None]
    rows = [(one.case.question.id, arm, one.label, label) for one, label in read for arm in one.arms]
    names, scores = _scores(judge, rows)

    def means(places: np.ndarray) -> np.ndarray:
        drawn = scores[places]
        with np.errstate(invalid="ignore"):  # a program without passages for these questions has no mean
            found: np.ndarray = np.nansum(drawn, axis=0) / (~np.isnan(drawn)).sum(axis=0)
        return np.round(found, 12)

    def tau(places: np.ndarray) -> float:
        both = means(places)
        same = (np.ptp(both, axis=0) == 0).any() or np.isnan(both).any()
        return math.nan if same else float(kendalltau(*both.T).statistic)

    if len(names) < 2:
        return {}, None
    order = resampled_figure(tau, len(scores), "people or the judge gave all arms the same score", seed=seed)
    return dict(zip(names, map(tuple, means(np.arange(len(scores))).tolist()), strict=True)), order


def _graded(judge: Judge, pairs: Sequence[tuple[JudgedCase, str | None]], seed: int) -> dict[str, Figure]:
    """Return how far the scores of answers with several labels agree; answers with an unreadable label are omitted.

    Source: QB-RAG, arXiv:2407.18044, which uses both figures to compare its guideline score with experts.
    """
    import numpy as np
    from scipy.stats import pearsonr, spearmanr

    _, scores = _scores(judge, [(o.case.question.id, o.case.response or "", o.label, said) for o, said in pairs])
    answers = [row[~np.isnan(row).any(axis=1)] for row in scores]

    def figure(correlation: Any) -> Figure:
        def statistic(places: np.ndarray) -> float:
            people, judged = np.concatenate([answers[place] for place in places]).T
            same = not len(people) or np.ptp(people) == 0 or np.ptp(judged) == 0
            return math.nan if same else float(correlation(people, judged).statistic)

        reason = "people or the judge gave every answer the same score"
        return resampled_figure(statistic, len(answers), reason, seed=seed)

    return {"spearman": figure(spearmanr), "pearson": figure(pearsonr)}
