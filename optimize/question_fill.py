"""Which passages answer the questions of a collection, beside those they were written for: judged, then completed.

The pairs most similar are judged, and some drawn at random from all others: without these the matrix would hold hardly
a pair that is no answer, and nobody could say what a completion is worth where nothing was judged. Answers of the LM
are stored, so a run that was stopped goes on, and a wider one pays for what is new.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspy
import numpy as np

from querywright.data.judged import Case
from querywright.data.types import Question
from querywright.errors import CollectionError, InputError
from querywright.metrics.judges import AnswerabilityJudge
from querywright.models.embedder import TextEmbedder, all_encoded, with_store
from querywright.optimize.evaluate import Progress
from querywright.optimize.judging import judge_cases
from querywright.retrieval.answer_matrix import (
    ANSWERED,
    KnownCells,
    Validation,
    completed,
    far_pairs,
    near_pairs,
)
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import building
from querywright.retrieval.generated_questions import (
    COMPLETE,
    LOCK,
    AnswerPair,
    build_command,
    question_id,
    questions_folder,
    questions_name,
    read_pairs,
    read_records,
    write_pairs,
)

MOST = 10_000
FAR_SHARE = 0.2
"""Share of the judgements that goes to pairs drawn at random, where the matrix is to be completed."""


@dataclass(frozen=True, slots=True)
class FillReport:
    """What is known of a collection's questions and passages after a fill.

    Args:
        collection: Its name.
        questions: Questions that their own passage answers completely.
        passages: Passages.
        stale: Such questions that were left out because their passage has changed or is gone.
        eligible: Pairs that the threshold or percentile admits.
        near: Similar pairs that were judged.
        far: Pairs that were drawn at random and judged.
        unreadable: Judgements that could not be read.
        failed: Judgements that failed.
        near_answered: Share of answers among the readable similar pairs; NaN without any.
        far_answered: The same of the random ones.
        completed: Pairs stored because the completion gives them a value of ``cut`` or more.
        before: Pairs that were stored before; what is stored now replaces them.
        stored: Pairs that are stored now.
        validation: What the completion is worth; None where none was asked for.
    """

    collection: str
    questions: int
    passages: int
    stale: int
    eligible: int
    near: int
    far: int
    unreadable: int
    failed: int
    near_answered: float
    far_answered: float
    completed: int
    before: int
    stored: int
    validation: Validation | None

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return asdict(self)


def fill(
    collection: str,
    *,
    lm: dspy.LM,
    embedder: TextEmbedder,
    home: Path | None = None,
    threshold: float | None = None,
    percentile: float | None = None,
    most: int = MOST,
    complete: bool = True,
    cut: float = ANSWERED,
    threads: int = 4,
    max_failures: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
) -> FillReport:
    """Judges pairs of question and passage, completes the rest, and stores what was found in place of what was there.

    Only questions that their own passage answers completely take part. For the completion each counts as answered by
    its own passage, and as many pairs drawn at random are assumed to be no answers; an assumed pair is neither stored
    nor held out.

    Args:
        collection: The collection whose questions were written.
        lm: The LM that judges, made by ``resolve_lm``.
        embedder: The one that the collection was built with.
        home: The working folder. Default: ``querywright.home.home()``.
        threshold: The least cosine similarity of a pair that is judged, -1 to 1. Default None.
        percentile: Only pairs above this percentile of similarity are judged, 0 to 100. Default None; with neither,
            the most similar pairs.
        most: At most so many judgements, and at most so many completed pairs, 1 or more. Default 10,000.
        complete: Whether the other pairs are completed; a fifth of the judgements then goes to pairs drawn at random.
            Default True.
        cut: The least completed value that is stored, above 0 to 1. Default 0.5.
        threads: Judgements under way at a time, 1 or more. Default 4.
        max_failures: Share of the judgements that may fail, 0 to 1. Default 0.05.
        seed: Of what is drawn and of the completion. Default 0.
        progress: Called as it goes on.

    Raises:
        InputError: A number is out of range, or both a threshold and a percentile are given.
        CollectionError: The collection or what is stored of it is missing or damaged, it has no questions to fill in,
            or another process changes these.
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached; the answers so far are kept.
        TooManyFailuresError: More judgements failed than allowed.

    Source: QB-RAG, arXiv:2407.18044, its dense answerability matrix; the paper describes and does not evaluate it.
    """
    if not 0 < cut <= 1:
        raise InputError(f"cut is above 0 and at most 1, but got {cut}")
    if most < 1:
        raise InputError(f"most must be 1 or more, but got {most}")
    if threshold is None and percentile is None:
        percentile = 0.0
    judge = AnswerabilityJudge()
    folder = questions_folder(collection, home)
    passages = ChromaRetriever(collection, embedder=embedder, home=home)
    with building(folder, questions_name(collection), LOCK) if folder.exists() else nullcontext():
        known, stale = list[tuple[str, str, str]](), 0
        digests = {passage.id: passage.text_digest() for passage in passages.passages()}
        for record in read_records(folder).values():
            texts = [one.text for one in record.questions if one.label == COMPLETE]
            if digests.get(record.passage) == record.digest:
                known += [(question_id(record.passage, text), record.passage, text) for text in texts]
            else:
                stale += len(texts)
        known.sort()
        if not known:
            raise CollectionError(
                f"the collection {collection!r} has no question that its own passage, as it is now, answers "
                f"completely; write questions: {build_command(collection)}"
            )
        shape, ids = (len(known), len(digests)), list(digests)
        rows = {passage: row for row, passage in enumerate(ids)}
        # Of each question the cell with the passage that it was written for, numbered as ``answer_matrix`` has it.
        own = np.arange(len(known)) * len(ids) + np.array([rows[passage] for _, passage, _ in known])

        def case(cell: int) -> Case:
            row, column = divmod(cell, len(ids))
            question, _, text = known[row]
            return Case(Question(question, text), tuple(passages.get([ids[column]])))

        def pairs(found: KnownCells, *, judged: bool) -> list[AnswerPair]:
            cells = (divmod(cell, len(ids)) for cell in found.cells.tolist())
            return [
                AnswerPair(known[row][0], ids[column], digests[ids[column]], value, judged)
                for (row, column), value in zip(cells, found.values.tolist(), strict=True)
            ]

        before = len(read_pairs(folder))
        stored = with_store(embedder, home)
        near, eligible = near_pairs(
            all_encoded(stored, (text for _, _, text in known), "query"),
            all_encoded(stored, (passage.content for passage in passages.passages()), "document"),
            own,
            threshold=threshold,
            percentile=percentile,
            most=max(1, most - round(most * FAR_SHARE)) if complete else most,
        )
        share = FAR_SHARE / (1 - FAR_SHARE) if complete else 0.0
        taken = np.concatenate([near.cells, own])
        far = far_pairs(shape, taken, min(round(len(near) * share), most - len(near)), seed)
        asked = np.concatenate([near.cells, far])
        found = judge_cases(
            judge,
            [case(cell) for cell in asked.tolist()],
            lm=lm,
            threads=threads,
            max_failures=max_failures,
            progress=progress,
        )
        values = np.array([math.nan if label is None else judge.score([label]) for label in found.labels])
        read, distant = np.isfinite(values), np.arange(len(asked)) >= len(near)
        judged = KnownCells(asked[read], values[read])
        validation, more = None, KnownCells(asked[:0], values[:0])
        if complete:
            # As many pairs as there are questions are assumed to be no answers: there are hardly any others.
            assumed = far_pairs(shape, np.concatenate([taken, far]), len(own), seed + 1)
            given = KnownCells(own, np.ones(len(own))) + KnownCells(assumed, np.zeros(len(assumed)))
            made, validation = completed(given, judged, shape, far=distant[read], seed=seed)
            more = more if made is None else made.above(cut, most, np.concatenate([taken, far]))
        write_pairs(folder, [*pairs(judged, judged=True), *pairs(more, judged=False)])
    near_answered, far_answered = (
        float(of.mean()) if len(of) else math.nan for of in (values[read & ~distant], values[read & distant])
    )
    return FillReport(
        collection,
        questions=shape[0],
        passages=shape[1],
        stale=stale,
        eligible=eligible,
        near=len(near),
        far=len(far),
        unreadable=int((~read).sum()) - found.failed,
        failed=found.failed,
        near_answered=near_answered,
        far_answered=far_answered,
        completed=len(more),
        before=before,
        stored=len(judged) + len(more),
        validation=validation,
    )
