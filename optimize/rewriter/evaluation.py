"""What a rewriter is worth on questions, beside no rewriting, the untrained model and the teacher.

A reward can be raised by what is no rewriting at all: copying the question, writing nothing, naming the answer, or the
same text whatever is asked. None of it is forbidden; all of it is counted (``checked``) and reported.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from querywright.data.types import Question
from querywright.metrics.dspy_metrics import Metric
from querywright.metrics.tokens import normalize_answer
from querywright.metrics.usefulness import usefulness
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import NO_REWRITING
from querywright.optimize.rewriter.types import Episode
from querywright.optimize.significance import ALPHA, against
from querywright.programs.query_cleaning import LONGEST_QUERY

UNTRAINED, WARMED_UP, TRAINED, TEACHER, IN_USE, AS_IT_COMES = (
    "untrained",
    "warmed up",
    "trained",
    "teacher",
    "trained, in use",
    "untrained, in use",
)
"""Arms: the policy as it was, after each stage, who taught it, and what runs when the rewriter is used by its name."""

METRICS = ("exact_recovery@1", "recall@5", "ndcg@10", "decision_useful")
"""What every rewriter is measured by, where evidence is labelled."""

DEEPEST = 10
"""Passages that the deepest of them looks at."""


_RISE = 0.1
"""A share that rose by more than this is warned of."""
_DROP = 0.5
"""Diversity that fell below this part of what it was is warned of."""

_MEANINGS = {
    "empty": "wrote no query",
    "copied": "only copied the question",
    "over_long": "wrote a query longer than is searched well",
    "leaking": "named the right answer in a query, which the question does not",
    "unreadable": "could not be read",
    "cut": "did not end by themselves",
    "equal": "were the same as for another question",
}


def evaluation_of(name: str, episodes: Sequence[Episode], metrics: Mapping[str, Metric]) -> Evaluation:
    """Episodes, one a question, as an arm; a failed one is unscored.

    Args:
        name: The arm.
        episodes: From ``run_episodes``.
        metrics: DSPy metrics by name.
    """
    return Evaluation(name, tuple(_row(one, metrics) for one in episodes), 0.0)


def measured_by(metric: str, questions: Sequence[Question]) -> list[str]:
    """The metrics of a training: the one it is for first, and those that the questions allow."""
    labelled = any(question.evidence for question in questions)
    return list(dict.fromkeys([metric, *(METRICS if labelled else ())]))


def compared(arms: Sequence[Evaluation], questions: Sequence[Question]) -> Compared:
    """All arms against no rewriting, Holm-corrected within a metric."""
    return Compared(tuple(arms), NO_REWRITING, tuple(against(arms, NO_REWRITING)), questions=tuple(questions))


@dataclass(frozen=True, slots=True)
class Standing:
    """How a trained rewriter stands against no rewriting.

    Args:
        verdict: ``better``, ``worse`` or ``no difference shown``, by the paired test; ``not measured`` where no
            question could be scored.
        sentence: Of the test.
        lower: Whether its mean is below that of no rewriting, whatever the test says.
    """

    verdict: str
    sentence: str
    lower: bool

    @property
    def warning(self) -> str | None:
        """What must be said of a rewriter that is no gain."""
        if self.verdict == "worse":
            return "WORSE than the question as it is written: do not use this rewriter"
        if self.lower:
            return "its mean is below that of the question as it is written"
        if self.verdict == "better":
            return None
        return "no gain over the question as it is written was shown"


def standing(found: Compared, metric: str, arm: str = TRAINED) -> Standing:
    """How an arm stands against no rewriting in a metric.

    Args:
        found: Arms on the same questions.
        metric: The one that was trained for.
        arm: Default the trained policy.
    """
    one = next((c for c in found.comparisons if c.metric == metric and c.arm == arm), None)
    if one is None or not one.test.n:
        return Standing("not measured", f"{metric}: no question was scored", lower=False)
    test = one.test
    shown = test.p_two_sided < ALPHA and test.difference != 0
    verdict = "no difference shown" if not shown else "better" if test.difference > 0 else "worse"
    return Standing(verdict, one.sentence, lower=test.difference < 0)


def _row(episode: Episode, metrics: Mapping[str, Metric]) -> Row:
    question, prediction = episode.question, episode.prediction
    if prediction is None:
        return Row(id=question.id, scores=dict.fromkeys(metrics, math.nan), failure=episode.error or "bug")
    example = question.to_example()
    ids = tuple(passage.id for passage in prediction.passages)
    return Row(
        id=question.id,
        scores={name: float(metric(example, prediction)) for name, metric in metrics.items()},
        label=usefulness(ids, question.evidence, jointly=question.jointly).label if question.evidence else None,
        passages=ids,
        queries=tuple((query.role, query.text) for query in prediction.queries),
        fallbacks=tuple(prediction.fallbacks),
    )


@dataclass(frozen=True, slots=True)
class RewardChecks:
    """What the completions of some episodes look like; each share is in [0, 1], and NaN-free: 0 of nothing is 0.

    Args:
        episodes: How many; those that failed are left out.
        empty: Share that searched for nothing.
        copied: Share whose every query is the question again.
        over_long: Share with a query of more than 120 characters.
        leaking: Share, of those with a known answer, with a query that names it where question and options do not.
        unreadable: Share of completions that could not be read.
        cut: Share of completions that were out of room.
        equal: Share that searched for just what was searched for another question.
        distinct_2: Distinct pairs of words of all queries, as a share of all pairs (Li et al. 2016, arXiv 1510.03055).
        words: Words of an episode's queries, in the mean.
    """

    episodes: int
    empty: float
    copied: float
    over_long: float
    leaking: float
    unreadable: float
    cut: float
    equal: float
    distinct_2: float
    words: float


def checked(episodes: Sequence[Episode]) -> RewardChecks:
    """Look at what was written."""
    through = [episode for episode in episodes if episode.prediction is not None]
    read = [text for episode in episodes for text in episode.read]
    ends = [one.ended for episode in episodes for one in episode.completions]
    known = [episode for episode in through if any(map(normalize_answer, episode.question.answers))]
    return RewardChecks(
        episodes=len(through),
        empty=_share(sum(not episode.queries for episode in through), len(through)),
        copied=_share(sum(map(_is_copied, through)), len(through)),
        over_long=_share(sum(any(len(q) > LONGEST_QUERY for q in one.queries) for one in through), len(through)),
        leaking=_share(sum(map(_leaks, known)), len(known)),
        unreadable=_share(read.count(None), len(read)),
        cut=_share(ends.count(False), len(ends)),
        equal=_share(_equal(through), len(through)),
        distinct_2=_distinct_2([query for episode in through for query in episode.queries]),
        words=_share(sum(len(query.split()) for one in through for query in one.queries), len(through)),
    )


def warnings(before: RewardChecks, after: RewardChecks) -> list[str]:
    """What got worse, in sentences; none where nothing did.

    Args:
        before: Of the model before reinforcement.
        after: Of the model after it, on the same questions.
    """
    said = []
    for name, meaning in _MEANINGS.items():
        one, two = getattr(before, name), getattr(after, name)
        if two - one > _RISE:
            what = "completions" if name in {"unreadable", "cut"} else "rewrites"
            said.append(f"{two:.0%} of the {what} {meaning} ({one:.0%} before)")
    if after.distinct_2 < _DROP * before.distinct_2:
        said.append(
            f"diversity fell: {after.distinct_2:.2f} of the pairs of words in queries are distinct "
            f"({before.distinct_2:.2f} before)"
        )
    if after.words > 2 * before.words > 0:
        said.append(f"queries grew to {after.words:.0f} words a question ({before.words:.0f} before)")
    return said


def _leaks(episode: Episode) -> bool:
    """Whether a query names the right answer, as whole words, and neither the question nor an option does.

    A model that knows the answer may search for it, which is no fraud; one that learnt the training answers by heart
    does so as well, and this tells that it should be looked at.
    """
    question = episode.question
    given = _spaced(" ".join([question.question, *question.options]))
    answers = [spaced for spaced in map(_spaced, question.answers) if spaced.strip() and spaced not in given]
    return any(answer in _spaced(query) for answer in answers for query in episode.queries)


def _distinct_2(texts: Sequence[str]) -> float:
    """Distinct pairs of neighbouring words, as a share of all pairs; 0 without any."""
    pairs = [pair for text in texts for pair in itertools.pairwise(normalize_answer(text).split())]
    return _share(len(set(pairs)), len(pairs))


def _is_copied(episode: Episode) -> bool:
    asked = normalize_answer(episode.question.question)
    return bool(episode.queries) and all(normalize_answer(query) == asked for query in episode.queries)


def _equal(episodes: Sequence[Episode]) -> int:
    """Episodes whose queries are those of another question as well."""
    found = [(frozenset(map(normalize_answer, one.queries)), one.question.id) for one in episodes if one.queries]
    askers = Counter(queries for queries, _ in set(found))
    return sum(askers[queries] > 1 for queries, _ in found)


def _spaced(text: str) -> str:
    return f" {normalize_answer(text)} "


def _share(count: float, total: float) -> float:
    return count / total if total else 0.0
