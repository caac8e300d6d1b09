"""Pool the passages that programs find and label them with a judge, so that people can correct the labels.

Source: pooling as in TREC: the union of the first passages of each system (Spärck Jones and van Rijsbergen 1975).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import dspy

from querywright.data.labels import COLUMNS, PassageLabel, with_labels
from querywright.data.types import PERSON, Label, Passage, Question
from querywright.errors import InputError
from querywright.metrics.judge import Judge, JudgedMetric
from querywright.optimize.contexts import asking
from querywright.optimize.evaluate import Progress, in_order
from querywright.optimize.failures import Failures, map_runs
from querywright.programs.rag import RAG
from querywright.retrieval.edits import follow_rows, labeled_first, settle_labels

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class PoolLabels:
    """Labels for a pool of passages.

    Args:
        labels: The labels, question by question: the earlier labels of a question, then its added labels.
        added: Number of added labels.
        asked: Number of passages that were sent to the judge.
        unreadable: Number of these passages for which the judge's answer could not be parsed; they stay unjudged.
        failed: Number of failed questions by the name of the program or judge; their passages are missing.
        notes: What users of the labels should know: the judge's calibration and the failures.
    """

    labels: tuple[PassageLabel, ...]
    added: int = 0
    asked: int = 0
    unreadable: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """The number of passages by label (``unjudged`` if there is none) and by who assigned the label."""
        found: dict[str, Counter[str]] = {name: Counter() for name in (*Label, "unjudged")}
        for one in self.labels:
            found[one.label or "unjudged"][one.by or "nobody"] += 1
        return {name: dict(by) for name, by in found.items()}

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per label, with the columns of a label file."""
        import pandas

        columns = dict.fromkeys([*COLUMNS, *(name for one in self.labels for name in one.further)])
        return pandas.DataFrame([one.row for one in self.labels], columns=list(columns))


def pool_passages(
    programs: Mapping[str, RAG],
    questions: Sequence[Question],
    *,
    lm: dspy.LM,
    depth: int,
    threads: int = 4,
    max_failures: float = 0.05,
    progress: Progress | None = None,
) -> tuple[dict[str, list[Passage]], dict[str, int]]:
    """Return, by question, the union of each program's top passages, sorted by rank across programs.

    Args:
        programs: Programs, keyed by name; their readers do not run.
        questions: The questions.
        lm: The LM of the programs.
        depth: Number of passages from each program, 1 or more.
        threads: Number of questions to run at a time. Default 4.
        max_failures: Share of a program's questions that may fail. Default 0.05.
        progress: Called after each question in each program.

    Returns:
        The pool, and the number of failed questions by program.

    Raises:
        OutageError: The LM cannot be reached.
        TooManyFailuresError: More questions failed than allowed.
    """
    if depth < 1:
        raise InputError(f"depth must be 1 or more, but got {depth}")
    bare = {name: RAG(one.technique, None, nearest=one.nearest) for name, one in programs.items()}
    runs = {name: Failures(name, len(questions), max_failures) for name in programs}
    queue = in_order(bare, len(questions), threads)

    def search(one: tuple[str, int]) -> Sequence[Passage]:
        name, place = one
        with asking(lm):
            return list(bare[name](**questions[place].inputs).passages[:depth])

    results = map_runs(
        search, queue, [runs[name] for name, _ in queue], id_of=lambda one: questions[one[1]].id, threads=threads,
        progress=progress,
    )  # fmt: skip
    found = dict(zip(queue, results, strict=True))
    ranked: dict[str, list[Sequence[Passage]]] = {question.id: [] for question in questions}
    for name in programs:
        for place, question in enumerate(questions):
            passages = found[name, place]
            if not isinstance(passages, Exception):
                ranked[question.id].append(passages)
    pool: dict[str, list[Passage]] = {}
    for key, arms in ranked.items():
        by_rank = [arm[rank] for rank in range(depth) for arm in arms if rank < len(arm)]
        pool[key] = list({passage.id: passage for passage in by_rank}.values())
    return pool, {name: count for name, run in runs.items() if (count := sum(run.kinds.values()))}


def check_judge(judge: Judge | None) -> None:
    """Raise if a judge's labels cannot be evidence, before any search.

    Raises:
        InputError: The judge's labels are not labels of usefulness.
    """
    if judge is not None and (set(judge.SCALE) != set(Label) or "passage" not in judge.needs()):
        raise InputError(
            f"evidence requires a judge that labels passages as {', '.join(Label)}, but got {judge.NAME!r}; use the "
            "judge 'usefulness'"
        )


