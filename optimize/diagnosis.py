"""Find where answers are lost (index, search, truncation, or reader), and how passages changed the answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from querywright.answer_text import same_answer
from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.metrics.answers import extract_option
from querywright.metrics.retrieval import groups_of
from querywright.metrics.statistics import Mean, mean_with_interval
from querywright.metrics.usefulness import helpful_ids, passage_labels
from querywright.optimize.evaluate import Evaluation, Row, finite, mean_json


class Stage(StrEnum):
    """A question's outcome: right, unknown, or the stage at which its answer was lost."""

    RIGHT = "right"
    NOT_INDEXED = "not indexed"
    NOT_FOUND = "not found"
    CUT = "found but cut"
    NOT_USED = "found but not used"
    MISREAD = "used and wrong"
    UNKNOWN = "unknown"


MEANING: Mapping[Stage, str] = {
    Stage.RIGHT: "the answer is right",
    Stage.NOT_INDEXED: "the collection does not contain the evidence",
    Stage.NOT_FOUND: "no search found the evidence or any other passage known to help",
    Stage.CUT: "a search found the evidence, but the reader was not shown the evidence",
    Stage.NOT_USED: "the reader was shown the evidence, but gave the same answer as without passages",
    Stage.MISREAD: "the reader was shown the evidence, but gave a different wrong answer",
    Stage.UNKNOWN: "the question failed, has no labeled evidence, or has no right answer",
}


@dataclass(frozen=True, slots=True)
class QuestionOutcome:
    """The outcome of one question with one program.

    Args:
        question: Id of the question.
        stage: The stage at which the answer was lost.
        closed_book: Whether the reader is right without passages; None if this was not evaluated.
        oracle: Whether the reader is right with the deciding passages; None if this was not evaluated, or if the
            question has no deciding passages.
    """

    question: str
    stage: Stage
    closed_book: bool | None
    oracle: bool | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Where each program loses its answers.

    Args:
        metric: Metric that is 1.0 for a right answer.
        jointly: Number of questions that need all of their helpful passages; for the others, any one is enough.
        arms: One ``QuestionOutcome`` per question, in order, by program.
    """

    metric: str
    jointly: int
    arms: Mapping[str, tuple[QuestionOutcome, ...]]

    def counts(self, arm: str) -> Counter[Stage]:
        """Return the number of questions at each stage."""
        return Counter(lost.stage for lost in self.arms[arm])

    @property
    def alone(self) -> list[tuple[str, int, int]]:
        """For closed book and oracle, if evaluated: name, number of right answers, number of scored questions."""
        first = next(iter(self.arms.values()), ())
        known = {"closed book": [one.closed_book for one in first], "oracle": [one.oracle for one in first]}
        scored = {name: [right for right in found if right is not None] for name, found in known.items()}
        return [(name, right.count(True), len(right)) for name, right in scored.items() if right]

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON object."""
        counts = {arm: self.counts(arm) for arm in self.arms}
        told = {arm: {str(stage): found[stage] for stage in Stage if found[stage]} for arm, found in counts.items()}
        return {"metric": self.metric, "jointly": self.jointly, "arms": told}


def diagnose(
    arms: Sequence[Evaluation],
    questions: Sequence[Question],
    indexed: Mapping[str, Collection[str]],
    *,
    metric: str = "accuracy",
    closed_book: Mapping[str, Evaluation] | None = None,
    oracle: Mapping[str, Evaluation] | None = None,
) -> Diagnosis:
    """Return where each program loses its answers.

    Args:
        arms: Results of programs that search and read, on these questions.
        questions: The questions. The evidence is one helpful passage (ENTAILED or USEFUL), or all of them if the
            question needs them jointly; any one of several alternatives is enough.
        indexed: By program, the ids of the passages in its collection.
        metric: Metric that is 1.0 for a right answer. Default accuracy.
        closed_book: By program, the results of its reader without passages; if missing, no question gets the stage
            "found but not used".
        oracle: By program, the results of its reader with the deciding passages.

    Raises:
        InputError: A program was not evaluated on these questions.
    """
    ids = [question.id for question in questions]
    closed_book, oracle = closed_book or {}, oracle or {}
    for one in (*arms, *closed_book.values(), *oracle.values()):
        if [row.id for row in one.rows] != ids:
            raise InputError(f"{one.name} was not evaluated on the same questions as the diagnosis")
    nothing: list[Row | None] = [None] * len(questions)
    lost: dict[str, tuple[QuestionOutcome, ...]] = {}
    for arm in arms:
        without, perfect = (one[arm.name].rows if arm.name in one else nothing for one in (closed_book, oracle))
        held = set(indexed[arm.name])
        lost[arm.name] = tuple(
            QuestionOutcome(
                question.id,
                _stage(row, question, held, metric, bare),
                _right(bare, metric),
                _right(best, metric) if best is not None and best.passages else None,
            )
            for question, row, bare, best in zip(questions, arm.rows, without, perfect, strict=True)
        )
    return Diagnosis(metric, sum(question.jointly for question in questions), lost)


