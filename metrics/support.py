"""Joint metrics: the answer is right, and the passages that the reader names as its support are the right ones."""

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
    """Score answer and supporting passages together, by HotpotQA's formula for readers that write a sentence and name
    passages.

    Joint precision = P(answer) * P(support), joint recall likewise, joint F1 their harmonic mean. P and R of the answer
    are over shared tokens, as in `token_f1`; if the prediction or the answer is yes, no, or noanswer they are 0
    unless both are the same.

    It differs from HotpotQA's score, and is higher, in two ways. The support is whole passages, so a right passage
    may be named because of a wrong sentence. And an accepted answer that occurs in the prediction (`contains_answer`)
    counts as the answer given, so that the other words of a full sentence cost nothing.

    Every gold passage counts as needed, as in sets of several hops, unless ``alternatives`` names replacements.
    A gold passage that was not found cannot be named, so it costs recall as well.

    Args:
        prediction: The answer given; empty without an answer.
        answers: All accepted answers; the answer with the largest joint F1 counts.
        support: Ids of the passages that the reader names; empty for none, which scores 0; None if it does not name
            any, which cannot be scored.
        gold: Ids of the supporting passages.
        alternatives: Groups of gold passages of which any one is enough. Default none.

    Returns:
        The joint exact match, 1.0 if the answer contains an accepted answer and the support is gold and complete, and
        the joint F1, in [0, 1]; both NaN if ``support`` is None, or there is no accepted answer or no gold passage.

    Raises:
        TypeError: ``answers`` is a single text.

    Source: after Yang et al. 2018, arXiv:1809.09600, and its script ``hotpot_evaluate_v1.py``; the differences are our
    own.
    """
    if not accepted(answers) or support is None or not gold:
        return math.nan, math.nan
    precision, recall = _overlap(support, gold, alternatives)
    parts = [_of_answer(answer if contains_answer(prediction, [answer]) else prediction, answer) for answer in answers]
    match = contains_answer(prediction, answers) * (precision == recall == 1)
    return match, max(f1(found * precision, wanted * recall) for found, wanted in parts)


def support_passage_f1(support: Collection[str] | None, gold: Collection[str], alternatives: Groups = ()) -> float:
    """Return F1 of the passages that a reader names as its support compared with the gold passages, whatever its
    answer.

    Args:
        support: As in `joint_passage_score`.
        gold: As in `joint_passage_score`.
        alternatives: As in `joint_passage_score`.

    Returns:
        A value in [0, 1]; NaN if ``support`` is None or there is no gold passage.
    """
    return math.nan if support is None or not gold else f1(*_overlap(support, gold, alternatives))


def _overlap(support: Collection[str], gold: Collection[str], alternatives: Groups) -> tuple[float, float]:
    """Return precision and recall of the named passages; there are gold passages."""
    named = set(support)
    right = len(named.intersection(gold))
    return (right / len(named), recall_at_k([*named], gold, len(named), alternatives)) if right else (0.0, 0.0)


def _of_answer(prediction: str, answer: str) -> tuple[float, float]:
    """Return precision and recall of the answer's tokens."""
    given, wanted = closest_tokens(prediction, answer)
    if given != wanted and (given in VERDICTS or wanted in VERDICTS):
        return 0.0, 0.0
    return overlap(given, wanted)
