"""What the passages did to the decision: accuracy by label, label shares and flips.

Everything is by question id, so that two arms are only held against each other on the same questions. An arm's
scores are 1.0 for right, 0.0 for wrong and NaN for what could not be scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from querywright.data.types import Label
from querywright.errors import DataError
from querywright.metrics.statistics import Mean, mean_with_interval

_NAMED = 3  # question ids in an error


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

    @property
    def difference(self) -> float:
        """Accuracy of the arm less that of the other, from -1 to 1; NaN without questions."""
        return self.arm.value - self.other.value


@dataclass(frozen=True, slots=True)
class LabelShares:
    """The labels of all passages of an arm.

    Args:
        shares: Share of the labelled passages that bear each label, in [0, 1]; NaN without any. Passages of one
            question hang together, so an interval that takes each for a case of its own would be too narrow.
        n: Labelled passages.
        unlabelled: Passages without a label, left out.
        questions: Questions with a labelled passage.
    """

    shares: Mapping[Label, float]
    n: int
    unlabelled: int
    questions: int


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

    @property
    def n(self) -> int:
        """Questions scored for both arms."""
        return self.right_to_wrong + self.wrong_to_right + self.both_right + self.both_wrong

    @property
    def harmed(self) -> float:
        """Share of what the other arm had right that is wrong now; NaN if it had nothing right."""
        return _share(self.right_to_wrong, self.right_to_wrong + self.both_right)

    @property
    def rescued(self) -> float:
        """Share of what the other arm had wrong that is right now; NaN if it had nothing wrong."""
        return _share(self.wrong_to_right, self.wrong_to_right + self.both_wrong)


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
        DataError: The three do not name the same questions, a score is not 0, 1 or NaN, or a label is unknown.

    Source: HCQR, arXiv:2603.19008: 94.4 per cent given ENTAILED and 57.6 given NOT_USEFUL, against 86.2 and 63.4
    closed book.
    """
    _check_same(scores, other)
    _check_same(scores, labels)
    _check_binary(scores, other)
    known = {key: _label(key, label) for key, label in labels.items() if label is not None}
    return {label: _given([key for key in scores if known.get(key) == label], scores, other) for label in Label}


def label_shares(labels: Mapping[str, Sequence[Label | None]]) -> LabelShares:
    """Shares of the labels over all passages of an arm; a question with more passages counts more.

    Args:
        labels: By question id the label of each passage found (`passage_labels`), None where a judge gave none.
            Leave out a question without labelled evidence: it says nothing of its passages.

    Raises:
        DataError: A label is unknown.

    Source: HCQR, arXiv:2603.19008, which speaks of shares of documents.
    """
    given = {key: [_label(key, label) for label in found if label is not None] for key, found in labels.items()}
    pooled = [label for found in given.values() for label in found]
    return LabelShares(
        shares={label: _share(pooled.count(label), len(pooled)) for label in Label},
        n=len(pooled),
        unlabelled=sum(len(found) for found in labels.values()) - len(pooled),
        questions=sum(bool(found) for found in given.values()),
    )


def flips(scores: Mapping[str, float], other: Mapping[str, float]) -> Flips:
    """Which answers turned right or wrong against another arm, such as closed book or plain retrieval.

    `paired_exact_test` says whether the two kinds of flips differ by more than chance.

    Args:
        scores: Right (1.0), wrong (0.0) or unscored (NaN), by question id.
        other: Scores of the arm it is held against.

    Raises:
        DataError: The arms name different questions, or a score is not 0, 1 or NaN.
    """
    _check_same(scores, other)
    _check_binary(scores, other)
    pairs = [(value, other[key]) for key, value in scores.items()]
    return Flips(
        right_to_wrong=pairs.count((0.0, 1.0)),
        wrong_to_right=pairs.count((1.0, 0.0)),
        both_right=pairs.count((1.0, 1.0)),
        both_wrong=pairs.count((0.0, 0.0)),
        unscored=sum(math.isnan(one) or math.isnan(two) for one, two in pairs),
    )


def _given(keys: Sequence[str], scores: Mapping[str, float], other: Mapping[str, float]) -> AccuracyGivenLabel:
    scored = [key for key in keys if not (math.isnan(scores[key]) or math.isnan(other[key]))]
    return AccuracyGivenLabel(
        arm=mean_with_interval([scores[key] for key in scored]),
        other=mean_with_interval([other[key] for key in scored]),
        n=len(scored),
        unscored=len(keys) - len(scored),
    )


def _share(count: int, total: int) -> float:
    return count / total if total else math.nan


def _check_same(one: Mapping[str, object], two: Mapping[str, object]) -> None:
    odd = sorted(one.keys() ^ two.keys())
    if odd:
        named = ", ".join(repr(key) for key in odd[:_NAMED]) + (", ..." if len(odd) > _NAMED else "")
        raise DataError(
            f"only one side names {named} ({len(odd)} of {len(one.keys() | two.keys())} questions); compare on the "
            "same questions, with NaN or None for what failed"
        )


def _check_binary(*arms: Mapping[str, float]) -> None:
    for arm in arms:
        for key, value in arm.items():
            if value not in (0.0, 1.0) and not math.isnan(value):
                raise DataError(f"question {key!r} has the score {value}; right is 1, wrong 0, and unscored NaN")


def _label(key: str, value: Label | str) -> Label:
    try:
        return Label(value)
    except ValueError:
        raise DataError(f"question {key!r} has the label {value!r}; a label is one of {', '.join(Label)}") from None
