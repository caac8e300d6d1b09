"""Joint measures: the answer is right, and what is named as its support is the right support.

`joint_score` is HotpotQA's, over sentences. `joint_passage_score` is over whole passages, for readers that name
those; it is another, more lenient measure, and the two are never to be compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from querywright.errors import DataError
from querywright.metrics.answers import VERDICTS, accepted, contains_answer, exact_match
from querywright.metrics.tokens import answer_tokens

Sentence = tuple[str, int]
"""Title of a paragraph and the number of a sentence in it, from 0."""


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
        return _UNSCORED
    parts = [_of_answer(prediction, answer) for answer in answers]
    return _joint(exact_match(prediction, answers), parts, _sentences(support), _sentences(gold))


def joint_passage_score(
    prediction: str, answers: Sequence[str], support: Collection[str] | None, gold: Collection[str]
) -> JointScore:
    """Answer and supporting passages as one: HotpotQA's formula for a reader that writes a sentence and names passages.

    It departs from HotpotQA's score, and is higher, in two ways. The support is whole passages, of which a right one
    may be named for a wrong sentence of it. And an accepted answer that stands in the prediction (`contains_answer`) is
    taken for the answer given, so that the other words of a full sentence cost nothing.

    Every gold passage counts as needed, as in sets of several hops; where one of several would do, recall is too low.
    A gold passage that was not found cannot be named, so it costs recall as well.

    Args:
        prediction: The answer given; empty if none was given.
        answers: All accepted answers, of which the one with the largest joint F1 counts.
        support: Ids of the passages that the reader names; empty for none, which scores 0; None if it does not say,
            which cannot be scored.
        gold: Ids of the supporting passages.

    Returns:
        The scores; all NaN if ``support`` is None, or there is no accepted answer or no gold passage. The exact match
        of the answer is that it is contained.

    Raises:
        DataError: Something named is no id: sentences are another measure's.
        TypeError: ``answers`` is one text.

    Source: after Yang et al. 2018, arXiv:1809.09600; the departures are our own.
    """
    if not accepted(answers) or support is None or not gold:
        return _UNSCORED
    parts = [_of_answer(answer if contains_answer(prediction, [answer]) else prediction, answer) for answer in answers]
    return _joint(contains_answer(prediction, answers), parts, _ids(support), _ids(gold))


def support_passage_f1(support: Collection[str] | None, gold: Collection[str]) -> float:
    """F1 of the passages that a reader names as its support against the gold ones, whatever it answers.

    Args:
        support: As for `joint_passage_score`.
        gold: As for `joint_passage_score`.

    Returns:
        A value in [0, 1]; NaN if ``support`` is None or there is no gold passage.

    Raises:
        DataError: Something named is no id.
    """
    return math.nan if support is None or not gold else _f1(*_overlap(_ids(support), _ids(gold)))


_UNSCORED = JointScore(*[math.nan] * 6)


def _joint(
    right: float, parts: Sequence[tuple[float, float]], named: AbstractSet[Hashable], wanted: AbstractSet[Hashable]
) -> JointScore:
    """The score from precision and recall of the answer, for each accepted one, and the support as sets."""
    support = _overlap(named, wanted)
    best = max(
        ((precision * support[0], recall * support[1]) for precision, recall in parts), key=lambda both: _f1(*both)
    )
    support_match = float(named == wanted)
    return JointScore(
        exact_match=right * support_match,
        f1=_f1(*best),
        precision=best[0],
        recall=best[1],
        support_exact_match=support_match,
        support_f1=_f1(*support),
    )


def _overlap(named: AbstractSet[Hashable], wanted: AbstractSet[Hashable]) -> tuple[float, float]:
    """Precision and recall; ``wanted`` is not empty."""
    shared = len(named & wanted)
    return (shared / len(named) if named else 0.0), shared / len(wanted)


def _of_answer(prediction: str, answer: str) -> tuple[float, float]:
    """Precision and recall of the answer's tokens."""
    given, wanted = answer_tokens(prediction, answer)
    if given != wanted and (given in VERDICTS or wanted in VERDICTS):
        return 0.0, 0.0
    shared = (Counter(given) & Counter(wanted)).total()
    return (shared / len(given), shared / len(wanted)) if shared else (0.0, 0.0)


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _ids(keys: Collection[str]) -> set[str]:
    if isinstance(keys, str) or not all(map(_is_id, keys)):
        raise DataError(f"supporting passages are a list of their ids, but got {keys!r}")
    return set(keys)


def _sentences(pairs: Collection[Sentence]) -> set[Sentence]:
    found = set()
    for pair in pairs:
        if not _is_sentence(pair):
            raise DataError(
                f"a supporting sentence is a pair of a title and the number of a sentence, from 0, but got {pair!r}"
            )
        found.add((pair[0], pair[1]))
    return found


def _is_id(key: object) -> bool:
    return isinstance(key, str)


def _is_sentence(pair: object) -> bool:
    return (
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and isinstance(pair[0], str)
        and type(pair[1]) is int
        and pair[1] >= 0
    )