def lost_rows(diagnosis: Diagnosis) -> list[dict[str, str]]:
    """Return one human-readable row per program: the number of questions at each stage, without stages that never
    occur.
    """
    counts = {arm: diagnosis.counts(arm) for arm in diagnosis.arms}
    stages = [stage for stage in Stage if any(count[stage] for count in counts.values())]
    return [{"arm": arm, **{str(stage): str(count[stage]) for stage in stages}} for arm, count in counts.items()]


def _right(row: Row | None, metric: str) -> bool | None:
    score = math.nan if row is None else row.scores.get(metric, math.nan)
    return None if math.isnan(score) else score == 1.0


def _stage(row: Row, question: Question, indexed: Collection[str], metric: str, without: Row | None) -> Stage:
    right, helpful = _right(row, metric), groups_of(helpful_ids(question.evidence), question.alternatives)
    if right or right is None:
        return Stage.RIGHT if right else Stage.UNKNOWN
    if not helpful:  # if passages were labeled after the search, none helps; otherwise nothing is known
        return Stage.NOT_FOUND if question.assessors else Stage.UNKNOWN

    def reached(ids: Collection[str]) -> bool:
        found = [not group.isdisjoint(ids) for group in helpful]
        return all(found) if question.jointly else any(found)

    if not reached(indexed):
        return Stage.NOT_INDEXED
    if not reached([*row.found, *row.passages]):
        return Stage.NOT_FOUND
    if not reached(row.passages):
        return Stage.CUT
    same = without is not None and without.failure is None and _same_answer(without.answer, row.answer, question)
    return Stage.NOT_USED if same else Stage.MISREAD


def _same_answer(one: str | None, other: str | None, question: Question) -> bool:
    """Return whether two answers choose the same option or have the same tokens."""
    if one is None or other is None:
        return one is other
    if question.options:
        picked = extract_option(one, question.options)
        return picked is not None and picked == extract_option(other, question.options)
    return same_answer(one, other)


@dataclass(frozen=True, slots=True)
class AccuracyGivenLabel:
    """Accuracy of a program and of closed book on the questions whose passages have a given label.

    Args:
        arm: Accuracy of the program that found the passages.
        other: Accuracy of closed book on the same questions.
        n: Number of questions with this label on which both were scored.
        unscored: Questions with this label that were left out because one of the two programs was not
            scored.
    """

    arm: Mean
    other: Mean
    n: int
    unscored: int


@dataclass(frozen=True, slots=True)
class Flips:
    """How a program's answers differ from another program's answers.

    Args:
        right_to_wrong: Questions that the other program answers correctly and this program answers incorrectly.
        wrong_to_right: Questions that the other program answers incorrectly and this program answers correctly.
        both_right: Questions that both programs answer correctly.
        both_wrong: Questions that both programs answer incorrectly.
        unscored: Questions that were left out because one of the two programs was not scored.
    """

    right_to_wrong: int
    wrong_to_right: int
    both_right: int
    both_wrong: int
    unscored: int


@dataclass(frozen=True, slots=True)
class Decisions:
    """The effect of one program's passages on its answers.

    Args:
        arm: Name of the program.
        turned: How the program's answers differ from another program's answers, by the name of the other program.
        by_label: The program's accuracy and closed book's on the same questions, by the label of the program's
            passages; empty without closed book.
        shares: By label, the share of the program's labeled passages with that label; NaN if no passage is labeled.
        passages: Number of the program's labeled passages.
    """

    arm: str
    turned: Mapping[str, Flips]
    by_label: Mapping[Label, AccuracyGivenLabel]
    shares: Mapping[Label, float]
    passages: int

    def to_json(self) -> dict[str, Any]:
        """Return the decisions as a JSON object; NaN becomes null."""
        return {
            "arm": self.arm,
            "turned": {name: asdict(one) for name, one in self.turned.items()},
            "accuracy_by_label": {
                str(label): {"n": one.n, "unscored": one.unscored}
                | {"arm": mean_json(one.arm), "closed_book": mean_json(one.other)}
                for label, one in self.by_label.items()
            },
            "passages": {
                "n": self.passages,
                "shares": {str(label): finite(share) for label, share in self.shares.items()},
            },
        }


