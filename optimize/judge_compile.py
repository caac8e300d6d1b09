"""Judges improved by demonstrations that people labelled."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import dspy

from querywright.data.judged import Judged, sampled
from querywright.data.splits import split_questions
from querywright.errors import DataError
from querywright.metrics.agreement import Figure, paired_difference
from querywright.metrics.calibration import Calibration
from querywright.metrics.judge import Judge
from querywright.optimize.evaluate import Progress
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.judging import Judgements, calibration_of, judge_cases

TRAIN, DEV = 0.25, 0.25
"""Shares of the questions that demonstrations are taken from and chosen on; the other half says what they are worth."""

PER_LABEL = (1, 1, 2, 2)
"""Demonstrations of each label in the sets that are tried."""

DEMO_CHARS = 1000
"""Characters of the longest case that is used as a demonstration; several must fit beside the case to be judged."""

AS_IT_IS = "no demonstrations"


@dataclass(frozen=True, slots=True)
class CompiledJudge:
    """A judge with the demonstrations that were chosen, and what they are worth.

    Args:
        judge: The judge.
        chosen: Name of the arm that was chosen on dev; ``no demonstrations`` for the judge as it was.
        dev: Kappa of each arm on dev; NaN where it is undefined, or the arm failed too often or gave fewer readable
            labels than the judge as it was.
        before: The calibration of the judge as it was, on the half that nothing was chosen on.
        after: That of the judge that was chosen, on the same half.
        differences: After - before on the cases that both could judge, by figure.
        n: Number of those cases.
    """

    judge: Judge
    chosen: str
    dev: Mapping[str, float]
    before: Calibration
    after: Calibration
    differences: Mapping[str, Figure]
    n: int


def compile_judge(
    judge: Judge,
    judged: Sequence[Judged],
    *,
    lm: dspy.LM,
    per_question: int | None = None,
    threads: int = 4,
    max_failures: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
) -> CompiledJudge:
    """Gives a judge demonstrations labelled by people, where they bring it nearer to people.

    The questions are split by a stable hash. Sets of demonstrations (DSPy's ``LabeledFewShot``, each label as often
    as the others) are taken from a quarter of them, and chosen by kappa on another quarter, where the judge as it is
    stands beside them and wins a tie. The other half is judged twice, before and after. An optimizer that
    bootstraps would add nothing to the labels, which people gave; a judge's reasons are left out of them.

    Args:
        judge: The judge as it is; it is not changed.
        judged: Cases with labels of people.
        lm: An LM made by ``resolve_lm``.
        per_question: Judge at most so many cases of each question; demonstrations are taken from all. Default all.
        threads: Cases under way at a time, 1 or more. Default 4.
        max_failures: Share of the cases that may fail; an arm with demonstrations that fails more often is out.
            Default 0.05.
        seed: Of the split, the demonstrations and the resampling. Default 0.
        progress: Called after each case.

    Raises:
        DataError: There are too few cases to choose from, to choose on, or to tell what was gained.
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached.
        TooManyFailuresError: The judge as it is failed more often than allowed.
    """
    train, dev, test = _split(judge, judged, seed, per_question)
    arms = {AS_IT_IS: judge, **_with_demonstrations(judge, train, seed)}
    if len(arms) == 1:
        raise DataError(
            f"none of the {len(train)} cases for demonstrations is shorter than {DEMO_CHARS} characters for every "
            "label; give more cases, or shorter passages"
        )

    def judged_by(arm: Judge, part: Sequence[Judged], name: str) -> Judgements:
        cases = [one.case for one in part]
        return judge_cases(arm, cases, lm=lm, threads=threads, max_failures=max_failures, name=name, progress=progress)

    as_it_is = judged_by(judge, dev, f"dev, {AS_IT_IS}")
    scores = {AS_IT_IS: calibration_of(judge, dev, as_it_is, lm, seed).figures["kappa"].value}
    for name, arm in list(arms.items())[1:]:
        try:
            found = judged_by(arm, dev, f"dev, {name}")
        except TooManyFailuresError:
            found = Judgements((), len(dev))
        # An arm that reads fewer cases than the judge as it is would be scored on easier ones.
        fewer = _read(found) < _read(as_it_is)
        scores[name] = math.nan if fewer else calibration_of(arm, dev, found, lm, seed).figures["kappa"].value
    chosen = max(scores, key=lambda name: -math.inf if math.isnan(scores[name]) else scores[name])
    ends = {name: judged_by(arms[name], test, f"test, {name}") for name in dict.fromkeys((AS_IT_IS, chosen))}
    people = [one.label for one in test]
    questions = [one.case.question.id for one in test]
    differences, n = paired_difference(
        people, ends[AS_IT_IS].labels, ends[chosen].labels, questions, tuple(judge.SCALE), seed=seed
    )
    return CompiledJudge(
        judge=arms[chosen],
        chosen=chosen,
        dev=scores,
        before=calibration_of(judge, test, ends[AS_IT_IS], lm, seed),
        after=calibration_of(arms[chosen], test, ends[chosen], lm, seed),
        differences=differences,
        n=n,
    )


def _split(
    judge: Judge, judged: Sequence[Judged], seed: int, per_question: int | None
) -> tuple[list[Judged], list[Judged], list[Judged]]:
    """Cases for demonstrations, for choosing and for the last word; no question is in two of them."""
    questions = {one.case.question.id: replace(one.case.question, evidence={}) for one in judged}
    parts = split_questions(questions.values(), train=TRAIN, dev=DEV, seed=seed)
    split = []
    for name, part in zip(("demonstrations", "choosing", "the last word"), parts, strict=True):
        ids = {question.id for question in part}
        cases = [one for one in judged if one.case.question.id in ids]
        labels = {one.label for one in cases}
        if len(labels) < 2:
            raise DataError(
                f"of {len(questions)} questions, the {len(part)} for {name} have only the labels "
                f"{sorted(labels)}; {judge.NAME} needs at least two different ones there: give more questions, or "
                "another --seed"
            )
        split.append(cases)
    return split[0], sampled(split[1], per_question), sampled(split[2], per_question)


def _with_demonstrations(judge: Judge, train: Sequence[Judged], seed: int) -> dict[str, Judge]:
    """Copies of the judge with sets of demonstrations, each set taken in an order of its own."""
    short = [one for one in train if sum(len(str(part)) for part in judge.shown(one.case).values()) <= DEMO_CHARS]
    arms: dict[str, Judge] = {}
    for position, per_label in enumerate(PER_LABEL):
        shuffled = sorted(short, key=partial(_place, f"{seed}:{position}"))
        by_label = {label: [one for one in shuffled if one.label == label][:per_label] for label in judge.SCALE}
        if min(map(len, by_label.values())) < per_label:
            continue
        turns = [one for turn in zip(*by_label.values(), strict=True) for one in turn]
        examples = [
            dspy.Example(**judge.shown(one.case), label=one.label).with_inputs(*judge.inputs()) for one in turns
        ]
        arm = judge.deepcopy()
        optimizer = dspy.LabeledFewShot(k=len(examples))
        arm.label = optimizer.compile(judge.label.deepcopy(), trainset=examples, sample=False)
        arms[f"{len(examples)} demonstrations ({position + 1})"] = arm
    return arms


def _place(draw: str, one: Judged) -> str:
    return hashlib.sha256(f"{draw}:{one.digest()}".encode()).hexdigest()


def _read(found: Judgements) -> int:
    return sum(label is not None for label in found.labels)
