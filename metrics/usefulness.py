"""Does what was found help to decide: labels of passages, and what they make of a question."""

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
        label: Label of the question; None if it could not be scored.
        score: 1.0 for ENTAILED or USEFUL, 0.0 for NOT_USEFUL, NaN if it could not be scored. Its mean over
            questions is the decision-useful rate.
        unjudged: Passages without a label.
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
    """The label of each passage, in order; None for one that nobody judged.

    Args:
        ids: Passage ids.
        evidence: Label by passage id.
        jointly: Whether it takes all the passages that help: of two or more, each alone is USEFUL. Default False.
        pooled: Whether a passage that the evidence does not name is unjudged. Default False: it is NOT_USEFUL.
        alternatives: Groups of passages that count as one. Default none.

    Raises:
        DataError: A label is not ENTAILED, USEFUL or NOT_USEFUL.
    """
    unnamed = None if pooled else Label.NOT_USEFUL
    labels = [checked_label(key, evidence[key]) if key in evidence else unnamed for key in ids]
    if jointly and len(groups_of(helpful_ids(evidence), alternatives)) > 1:
        return [Label.USEFUL if label is Label.ENTAILED else label for label in labels]
    return labels


def helpful_ids(evidence: Mapping[str, Label | str]) -> list[str]:
    """The passages that help: those labelled ENTAILED or USEFUL, in the order of the evidence.

    Args:
        evidence: Label by passage id.

    Raises:
        DataError: A label is not ENTAILED, USEFUL or NOT_USEFUL.
    """
    return [key for key, label in evidence.items() if checked_label(key, label) is not Label.NOT_USEFUL]


def question_label(labels: Iterable[Label]) -> Label:
    """ENTAILED if any passage is, else USEFUL if any is, else NOT_USEFUL (also for no passages).

    Source: HCQR, arXiv:2603.19008, leaves open whether a label belongs to a passage or to all that was found;
    here each passage has one and the best of them is the question's.
    """
    seen = set(labels)
    return next((label for label in (Label.ENTAILED, Label.USEFUL) if label in seen), Label.NOT_USEFUL)


def decision_useful(label: Label) -> float:
    """1.0 for ENTAILED or USEFUL, 0.0 for NOT_USEFUL."""
    return float(label != Label.NOT_USEFUL)


def usefulness(
    ids: Sequence[str],
    evidence: Mapping[str, Label | str],
    *,
    jointly: bool = False,
    pooled: bool = False,
    alternatives: Groups = (),
) -> Usefulness:
    """The usefulness of what was found, from labelled evidence.

    Where no passage is known to help and some are unjudged, one of these may: the question cannot be scored.

    Args:
        ids: Ids of the passages found; one that occurs twice counts once.
        evidence: Label by passage id. Empty: nothing is labelled, and the question cannot be scored.
        jointly: Whether it takes all the passages that help: the question is ENTAILED when all of them were found,
            and USEFUL when some were. Default False.
        pooled: Whether a passage that the evidence does not name is unjudged. Default False: it is NOT_USEFUL.
        alternatives: Groups of passages that count as one, found with any of them. Default none.

    Returns:
        The question's label and score, None and NaN where it cannot be scored.

    Raises:
        DataError: A label is not ENTAILED, USEFUL or NOT_USEFUL.
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
    """1.0 if no passage is shown where none helps, 0.0 if some is; NaN where one helps or nobody knows.

    Arguments and errors are those of `usefulness`. Where ``pooled`` an unjudged passage may help: nobody knows.

    Source: abstention recall of AbstentionBench, arXiv:2506.09038, of passages instead of answers.
    """
    return math.nan if pooled or not evidence or helpful_ids(evidence) else float(not ids)


def checked_label(key: str, value: Label | str) -> Label:
    """The label of a passage or a question.

    Args:
        key: Whose it is, for the message.
        value: The label.

    Raises:
        DataError: It is not ENTAILED, USEFUL or NOT_USEFUL.
    """
    try:
        return Label(value)
    except ValueError:
        known = ", ".join(Label)
        raise DataError(f"{key!r} has the label {value!r}; a label is one of {known}") from None
