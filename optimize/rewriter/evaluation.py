"""The arms of a training: episodes as results, how they stand against no rewriting, and what guards look at.

A reward can be raised by what is no rewriting at all: copying the question, writing nothing, naming the answer, or the
same text whatever is asked. None of it is forbidden; all of it is counted (``guards_of``) and reported.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from querywright.answer_text import occurs_in, words
from querywright.data.types import Question
from querywright.metrics.dspy_metrics import Metric
from querywright.metrics.usefulness import usefulness
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import NO_REWRITING
from querywright.optimize.rewriter.episodes import Episode
from querywright.optimize.significance import against, verdict_on
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

SHARES: Mapping[str, str] = {
    "empty": "rewrites wrote no query",
    "copied": "rewrites only copied the question",
    "over_long": "rewrites wrote a query longer than is searched well",
    "leaking": "rewrites named the right answer in a query, which the question does not",
    "unreadable": "completions could not be read",
    "cut": "completions did not end by themselves",
    "equal": "rewrites were the same as for another question",
}
"""The guards that are shares which should not rise, and what they are shares of."""
_WARNINGS = {
    "loss": "WORSE than the question as it is written: do not use this rewriter",
    "no gain shown": "no gain over the question as it is written was shown",
}
_RISE = 0.1  # a share that rose by more than this is warned of
_DROP = 0.5  # diversity that fell below this part of what it was is warned of


def evaluation_of(name: str, episodes: Sequence[Episode], metrics: Mapping[str, Metric]) -> Evaluation:
    """Episodes, one a question, as an arm of that name; a failed one is unscored."""
    return Evaluation(name, tuple(_row(one, metrics) for one in episodes), 0.0)


def _row(episode: Episode, metrics: Mapping[str, Metric]) -> Row:
    question, prediction = episode.question, episode.prediction
    if prediction is None:
        return Row(id=question.id, scores=dict.fromkeys(metrics, math.nan), failure=episode.error or "bug")
    example = question.to_example()
    ids = tuple(passage.id for passage in prediction.passages)
    return Row(
        id=question.id,
        scores={name: float(metric(example, prediction)) for name, metric in metrics.items()},
        label=usefulness(ids, question.evidence, jointly=question.jointly, alternatives=question.alternatives).label,
        passages=ids,
        queries=tuple((query.role, query.text) for query in prediction.queries),
        fallbacks=tuple(prediction.fallbacks),
    )


def compared(arms: Sequence[Evaluation], questions: Sequence[Question]) -> Compared:
    """All arms against no rewriting, Holm-corrected within a metric."""
    return Compared(tuple(arms), NO_REWRITING, tuple(against(arms, NO_REWRITING)), questions=tuple(questions))


def standing(found: Compared, metric: str, arm: str = TRAINED) -> dict[str, str | None]:
    """How an arm, the trained policy by default, stands against no rewriting in a metric.

    Returns:
        ``verdict`` (``gain``, ``no gain shown``, ``loss``, or ``not measured`` where no question could be scored), the
        ``sentence`` of the paired test, and ``warning``: what must be said of one that is no gain, or None.
    """
    one = next((one for one in found.comparisons if (one.metric, one.arm) == (metric, arm)), None)
    if one is None or not one.test.n:
        sentence = f"{metric}: no question was scored"
        return {"verdict": "not measured", "sentence": sentence, "warning": _WARNINGS["no gain shown"]}
    word, _ = verdict_on({metric: one.test})
    lower = "; its mean is below" if word == "no gain shown" and one.test.difference < 0 else ""
    return {
        "verdict": word,
        "sentence": one.sentence,
        "warning": _WARNINGS[word] + lower if word in _WARNINGS else None,
    }


def guards_of(episodes: Sequence[Episode]) -> dict[str, float]:
    """What the completions of some episodes look like.

    Returns:
        Shares in [0, 1], where 0 of nothing is 0: of the episodes that did not fail those that searched for nothing
        (``empty``), whose every query is the question again (``copied``), with a query of more than 120 characters
        (``over_long``), of those with a known answer those with a query that names it where question and options do not
        (``leaking``), and those that searched for just what was searched for another question (``equal``); of the
        completions those that could not be read (``unreadable``) and were out of room (``cut``); and of all pairs of
        neighbouring words of the queries those that are distinct (``distinct_2``, Li et al. 2016, arXiv 1510.03055).
        Besides the number of ``episodes``, and the ``words`` of an episode's queries in the mean.
    """
    through = [one for one in episodes if one.prediction is not None]
    known = [one for one in through if any(map(words, one.question.answers))]
    searched = [frozenset(tuple(words(query)) for query in one.queries) for one in through]
    both = list(zip(searched, through, strict=True))
    askers = Counter(queries for queries, _ in {(queries, one.question.id) for queries, one in both})
    texts = [words(query) for one in through for query in one.queries]
    pairs = [pair for text in texts for pair in itertools.pairwise(text)]
    return {
        "episodes": len(through),
        "empty": _share(not one.queries for one in through),
        "copied": _share(queries == {tuple(words(one.question.question))} for queries, one in both),
        "over_long": _share(any(len(query) > LONGEST_QUERY for query in one.queries) for one in through),
        "leaking": _share(map(_leaks, known)),
        "unreadable": _share(text is None for one in episodes for text in one.read),
        "cut": _share(not one.ended for episode in episodes for one in episode.completions),
        "equal": _share(bool(queries) and askers[queries] > 1 for queries in searched),
        "distinct_2": len(set(pairs)) / max(1, len(pairs)),
        "words": _share(sum(len(query.split()) for query in one.queries) for one in through),
    }


def warnings(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """What of these guards got worse by reinforcement, in sentences; none where nothing did."""
    said = [
        f"{after[name]:.0%} of the {meaning} ({before[name]:.0%} before)"
        for name, meaning in SHARES.items()
        if after[name] - before[name] > _RISE
    ]
    if after["distinct_2"] < _DROP * before["distinct_2"]:
        said.append(
            f"diversity fell: {after['distinct_2']:.2f} of the pairs of words in queries are distinct "
            f"({before['distinct_2']:.2f} before)"
        )
    if after["words"] > 2 * before["words"] > 0:
        said.append(f"queries grew to {after['words']:.0f} words a question ({before['words']:.0f} before)")
    return said


def _leaks(episode: Episode) -> bool:
    """Whether a query names the right answer, as whole words, and neither the question nor an option does.

    A model that knows the answer may search for it, which is no fraud; one that learnt the training answers by heart
    does so as well, and this tells that it should be looked at.
    """
    question = episode.question
    given = " ".join([question.question, *question.options])
    answers = [answer for answer in question.answers if not occurs_in(answer, given)]
    return any(occurs_in(answer, query) for answer in answers for query in episode.queries)


def _share(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0
