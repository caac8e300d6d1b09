"""Questions for every passage of a collection: written, judged and published.

Source: QB-RAG, arXiv:2407.18044, its offline stage. What the LMs answer is in the store: a build that was stopped is
started again, finds its answers, and pays for nothing twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dspy
from pydantic import Field

from querywright.checksummed import Checksummed
from querywright.data.judged import Case
from querywright.data.types import Passage, Question
from querywright.errors import CollectionError, PromptTooLongError
from querywright.files import json_digest
from querywright.home import home as working_folder
from querywright.metrics.judges import AnswerabilityJudge
from querywright.models.embedder import TextEmbedder
from querywright.models.lm import engine_of
from querywright.models.usage import Cost, metered
from querywright.optimize.contexts import asking
from querywright.optimize.evaluate import Progress
from querywright.optimize.failures import ENOUGH, Failures
from querywright.optimize.program_state import predictor_states
from querywright.pool import bounded_each
from querywright.programs.question_rules import REPEATED
from querywright.programs.question_writer import QuestionWriter
from querywright.retrieval.collection import building, check_embedder, collection_folder, published_passages
from querywright.retrieval.generated_questions import (
    IMPORTED,
    LOCK,
    PassageRecord,
    WrittenQuestion,
    publish_questions,
    questions_folder,
    questions_name,
    read_records,
)
from querywright.retrieval.index import IndexReport

MADE = "questions.json"
RULES = 3
"""Raised when the same answers of the LMs would make other records."""
LONGEST_REASON = 300
"""Characters of a reason that are kept."""

Done = Generator[tuple[int, PassageRecord | Exception], None, None]
Runner = Callable[[Sequence[Passage], str], Done]
"""Makes the records of passages under a digest of settings: position and record, or failure, of each as it is done."""


class RecordMaker:
    """Writes and judges the questions of single passages; the same answers of the LMs give the same record.

    Raises:
        ModelError: An LM was not made by ``resolve_lm``.
    """

    def __init__(
        self,
        lm: dspy.LM,
        judge_lm: dspy.LM | None = None,
        writer: QuestionWriter | None = None,
        threads: int = 4,
    ) -> None:
        self.lm, self.judge_lm, self.threads = lm, judge_lm or lm, threads
        self.writer, self.judge = writer or QuestionWriter(), AnswerabilityJudge()
        lms = [
            [engine_of(one).identity, one.kwargs.get("temperature"), one.kwargs.get("max_tokens")]
            for one in (self.lm, self.judge_lm)
        ]
        self.settings = json_digest({
            "rules": RULES,
            "writer": {name: state.model_dump() for name, state in predictor_states(self.writer).items()},
            "asked": [self.writer.num_questions, self.writer.batch_size, self.writer.temperature],
            "judge": self.judge.digest(),
            "lms": lms,
        })  # fmt: skip
        """SHA-256, as hex, of all that a record depends on beside its passage."""

    def __call__(self, passage: Passage) -> PassageRecord:
        """The record of a passage; a question whose judgement cannot be read, or has no room, is left without a label.

        Raises:
            AdapterParseError: The first batch of questions could not be read.
            PromptTooLongError: The passage has no room in the context of the LM that writes.
            dspy.LMError: An LM failed.
        """
        with asking(self.lm):
            written = self.writer(passage=passage)
        dropped = Counter(written.dropped)
        repeated = dropped.pop(REPEATED, 0)
        questions = [self._judged(passage, text) for text in written.questions]
        return PassageRecord(
            passage.id, passage.text_digest(), self.settings, tuple(questions), repeated, dict(sorted(dropped.items()))
        )

    def in_threads(self, passages: Sequence[Passage], settings: str) -> Done:
        """Make the records in threads of this process: one passage and one call at a time in each thread."""
        return bounded_each(self, passages, threads=self.threads)

    def _judged(self, passage: Passage, text: str) -> WrittenQuestion:
        made = None
        with asking(self.judge_lm), suppress(PromptTooLongError):
            made = self.judge.judgement(Case(Question(passage.id, text), (passage,)))
        if made is None:
            return WrittenQuestion(text, "")
        return WrittenQuestion(text, str(made.label), " ".join(str(made.reason).split())[:LONGEST_REASON])


class QuestionsOrigin(Checksummed):
    """How the questions of a collection were made: ``questions.json`` beside the records.

    Args:
        settings: SHA-256 of how they were written and judged, as the records have it.
        lm: Name of the LM that wrote them.
        judge_lm: Name of the LM that judged them.
        num_questions: Questions asked for a passage.
        batch_size: Questions asked for in one call.
        seconds: How long it took, all finished builds with these settings together.
        cost: LM calls, tokens and dollars of these builds, as ``Cost.to_json`` gives them.
    """

    settings: str
    lm: str
    judge_lm: str
    num_questions: int
    batch_size: int
    seconds: float = 0.0
    cost: dict[str, int | float] = Field(default_factory=dict)


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
        removed: Passages that are no longer in the collection; their questions were removed.
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
    made: QuestionsOrigin
    index: IndexReport
    seconds: float
    cost: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {**asdict(self), "made": self.made.model_dump()}


def build_questions(
    collection: str,
    *,
    lm: dspy.LM,
    embedder: TextEmbedder,
    judge_lm: dspy.LM | None = None,
    writer: QuestionWriter | None = None,
    runner: Runner | None = None,
    threads: int = 4,
    max_failures: float = 0.05,
    limit: int | None = None,
    home: Path | None = None,
    progress: Progress | None = None,
) -> QuestionsReport:
    """Write and judge questions for the passages that have none, or none that fit them and the settings.

    Questions of passages that are no longer in the collection are removed.

    Args:
        collection: Name of a collection that was built.
        lm: An LM made by ``resolve_lm``, which writes.
        embedder: Embeds the kept questions; the one that the collection was built with.
        judge_lm: An LM made by ``resolve_lm``, which judges. Default: the one that writes.
        writer: Writes the questions. Default ``QuestionWriter()``.
        runner: What makes the records. Default: threads of this process.
        threads: LM calls under way at a time, 1 or more. Default 4.
        max_failures: Share of the passages that may fail, 0 to 1; at least one may unless it is 0. Default 0.05.
        limit: Look only at the first passages, by id. Default all.
        home: The working folder. Default: ``querywright.home.home()``.
        progress: Called after each passage, and while questions are embedded.

    Raises:
        CollectionError: There is no such collection, it was built with another embedder, another process writes its
            questions, or none is kept.
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached.
        TooManyFailuresError: More passages failed than allowed.
    """
    began = time.monotonic()
    home = working_folder(home)
    folder = questions_folder(collection, home)
    manifest, passages = published_passages(collection_folder(collection, home), home)
    check_embedder(manifest, embedder)
    maker = RecordMaker(lm, judge_lm, writer, threads)
    settings, runner = maker.settings, runner or maker.in_threads
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with building(folder, questions_name(collection), LOCK), metered() as meter:
        looked_at = list(passages)[:limit]
        before = read_records(folder)

        def is_current(passage: Passage) -> bool:
            """Whether its record stays; one that people edited does until the passage changes."""
            found = before.get(passage.id)
            return (
                found is not None and found.settings in {settings, IMPORTED} and found.digest == passage.text_digest()
            )

        wanted = [one for one in map(passages.__getitem__, looked_at) if not is_current(one)]
        failures = Failures("questions", len(wanted), max_failures, what="passages")
        new: dict[str, PassageRecord] = {}
        with closing(runner(wanted, settings)) as done:
            for count, (position, result) in enumerate(done, start=1):
                if isinstance(result, Exception):
                    failures.add(wanted[position].id, result)
                else:
                    new[result.passage] = result
                failures.check_read(meter, ENOUGH)
                if progress is not None:
                    progress("questions", count, len(wanted))
        failures.check_read(meter)
        removed = before.keys() - passages.keys()
        records = {**before, **new}
        index = publish_questions(
            collection,
            [records[id] for id in sorted(records.keys() - removed)],
            embedder=embedder,
            home=home,
            progress=None if progress is None else partial(progress, "embedding"),
        )
        seconds, cost = time.monotonic() - began, meter.total
        made = QuestionsOrigin(
            settings=settings,
            lm=lm.model,
            judge_lm=maker.judge_lm.model,
            num_questions=maker.writer.num_questions,
            batch_size=maker.writer.batch_size,
        )
        known = None
        with suppress(CollectionError):  # only what earlier builds cost is lost
            known = read_made(folder)
        if known is not None and not cost.asked:
            made = known
        else:
            same = known if known is not None and known.settings == settings else made
            total = Cost.from_json(same.cost) + cost
            changes = {"seconds": round(same.seconds + seconds, 3), "cost": total.to_json()}
            made = made.model_copy(update=changes)
            made.write(folder / MADE)
    return QuestionsReport(
        collection=collection,
        passages=len(looked_at),
        written=len(new),
        current=len(looked_at) - len(wanted),
        replaced=sum(id in before and before[id].settings == IMPORTED for id in new),
        failed=dict(failures.kinds),
        removed=len(removed),
        made=made,
        index=index,
        seconds=seconds,
        cost=cost.to_json(),
    )


def read_made(folder: Path) -> QuestionsOrigin | None:
    """How the questions of a folder were made; None where nothing was built there."""
    try:
        return QuestionsOrigin.read(folder / MADE)
    except ValueError as error:
        raise CollectionError(
            f"{MADE} in {folder.name!r} is damaged ({error}); remove it, and only what the questions cost is forgotten"
        ) from error
