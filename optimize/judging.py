"""Run judges in threads, compare them with people, improve them with people's labels, and freeze guidelines."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from querywright.data.judged import Case, JudgedCase, sampled
from querywright.data.splits import split_questions
from querywright.data.types import Passage, Question
from querywright.errors import DataError, InputError, ModelError
from querywright.metrics.agreement import Figure, paired_difference
from querywright.metrics.calibration import Calibration, calibration
from querywright.metrics.dspy_metrics import Metric, metric_named
from querywright.metrics.guideline import Guideline, GuidelineMetric, Guidelines, GuidelineWriter, write_guideline
from querywright.metrics.judge import Judge, JudgedMetric
from querywright.metrics.judges import JUDGED, CoverageJudge
from querywright.models.lm import lm_digest
from querywright.optimize.contexts import asking
from querywright.optimize.evaluate import Progress
from querywright.optimize.failures import Failures, TooManyFailuresError, map_runs
from querywright.optimize.judge_files import SavedJudge, resolve_judge

TRAIN, DEV = 0.25, 0.25
"""The share of the questions for demonstrations and the share for choosing; the rest measures the result."""

PER_LABEL = (1, 1, 2, 2)
"""Number of demonstrations per label in the sets to try."""

DEMO_CHARS = 1000
"""Maximum length in characters of a demonstration; several must fit in the prompt with the case to judge."""

AS_IT_IS = "no demonstrations"


@dataclass(frozen=True, slots=True)
class Judgements:
    """The labels that a judge gave.

    Args:
        labels: One label per case; None if it was unreadable or failed.
        failed: Number of cases that failed.
    """

    labels: tuple[str | None, ...]
    failed: int


def judged_metrics(
    names: Iterable[str],
    *,
    lm: dspy.LM | None = None,
    judges: Iterable[SavedJudge | str | Path] = (),
    guidelines: Guidelines | None = None,
    threads: int = 8,
) -> dict[str, Metric]:
    """Return the metrics with these names (see ``metric_named``); metrics that use the same judge share its judgments.

    Args:
        names: Names such as ``accuracy``, ``recall@5``, ``judged_useful``, or ``module:function``.
        lm: The judges' LM, from ``resolve_lm``. Default: the LM in the DSPy settings.
        judges: Saved judges or their paths, which replace the built-in judges with the same name.
        guidelines: The guidelines that ``judged_guideline`` compares answers with.
        threads: Number of judgments to run at a time for each judge, 1 or more. Default 8.

    Raises:
        InputError: A metric or judge does not exist, a judge is given twice, or guidelines are missing.
    """
    saved: dict[type[Judge], SavedJudge] = {}
    for given in judges:
        one = given if isinstance(given, SavedJudge) else resolve_judge(given)
        if type(one.judge) in saved:
            raise InputError(f"the judge {one.judge.NAME!r} was passed twice; remove one")
        saved[type(one.judge)] = one
    at_work: dict[type[Judge], JudgedMetric] = {}
    found: dict[str, Metric] = {}
    for name in names:
        kind = JUDGED.get(name)
        if kind is None:
            found[name] = metric_named(name)
            continue
        if kind not in at_work:
            own = saved.get(kind) or SavedJudge(kind())
            if not isinstance(own.judge, CoverageJudge):
                at_work[kind] = JudgedMetric(own.judge, lm=lm, threads=threads)
            elif guidelines is not None:
                at_work[kind] = GuidelineMetric(own.judge, guidelines, lm=lm, threads=threads)
            else:
                raise InputError(f"{name} compares answers with guidelines; pass guidelines=...")
            at_work[kind].calibration = own.calibration
        found[name] = at_work[kind].of(name)
    return found


def judge_notes(metrics: Mapping[str, Metric], lm: dspy.LM) -> list[str]:
    """Return notes on the judges that the metrics use; ``lm`` is the LM for judges that do not have one."""
    notes = []
    judged = {name: metric for name, metric in metrics.items() if isinstance(metric, JudgedMetric)}
    for counts in {id(one.counts): one.counts for one in judged.values()}.values():
        names = [name for name, one in judged.items() if one.counts is counts]
        metric = judged[names[0]]
        asked = metric.lm or lm
        try:
            engine = lm_digest(asked)
        except ModelError:
            engine = ""
        standing = SavedJudge(metric.judge, metric.calibration).standing(asked.model, engine)
        line = f"{', '.join(names)}: {standing}"
        line += (
            f"; {counts['asked']} judgment{'s' * (counts['asked'] != 1)} in this run, {counts['unreadable']} unreadable"
        )
        if counts["known"]:
            line += f", {counts['known']} already labeled"
        if metric.judge.OTHER is not None and counts["without answer"]:
            line += f"; {counts['without answer']} without a right answer, judged by {metric.judge.OTHER.NAME}"
        notes.append(f"{line}; the judge and the programs use the same LM" if asked.model == lm.model else line)
    return notes


def judge_cases(
    judge: Judge,
    cases: Sequence[Case],
    *,
    lm: dspy.LM,
    threads: int = 4,
    max_failures: float = 0.05,
    name: str = "",
    progress: Progress | None = None,
) -> Judgements:
    """Return the judge's label of each case.

    Args:
        judge: Any judge.
        cases: The cases, in order.
        lm: An LM from ``resolve_lm``.
        threads: Number of cases to run at a time, 1 or more. Default 4.
        max_failures: Share of the cases that may fail, 0 to 1; at least one may fail unless it is 0. Default 0.05.
        name: Name to show in the progress. Default: the judge's name.
        progress: Called after each case.

    Raises:
        OutageError: The LM cannot be reached.
        BudgetError: The call limit is reached.
        TooManyFailuresError: More cases failed than allowed.
        DataError: A case lacks a part that the judge needs.
    """
    name = name or judge.NAME
    given: dict[str, Any] = {"lm": lm, "threads": threads, "max_failures": max_failures, "progress": progress}
    return _judged_by({name: judge}, cases, **given)[name]


def _judged_by(
    arms: Mapping[str, Judge],
    cases: Sequence[Case],
    *,
    lm: dspy.LM,
    threads: int,
    max_failures: float,
    progress: Progress | None,
    may_fail: Collection[str] = (),
) -> dict[str, Judgements]:
    """Return the labels from several judges, which run in one thread pool.

    If a judge fails too often, it returns no labels if it is in ``may_fail``; otherwise the error is raised.
    """
    runs = {name: Failures(name, len(cases), max_failures, what="judgments") for name in arms}
    queue = [(name, place) for place in range(len(cases)) for name in arms]
    found: dict[str, list[str | None]] = {name: [None] * len(cases) for name in arms}

    def ask(one: tuple[str, int]) -> str | None:
        name, place = one
        with asking(lm):
            return arms[name].label_of(cases[place])

    def done(position: int, result: str | Exception | None) -> None:
        name, place = queue[position]
        found[name][place] = None if isinstance(result, Exception) else result

    def out(run: Failures, error: TooManyFailuresError) -> None:
        if run.name not in may_fail:
            raise error
        del found[run.name]

    map_runs(
        ask, queue, [runs[name] for name, _ in queue], id_of=lambda one: cases[one[1]].question.id, threads=threads,
        progress=progress, on_done=done, on_out=out,
    )  # fmt: skip
    failed = {name: sum(run.kinds.values()) for name, run in runs.items()}
    nothing = Judgements((), len(cases))
    return {name: Judgements(tuple(found[name]), failed[name]) if name in found else nothing for name in arms}


def calibrate(
    judge: Judge,
    judged: Sequence[JudgedCase],
    *,
    lm: dspy.LM,
    threads: int = 4,
    max_failures: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Compare a judge with people's labels.

    Args:
        judge: Any judge.
        judged: Cases with people's labels.
        lm: An LM from ``resolve_lm``.
        threads: Number of cases to run at a time, 1 or more. Default 4.
        max_failures: Share of the cases that may fail. Default 0.05.
        seed: Seed for the resampling. Default 0.
        progress: Called after each case.

    Raises the same errors as ``judge_cases``.
    """
    found = judge_cases(
        judge, [one.case for one in judged], lm=lm, threads=threads, max_failures=max_failures, progress=progress
    )
    return calibration_of(judge, judged, found, lm, seed)


