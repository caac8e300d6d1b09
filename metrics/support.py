"""HotpotQA's joint measures: the answer is right, and the sentences named as its support are the right ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from querywright.errors import DataError
from querywright.metrics.answers import accepted, exact_match
from querywright.metrics.tokens import answer_tokens

Sentence = tuple[str, int]
"""Title of a paragraph and the number of a sentence in it, from 0."""

_VERDICTS = (["yes"], ["no"], ["noanswer"])


@dataclass(frozen=True, slots=True)
class JointScore:
    """Answer and support of one question together; every value is in [0, 1], or NaN where it cannot be scored.

    Args:
        exact_match: 1.0 if the answer matches exactly and the support is the gold support.
        f1: Harmonic mean of precision and recall.
        precision: Precision of the answer's tokens times that of the support.
        recall: Recall of the answer's tokens times that of the support.
        support_exact_match: 1.0 if the support is the gold support.
        support_f1: F1 of the support.
    """

    exact_match: float
    f1: float
    precision: float
    recall: float
    support_exact_match: float
    support_f1: float


def joint_score(
    prediction: str,
    answers: Sequence[str],
    support: Collection[Sentence] | None,
    gold: Collection[Sentence],
) -> JointScore:
    """Answer and supporting sentences as one, as HotpotQA's official scorer has it.

    Joint precision = P(answer) * P(support), joint recall likewise, joint F1 their harmonic mean, joint exact
    match the product of both. P and R of the answer are over shared tokens (`answer_tokens`); where the prediction
    or the answer is yes, no or noanswer they are 0 unless both are the same. Sentences are compared as sets,
    titles letter by letter.

    Args:
        prediction: The answer given; empty if none was given.
        answers: All accepted answers, of which the one with the largest joint F1 counts. The official scorer has
            one.
        support: (title, number of the sentence) of what the reader names; empty for none, which scores 0; None if
            it does not say, which cannot be scored.
        gold: The supporting sentences.

    Returns:
        The scores; all NaN if ``support`` is None, or there is no accepted answer or no gold sentence.

    Raises:
        DataError: A sentence is not a pair of a title and a whole number.
        TypeError: ``answers`` is one text.

    Source: Yang et al. 2018, arXiv:1809.09600, and its script ``hotpot_evaluate_v1.py``.
    """
    if not accepted(answers) or support is None or not gold:
        return JointScore(*[math.nan] * 6)
    named, wanted = _sentences(support), _sentences(gold)
    shared = len(named & wanted)
    support_precision = shared / len(named) if named else 0.0
    support_recall = shared / len(wanted)
    joint = [
        (precision * support_precision, recall * support_recall)
        for precision, recall in (_of_answer(prediction, answer) for answer in answers)
    ]
    best = max(joint, key=lambda both: _f1(*both))
    support_match = float(named == wanted)
    return JointScore(
        exact_match=exact_match(prediction, answers) * support_match,
        f1=_f1(*best),
        precision=best[0],
        recall=best[1],
        support_exact_match=support_match,
        support_f1=_f1(support_precision, support_recall),
    )


def _of_answer(prediction: str, answer: str) -> tuple[float, float]:
    """Precision and recall of the answer's tokens."""
    given, wanted = answer_tokens(prediction, answer)
    if given != wanted and (given in _VERDICTS or wanted in _VERDICTS):
        return 0.0, 0.0
    shared = (Counter(given) & Counter(wanted)).total()
    return (shared / len(given), shared / len(wanted)) if shared else (0.0, 0.0)


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _sentences(pairs: Collection[Sentence]) -> set[Sentence]:
    found = set()
    for pair in pairs:
        if not _is_sentence(pair):
            raise DataError(
                f"a supporting sentence is a pair of a title and the number of a sentence, from 0, but got {pair!r}"
            )
        found.add((pair[0], pair[1]))
    return found


def _is_sentence(pair: object) -> bool:
    return (
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and isinstance(pair[0], str)
        and type(pair[1]) is int
        and pair[1] >= 0
    )
