"""Joint measures: the answer is right, and the passages that are named as its support are the right ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from querywright.answer_text import closest_tokens
from querywright.metrics.answers import VERDICTS, accepted, contains_answer, f1, overlap
from querywright.metrics.retrieval import Groups, recall_at_k


def joint_passage_score(
    prediction: str,
    answers: Sequence[str],
    support: Collection[str] | None,
    gold: Collection[str],
    alternatives: Groups = (),
) -> tuple[float, float]:
    """Answer and supporting passages as one: HotpotQA's formula for a reader that writes a sentence and names passages.

    Joint precision = P(answer) * P(support), joint recall likewise, joint F1 their harmonic mean. P and R of the answer
    are over shared tokens, as in `token_f1`; where the prediction or the answer is yes, no or noanswer they are 0
    unless both are the same.

    It departs from HotpotQA's score, and is higher, in two ways. The support is whole passages, of which a right one
    may be named for a wrong sentence of it. And an accepted answer that stands in the prediction (`contains_answer`) is
    taken for the answer given, so that the other words of a full sentence cost nothing.

    Every gold passage counts as needed, as in sets of several hops, unless ``alternatives`` says that another will do.
    A gold passage that was not found cannot be named, so it costs recall as well.

    Args:
        prediction: The answer given; empty if none was given.
        answers: All accepted answers, of which the one with the largest joint F1 counts.
        support: Ids of the passages that the reader names; empty for none, which scores 0; None if it does not say,
            which cannot be scored.
        gold: Ids of the supporting passages.
        alternatives: Groups of gold passages of which any one is enough. Default none.

    Returns:
        The joint exact match, 1.0 if the answer contains an accepted one and the support is gold and complete, and the
        joint F1, in [0, 1]; both NaN if ``support`` is None, or there is no accepted answer or no gold passage.

    Raises:
        TypeError: ``answers`` is one text.

    Source: after Yang et al. 2018, arXiv:1809.09600, and its script ``hotpot_evaluate_v1.py``; the departures are our
    own.
    """
    if not accepted(answers) or support is None or not gold:
        return math.nan, math.nan
    precision, recall = _overlap(support, gold, alternatives)
    parts = [_of_answer(answer if contains_answer(prediction, [answer]) else prediction, answer) for answer in answers]
    match = contains_answer(prediction, answers) * (precision == recall == 1)
    return match, max(f1(found * precision, wanted * recall) for found, wanted in parts)


def support_passage_f1(support: Collection[str] | None, gold: Collection[str], alternatives: Groups = ()) -> float:
    """F1 of the passages that a reader names as its support against the gold ones, whatever it answers.

    Args:
        support: As for `joint_passage_score`.
        gold: As for `joint_passage_score`.
        alternatives: As for `joint_passage_score`.

    Returns:
        A value in [0, 1]; NaN if ``support`` is None or there is no gold passage.
    """
    return math.nan if support is None or not gold else f1(*_overlap(support, gold, alternatives))


def _overlap(support: Collection[str], gold: Collection[str], alternatives: Groups) -> tuple[float, float]:
    """Precision and recall of the passages named; there are gold ones."""
    named = set(support)
    right = len(named.intersection(gold))
    return (right / len(named), recall_at_k([*named], gold, len(named), alternatives)) if right else (0.0, 0.0)


def _of_answer(prediction: str, answer: str) -> tuple[float, float]:
    """Precision and recall of the answer's tokens."""
    given, wanted = closest_tokens(prediction, answer)
    if given != wanted and (given in VERDICTS or wanted in VERDICTS):
        return 0.0, 0.0
    return overlap(given, wanted)