def freeze_guidelines(
    frozen: Guidelines,
    questions: Sequence[tuple[Question, Sequence[Passage]]],
    *,
    lm: dspy.LM,
    threads: int = 4,
    max_failures: float = 0.05,
    progress: Progress | None = None,
) -> Guidelines:
    """Return guidelines for all questions; existing guidelines stay unchanged.

    Args:
        frozen: Existing guidelines.
        questions: Each question with the passages that answer it, at least one.
        lm: The LM that writes guidelines, from ``resolve_lm``.
        threads: Number of questions to run at a time, 1 or more. Default 4.
        max_failures: Share of the questions that may fail. Default 0.05.
        progress: Called after each question.

    Returns:
        All guidelines, except for questions whose guideline could not be parsed.

    Raises:
        DataError: A question's guideline was frozen for a different text.
        OutageError: The LM cannot be reached.
        BudgetError: The call limit is reached.
        TooManyFailuresError: More questions failed than allowed.
    """
    missing = [(question, sources) for question, sources in questions if not frozen.holds(question, sources)]
    writer = GuidelineWriter()

    def write(one: tuple[Question, Sequence[Passage]]) -> Guideline | None:
        with asking(lm):
            return write_guideline(writer, *one, lm=lm.model)

    failures = Failures("guidelines", len(missing), max_failures)
    found = failures.map(write, missing, id_of=lambda one: one[0].id, threads=threads, progress=progress)
    new = {q.id: made for (q, _), made in zip(missing, found, strict=True) if isinstance(made, Guideline)}
    return Guidelines({**new, **frozen})


def calibration_of(
    judge: Judge, judged: Sequence[JudgedCase], found: Judgements, lm: dspy.LM, seed: int
) -> Calibration:
    """Return the calibration from a judge's labels for these cases."""
    return calibration(judge, judged, found.labels, failed=found.failed, seed=seed, lm=lm.model, engine=lm_digest(lm))


