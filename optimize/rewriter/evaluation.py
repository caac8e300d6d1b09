"""The arms of a training, how they compare with the baseline, the guards, and the card in words.

A reward can rise without any rewriting: by copying the question, writing nothing, naming the answer, or writing the
same text for every question. None of it is forbidden; all of it is counted (``guards_of``) and reported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from querywright.answer_text import occurs_in, words
from querywright.data.types import Question
from querywright.metrics.dspy_metrics import Metric
from querywright.metrics.usefulness import usefulness
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.report import render
from querywright.optimize.results import NO_REWRITING
from querywright.optimize.rewriter.episodes import Episode
from querywright.optimize.significance import against, verdict_on
from querywright.optimize.tables import percent

UNTRAINED, TRAINED, IN_USE = "untrained", "trained", "trained, in use"
"""Arms: the policy before and after the training, and the rewriter as techniques run it."""

METRICS = ("exact_recovery@1", "recall@5", "ndcg@10", "decision_useful")
"""Metrics of every rewriter if evidence is labelled."""

DEEPEST = 10
"""Passages that the deepest of these metrics looks at."""

GUARDS: Mapping[str, str] = {
    "empty": "rewrites wrote no query",
    "copied": "rewrites only copied the question",
    "leaking": "rewrites named the right answer in a query, which the question does not",
    "unreadable": "completions could not be read",
    "equal": "rewrites were the same as for another question",
}
"""Shares that should not rise, and what they are shares of."""
_WARNINGS = {
    "loss": "WORSE than the question as it is written: do not use this rewriter",
    "no gain shown": "no gain over the question as it is written was shown",
}
_RISE = 0.1  # a share that rises by more than this is reported


def evaluation_of(name: str, episodes: Sequence[Episode], metrics: Mapping[str, Metric]) -> Evaluation:
    """Return episodes, one per question, as an arm of that name; a failed one is unscored."""
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


def compared(arms: Sequence[Evaluation], questions: Sequence[Question]) -> Comparison:
    """Compare all arms with the baseline, Holm-corrected within a metric."""
    return Comparison(tuple(arms), NO_REWRITING, tuple(against(arms, NO_REWRITING)), questions=tuple(questions))


def standing(found: Comparison, metric: str, arm: str = TRAINED) -> dict[str, str | None]:
    """Return how an arm compares with the baseline in a metric.

    Returns:
        ``verdict`` (``gain``, ``no gain shown``, ``loss``, or ``not measured`` if no question could be scored), the
        ``sentence`` of the paired test, and ``warning``, a sentence unless the verdict is a gain.
    """
    one = next((one for one in found.comparisons if (one.metric, one.arm) == (metric, arm)), None)
    if one is None or not one.test.n:
        sentence = f"{metric}: no question was scored"
        return {"verdict": "not measured", "sentence": sentence, "warning": _WARNINGS["no gain shown"]}
    word, _ = verdict_on({metric: one.test})
    lower = "; its mean is below" if word == "no gain shown" and one.test.difference < 0 else ""
    warning = _WARNINGS[word] + lower if word in _WARNINGS else None
    return {"verdict": word, "sentence": one.sentence, "warning": warning}


def guards_of(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the ``GUARDS`` of some episodes, each a share in [0, 1] (0 of nothing is 0).

    Failed episodes count for ``unreadable`` only, and episodes without a known answer do not count for ``leaking``.
    """
    through = [one for one in episodes if one.prediction is not None]
    known = [one for one in through if any(map(words, one.question.answers))]
    searched = [frozenset(tuple(words(query)) for query in one.queries) for one in through]
    both = list(zip(searched, through, strict=True))
    askers = Counter(queries for queries, _ in {(queries, one.question.id) for queries, one in both})
    return {
        "empty": _share(not one.queries for one in through),
        "copied": _share(queries == {tuple(words(one.question.question))} for queries, one in both),
        "leaking": _share(map(_leaks, known)),
        "unreadable": _share(text is None for one in episodes for text in one.read),
        "equal": _share(bool(queries) and askers[queries] > 1 for queries in searched),
    }


def warnings(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return a sentence for each guard that rose in the training."""
    return [
        f"{after[name]:.0%} of the {meaning} ({before[name]:.0%} before)"
        for name, meaning in GUARDS.items()
        if after[name] - before[name] > _RISE
    ]


def rewriter_card(name: str, card: Mapping[str, Any], measured: Mapping[str, Comparison]) -> str:
    """Return the README.md of a rewriter, from its folder's name, its ``card.json`` and its arms on dev and test."""
    learned = [f"`{one}`" for one in card["techniques"]]
    parts = [
        {
            "name": part,
            "metrics": (metrics := found.arm(found.baseline).metrics),
            "rows": [[one.name, len(one.rows), *(percent(one.mean(name)) for name in metrics)] for one in found.arms],
            "sentences": [one.sentence for one in found.comparisons if one.arm in (TRAINED, IN_USE)],
        }
        for part, found in measured.items()
    ]
    return render(
        "rewriter.md",
        name=name,
        card=card,
        learned=", ".join(learned),
        chosen=f" (chosen by `{card['technique']}`)" if len(learned) > 1 else "",
        said=[f"**{one['warning']}** ({part})." for part, one in card["standing"].items() if one["warning"]],
        parts=parts,
    )


def _leaks(episode: Episode) -> bool:
    """Return whether a query names the right answer, as whole words, and neither the question nor an option does.

    A model that knows the answer may search for it; a model that learned the training answers by heart does so too.
    """
    question = episode.question
    given = " ".join([question.question, *question.options])
    answers = [answer for answer in question.answers if not occurs_in(answer, given)]
    return any(occurs_in(answer, query) for answer in answers for query in episode.queries)


def _share(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0
