"""Find more passages that answer the questions in a question index: judge similar pairs, then estimate the others.

The judge sees the most similar pairs and some pairs drawn at random. Without the random pairs, almost no judged pair
would be a non-answer, and the quality of the estimate could not be measured. The LM's answers are cached, so a run that
was stopped can resume, and a larger run pays only for the new pairs.
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
from querywright.optimize.answer_matrix import (
    ANSWERED,
    KnownCells,
    Validation,
    completed,
    far_pairs,
    near_pairs,
)
from querywright.optimize.evaluate import Progress
from querywright.optimize.judging import judge_cases
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
    read_records,
    write_pairs,
)

MOST = 10_000
FAR_SHARE = 0.2
"""Share of the judgments for pairs drawn at random, if the matrix is completed."""


@dataclass(frozen=True, slots=True)
class FillReport:
    """The counts for a fill.

    Args:
        collection: Name of the collection.
        questions: Questions that are completely answered by the passage they were written for.
        passages: Passages in the collection.
        near: Similar pairs that were judged.
        far: Pairs drawn at random that were judged.
        unreadable: Judgments that could not be parsed.
        failed: Judgments that failed.
        far_answered: Share of answers among the random pairs; NaN if there are none.
        completed: Pairs that are stored because their estimated value is ``cut`` or more.
        stored: Pairs that are stored now.
        validation: How well the estimate predicts held-out pairs; None if there was no completion.
    """

    collection: str
    questions: int
    passages: int
    near: int
    far: int
    unreadable: int
    failed: int
    far_answered: float
    completed: int
    stored: int
    validation: Validation | None

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)


def fill(
    collection: str,
    *,
    lm: dspy.LM,
    embedder: TextEmbedder,
    home: Path | None = None,
    most: int = MOST,
    complete: bool = True,
    cut: float = ANSWERED,
    threads: int = 4,
    max_failures: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
) -> FillReport:
    """Judge question-passage pairs, estimate the other pairs, and replace the stored pairs with the results.

    Only questions that are completely answered by their own passage are used. For the estimate, each question counts as
    answered by its passage, and an equal number of pairs drawn at random are assumed to be non-answers. Assumed pairs
    are neither stored nor held out.

    Args:
        collection: Name of a collection with written questions.
        lm: The LM that judges, from ``resolve_lm``.
        embedder: The embedder that the collection was built with.
        home: The workspace. Default: ``querywright.home.home()``.
        most: Number of judgments (the most similar pairs come first), and also the maximum number of estimated pairs to
            store; 1 or more. Default 10,000.
        complete: Whether to estimate the other pairs. A fifth of the judgments is then for pairs drawn at random.
            Default True.
        cut: Minimum estimated value of a stored pair, more than 0 and at most 1. Default 0.5.
        threads: Number of judgments to run at a time, 1 or more. Default 4.
        max_failures: Share of the judgments that may fail, 0 to 1. Default 0.05.
        seed: Seed for the choice of random pairs and for the estimate. Default 0.
        progress: Called after each judgment. Default None.

    Raises:
        InputError: A number is out of range.
        CollectionError: The collection or its questions are missing or damaged, no question is answered completely, or
            another process is changing the questions.
        OutageError: The LM cannot be reached.
        BudgetError: The call limit is reached; the answers so far are cached.
        TooManyFailuresError: More judgments failed than allowed.

    Source: the dense answerability matrix in QB-RAG, arXiv:2407.18044. The paper describes but does not evaluate it.
    """
    if not 0 < cut <= 1:
        raise InputError(f"cut must be above 0 and at most 1, but got {cut}")
    if most < 1:
        raise InputError(f"most= must be 1 or more, but got {most}")
    judge = AnswerabilityJudge()
    folder = questions_folder(collection, home)
    passages = ChromaRetriever(collection, embedder=embedder, home=home)
    with building(folder, questions_name(collection), LOCK) if folder.exists() else nullcontext():
        digests = {passage.id: passage.text_digest() for passage in passages.passages()}
        known = sorted(
            (question_id(record.passage, question.text), record.passage, question.text)
            for record in read_records(folder).values()
            if digests.get(record.passage) == record.digest
            for question in record.questions
            if question.label == COMPLETE
        )
        if not known:
            raise CollectionError(
                f"the collection {collection!r} has no question that the current text of its passage answers "
                f"completely; write questions with {build_command(collection)}"
            )
        shape, ids = (len(known), len(digests)), list(digests)
        rows = {passage: row for row, passage in enumerate(ids)}
        # For each question, the cell of the passage that it was written for.
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

        stored = with_store(embedder, home)
        n_far = round(most * FAR_SHARE) if complete else 0
        near = near_pairs(
            all_encoded(stored, (text for _, _, text in known), "query"),
            all_encoded(stored, (passage.content for passage in passages.passages()), "document"),
            own,
            most - n_far,
        )
        taken = np.concatenate([near.cells, own])
        far = far_pairs(shape, taken, n_far, seed)
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
            assumed = far_pairs(shape, np.concatenate([taken, far]), len(own), seed + 1)
            given = KnownCells(own, np.ones(len(own))) + KnownCells(assumed, np.zeros(len(assumed)))
            made, validation = completed(given, judged, shape, far=distant[read], seed=seed)
            more = more if made is None else made.above(cut, most, np.concatenate([taken, far]))
        write_pairs(folder, [*pairs(judged, judged=True), *pairs(more, judged=False)])
    answered = values[read & distant]
    return FillReport(
        collection,
        questions=shape[0],
        passages=shape[1],
        near=len(near),
        far=len(far),
        unreadable=int((~read).sum()) - found.failed,
        failed=found.failed,
        far_answered=float(answered.mean()) if len(answered) else math.nan,
        completed=len(more),
        stored=len(judged) + len(more),
        validation=validation,
    )