@dataclass(frozen=True, slots=True)
class CompiledJudge:
    """A judge with the chosen demonstrations, and their effect.

    Args:
        judge: The judge.
        chosen: Name of the variant that was chosen on dev; ``no demonstrations`` for the unchanged judge.
        dev: Kappa of each variant on dev; NaN if it is undefined or the variant was dropped.
        before: Calibration of the unchanged judge on the half of the questions reserved for measuring.
        after: Calibration of the chosen judge on the same half.
        differences: After minus before, by figure, on the ``n`` cases that both judges could label.
        n: Number of cases that both judges could label.
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
    judged: Sequence[JudgedCase],
    *,
    lm: dspy.LM,
    per_question: int | None = None,
    threads: int = 4,
    max_failures: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
) -> CompiledJudge:
    """Add demonstrations labeled by people to a copy of a judge, if they bring its labels closer to people's.

    A stable hash splits the questions. One quarter provides sets of demonstrations (DSPy's ``LabeledFewShot``, each
    label equally often). Another quarter is used to choose by kappa among these sets and the unchanged judge, which
    wins a tie. The judge is measured before and after on the other half. A bootstrapping optimizer would add nothing to
    people's labels. The judge's reasons are not part of the demonstrations.

    Args:
        judge: Any judge.
        judged: Cases with people's labels.
        lm: An LM from ``resolve_lm``.
        per_question: Maximum number of cases to judge per question; demonstrations come from all cases. Default: all.
        threads: Number of cases to run at a time, 1 or more. Default 4.
        max_failures: Share of the cases that may fail. Default 0.05.
        seed: Seed for the split, the demonstrations, and the resampling. Default 0.
        progress: Called after each case.

    Raises:
        DataError: There are too few cases for demonstrations, for choosing, or for measuring.
        TooManyFailuresError: The unchanged judge failed more often than allowed; a variant that does so is only
            dropped.
    """
    train, dev, test = _split(judge, judged, seed, per_question)
    arms = {AS_IT_IS: judge, **_with_demonstrations(judge, train, seed)}
    if len(arms) == 1:
        raise DataError(
            f"each label needs a demonstration, a case of at most {DEMO_CHARS} characters, but at least one label has "
            f"none among the {len(train)} cases for demonstrations; add cases, or use shorter passages"
        )

    given: dict[str, Any] = {"lm": lm, "threads": threads, "max_failures": max_failures, "progress": progress}

    def judged_by(names: Iterable[str], part: Sequence[JudgedCase], where: str, may_fail: Sequence[str] = ()) -> Any:
        called = {f"{where}, {name}": arms[name] for name in names}
        out = [f"{where}, {name}" for name in may_fail]
        met = _judged_by(called, [one.case for one in part], **given, may_fail=out)
        return dict(zip(names, met.values(), strict=True))

    met = judged_by(arms, dev, "dev", [name for name in arms if name != AS_IT_IS])
    # A variant that can judge fewer cases than the unchanged judge would be scored on easier cases.
    scores = {
        name: math.nan if _read(found) < _read(met[AS_IT_IS])
        else calibration_of(arms[name], dev, found, lm, seed).figures["kappa"].value
        for name, found in met.items()
    }  # fmt: skip
    chosen = max(scores, key=lambda name: -math.inf if math.isnan(scores[name]) else scores[name])
    ends = judged_by([*dict.fromkeys((AS_IT_IS, chosen))], test, "test")
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
    judge: Judge, judged: Sequence[JudgedCase], seed: int, per_question: int | None
) -> tuple[list[JudgedCase], list[JudgedCase], list[JudgedCase]]:
    """Return cases for demonstrations, for choosing, and for measuring; each question is in only one group."""
    questions = {one.case.question.id: replace(one.case.question, evidence={}) for one in judged}
    parts = split_questions(questions.values(), train=TRAIN, dev=DEV, seed=seed)
    split = []
    for name, part in zip(("demonstrations", "choosing", "measuring"), parts, strict=True):
        ids = {question.id for question in part}
        cases = [one for one in judged if one.case.question.id in ids]
        labels = {one.label for one in cases}
        if len(labels) < 2:
            only = f"only: {', '.join(sorted(labels))}" if labels else "no labels"
            raise DataError(
                f"{judge.NAME} requires at least two different labels for {name}, but the {len(part)} questions used "
                f"for {name} (of {len(questions)} in all) have {only}; add questions, or use a different --seed"
            )
        split.append(cases)
    return split[0], sampled(split[1], per_question), sampled(split[2], per_question)


def _with_demonstrations(judge: Judge, train: Sequence[JudgedCase], seed: int) -> dict[str, Judge]:
    """Return copies of the judge with sets of demonstrations, each set drawn in its own order."""
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


def _place(draw: str, one: JudgedCase) -> str:
    return hashlib.sha256(f"{draw}:{one.digest()}".encode()).hexdigest()


def _read(found: Judgements) -> int:
    return sum(label is not None for label in found.labels)
