"""What dev decides: the best arm, the front, and how much of the best one's lead is luck."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from querywright.errors import QuerywrightError
from querywright.metrics.statistics import PairedTest
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.selection import beats, best_of, paired
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.prune import scores
from querywright.optimize.study.status import front
from querywright.optimize.study.types import TrialRecord

FEWEST = 6
"""Questions without which no exact test can show anything at the level of 5 per cent, even if all were won."""

RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Corrected:
    """The best value on dev without the luck of having been chosen there.

    Args:
        dev: The value as it was measured.
        corrected: What an arm that is chosen on a resample of the questions gets on those left out of it, on average.
        arms: Arms that were chosen from.
        n: Questions.
    """

    dev: float
    corrected: float
    arms: int
    n: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """What dev decides.

    Args:
        plain: No rewriting, with the reader of the best arm.
        best: The best other arm, plain retrieval with other knobs among them; None where none was complete.
        winner: ``best`` where it beats no rewriting, else no rewriting.
        front: Arms that no other beats in all objectives, the first objective's best first.
        corrected: The winner's curse of the best arm.
        test: The best arm against no rewriting, on the dev questions that both scored.
        too_few: Why no arm is crowned although one was ahead; empty where questions suffice.
        values: The first objective of the best arm and of no rewriting on the dev questions that both scored; NaN
            where there is none.
    """

    plain: TrialRecord
    best: TrialRecord | None
    winner: TrialRecord
    front: tuple[TrialRecord, ...]
    corrected: Corrected | None
    test: PairedTest | None
    too_few: str = ""
    values: tuple[float, float] = (math.nan, math.nan)


def choose(trials: Sequence[TrialRecord], objectives: Sequence[Objective], n_test: int) -> Chosen:
    """The best arm by the first objective, out of the front where there are several.

    Args:
        trials: Of the study.
        objectives: Its objectives; the first is one of quality.
        n_test: Questions of the test.

    Raises:
        QuerywrightError: No rewriting could not be scored, so nothing can be held against it.
    """
    complete = [one for one in trials if one.state == "complete"]
    distinct = list({one.arm.key: one for one in complete[::-1] if one.arm is not None}.values())[::-1]
    plains = [one for one in distinct if _is_no_rewriting(one, complete)]
    rivals = [one for one in distinct if one not in plains]
    if not plains:
        raise QuerywrightError(
            "no rewriting has no result, so nothing can be chosen; `querywright study status` tells of trial 0"
        )
    first = objectives[0]
    kept = pareto(distinct, objectives)
    others = [one for one in rivals if one in kept] if len(objectives) > 1 else []
    best = _best(others or rivals, first)
    plain = _like(best, plains)
    winner, test, values = plain, None, (math.nan, math.nan)
    if best is not None:
        one, other = _Tried(best), _Tried(plain)
        winner = best if beats(one, other, first.name) else plain
        mine, theirs = paired(one, other, first.name)
        values = first.value(mine), first.value(theirs)
        test = mine.against(theirs, first.metrics[0]) if mine.rows else None
    too_few = ""
    n_dev = len(scores(plain.dev, first)) if plain.dev is not None else 0
    if winner is not plain and min(n_dev, n_test) < FEWEST:
        too_few = (
            f"{n_dev} dev and {n_test} test questions are too few to crown an arm: with fewer than {FEWEST} no test "
            "can show a difference"
        )
        winner = plain
    return Chosen(plain, best, winner, tuple(kept), winners_curse(distinct, first), test, too_few, values)


@dataclass(frozen=True, slots=True)
class _Tried:
    """A trial that ended, as selection looks at it."""

    record: TrialRecord

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def dev(self) -> Evaluation:
        assert self.record.dev is not None
        return self.record.dev


def _is_no_rewriting(record: TrialRecord, complete: Sequence[TrialRecord]) -> bool:
    """Whether an arm is what all are held against: plain retrieval with the knobs of the first such arm.

    With other knobs, where a study searches them, plain retrieval is an arm to choose like any other.
    """
    first = next((one.arm for one in complete if one.arm is not None and one.arm.is_plain), None)
    arm = record.arm
    return arm is not None and first is not None and arm.is_plain and arm.knobs == first.knobs


def _like(best: TrialRecord | None, plains: Sequence[TrialRecord]) -> TrialRecord:
    """No rewriting with the reader of the best arm, so that a reader's gain is not taken for rewriting's."""
    reader = None if best is None or best.arm is None else best.arm.reader
    same = [one for one in plains if one.arm is not None and one.arm.reader == reader]
    return (same or list(plains))[0]


def _best(trials: Sequence[TrialRecord], objective: Objective) -> TrialRecord | None:
    tried = [_Tried(one) for one in trials if one.dev is not None]
    return best_of(tried, objective.name).record if tried else None


def pareto(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """The trials of the front, best by the first objective first."""
    kept = set(front(trials, {objective.name: objective.direction for objective in objectives}))
    signs = {objective.name: -1 if objective.direction == "maximize" else 1 for objective in objectives}

    def order(one: TrialRecord) -> tuple[list[float], int]:
        return [sign * one.values[name] for name, sign in signs.items()], one.number

    return sorted((one for one in trials if one.number in kept), key=order)


def winners_curse(trials: Sequence[TrialRecord], objective: Objective, seed: int = 0) -> Corrected | None:
    """How good the best arm is likely to be on other questions.

    The choice is made again on 1,000 resamples of the dev questions; each time the chosen arm is looked at on the
    questions that the resample left out (the bootstrap bias correction of Tsamardinos et al., arXiv 1708.07180; it
    errs towards caution, because a resample holds fewer different questions).

    Args:
        trials: Complete trials of different arms.
        objective: What was chosen by; larger is better.
        seed: Of the resamples.

    Returns:
        None with fewer than two arms or six questions that all of them scored.
    """
    tables = [scores(one.dev, objective) for one in trials if one.dev is not None]
    shared = [key for key in (tables[0] if tables else {}) if all(key in table for table in tables)]
    if len(tables) < 2 or len(shared) < FEWEST:
        return None
    values = np.array([[table[key] for key in shared] for table in tables])
    drawn = np.random.default_rng(seed)
    left_out = []
    for _ in range(RESAMPLES):
        inside = drawn.integers(len(shared), size=len(shared))
        outside = np.setdiff1d(np.arange(len(shared)), inside)
        if not len(outside):
            continue
        chosen = int(values[:, inside].mean(axis=1).argmax())
        left_out.append(values[chosen, outside].mean())
    return Corrected(float(values.mean(axis=1).max()), float(np.mean(left_out)), len(tables), len(shared))


def surviving(trials: Sequence[TrialRecord], objectives: Sequence[Objective], number: int) -> list[str]:
    """The techniques that go on to the late trials, best first.

    Args:
        trials: Those of the first phase. Where none was complete those that ended early are looked at.
        objectives: Of the study.
        number: How many go on at most. No rewriting, which has no prompts to tune, is not counted.
    """
    tried = [one for one in trials if one.dev is not None and one.arm is not None and one.arm.technique != "plain"]
    left = [one for one in tried if one.state == "complete"] or tried
    found: list[str] = []
    while left and len(found) < number:
        best = _best(left, objectives[0])
        assert best is not None
        assert best.arm is not None
        technique = best.arm.technique
        found.append(technique)
        left = [one for one in left if one.arm is not None and one.arm.technique != technique]
    return found
