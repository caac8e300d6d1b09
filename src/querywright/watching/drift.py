"""Whether traffic still looks like the questions that a program was compiled on: measures, their tests, the verdict."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from querywright.errors import BudgetError, OutageError
from querywright.metrics.statistics import holm, p_value, wilson_interval
from querywright.models.embedder import Vectors
from querywright.optimize.artifacts.watchers import Exchange, exchange_of
from querywright.watching.traffic import HASHED

ALPHA = 0.05
CONFIDENCE = 0.95
LEAST = 30
"""Questions that a side needs at least: fewer say too little of a distribution."""
MOST = 2_000
"""Distinct questions of a side that are compared, the newest ones."""
MOST_EMBEDDED = 500
"""Questions of a side that are embedded; the test of more would take minutes and show no more that matters."""
FAR_SHARE = 0.05
"""Share of the reference that counts as far."""
BEST, FAR, PASSAGES, FELL_BACK, DECLINED, FAILED = (
    "best score",
    "far questions",
    "passages",
    "fell back",
    "declined",
    "failed",
)

_DRAWS = 999  # of a permutation test: the smallest p-value is 0.001, which six tests at once leave below 0.05
# A question that nobody waited for, or that could not be asked so (as a blank one), says nothing of the program. A
# plain InputError does: a retriever or a reranker gave what is no answer.
_SAYS_NOTHING = frozenset({"CancelledError", "KeyboardInterrupt", "GeneratorExit", "TechniqueError"})

Embed = Callable[[Sequence[str]], Vectors]
Verdict = Literal["none", "drift", "too_few"]


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that was compared, traffic against reference; NaN where there is no number.

    Args:
        kind: ``score`` (a mean) or ``share`` (of questions).
        low: Lower end of the difference's 95 % interval.
        p: Probability of such a difference if there were none; ``p_holm`` is corrected for all that was tested.
        note: Why it was not tested.
    """

    name: str
    kind: Literal["score", "share"]
    n: int
    n_reference: int
    value: float = math.nan
    reference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    method: str = ""
    note: str = ""
    p_holm: float = math.nan

    @property
    def difference(self) -> float:
        """The traffic's value less that of the reference."""
        return self.value - self.reference


@dataclass(frozen=True, slots=True)
class Drift:
    """What a comparison of traffic with a reference shows.

    Args:
        verdict: ``none`` (nothing shown), ``drift`` or ``too_few``.
        sentence: The verdict in words, with the reason.
        measures: What was compared.
        requests: Requests of the traffic.
        questions: Distinct questions among them that were compared.
        reference: Distinct questions of the reference.
    """

    verdict: Verdict
    sentence: str
    measures: tuple[Measure, ...]
    requests: int
    questions: int
    reference: int

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data; NaN where there is no number."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "requests": self.requests,
            "questions": self.questions,
            "reference_questions": self.reference,
            "alpha": ALPHA,
            "measures": [{**asdict(one), "difference": one.difference} for one in self.measures],
        }


def find_drift(
    traffic: Sequence[Exchange], reference: Sequence[Exchange], *, embed: Embed | None = None, seed: int = 0
) -> Drift:
    """Compare traffic with what the program does with the questions it was compiled on.

    A question that was asked again counts once, as it went the last time: requests that repeat each other are not so
    many independent ones. Compared are the best retrieval score, the distance of the questions (where ``embed`` is
    given and texts were kept), the number of passages, and the shares that fell back, were declined and failed.
    P-values are Holm-corrected over all that could differ at all, so that where nothing
    changed something is shown at most once in twenty times.

    Args:
        traffic: What was recorded, oldest first.
        reference: The same for the questions of training, or for earlier traffic. Where it has no answers, what the
            reader does is left out.
        embed: Makes the vectors by which the collection is searched. Default: distances are left out.
        seed: Of the tests. Default 0.
    """
    ours, theirs = distinct(traffic), distinct(reference)
    measures = _measures(ours, theirs, embed, seed)
    corrected = holm([one.p for one in measures])
    measures = [replace(one, p_holm=p) for one, p in zip(measures, corrected, strict=True)]
    verdict, sentence = _verdict(measures, ours, theirs)
    return Drift(verdict, sentence, tuple(measures), len(traffic), len(ours), len(theirs))


def distinct(traffic: Sequence[Exchange]) -> list[Exchange]:
    """Each question once, as it went the last time that it was waited for, and of these the newest.

    A question that was answered and then only searched for counts as it was answered.
    """
    last: dict[tuple[str, ...], Exchange] = {}
    for one in (one for one in traffic if one.error not in _SAYS_NOTHING):
        before = last.pop(one.key, one)
        only_searched = one.answer is None and one.error is None
        last[one.key] = before if only_searched and before.answer is not None else one
    return list(last.values())[-MOST:]


