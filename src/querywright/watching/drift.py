"""Whether traffic still looks like the questions that a program was compiled on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from statistics import pstdev
from typing import Any, Literal

from querywright.errors import BudgetError, OutageError
from querywright.metrics.statistics import holm, p_value
from querywright.optimize.artifacts.watchers import Exchange, exchange_of
from querywright.watching.measures import LEAST, Embed, Measure, detectable, far, options, scores, shares
from querywright.watching.traffic import HASHED

ALPHA = 0.05
MOST = 2_000
"""Distinct questions of a side that are compared, the newest ones."""
_DETOUR = 1.07
"""How much larger a shift must be for Anderson-Darling to find it than for the t-test; measured, on normal values."""
_GIVEN_UP = frozenset({"CancelledError", "KeyboardInterrupt", "GeneratorExit"})
"""Errors of a question that whoever asked it did not wait for; they say nothing of the program."""
_MISTAKEN = frozenset({"TechniqueError"})
"""Errors of a question that could not be asked so, as a blank one; they say nothing of the program either. A plain
InputError does: a retriever or a reranker gave what is no answer."""
_OF_THE_READER = frozenset({"reader"})
BEST, FAR, PASSAGES, FELL_BACK, DECLINED, FAILED = (
    "best score",
    "far questions",
    "passages",
    "fell back",
    "declined",
    "failed",
)

Verdict = Literal["none", "drift", "too_few"]


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
        measures = [{**asdict(one), "difference": one.difference} for one in self.measures]
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "requests": self.requests,
            "questions": self.questions,
            "reference_questions": self.reference,
            "alpha": ALPHA,
            "measures": measures,
        }


def find_drift(
    traffic: Sequence[Exchange], reference: Sequence[Exchange], *, embed: Embed | None = None, seed: int = 0
) -> Drift:
    """Compare traffic with what the program does with the questions it was compiled on.

    A question that was asked again counts once, as it went the last time: requests that repeat each other are not so
    many independent ones. Compared are the best retrieval score, the distance of the questions (where ``embed`` is
    given and texts were kept), the number of passages, and the shares that fell back, were declined and failed, and
    which option was the answer. P-values are Holm-corrected over all that could differ at all, so that where nothing
    changed something is shown at most once in twenty times.

    Args:
        traffic: What was recorded, oldest first.
        reference: The same for the questions of training, or for earlier traffic. Where it has no answers, what the
            reader does is left out.
        embed: Makes the vectors by which the collection is searched. Default: distances are left out.
        seed: Of the tests. Default 0.
    """
    ours, theirs = distinct(traffic), distinct(reference)
    measures = _corrected(_measures(ours, theirs, embed, seed))
    verdict, sentence = _verdict(measures, ours, theirs)
    return Drift(verdict, sentence, tuple(measures), len(traffic), len(ours), len(theirs))


def distinct(traffic: Sequence[Exchange]) -> list[Exchange]:
    """Each question once, as it went the last time that it was waited for, and of these the newest.

    A question that was answered and then only searched for counts as it was answered.
    """
    last: dict[tuple[str, ...], Exchange] = {}
    for one in (one for one in traffic if one.error not in _GIVEN_UP | _MISTAKEN):
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
    through, others = _answered(ours), _answered(theirs)
    read, read_too = _read(through), _read(others)
    ignored = frozenset[str]() if read_too or not read else _OF_THE_READER

    def fell_back(one: Exchange) -> bool:
        return bool(set(one.fallbacks) - ignored)

    found = [scores(BEST, _best(through), _best(others), seed=seed)] if _best([*through, *others]) else []
    if embed is not None:
        found.append(_far(ours, theirs, embed, seed))
    found.append(scores(PASSAGES, [one.n_passages for one in through], [one.n_passages for one in others], seed=seed))
    found.append(shares(FELL_BACK, [fell_back(one) for one in through], [fell_back(one) for one in others]))
    if read and read_too:
        found.append(shares(DECLINED, [one.declined for one in read], [one.declined for one in read_too]))
        chosen = options(read, read_too, seed=seed)
        found += [] if chosen is None else [chosen]
    found.append(shares(FAILED, [one.error is not None for one in ours], [one.error is not None for one in theirs]))
    return found


def _answered(traffic: Sequence[Exchange]) -> list[Exchange]:
    return [one for one in traffic if one.error is None]


def _read(traffic: Sequence[Exchange]) -> list[Exchange]:
    return [one for one in traffic if one.answer is not None]


def _best(traffic: Sequence[Exchange]) -> list[float]:
    return [max(one.top_scores) for one in traffic if one.top_scores]


def _far(ours: Sequence[Exchange], theirs: Sequence[Exchange], embed: Embed, seed: int) -> Measure:
    if any(one.question.startswith(HASHED) for one in (*ours, *theirs)):
        return Measure(FAR, "share", len(ours), len(theirs), note="the texts of the questions were not kept")
    return far(
        list(dict.fromkeys(one.question for one in ours)),
        list(dict.fromkeys(one.question for one in theirs)),
        embed,
        seed=seed,
    )


def _corrected(measures: Sequence[Measure]) -> list[Measure]:
    adjusted = holm([one.p for one in measures])
    return [replace(one, p_holm=p) for one, p in zip(measures, adjusted, strict=True)]


def _verdict(measures: Sequence[Measure], ours: Sequence[Exchange], theirs: Sequence[Exchange]) -> tuple[Verdict, str]:
    few = too_few(len(ours), len(theirs))
    if few:
        return "too_few", few
    sides = f"{len(ours)} distinct questions of traffic, {len(theirs)} of the reference"
    shown = sorted((one for one in measures if one.p_holm < ALPHA), key=lambda one: one.p_holm)
    if not shown:
        return "none", f"nothing shown: {sides}{_could_have_been(measures, ours, theirs)}"
    facts = "; ".join(_fact(one) for one in shown)
    if {one.name for one in shown} == {FAILED}:
        return "drift", f"drift shown: {facts} ({sides}): look at the LM first, compiling again mends no failures"
    return "drift", f"drift shown: {facts} ({sides}): label recorded traffic and compile again with it"


def _fact(one: Measure) -> str:
    """What differs, in words."""
    p = p_value(one.p_holm, ALPHA)
    if one.kind == "share":
        return f"{one.name} {100 * one.value:.1f} %, was {100 * one.reference:.1f} % ({p})"
    if one.low <= 0 <= one.high:
        return f"{one.name} spread otherwise around {one.value:.3f}, was {one.reference:.3f} ({p})"
    return f"{one.name} {one.value:.3f} on average, was {one.reference:.3f} ({p})"


def _could_have_been(measures: Sequence[Measure], ours: Sequence[Exchange], theirs: Sequence[Exchange]) -> str:
    """The change of the best score that would have been found, so that nothing shown is not taken for nothing there."""
    best = next((one for one in measures if one.name == BEST and not math.isnan(one.p)), None)
    if best is None:
        return ""
    tests = sum(not math.isnan(one.p) for one in measures)
    spread = pstdev(_best(_answered([*ours, *theirs])))
    shift = _DETOUR * spread * detectable(best.n, best.n_reference, alpha=ALPHA / tests)
    return f"; a best score that is {shift:.3f} lower or higher would have been found four times in five"


def recorded_now(
    ask: Callable[[str, list[str] | None], Any],
    questions: Sequence[Any],
    *,
    artifact: str,
    threads: int = 4,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Exchange]:
    """Ask a program some questions now, and give what a watcher would have recorded.

    Args:
        ask: The program, or its ``retrieve``.
        questions: Questions (``data.types.Question``).
        artifact: Id of the program.
        threads: Questions under way at a time. Default 4.
        progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        OutageError: The LM failed too often in a row.
        BudgetError: The limit of LM calls is reached.
        Exception: Every question failed; the first one's error.
    """
    from querywright.optimize.pool import bounded_map

    done = 0

    def ended(place: int, result: Any) -> None:
        nonlocal done
        done += 1
        if isinstance(result, OutageError | BudgetError):
            raise result
        if progress is not None:
            progress("reference", done, len(questions))

    def work(question: Any) -> Any:
        return ask(question.question, list(question.options) or None)

    results = bounded_map(work, questions, threads=threads, on_done=ended)
    failed = [result for result in results if isinstance(result, Exception)]
    if failed and len(failed) == len(results):  # that is no rate of failures, but something is wrong here and now
        raise failed[0]
    now = datetime.now(UTC).isoformat()
    return [
        exchange_of(
            None if isinstance(result, Exception) else result,
            at=now,
            artifact=artifact,
            question=question.question,
            options=question.options,
            error=result if isinstance(result, Exception) else None,
        )
        for question, result in zip(questions, results, strict=True)
    ]