def decisions(
    arms: Sequence[Evaluation],
    questions: Sequence[Question],
    *,
    baseline: Evaluation,
    closed_book: Mapping[str, Evaluation],
    metric: str = "accuracy",
) -> tuple[Decisions, ...]:
    """Return the effect of each program's passages on its answers.

    Each program's answers are compared with the baseline's answers and, if closed book was evaluated, with the same
    reader's answers without passages.

    Args:
        arms: Results of the programs.
        questions: The questions.
        baseline: Results of the baseline.
        closed_book: By program, the results of its reader without passages.
        metric: Metric that is 1.0 for a right answer. Default accuracy.

    Source: HCQR, arXiv:2603.19008. Accuracy there is 94.4% given ENTAILED and 57.6% given NOT_USEFUL, compared with
    86.2% and 63.4% for closed book on the same questions (computed from the differences that the paper reports).
    """
    labelled = {question.id: question for question in questions if question.evidence}
    found = []
    for arm in arms:
        without = closed_book.get(arm.name)
        others = [one for one in (without, baseline) if one is not None and metric in one.metrics]
        shown = [
            label
            for row in arm.rows
            if (asked := labelled.get(row.id)) is not None
            for label in passage_labels(
                row.passages,
                asked.evidence,
                jointly=asked.jointly,
                pooled=bool(asked.assessors),
                alternatives=asked.alternatives,
            )
            if label is not None
        ]
        turned = {other.name: _flips(arm, other, metric) for other in others if other.name != arm.name}
        by_label = {} if without is None else _accuracy_by_label(arm, without, metric)
        shares = {label: shown.count(label) / len(shown) if shown else math.nan for label in Label}
        found.append(Decisions(arm.name, turned, by_label, shares, len(shown)))
    return tuple(found)


def _flips(arm: Evaluation, other: Evaluation, metric: str) -> Flips:
    pairs = list(zip(arm.values(metric), other.values(metric), strict=True))
    return Flips(
        right_to_wrong=pairs.count((0.0, 1.0)),
        wrong_to_right=pairs.count((1.0, 0.0)),
        both_right=pairs.count((1.0, 1.0)),
        both_wrong=pairs.count((0.0, 0.0)),
        unscored=sum(any(map(math.isnan, pair)) for pair in pairs),
    )


def _accuracy_by_label(arm: Evaluation, other: Evaluation, metric: str) -> dict[Label, AccuracyGivenLabel]:
    """For each label, return both programs' accuracy on questions whose passages from ``arm`` have this label.

    If the other program's accuracy covered all questions, easy questions would be compared with all questions.
    """
    found = {}
    for label in Label:
        pairs = [
            pair
            for row, *pair in zip(arm.rows, arm.values(metric), other.values(metric), strict=True)
            if row.label is label
        ]
        scored = [pair for pair in pairs if not any(map(math.isnan, pair))]
        mean, closed = (mean_with_interval([pair[side] for pair in scored]) for side in (0, 1))
        found[label] = AccuracyGivenLabel(mean, closed, len(scored), len(pairs) - len(scored))
    return found


DECIDED = (
    "Flipped: number of answers that changed from right to wrong / from wrong to right, compared with another program. "
    "Accuracy: percent right on the questions whose passages have this label / closed book on the same questions. "
    "Shown: percentage of the reader's passages with the label ENTAILED / USEFUL / NOT_USEFUL"
)


def decision_rows(decided: Sequence[Decisions]) -> list[dict[str, str]]:
    """Return one human-readable row per program; ``DECIDED`` explains the columns."""
    others = list(dict.fromkeys(name for one in decided for name in one.turned))
    rows = []
    for one in decided:
        row = {"arm": one.arm}
        for name in others:
            turned = one.turned.get(name)
            told = "-" if turned is None else f"{turned.right_to_wrong} / {turned.wrong_to_right}"
            row[f"flipped, {name}"] = told
        for label, given in one.by_label.items():
            told = f"{100 * given.arm.value:.0f} / {100 * given.other.value:.0f} of {given.n}" if given.n else "-"
            row[f"accuracy, {label}"] = told
        shown = ["-" if math.isnan(share) else f"{100 * share:.0f}" for share in one.shares.values()]
        row["shown, %"] = " / ".join(shown)
        rows.append(row)
    return rows