def too_few(questions: int, reference: int) -> str:
    """Why so many distinct questions tell nothing; empty where they can."""
    sides = {"the traffic has": questions, "the reference has": reference}
    lacking = " and ".join(f"{side} {count}" for side, count in sides.items() if count < LEAST)
    return f"too few distinct questions to tell: {lacking}, and {LEAST} are needed" if lacking else ""


def _measures(ours: Sequence[Exchange], theirs: Sequence[Exchange], embed: Embed | None, seed: int) -> list[Measure]:
    sides = (ours, theirs)
    through = [[one for one in side if one.error is None] for side in sides]
    read, read_too = ([one for one in side if one.answer is not None] for side in through)
    ignored = {"reader"} if read and not read_too else set[str]()

    def each(what: Callable[[Exchange], Any], of: Sequence[Sequence[Exchange]] = through) -> list[list[Any]]:
        return [[what(one) for one in side] for side in of]

    best = [_best(side) for side in through]
    found = [scores(BEST, *best, seed=seed)] if any(best) else []
    if embed is not None:
        found.append(_far(ours, theirs, embed, seed))
    found.append(scores(PASSAGES, *each(lambda one: one.n_passages), seed=seed))
    found.append(shares(FELL_BACK, *each(lambda one: bool(set(one.fallbacks) - ignored))))
    if read and read_too:
        found.append(shares(DECLINED, *each(lambda one: one.declined, (read, read_too))))
    return [*found, shares(FAILED, *each(lambda one: one.error is not None, sides))]


def _best(traffic: Sequence[Exchange]) -> list[float]:
    return [max(one.top_scores) for one in traffic if one.top_scores]


def _far(ours: Sequence[Exchange], theirs: Sequence[Exchange], embed: Embed, seed: int) -> Measure:
    if any(one.question.startswith(HASHED) for one in (*ours, *theirs)):
        return Measure(FAR, "share", len(ours), len(theirs), note="the texts of the questions were not kept")
    asked, known = (list(dict.fromkeys(one.question for one in side)) for side in (ours, theirs))
    return far(asked, known, embed, seed=seed)


def _verdict(measures: Sequence[Measure], ours: Sequence[Exchange], theirs: Sequence[Exchange]) -> tuple[Verdict, str]:
    few = too_few(len(ours), len(theirs))
    if few:
        return "too_few", few
    sides = f"{len(ours)} distinct questions of traffic, {len(theirs)} of the reference"
    shown = sorted((one for one in measures if one.p_holm < ALPHA), key=lambda one: one.p_holm)
    if shown:
        remedy = "label recorded traffic and compile again with it"
        if {one.name for one in shown} == {FAILED}:
            remedy = "look at the LM first, compiling again mends no failures"
        return "drift", f"drift shown: {'; '.join(map(_fact, shown))} ({sides}): {remedy}"
    return "none", f"nothing shown: {sides}"


def _fact(one: Measure) -> str:
    """What differs, in words."""
    p = p_value(one.p_holm, ALPHA)
    if one.kind == "share":
        return f"{one.name} {100 * one.value:.1f} %, was {100 * one.reference:.1f} % ({p})"
    how = "spread otherwise around {}, was {}" if one.low <= 0 <= one.high else "{} on average, was {}"
    return f"{one.name} {how.format(f'{one.value:.3f}', f'{one.reference:.3f}')} ({p})"


def scores(name: str, traffic: Sequence[float], reference: Sequence[float], *, seed: int = 0) -> Measure:
    """Two samples of numbers: means, Welch's interval, the Anderson-Darling test by permutation."""
    n, m = len(traffic), len(reference)
    made = Measure(name, "score", n, m, _mean(traffic), _mean(reference))
    if min(n, m) < LEAST:
        return replace(made, note=_lacking(n, m))
    if len({*traffic, *reference}) == 1:
        return replace(made, low=0.0, high=0.0, note="all of them are equal")
    from scipy import stats

    with warnings.catch_warnings():  # where all of one side are equal
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = stats.ttest_ind(traffic, reference, equal_var=False).confidence_interval(CONFIDENCE)
    drawn = stats.PermutationMethod(n_resamples=_DRAWS, rng=np.random.default_rng(seed))
    found: Any = stats.anderson_ksamp([traffic, reference], variant="right", method=drawn)
    return replace(made, low=float(low), high=float(high), p=float(found.pvalue), method="Anderson-Darling")


