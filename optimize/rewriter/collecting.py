"""The first stage alone: rewrites of one technique over one collection, for a training that may learn from several."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import dspy

from querywright.data.splits import asked_of, data_hash
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.embedded import EmbeddedSettings
from querywright.models.hf import EMBEDDED
from querywright.optimize.evaluate import Progress, finite
from querywright.optimize.rewriter.collect import CANDIDATES_FILE, EVIDENCE, PAIRS_FILE, CollectSettings, collect
from querywright.optimize.rewriter.episodes import REWRITER_LIMITS
from querywright.optimize.rewriter.given import Given
from querywright.optimize.rewriter.keeping import only_one, read_json, read_lines, write_json, write_whole
from querywright.optimize.rewriter.pairs import open_lines, write_pairs
from querywright.optimize.rewriter.passage_questions import passage_pairs
from querywright.optimize.rewriter.rewards import make_reward
from querywright.optimize.rewriter.settings import COLLECT, RUN, TrainSettings, check_collecting
from querywright.optimize.rewriter.types import Pair
from querywright.programs import RAG, make_program
from querywright.programs.qb_rag import QBRAG
from querywright.retrieval.replay import searched_by

WRITTEN = "written.json"
"""Hashes of what was written to ``--out``, by which it is known again."""


@dataclass(frozen=True, slots=True)
class Programs:
    """What a training trains.

    Args:
        finds: The technique alone.
        program: With the reader, where the recipe rewards answers.
        reader_lm: What that reader asks; None without one.
        limits: What the base can write; None: anything.
    """

    finds: RAG
    program: RAG
    reader_lm: dspy.LM | None
    limits: EmbeddedSettings | None


def programs_of(settings: TrainSettings, given: Given) -> Programs:
    """The programs of a training.

    Args:
        settings: How.
        given: What with.
    """
    finds = make_program(settings.technique, given.retriever, **settings.knobs)
    limits = REWRITER_LIMITS if settings.base == EMBEDDED else None
    if not settings.recipe.needs_reader:
        return Programs(finds, finds, None, limits)
    reads = make_program(settings.technique, given.retriever, reader=given.reader, **settings.knobs)
    return Programs(finds, reads, given.reader_lm, limits)


def collected_as(settings: TrainSettings, limits: EmbeddedSettings | None) -> CollectSettings:
    """How a training collects.

    Args:
        settings: Of the training.
        limits: What its base can write.
    """
    return replace(settings.collect, seed=settings.seed, limits=limits)


@dataclass(frozen=True, slots=True)
class Collected:
    """What was collected.

    Args:
        pairs: Those that were kept.
        questions: Train questions.
        answered: Those with a rewrite that could be scored, or that a passage was learnt with.
        kept: Those with a pair.
        measure: What ``plain`` and ``best`` are means of, over the answered questions; empty where nothing is
            searched, as for the questions of passages.
        plain: Of the question as it was written; NaN where nothing was scored.
        best: Of the best rewrite.
    """

    pairs: Sequence[Pair]
    questions: int
    answered: int
    kept: int
    measure: str
    plain: float
    best: float

    def to_json(self) -> dict[str, Any]:
        """All but the pairs, which are counted, as a JSON object."""
        return {
            "questions": self.questions,
            "answered": self.answered,
            "questions_kept": self.kept,
            "pairs": len(self.pairs),
            "measure": self.measure,
            "plain": finite(self.plain),
            "best": finite(self.best),
        }


def collect_pairs(
    settings: TrainSettings, given: Given, *, out: Path, work: Path, progress: Progress | None = None
) -> Collected:
    """Collects a teacher's rewrites of the train questions, as the stage ``collect`` of a training does.

    Args:
        settings: Of the training that they are for; its stages do not matter.
        given: What with; there must be a teacher.
        out: The file of the pairs. One that this very collection wrote is replaced.
        work: The working folder; made when it is missing, and taken up again.
        progress: Called as questions are done.

    Raises:
        InputError: Something given is wrong, the folder is another collection's, or the file is somebody else's.
        QuerywrightError: An LM is out of reach, or its calls are used up; nothing is lost.
        OSError: A file cannot be written; the same call goes on from what was kept.
    """
    if given.teacher is None:
        raise InputError("there is nobody to collect rewrites from; give --teacher NAME")
    train = given.splits.train
    check_collecting(
        settings,
        train,
        reader=given.reader is not None and given.reader_lm is not None,
        by_evidence=given.teacher == EVIDENCE,
    )
    check_pairs_file(out, work)
    if settings.technique == QBRAG.NAME:
        return _collect_asked(given, REWRITER_LIMITS if settings.base == EMBEDDED else None, out, work)
    programs = programs_of(settings, given)
    recipe = replace(settings.recipe, length_penalty=0.0)  # there is no length to aim at yet
    reward = make_reward(
        recipe, programs.program, metric=settings.metric, lm=programs.reader_lm, threads=settings.collect.threads
    )
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(work):
        pairs = collect(
            programs.program,
            train,
            given.teacher,
            collected_as(settings, programs.limits),
            work / COLLECT,
            reward=reward,
            reader_lm=programs.reader_lm,
            progress=progress,
            facts={"collection": given.collection, "fingerprint": given.retriever.fingerprint, **_read_by(given)},
        )
        _write(work / COLLECT / PAIRS_FILE, out, work)
    keys = {data_hash([question]) for question in train}
    lines = [line for line in read_lines(work / COLLECT / CANDIDATES_FILE)[1:] if line["question"] in keys]
    return _counted(pairs, lines, train, getattr(reward, "metric", reward.name))


def _read_by(given: Given) -> dict[str, Any]:
    """Whose answers are rewarded, where any are."""
    return {} if given.reader_lm is None else {"reader": given.reader, "reader_lm": given.reader_lm.model}


def _collect_asked(given: Given, limits: EmbeddedSettings | None, out: Path, work: Path) -> Collected:
    """What was asked of passages, anew each time: it is at hand."""
    if given.teacher != EVIDENCE:
        raise InputError(
            f"{QBRAG.NAME} searches questions that were written for passages; those that people asked are learnt from, "
            f"so give --teacher {EVIDENCE}"
        )
    train = given.splits.train
    pairs = passage_pairs(train, searched_by(given.retriever), data=given.collection, limits=limits)
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(work):
        head = {"technique": QBRAG.NAME, "collection": given.collection, "fingerprint": given.retriever.fingerprint}
        open_lines(work / COLLECT / CANDIDATES_FILE, head)
        write_pairs(work / COLLECT / PAIRS_FILE, pairs)
        _write(work / COLLECT / PAIRS_FILE, out, work)
    asked = {one for pair in pairs for one in pair.asked.split()}
    learnt = sum(asked_of(question) in asked for question in train)
    return Collected(pairs, len(train), learnt, learnt, "", math.nan, math.nan)


def check_pairs_file(out: Path, work: Path) -> None:
    """Raise when pairs could not be written there, before anything is spent.

    Args:
        out: The file; it need not be there.
        work: The working folder, which knows what it wrote.

    Raises:
        InputError: It is something else than what this collection wrote, or the folder is a training's.
    """
    if (work / RUN).exists():
        raise InputError(f"{work.name!r} is the working folder of a training; give another with --work")
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_file():
        raise InputError(f"{out.name!r} is no file; give a file with --out")
    if _digest(out) not in (read_json(work / WRITTEN) or ()):
        raise InputError(
            f"{out.name!r} exists and is not what this collection wrote; give another --out, or move it away"
        )


def _write(made: Path, out: Path, work: Path) -> None:
    """Copy the pairs to where they were asked for; what is about to be written is known before it is."""
    known = read_json(work / WRITTEN) or []
    digest = _digest(made)
    if digest not in known:
        write_json(work / WRITTEN, [*known, digest])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, made.read_bytes())


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _counted(
    pairs: Sequence[Pair], lines: Sequence[Mapping[str, Any]], train: Sequence[Question], measure: str
) -> Collected:
    scored = [line for line in lines if line.get("value") is not None]
    both = [(line["plain"], line["value"]) for line in scored if line["plain"] is not None]
    return Collected(
        pairs,
        questions=len(train),
        answered=len(scored),
        kept=len({pair.question for pair in pairs}),
        measure=measure,
        plain=fmean(plain for plain, _ in both) if both else math.nan,
        best=fmean(value for _, value in both) if both else math.nan,
    )
