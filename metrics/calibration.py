"""What is known of a judge: how far it agreed with people, on what, with which LM and prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from querywright.errors import ArtifactError
from querywright.metrics.agreement import FIGURES, Figure, agreement_figures, shown, tables_of

Table = tuple[tuple[int, ...], ...]
"""Judgements by the label of people (rows) and of the judge (columns), in the order of the scale."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far a judge agreed with people.

    Args:
        judge: Name of the judge.
        lm: Name of its LM.
        engine: SHA-256 of its LM and where it was asked.
        prompt: SHA-256 of its prompts.
        data: SHA-256 of what it was held against.
        labels: The labels, worst first.
        table: Counts by the label of people (rows) and of the judge (columns).
        n: Judgements in the table.
        questions: Questions they belong to.
        unreadable: Judgements whose answer could not be read; left out of the table.
        failed: Judgements that failed, such as a passage too long for the LM; left out too.
        figures: By name, see ``FIGURES``.
    """

    judge: str
    lm: str
    engine: str
    prompt: str
    data: str
    labels: tuple[str, ...]
    table: Table
    n: int
    questions: int
    unreadable: int
    failed: int
    figures: Mapping[str, Figure]

    def sentence(self) -> str:
        """The calibration in one sentence, to stand beside what the judge judged."""
        kappa, agreement = self.figures["kappa"], self.figures["agreement"]
        left = [
            f"{count} {what}" for count, what in ((self.unreadable, "unreadable"), (self.failed, "failed")) if count
        ]
        facts = "; ".join([f"n = {self.n}", *left])
        share = "undefined" if math.isnan(agreement.value) else f"{100 * agreement.value:.0f} %"
        return (
            f"judge {self.judge} by {self.lm}: kappa {shown(kappa)}, agreement {share} "
            f"against people on {self.questions} {'question' if self.questions == 1 else 'questions'} ({facts})"
        )

    def to_json(self) -> dict[str, Any]:
        """The calibration as a JSON object; NaN becomes null."""
        data = asdict(self)
        data["labels"], data["table"] = list(self.labels), [list(row) for row in self.table]
        for figure in data["figures"].values():
            figure.update({key: None for key, value in figure.items() if value != value})
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """The calibration that ``to_json`` wrote.

        Raises:
            ArtifactError: The data is not of that form.
        """
        try:
            figures = {name: _figure(data["figures"][name]) for name in FIGURES}
            table = tuple(tuple(int(count) for count in row) for row in data["table"])
            labels = tuple(str(label) for label in data["labels"])
            found = cls(
                judge=str(data["judge"]),
                lm=str(data["lm"]),
                engine=str(data["engine"]),
                prompt=str(data["prompt"]),
                data=str(data["data"]),
                labels=labels,
                table=table,
                n=int(data["n"]),
                questions=int(data["questions"]),
                unreadable=int(data["unreadable"]),
                failed=int(data["failed"]),
                figures=figures,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"the calibration of a judge cannot be read: {error!r}; calibrate again") from error
        if any(len(row) != len(labels) for row in (table, *table)) or sum(map(sum, table)) != found.n:
            raise ArtifactError("the table of a judge's calibration does not fit its labels or n; calibrate again")
        return found


def calibration(
    people: Sequence[str],
    judge: Sequence[str | None],
    questions: Sequence[str],
    *,
    name: str,
    lm: str,
    engine: str,
    prompt: str,
    data: str,
    labels: Sequence[str],
    failed: int = 0,
    seed: int = 0,
) -> Calibration:
    """Holds a judge's labels against those of people.

    Args:
        people: Label of each case by people.
        judge: Label of each case by the judge, in the same order; None where there is none.
        questions: Id of the question of each case.
        name: Name of the judge.
        lm: Name of its LM.
        engine: SHA-256 of its LM and where it was asked.
        prompt: SHA-256 of its prompts.
        data: SHA-256 of the cases.
        labels: All labels, worst first.
        failed: How many of the missing labels are failures; the others were unreadable. Default 0.
        seed: Of the resampling. Default 0.
    """
    read = [(p, j, q) for p, j, q in zip(people, judge, questions, strict=True) if j is not None]
    tables = tables_of(read, labels)
    total = tables.sum(axis=0).astype(int)
    return Calibration(
        judge=name,
        lm=lm,
        engine=engine,
        prompt=prompt,
        data=data,
        labels=tuple(labels),
        table=tuple(tuple(int(count) for count in row) for row in total),
        n=len(read),
        questions=len(tables),
        unreadable=len(people) - len(read) - failed,
        failed=failed,
        figures=agreement_figures(tables, seed=seed),
    )


def _figure(data: Mapping[str, Any]) -> Figure:
    value, low, high = (math.nan if data[name] is None else float(data[name]) for name in ("value", "low", "high"))
    return Figure(value, low, high, str(data["reason"]))