def shares(name: str, traffic: Sequence[bool], reference: Sequence[bool]) -> Measure:
    """Two samples of yes and no: shares, Newcombe's interval, Fisher's exact test."""
    n, m, hits, others = len(traffic), len(reference), sum(traffic), sum(reference)
    if min(n, m) < LEAST:
        return _share(name, n, m, _mean(traffic), _mean(reference))
    if hits + others in (0, n + m):
        return _share(name, n, m, hits / n, others / m, note=f"it is {'every' if hits else 'no'} question of both")
    from scipy.stats import fisher_exact

    exact: Any = fisher_exact(np.array([[hits, n - hits], [others, m - others]]))
    return _share(name, n, m, hits / n, others / m, p=min(1.0, float(exact.pvalue)), method="Fisher")


def far(traffic: Sequence[str], reference: Sequence[str], embed: Embed, *, seed: int = 0) -> Measure:
    """Questions that are farther from every question of the reference than 95 % of these are from one another.

    The test draws anew which of all the vectors are the reference, one-sided.
    """
    n, m = len(traffic), len(reference)
    if min(n, m) < LEAST:
        return Measure(FAR, "share", n, m, note=_lacking(n, m))
    generator = np.random.default_rng(seed)
    texts = []
    for side in (list(traffic), list(reference)):
        chosen = generator.choice(len(side), min(len(side), MOST_EMBEDDED), replace=False)
        texts.append([side[place] for place in sorted(chosen)])
    n, m = map(len, texts)
    rows = np.asarray(embed([*texts[0], *texts[1]]), dtype=np.float32)
    vectors = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    near = vectors @ vectors.T
    np.fill_diagonal(near, -np.inf)
    cut = math.floor(FAR_SHARE * m)

    def share(mine: NDArray[np.int64], given: NDArray[np.int64]) -> float:
        """Of the vectors at some places, those that are farther than the cut from all at other places."""
        inside = np.sort(near[np.ix_(given, given)].max(axis=1))
        return float((near[np.ix_(mine, given)].max(axis=1) < inside[cut]).mean())

    from scipy.stats import permutation_test

    sides = (np.arange(n), np.arange(n, n + m))
    rng = np.random.default_rng(seed)
    drawn = permutation_test(sides, share, vectorized=False, n_resamples=_DRAWS, alternative="greater", rng=rng)
    p = float(drawn.pvalue)
    return _share(FAR, n, m, float(drawn.statistic), cut / m, p=p, method="permutation, one-sided")


def _share(name: str, n: int, m: int, value: float, reference: float, **told: Any) -> Measure:
    """A measure of two shares; without interval where a side has too few questions."""
    made = Measure(name, "share", n, m, value, reference)
    if min(n, m) < LEAST:
        return replace(made, note=_lacking(n, m))
    low, high = newcombe(value, n, reference, m)
    return replace(made, low=low, high=high, **told)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _lacking(n: int, m: int) -> str:
    side, count = ("the traffic", n) if n < LEAST else ("the reference", m)
    return f"too few: {side} has {count}, {LEAST} are needed"


def newcombe(a: float, n: int, b: float, m: int) -> tuple[float, float]:
    """The 95 % interval of the difference a - b of two shares of n and m, from Wilson's intervals of each.

    Source: Newcombe 1998, Statistics in Medicine 17(8), 873-890, method 10.
    """
    (low_a, high_a), (low_b, high_b) = (wilson_interval(s, k, confidence=CONFIDENCE) for s, k in ((a, n), (b, m)))
    return a - b - math.hypot(a - low_a, high_b - b), a - b + math.hypot(high_a - a, b - low_b)


def recorded_now(
    ask: Callable[..., Any],
    questions: Sequence[Any],
    *,
    artifact: str,
    threads: int = 4,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Exchange]:
    """Ask a program some questions now, and give what a watcher would have recorded.

    Raises:
        OutageError: The LM failed too often in a row.
        BudgetError: The limit of LM calls is reached.
        Exception: Every question failed; the first one's error.
    """
    from querywright.pool import bounded_map

    done = 0

    def ended(place: int, result: Any) -> None:
        nonlocal done
        done += 1
        if isinstance(result, OutageError | BudgetError):
            raise result
        if progress is not None:
            progress("reference", done, len(questions))

    def work(question: Any) -> Any:
        return ask(**question.inputs | {"options": list(question.options) or None})

    results = bounded_map(work, questions, threads=threads, on_done=ended)
    failed = [result for result in results if isinstance(result, Exception)]
    if failed and len(failed) == len(results):  # that is no rate of failures, but something is wrong here and now
        raise failed[0]
    given: dict[str, Any] = {"at": datetime.now(UTC).isoformat(), "artifact": artifact}
    exchanges = []
    for question, result in zip(questions, results, strict=True):
        error = result if isinstance(result, Exception) else None
        made = None if error is not None else result
        exchanges.append(exchange_of(made, **question.inputs, error=error, **given))
    return exchanges
