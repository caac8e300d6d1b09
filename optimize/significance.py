"""Compare programs with paired tests on the same questions, and state the verdict on a program chosen on dev."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from querywright.metrics.statistics import (
    PairedTest,
    holm,
    minimum_detectable,
    p_value,
    questions_needed,
    verdict,
)
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.results import PairedComparison, in_words

ALPHA = 0.05
"""Significance level of every two-sided test."""

Verdict = Literal["gain", "no gain shown", "loss", "baseline", "too few questions"]


def family(
    name: str, pairs: Sequence[tuple[str, str, str]], arms: Mapping[str, Evaluation], *, prefix: str = ""
) -> list[PairedComparison]:
    """Return comparisons that are Holm-corrected together.

    Args:
        name: Name of the family.
        pairs: Tuples of a metric, a program, and the program it is compared with. A pair without results is left out.
        arms: Results, keyed by the program's name.
        prefix: Text to put before each sentence.
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
        sentence = f"{prefix}{metric}: {verdict(result, a=in_words(a), b=in_words(b), alpha=ALPHA, tests=len(tests))}"
        comparisons.append(PairedComparison(name, metric, a, b, result, sentence))
    return comparisons


def against(arms: Sequence[Evaluation], baseline: str, *, prefix: str = "") -> list[PairedComparison]:
    """Compare every arm with the baseline on each of the baseline's metrics, Holm-corrected within a metric.

    The prefix is put before the name of each family and before each sentence.
    """
    by_name = {one.name: one for one in arms}
    return [
        comparison
        for metric in by_name[baseline].metrics
        for comparison in family(
            f"{prefix}{metric}", [(metric, name, baseline) for name in by_name if name != baseline], by_name,
            prefix=prefix,
        )
    ]  # fmt: skip


def verdict_rows(comparisons: Sequence[PairedComparison]) -> list[dict[str, str]]:
    """Return a row per comparison: the difference in points with its interval, won : lost, the Holm-corrected p, and,
    for 0/1 values, how many questions could show the observed difference.
    """
    tests, rows = Counter(one.family for one in comparisons), []
    for one in comparisons:
        test, alpha = one.test, ALPHA / tests[one.family]
        exact = test.method == "exact binomial" and test.n
        needed = questions_needed(test.wins, test.losses, test.n, alpha=alpha) if exact else None
        between = "" if math.isnan(test.low) else f" [{100 * test.low:+.0f}, {100 * test.high:+.0f}]"
        rows.append(
            {
                "arm": one.arm if one.other == comparisons[0].other else f"{one.arm}, against {one.other}",
                "metric": one.metric,
                "difference": ("-" if math.isnan(test.difference) else f"{100 * test.difference:+.1f}") + between,
                "won : lost": f"{test.wins} : {test.losses}",
                "p": p_value(test.p_two_sided, ALPHA).removeprefix("p ").removeprefix("= "),
                "questions needed": "-" if needed is None else f"{int(float(f'{needed:.2g}')):,}",
            }
        )
    return rows


def verdict_sentence(comparisons: Sequence[PairedComparison], programs: Mapping[str, str] | None = None) -> str:
    """Return the results of the comparisons as one sentence; empty if there are no comparisons.

    Args:
        comparisons: The comparisons.
        programs: By program name, the engine and knobs to name if the program is better. Default: none.
    """
    others = dict.fromkeys(one.other for one in comparisons)
    return "; ".join(
        _sentence_of([one for one in comparisons if one.other == other], programs or {}) for other in others
    )


def _sentence_of(comparisons: Sequence[PairedComparison], programs: Mapping[str, str]) -> str:
    """Return a phrase with the results of the comparisons with one arm."""
    better, worse = ([one for one in comparisons if is_shown(one.test, gain=gain)] for gain in (True, False))
    said = [
        f"{word} {in_words(found[0].other)}: {', '.join(_each_arm(found, named))}"
        for word, found, named in (("better than", better, programs), ("worse than", worse, {}))
        if found
    ]
    left = [one for one in comparisons if one not in better and one not in worse]
    if left:
        n, tests = max(one.test.n for one in left), max(Counter(one.family for one in comparisons).values())
        fewest = minimum_detectable(n, alpha=ALPHA / tests)
        least = "no lead" if fewest is None else f"only a lead of at least {fewest}:0"
        asked = "question" if n == 1 else "questions"
        many = f"{len(left)} of {len(comparisons)} comparisons" if len(comparisons) > 1 else "the comparison"
        said.append(f"no difference shown in {many} with {in_words(left[0].other)}: {n} {asked} can show {least}")
    return "; ".join(said)


def is_shown(test: PairedTest, *, gain: bool) -> bool:
    """Return whether a test shows a gain or a loss."""
    return test.p_two_sided < ALPHA and (test.difference > 0 if gain else test.difference < 0)


def _each_arm(found: Sequence[PairedComparison], programs: Mapping[str, str]) -> Iterator[str]:
    for arm in dict.fromkeys(one.arm for one in found):
        metrics = ", ".join(one.metric for one in found if one.arm == arm)
        yield f"{arm} ({'; '.join(filter(None, [metrics, programs.get(arm)]))})"


def verdict_on(tests: Mapping[str, PairedTest], program: str = "") -> tuple[Verdict, str]:
    """Return the verdict from test on a program that was chosen on dev: one word, and a sentence with figures.

    Args:
        tests: The comparisons with the baseline by metric, with corrected p-values.
        program: The program, with its engine and knobs. Default: not named.
    """
    gain, loss = (any(is_shown(test, gain=better) for test in tests.values()) for better in (True, False))
    word: Verdict = "loss" if loss else "gain" if gain else "no gain shown"
    said = {
        "gain": "is better than",
        "no gain shown": "shows no significant gain over",
        "loss": "is worse than",
    }[word]
    told = "; ".join(f"{metric}: {figures(test)}" for metric, test in tests.items())
    chosen = f"the program chosen on dev{f' ({program})' if program else ''}"
    return word, f"On test, {chosen} {said} the baseline ({told or 'no question could be scored'})"


def figures(test: PairedTest) -> str:
    """Return a paired test in words, such as ``6 won, 0 lost of 6, p = .031``."""
    return f"{test.wins} won, {test.losses} lost of {test.n}, {p_value(test.p_two_sided, ALPHA)}"
