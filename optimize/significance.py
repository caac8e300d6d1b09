"""Paired comparisons of arms on the same questions, whichever way they fall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from querywright.metrics.statistics import holm, verdict
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.results import Comparison

ALPHA = 0.05
"""Level of every two-sided test."""


def family(
    name: str, pairs: Sequence[tuple[str, str, str]], arms: Mapping[str, Evaluation], *, prefix: str = ""
) -> list[Comparison]:
    """Comparisons that are Holm-corrected together.

    Args:
        name: Of the family.
        pairs: Metric, arm, and the arm it is held against; a pair that cannot be compared is left out.
        arms: Results by arm.
        prefix: Stands before each sentence.
    """
    tests = [
        (metric, a, b, arms[a].against(arms[b], metric))
        for metric, a, b in pairs
        if a in arms and b in arms and metric in arms[a].metrics
    ]
    corrected = holm([test.p_two_sided for *_, test in tests])
    comparisons = []
    for (metric, a, b, raw), p in zip(tests, corrected, strict=True):
        result = replace(raw, p_two_sided=p)
        sentence = f"{prefix}{metric}: {verdict(result, a=a, b=b, alpha=ALPHA, tests=len(tests))}"
        comparisons.append(Comparison(name, metric, a, b, result, sentence))
    return comparisons


def against(arms: Sequence[Evaluation], baseline: str) -> list[Comparison]:
    """Every arm against the baseline in every metric of the baseline; Holm-corrected within a metric.

    Args:
        arms: Results on the same questions.
        baseline: Name of one of them.
    """
    by_name = {one.name: one for one in arms}
    return [
        comparison
        for metric in by_name[baseline].metrics
        for comparison in family(
            metric, [(metric, name, baseline) for name in by_name if name != baseline], by_name
        )
    ]  # fmt: skip
