"""Measure whether the retrieved passages help to decide the question, with labels for passages and for questions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from querywright.data.types import Label
from querywright.errors import DataError
from querywright.metrics.retrieval import Groups, groups_of


@dataclass(frozen=True, slots=True)
class Usefulness:
    """How far the passages found for one question help to decide it.

    Args:
        label: The question's label; None if it could not be scored.
        score: 1.0 for ENTAILED or USEFUL, 0.0 for NOT_USEFUL, NaN if the question could not be scored. The mean over
            questions is the decision-useful rate.
        unjudged: Number of passages without a label.
    """

    label: Label | None
    score: float
    unjudged: int = 0


def passage_labels(
    ids: Iterable[str],
    evidence: Mapping[str, Label | str],
    *,
    jointly: bool = False,
    pooled: bool = False,
    alternatives: Groups = (),
) -> list[Label | None]:
    """Return the label of each passage, in order; None for an unjudged passage.

    Args:
        ids: Passage ids.
        evidence: Labels, keyed by passage id.
        jointly: Whether the question needs all of its helpful passages. If there are two or more, each one alone is
            only USEFUL. Default False.
        pooled: Whether a passage that the evidence does not name is unjudged. Default False: it is NOT_USEFUL.
        alternatives: Groups of passages that count as one. Default none.

    Raises:
        DataError: A label is not ENTAILED, USEFUL, or NOT_USEFUL.
    """
    unnamed = None if pooled else Label.NOT_USEFUL
    labels = [checked_label(key, evidence[key]) if key in evidence else unnamed for key in ids]
    if jointly and len(groups_of(helpful_ids(evidence), alternatives)) > 1:
        return [Label.USEFUL if label is Label.ENTAILED else label for label in labels]
    return labels


def helpful_ids(evidence: Mapping[str, Label | str]) -> list[str]:
    """Return the ids of the helpful passages: those labeled ENTAILED or USEFUL, in the order of the evidence.

    Args:
        evidence: Labels, keyed by passage id.

    Raises:
        DataError: A label is not ENTAILED, USEFUL, or NOT_USEFUL.
    """
    return [key for key, label in evidence.items() if checked_label(key, label) is not Label.NOT_USEFUL]


def question_label(labels: Iterable[Label]) -> Label:
    """Return the best of the labels (ENTAILED, then USEFUL, then NOT_USEFUL); NOT_USEFUL if there are no labels.

    Source: HCQR, arXiv:2603.19008, does not say whether a label applies to one passage or to all passages together.
    Here, each passage has a label, and the best of them is the question's label.
    """
    seen = set(labels)
    return next((label for label in (Label.ENTAILED, Label.USEFUL) if label in seen), Label.NOT_USEFUL)


def decision_useful(label: Label) -> float:
    """Return 1.0 for ENTAILED or USEFUL, 0.0 for NOT_USEFUL."""
    return float(label != Label.NOT_USEFUL)


def usefulness(
    ids: Sequence[str],
    evidence: Mapping[str, Label | str],
    *,
    jointly: bool = False,
    pooled: bool = False,
    alternatives: Groups = (),
) -> Usefulness:
    """Return the usefulness of the passages found, from labeled evidence.

    If no passage is known to help but some are unjudged, the question cannot be scored, because an unjudged passage
    might help.

    Args:
        ids: Ids of the passages found; a repeated id counts once.
        evidence: Labels, keyed by passage id. If it is empty, nothing is labeled, and the question cannot be scored.
        jointly: Whether the question needs all of its helpful passages. If so, it is ENTAILED if all of them were
            found, and USEFUL if only some were. Default False.
        pooled: Whether a passage that the evidence does not name is unjudged. Default False: it is NOT_USEFUL.
        alternatives: Groups of passages that count as one passage, which is found if any passage in the group is found.
            Default none.

    Returns:
        The question's label and score; None and NaN if the question cannot be scored.

    Raises:
        DataError: A label is not ENTAILED, USEFUL, or NOT_USEFUL.
    """
    found = list(dict.fromkeys(ids))
    if not evidence:
        return Usefulness(None, math.nan, len(found))
    judged = passage_labels(found, evidence, jointly=jointly, pooled=pooled, alternatives=alternatives)
    labels = [label for label in judged if label is not None]
    groups, unjudged = groups_of(helpful_ids(evidence), alternatives), len(found) - len(labels)
    complete = jointly and groups and not any(group.isdisjoint(found) for group in groups)
    label = Label.ENTAILED if complete else question_label(labels)
    if label is Label.NOT_USEFUL and unjudged:
        return Usefulness(None, math.nan, unjudged)
    return Usefulness(label, decision_useful(label), unjudged)


def abstention(ids: Sequence[str], evidence: Mapping[str, Label | str], *, pooled: bool = False) -> float:
    """Return 1.0 if no passage helps and the program shows none, and 0.0 if no passage helps but it shows some.

    The value is NaN if a passage helps, or if it is unknown whether one does. Arguments and errors are as in
    `usefulness`. If ``pooled`` is true, an unjudged passage might help, so the value is NaN.

    Source: abstention recall in AbstentionBench, arXiv:2506.09038, applied to passages instead of answers.
    """
    return math.nan if pooled or not evidence or helpful_ids(evidence) else float(not ids)


def checked_label(key: str, value: Label | str) -> Label:
    """Return the label of a passage or a question.

    Args:
        key: Name of the passage or question, for the message.
        value: The label.

    Raises:
        DataError: The label is not ENTAILED, USEFUL, or NOT_USEFUL.
    """
    try:
        return Label(value)
    except ValueError:
        known = ", ".join(Label)
        raise DataError(f"the label of {key!r} must be one of {known}, but got {value!r}") from None