def earlier_labels(
    labels: Sequence[PassageLabel],
    questions: Sequence[Question],
    collections: Sequence[Mapping[str, Passage]],
    former: Mapping[str, Passage],
    tell: Callable[[str], object],
) -> tuple[list[PassageLabel], set[tuple[str, str]]]:
    """Return the rows of labels that exist before pooling, and the keys of all passages to which these labels apply.

    The rows follow passages that moved or changed a little, in the collection that has most of them. The row of a split
    or deleted passage stays unchanged, and the parts of a split passage get rows without a label.

    Args:
        labels: Rows from a label file.
        questions: Questions, whose labels become rows too. A person's label takes precedence over a judge's, and then
            a row of the file over a question's label.
        collections: The passages of each collection by id.
        former: The collections' former passages by id.
        tell: As in ``follow_rows``; called only for rows of the file.
    """

    def ignore(_: str) -> None:
        """Ignore a message that was shown when the questions were opened."""

    named = {id for one in questions for id in one.evidence} | {one.passage_id for one in labels}
    followed = next(iter(labeled_first(named, collections)), {})
    texts = dict(former)
    for held in collections:
        texts |= held
    rows = {one.key: one for one in follow_rows(labels, followed.values(), former, tell)}
    given = [label_row(one, texts[id]) for one in questions for id in one.evidence if id in texts]
    for one in follow_rows(given, followed.values(), former, ignore):
        there = rows.setdefault(one.key, one)
        if there.label is None or (one.by == PERSON != there.by):
            rows[one.key] = replace(there, label=one.label, by=one.by)
    asked = {one.id for one in questions}
    united = with_labels(questions, [one for one in rows.values() if one.question_id in asked])
    settled = settle_labels(united, [partial(dict, one) for one in collections], former, ignore, ignore)
    for question, now in zip(questions, settled, strict=True):
        for id in now.evidence:
            if id in followed:
                rows.setdefault((question.id, id), label_row(question, followed[id]))
    return list(rows.values()), {(one.id, id) for one in settled for id in one.evidence}


def label_pool(
    pool: Mapping[str, Sequence[Passage]],
    questions: Sequence[Question],
    judge: Judge | None,
    *,
    lm: dspy.LM,
    there: Sequence[PassageLabel] = (),
    labeled: Collection[tuple[str, str]] = (),
    threads: int = 4,
    max_failures: float = 0.05,
    progress: Progress | None = None,
) -> PoolLabels:
    """Return the labels for a pool. Earlier labels stay unchanged, and passages without a label are judged.

    Args:
        pool: Passages, keyed by the question's id.
        questions: The questions; passages with a label in their evidence are not judged.
        judge: A judge of usefulness; None to leave all labels to people.
        lm: The judge's LM, from ``resolve_lm``.
        there: Earlier labels, which may include labels for other questions.
        labeled: Keys of further passages that are not judged, because an earlier label applies to them: a question's id
            and a passage's id.
        threads: Number of judgments to run at a time. Default 4.
        max_failures: Share of the questions whose judging may fail. Default 0.05.
        progress: Called after each question.

    Raises:
        InputError: The judge's labels are not labels of usefulness.
        OutageError: The LM cannot be reached. Its answers so far are cached, so the same call resumes.
        TooManyFailuresError: More questions failed than allowed.
    """
    check_judge(judge)
    found = {one.key: one for one in there}
    waiting: dict[str, list[Passage]] = {}
    for question in questions:
        for passage in pool.get(question.id, ()):
            row = found.setdefault((question.id, passage.id), label_row(question, passage))
            if row.label is None and row.key not in labeled:
                waiting.setdefault(question.id, []).append(passage)
    failed: dict[str, int] = {}
    unreadable = 0
    if judge is not None and waiting:
        metric, asked = JudgedMetric(judge, lm=lm, threads=threads), [one for one in questions if one.id in waiting]

        def ask(question: Question) -> None:
            bare = replace(question, evidence={}, assessors={}).to_example()
            for said in metric.judgements(bare, dspy.Prediction(passages=waiting[question.id])):
                label, key = None if said.label is None else Label(said.label), (question.id, said.passage)
                by = "" if label is None else f"{said.by}:{lm.model}"
                found[key] = replace(found[key], label=label, judged=label, by=by, reason=said.reason)

        failures = Failures(judge.NAME, len(asked), max_failures)
        failures.map(ask, asked, id_of=lambda question: question.id, threads=threads, progress=progress)
        failed = {judge.NAME: n} if (n := sum(failures.kinds.values())) else {}
        unreadable = metric.counts["unreadable"]
    places = {question.id: place for place, question in enumerate(questions)}
    labels = sorted(found.values(), key=lambda one: places.get(one.question_id, len(places)))
    asked_of = 0 if judge is None else sum(map(len, waiting.values()))
    return PoolLabels(tuple(labels), len(found) - len({one.key for one in there}), asked_of, unreadable, failed)


def label_row(question: Question, passage: Passage) -> PassageLabel:
    """Return the row of a passage, with its label from the question's evidence if there is one."""
    label = question.evidence.get(passage.id)
    names = question.assessors.get(passage.id, (PERSON,))
    by = "" if label is None else PERSON if PERSON in names else names[0]
    return PassageLabel(
        question=question.question, options=question.options, answer=question.answer, title=passage.title,
        text=passage.text, label=label, judged=None if by == PERSON else label, by=by, question_id=question.id,
        passage_id=passage.id,
    )  # fmt: skip
