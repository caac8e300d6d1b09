"""What the passages did to the decision: accuracy by label, label shares and flips.

Everything is by question id, so that two arms are only compared on the same questions. An arm's
scores are 1.0 for right, 0.0 for wrong and NaN for what could not be scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from querywright.data.types import Label
from querywright.errors import DataError
from querywright.metrics.statistics import Mean, mean_with_interval
from querywright.metrics.usefulness import checked_label


@dataclass(frozen=True, slots=True)
class AccuracyGivenLabel:
    """Accuracy of two arms on the questions whose passages have one label.

    Args:
        arm: Accuracy of the arm that found the passages.
        other: Accuracy of the other arm on the same questions.
        n: Questions with this label that both arms were scored on.
        unscored: Questions with this label left out because one of the arms was not scored.
    """

    arm: Mean
    other: Mean
    n: int
    unscored: int


@dataclass(frozen=True, slots=True)
class LabelShares:
    """The labels of all passages of an arm.

    Args:
        shares: Share of the labelled passages that bear each label, in [0, 1]; NaN without any. Passages of one
            question hang together, so an interval that takes each for a case of its own would be too narrow.
        n: Labelled passages.
    """

    shares: Mapping[Label, float]
    n: int


@dataclass(frozen=True, slots=True)
class Flips:
    """How the answers of an arm turned against those of another.

    Args:
        right_to_wrong: Questions that the other arm had right and this one has wrong.
        wrong_to_right: The reverse.
        both_right: Questions that both have right.
        both_wrong: Questions that both have wrong.
        unscored: Questions left out because one of the arms was not scored.
    """

    right_to_wrong: int
    wrong_to_right: int
    both_right: int
    both_wrong: int
    unscored: int


def accuracy_by_label(
    scores: Mapping[str, float], labels: Mapping[str, Label | None], other: Mapping[str, float]
) -> dict[Label, AccuracyGivenLabel]:
    """How often an arm is right given what it found, beside another arm on the same questions.

    With closed book as the other arm it tells whether useless passages are worse than none. To hold the rows
    against the other arm's accuracy over all questions would compare easy questions with all.

    Args:
        scores: Right (1.0), wrong (0.0) or unscored (NaN), by question id.
        labels: The arm's label of each question (`question_label`); None where it has none. Those are left out.
        other: Scores of the other arm.

    Returns:
        A row for each of the three labels.

    Raises:
        DataError: The three do not name the same questions, a label is unknown, or a score is not 0, 1 or NaN.

    Source: HCQR, arXiv:2603.19008: 94.4 per cent given ENTAILED and 57.6 given NOT_USEFUL, against 86.2 and 63.4
    closed book.
    """
    _check_same(scores, labels)
    pairs = _pairs(scores, other)
    known = {key: checked_label(key, label) for key, label in labels.items() if label is not None}
    found = {}
    for label in Label:
        given = [pair for key, pair in pairs.items() if known.get(key) is label]
        scored = [pair for pair in given if not any(map(math.isnan, pair))]
        arm, closed = (mean_with_interval([pair[side] for pair in scored]) for side in (0, 1))
        found[label] = AccuracyGivenLabel(arm, closed, len(scored), len(given) - len(scored))
    return found


def label_shares(labels: Mapping[str, Sequence[Label | None]]) -> LabelShares:
    """Shares of the labels over all passages of an arm; a question with more passages counts more.

    Args:
        labels: By question id the label of each passage found (`passage_labels`), None where a judge gave none.
            Leave out a question without labelled evidence: it says nothing of its passages.

    Raises:
        DataError: A label is unknown.

    Source: HCQR, arXiv:2603.19008, which speaks of shares of documents.
    """
    pooled = [checked_label(key, label) for key, found in labels.items() for label in found if label is not None]
    return LabelShares(
        {label: pooled.count(label) / len(pooled) if pooled else math.nan for label in Label}, len(pooled)
    )


def flips(scores: Mapping[str, float], other: Mapping[str, float]) -> Flips:
    """Which answers turned right or wrong against another arm, such as closed book or plain retrieval.

    `paired_exact_test` says whether the two kinds of flips differ by more than chance.

    Args:
        scores: Right (1.0), wrong (0.0) or unscored (NaN), by question id.
        other: Scores of the arm it is compared with.

    Raises:
        DataError: The arms name different questions, or a score is not 0, 1 or NaN.
    """
    pairs = list(_pairs(scores, other).values())
    return Flips(
        right_to_wrong=pairs.count((0.0, 1.0)),
        wrong_to_right=pairs.count((1.0, 0.0)),
        both_right=pairs.count((1.0, 1.0)),
        both_wrong=pairs.count((0.0, 0.0)),
        unscored=sum(any(map(math.isnan, pair)) for pair in pairs),
    )


def _pairs(scores: Mapping[str, float], other: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The scores of both arms by question."""
    _check_same(scores, other)
    for key, value in [*scores.items(), *other.items()]:
        if value not in (0.0, 1.0) and not math.isnan(value):
            raise DataError(f"question {key!r} has the score {value}; right is 1, wrong 0, and unscored NaN")
    return {key: (value, other[key]) for key, value in scores.items()}


def _check_same(one: Mapping[str, object], two: Mapping[str, object]) -> None:
    odd = sorted(one.keys() ^ two.keys())
    if odd:
        named = ", ".join(repr(key) for key in odd[:3]) + (", ..." if len(odd) > 3 else "")
        raise DataError(
            f"only one side names {named} ({len(odd)} of {len(one.keys() | two.keys())} questions); compare on the "
            "same questions, with NaN or None for what failed"
        )
