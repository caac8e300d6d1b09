"""Questions for every passage of a collection: written, judged, kept a passage at a time, and published.

Source: QB-RAG, arXiv:2407.18044, its offline stage. A passage is done as a whole: its record is on disk or it is not,
and what the LMs answered is stored, so that a build which was killed goes on and pays for nothing twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from querywright.data.judged import Case
from querywright.data.types import Passage, Question
from querywright.errors import CollectionError, PromptTooLongError
from querywright.home import home as working_folder
from querywright.metrics.judges import AnswerabilityJudge
from querywright.models.embedder import TextEmbedder
from querywright.models.usage import Ledger, metered
from querywright.optimize.evaluate import Progress, asking
from querywright.optimize.failures import Failures
from querywright.optimize.pool import bounded_each
from querywright.optimize.question_made import MADE, QuestionsMade, questions_made, read_made
from querywright.programs.question_rules import REPEATED
from querywright.programs.question_writer import QuestionWriter
from querywright.programs.steps import Call, Together
from querywright.retrieval.chroma import check_embedder
from querywright.retrieval.collection import building, collection_folder, published_passages
from querywright.retrieval.index import IndexReport
from querywright.retrieval.line_files import Edited
from querywright.retrieval.question_records import (
    IMPORTED,
    LOCK,
    PassageRecord,
    WrittenQuestion,
    add_record,
    check_unclaimed,
    publish_questions,
    questions_folder,
    questions_name,
    read_records,
)

LONGEST_REASON = 300
"""Characters of a reason that are kept."""
SAVE_SECONDS = 10.0
"""After so many seconds what was spent is written down, so that a killed build loses no more of it."""

Records = Callable[[Sequence[Passage], str], Generator[tuple[int, PassageRecord | Exception], None, None]]
"""Makes the records of passages under a digest of settings: position and record, or failure, of each as it is done."""


@dataclass(frozen=True, slots=True)
class QuestionsReport:
    """What a build did.

    Args:
        collection: Name of the collection.
        passages: Passages looked at.
        written: Those whose questions were written now.
        current: Those whose questions were there already.
        replaced: Those of the written that had questions which people imported, for the passage as it was before.
        failed: Those that failed, by kind; the next build tries them again.
        removed: Passages with questions that are in the collection no more.
        pruned: Whether the questions of these were removed too.
        made: How the questions were made, and what all builds with these settings cost.
        index: What publishing them did.
        seconds: How long it took.
        cost: What was spent on LMs in this build, as ``Cost.to_json`` gives it.
    """

    collection: str
    passages: int
    written: int
    current: int
    replaced: int
    failed: Mapping[str, int]
    removed: int
    pruned: bool
    made: QuestionsMade
    index: IndexReport
    seconds: float
    cost: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "failed": dict(self.failed), "made": self.made.model_dump(), "index": asdict(self.index)}


def build_questions(
    collection: str,
    *,
    lm: dspy.LM,
    embedder: TextEmbedder,
    judge_lm: dspy.LM | None = None,
    writer: QuestionWriter | None = None,
    judge: AnswerabilityJudge | None = None,
    records: Records | None = None,
    threads: int = 4,
    max_failures: float = 0.05,
    limit: int | None = None,
    prune: bool = False,
    home: Path | None = None,
    progress: Progress | None = None,
) -> QuestionsReport:
    """Writes and judges questions for the passages that have none, or none that fit them and the settings.

    Args:
        collection: Name of a collection that was built.
        lm: An LM made by ``resolve_lm``, which writes.
        embedder: Embeds the kept questions; the one that the collection was built with.
        judge_lm: An LM made by ``resolve_lm``, which judges. Default: the one that writes.
        writer: Writes the questions. Default ``QuestionWriter()``.
        judge: Judges them. Default ``AnswerabilityJudge()``.
        records: What makes the records. Default: threads of this process.
        threads: LM calls under way at a time, 1 or more. Default 4.
        max_failures: Share of the passages that may fail, 0 to 1; at least one may unless it is 0. Default 0.05.
        limit: Look only at the first passages, by id. Default all.
        prune: Whether the questions of passages that are in the collection no more are removed. Default False.
        home: The working folder. Default: ``querywright.home.home()``.
        progress: Called after each passage, and while questions are embedded.

    Raises:
        CollectionError: There is no such collection, it was built with another embedder, another process writes its
            questions, none is kept, or a collection that is not of questions has their name.
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached.
        TooManyFailuresError: More passages failed than allowed.
    """
    began = time.monotonic()
    home = working_folder(home)
    folder = questions_folder(collection, home)
    check_unclaimed(folder)
    manifest, passages = published_passages(collection_folder(collection, home), home)
    check_embedder(manifest, embedder)
    writer, judge, judge_lm = writer or QuestionWriter(), judge or AnswerabilityJudge(), judge_lm or lm
    made = questions_made(writer, judge, lm, judge_lm)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with building(folder, questions_name(collection), LOCK), metered() as meter:
        looked_at = list(passages.values())[:limit]
        known = read_records(folder)
        wanted = _unwritten(known, looked_at, made.settings)
        imported = [passage.id for passage in wanted if _imported(known.get(passage.id))]
        work = records or in_threads(writer, judge, lm, judge_lm, threads)
        with _Book(folder, made, meter) as book:
            failed = _write(folder, wanted, work, made.settings, max_failures, book, progress)
        found = read_records(folder)
        removed = found.keys() - passages.keys()
        index = publish_questions(
            collection,
            Edited(found, without=removed if prune else ()),
            embedder=embedder,
            home=home,
            progress=None if progress is None else partial(progress, "embedding"),
        )
    return QuestionsReport(
        collection=collection,
        passages=len(looked_at),
        written=len(wanted) - failed.total(),
        current=len(looked_at) - len(wanted),
        replaced=sum(not _imported(found[id]) for id in imported),
        failed=dict(failed),
        removed=len(removed),
        pruned=prune,
        made=book.made,
        index=index,
        seconds=time.monotonic() - began,
        cost=meter.total.to_json(),
    )


def in_threads(
    writer: QuestionWriter, judge: AnswerabilityJudge, lm: dspy.LM, judge_lm: dspy.LM, threads: int
) -> Records:
    """Makes records in threads of this process.

    There are as many passages under way as calls may be, and each has one to make at any time, so that the number
    of calls under way falls only when there is no passage left to begin.

    Args:
        writer: Writes the questions.
        judge: Judges them.
        lm: The writer's LM.
        judge_lm: The judge's LM.
        threads: LM calls under way at a time, 1 or more.
    """

    def records(
        passages: Sequence[Passage], settings: str
    ) -> Generator[tuple[int, PassageRecord | Exception], None, None]:
        turn = threading.Semaphore(max(1, threads))
        work = partial(write_record, settings=settings, writer=writer, judge=judge, lm=lm, judge_lm=judge_lm, turn=turn)
        return bounded_each(work, passages, threads=threads)

    return records


def write_record(
    passage: Passage,
    *,
    settings: str,
    writer: QuestionWriter,
    judge: AnswerabilityJudge,
    lm: dspy.LM,
    judge_lm: dspy.LM,
    turn: AbstractContextManager[Any] | None = None,
) -> PassageRecord:
    """Writes and judges the questions of one passage; the same answers of the LMs give the same record.

    A judgement that cannot be read, or that has no room in the LM's context, leaves its question without a label.

    Args:
        passage: What the questions are about.
        settings: Digest of how they are written and judged.
        writer: Writes them.
        judge: Judges each.
        lm: The writer's LM.
        judge_lm: The judge's LM.
        turn: Held during each call of an LM; a semaphore bounds the calls of many passages. Default: no bound.

    Raises:
        AdapterParseError: The first batch of questions could not be read.
        PromptTooLongError: The passage has no room in the context of the LM that writes.
        dspy.LMError: An LM failed.
    """
    turn = turn or nullcontext()
    with turn, asking(lm):
        written = writer(passage=passage)
    dropped = Counter(written.dropped)
    repeated = dropped.pop(REPEATED, 0)
    steps = [Call(partial(_judged, text, passage, judge, judge_lm, turn)) for text in written.questions]
    return PassageRecord(
        passage.id,
        passage.text_digest(),
        settings,
        tuple(Together(steps).run()),
        repeated,
        dict(sorted(dropped.items())),
    )


def _judged(
    text: str, passage: Passage, judge: AnswerabilityJudge, lm: dspy.LM, turn: AbstractContextManager[Any]
) -> WrittenQuestion:
    with turn, asking(lm):
        try:
            made = judge.judgement(Case(Question(passage.id, text), (passage,)))
        except PromptTooLongError:
            made = None
    if made is None:
        return WrittenQuestion(text, "")
    return WrittenQuestion(text, str(made.label), " ".join(str(made.reason).split())[:LONGEST_REASON])


def _unwritten(records: Mapping[str, PassageRecord], passages: Collection[Passage], settings: str) -> list[Passage]:
    """The passages without a record, or with one of another text or other settings; what people edited stays."""
    known = {id: (record.digest, record.settings) for id, record in records.items()}
    return [
        passage
        for passage in passages
        if known.get(passage.id) not in {(digest := passage.text_digest(), settings), (digest, IMPORTED)}
    ]


def _imported(record: PassageRecord | None) -> bool:
    return record is not None and record.settings == IMPORTED


def _write(
    folder: Path,
    passages: Sequence[Passage],
    work: Records,
    settings: str,
    max_failures: float,
    book: _Book,
    progress: Progress | None,
) -> Counter[str]:
    """Adds the record of each passage as soon as it is done; gives the failures by kind."""
    failures = Failures("questions", len(passages), max_failures, what="passages")
    kinds: Counter[str] = Counter()
    with closing(work(passages, settings)) as done:
        for count, (position, result) in enumerate(done, start=1):
            book.note()
            if isinstance(result, Exception):
                kinds[failures.add(passages[position].id, result)] += 1
            else:
                add_record(folder, result)
            if progress is not None:
                progress("questions", count, len(passages))
    return kinds


class _Book:
    """Writes down what a build spends: now and then, and when it ends, however it ends; a build of nothing, never."""

    def __init__(self, folder: Path, made: QuestionsMade, meter: Ledger) -> None:
        known = _known(folder)
        self._before = known if known is not None and known.settings == made.settings else made
        self._folder, self._meter = folder, meter
        self._began = self._saved = time.monotonic()

    @property
    def made(self) -> QuestionsMade:
        """How the questions are made, with what was spent up to now."""
        cost = self._meter.total
        return self._before.with_cost(time.monotonic() - self._began, cost) if cost.asked else self._before

    def note(self) -> None:
        """Write it down if that was not done lately."""
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.made.save(self._folder)
            self._saved = time.monotonic()

    def __enter__(self) -> _Book:
        return self

    def __exit__(self, *_: object) -> None:
        if self._meter.total.asked or not (self._folder / MADE).exists():
            self.made.save(self._folder)


def _known(folder: Path) -> QuestionsMade | None:
    try:
        return read_made(folder)
    except CollectionError:  # only what earlier builds cost is lost
        return None
