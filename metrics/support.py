"""Joint metrics: is the answer right, and does the reader name the right passages as its support?"""

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
    """Score answer and supporting passages together, by HotpotQA's formula, for readers that write full sentences.

    The joint precision is P(answer) * P(support), the joint recall likewise, and the joint F1 is their harmonic mean.
    The answer's precision and recall are based on shared tokens, as in `token_f1`. If the prediction or the answer is
    yes, no, or noanswer, both values are 0 unless the prediction equals the answer.

    The score differs from HotpotQA's in two ways, which make it higher. The support consists of whole passages, so a
    reader may name the right passage because of a wrong sentence. And if an accepted answer occurs in the prediction
    (`contains_answer`), it counts as the program's answer, so the other words in a full sentence cost nothing.

    Every gold passage counts as needed, as in multi-hop datasets, unless ``alternatives`` lists replacements. A gold
    passage that was not retrieved cannot be named, so it also lowers recall.

    Args:
        prediction: The program's answer; empty without an answer.
        answers: All accepted answers; the answer with the largest joint F1 counts.
        support: Ids of the passages that the reader names. If it is empty, the score is 0. None means that the reader
            does not report its support, which cannot be scored.
        gold: Ids of the supporting passages.
        alternatives: Groups of gold passages in which any one is enough. Default none.

    Returns:
        The joint exact match and the joint F1. The first is 1.0 if the answer contains an accepted answer and the
        support is complete and contains only gold passages; the second is in [0, 1]. Both are NaN if ``support`` is
        None, or if there is no accepted answer or no gold passage.

    Raises:
        TypeError: ``answers`` is a single string.

    Source: after Yang et al. 2018, arXiv:1809.09600, and its script ``hotpot_evaluate_v1.py``; the differences are
    ours.
    """
    if not accepted(answers) or support is None or not gold:
        return math.nan, math.nan
    precision, recall = _overlap(support, gold, alternatives)
    parts = [_of_answer(answer if contains_answer(prediction, [answer]) else prediction, answer) for answer in answers]
    match = contains_answer(prediction, answers) * (precision == recall == 1)
    return match, max(f1(found * precision, wanted * recall) for found, wanted in parts)


def support_passage_f1(support: Collection[str] | None, gold: Collection[str], alternatives: Groups = ()) -> float:
    """Return the F1 of a reader's support compared with the gold passages, regardless of its answer.

    Args:
        support: As in `joint_passage_score`.
        gold: As in `joint_passage_score`.
        alternatives: As in `joint_passage_score`.

    Returns:
        A value in [0, 1]; NaN if ``support`` is None or there is no gold passage.
    """
    return math.nan if support is None or not gold else f1(*_overlap(support, gold, alternatives))


def _overlap(support: Collection[str], gold: Collection[str], alternatives: Groups) -> tuple[float, float]:
    """Return the precision and recall of the named passages; ``gold`` must not be empty."""
    named = set(support)
    right = len(named.intersection(gold))
    return (right / len(named), recall_at_k([*named], gold, len(named), alternatives)) if right else (0.0, 0.0)


def _of_answer(prediction: str, answer: str) -> tuple[float, float]:
    """Return the precision and recall of the answer's tokens."""
    given, wanted = closest_tokens(prediction, answer)
    if given != wanted and (given in VERDICTS or wanted in VERDICTS):
        return 0.0, 0.0
    return overlap(given, wanted)
