"""What the passages of each arm did to the decisions: accuracy by label, shares of labels, answers turned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from querywright.data.types import Label, Question
from querywright.metrics.decisions import (
    AccuracyGivenLabel,
    Flips,
    LabelShares,
    accuracy_by_label,
    flips,
    label_shares,
)
from querywright.metrics.usefulness import passage_labels
from querywright.optimize.evaluate import Evaluation, finite, mean_json


@dataclass(frozen=True, slots=True)
class Decisions:
    """One arm's part in the decisions.

    Args:
        arm: Its name.
        turned: Answers that turned against another arm, by that arm's name.
        by_label: Accuracy by the label of what was found, beside closed book on the same questions; empty where
            closed book was not asked.
        shares: Labels of all its passages.
    """

    arm: str
    turned: Mapping[str, Flips]
    by_label: Mapping[Label, AccuracyGivenLabel]
    shares: LabelShares

    def to_json(self) -> dict[str, Any]:
        """The decisions as a JSON object; NaN becomes null."""
        return {
            "arm": self.arm,
            "turned": {name: asdict(one) for name, one in self.turned.items()},
            "accuracy_by_label": {
                str(label): {"n": one.n, "unscored": one.unscored}
                | {"arm": mean_json(one.arm), "closed_book": mean_json(one.other)}
                for label, one in self.by_label.items()
            },
            "passages": {
                "n": self.shares.n,
                "shares": {str(label): finite(share) for label, share in self.shares.shares.items()},
            },
        }


def decisions(
    arms: Sequence[Evaluation],
    questions: Sequence[Question],
    *,
    baseline: Evaluation,
    closed_book: Mapping[str, Evaluation],
    metric: str = "accuracy",
) -> tuple[Decisions, ...]:
    """What each arm's passages did to the decisions.

    Args:
        arms: Results of programs that search and read, on these questions.
        questions: What was asked, with labelled evidence.
        baseline: Answers that turned are counted against it,
        closed_book: and, by arm, against its reader without passages, where that was asked.
        metric: Says which answers are right: 1.0, 0.0 or NaN. Default accuracy.
    """
    labelled = {question.id: question for question in questions if question.evidence}
    found = []
    for arm in arms:
        without = closed_book.get(arm.name)
        others = [one for one in (without, baseline) if one is not None and metric in one.metrics]
        scores = _scores(arm, metric)
        labels = {row.id: row.label for row in arm.rows}
        shown = {
            row.id: passage_labels(row.passages, asked.evidence, jointly=asked.jointly)
            for row in arm.rows
            if (asked := labelled.get(row.id)) is not None
        }
        found.append(
            Decisions(
                arm.name,
                {other.name: flips(scores, _scores(other, metric)) for other in others if other.name != arm.name},
                {} if without is None else accuracy_by_label(scores, labels, _scores(without, metric)),
                label_shares(shown),
            )
        )
    return tuple(found)


def decision_rows(decided: Sequence[Decisions]) -> list[dict[str, str]]:
    """One row an arm for people to read.

    Accuracy by label stands before closed book's on the same questions, in per cent; answers turned are right to wrong,
    then wrong to right.
    """
    others = list(dict.fromkeys(name for one in decided for name in one.turned))
    rows = []
    for one in decided:
        row = {"arm": one.arm}
        for name in others:
            turned = one.turned.get(name)
            row[f"right to wrong / wrong to right, {name}"] = (
                "-" if turned is None else f"{turned.right_to_wrong} / {turned.wrong_to_right}"
            )
        for label, given in one.by_label.items():
            row[f"accuracy / closed book where {label}"] = (
                f"{100 * given.arm.value:.0f} / {100 * given.other.value:.0f} of {given.n}" if given.n else "-"
            )
        for label, share in one.shares.shares.items():
            row[f"passages {label}"] = "-" if math.isnan(share) else f"{100 * share:.0f} %"
        rows.append(row)
    return rows


def _scores(arm: Evaluation, metric: str) -> dict[str, float]:
    return dict(zip([row.id for row in arm.rows], arm.values(metric), strict=True))
