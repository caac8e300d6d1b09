"""Build a question index: an LM writes questions for every passage, a judge labels them, and the results are published.

Source: the offline stage of QB-RAG, arXiv:2407.18044. The LMs' answers are cached, so a build that was stopped resumes
when you restart it, and no call is paid for twice.
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

from querywright.checksummed import Checksummed
from querywright.data.judged import Case
from querywright.data.types import Passage, Question
from querywright.errors import CollectionError, PromptTooLongError
from querywright.files import json_digest
from querywright.home import home as working_folder
from querywright.metrics.judges import AnswerabilityJudge
from querywright.models.embedder import TextEmbedder
from querywright.models.lm import engine_of
from querywright.models.usage import metered
from querywright.optimize.contexts import asking
from querywright.optimize.evaluate import Progress
from querywright.optimize.failures import ENOUGH, Failures
from querywright.optimize.program_state import predictor_states
from querywright.pool import bounded_each
from querywright.programs.question_rules import REPEATED
from querywright.programs.question_writer import QuestionWriter
from querywright.retrieval.collection import building, check_embedder, collection_folder, published_passages
from querywright.retrieval.generated_questions import (
    COMPLETE,
    LOCK,
    NONE,
    PARTIAL,
    PassageRecord,
    WrittenQuestion,
    build_command,
    publish_questions,
    questions_folder,
    questions_name,
    read_records,
)
from querywright.retrieval.index import IndexReport

MADE = "questions.json"
RULES = 3
"""Version of the rules. It changes if the same LM answers would produce different records."""
LONGEST_REASON = 300
"""Maximum length of a judge's reason, in characters; the rest is not kept."""

Done = Generator[tuple[int, PassageRecord | Exception], None, None]
Runner = Callable[[Sequence[Passage], str], Done]
"""Makes passages' records, given a digest of the settings; yields each passage's position and its record or failure."""


class RecordMaker:
    """Write and judge the questions for one passage at a time; the same LM answers produce the same record.

    Raises:
        ModelError: An LM is not from ``resolve_lm``.
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
        """SHA-256 of the writer's and the judge's settings, in hexadecimal."""

    def __call__(self, passage: Passage) -> PassageRecord:
        """Return a passage's record; a question whose judgment is too long or cannot be parsed has no label.

        Raises:
            AdapterParseError: The first batch of questions could not be parsed.
            PromptTooLongError: The passage does not fit in the writing LM's context.
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
        """Make the records in threads in this process."""
        return bounded_each(self, passages, threads=self.threads)

    def _judged(self, passage: Passage, text: str) -> WrittenQuestion:
        made = None
        with asking(self.judge_lm), suppress(PromptTooLongError):
            made = self.judge.judgement(Case(Question(passage.id, text), (passage,)))
        if made is None:
            return WrittenQuestion(text, "")
        return WrittenQuestion(text, str(made.label), " ".join(str(made.reason).split())[:LONGEST_REASON])


class QuestionsOrigin(Checksummed):
    """The LMs that wrote and judged a collection's questions, stored in ``questions.json`` next to the records.

    Args:
        lm: Name of the LM that wrote the questions.
        judge_lm: Name of the LM that judged the questions.
        num_questions: Questions requested per passage.
        batch_size: Questions requested in one call.
    """

    lm: str
    judge_lm: str
    num_questions: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class QuestionsReport:
    """The counts for a build.

    Args:
        collection: Name of the collection.
        passages: Passages that the build covered.
        written: Passages whose questions were written in this build.
        current: Passages whose questions were already up to date.
        failed: Number of passages that failed, by kind of failure; the next build tries them again.
        removed: Passages that are no longer in the collection, whose questions were removed.
        made: The LMs that wrote and judged the questions.
        index: The counts for the question index.
        seconds: Duration of the build.
        cost: The build's LM calls, tokens, and dollars, from ``Cost.to_json``.
    """

    collection: str
    passages: int
    written: int
    current: int
    failed: Mapping[str, int]
    removed: int
    made: QuestionsOrigin
    index: IndexReport
    seconds: float
    cost: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
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
    """Write and judge questions for passages whose questions are missing or outdated, and publish all questions.

    Questions are outdated if their passage or the settings changed. Questions for passages that are no longer in the
    collection are removed.

    Args:
        collection: Name of a collection that was built.
        lm: The LM that writes, from ``resolve_lm``.
        embedder: The embedder that the collection was built with.
        judge_lm: The LM that judges, from ``resolve_lm``. Default: ``lm``.
        writer: The module that writes the questions. Default ``QuestionWriter()``.
        runner: The function that makes the records, such as the result of ``question_ray.in_ray``. Default: threads in
            this process.
        threads: Number of LM calls to run at a time, 1 or more. Default 4.
        max_failures: Share of the passages that may fail, 0 to 1; at least one may fail unless it is 0. Default 0.05.
        limit: Number of passages to cover, in the order of their ids. Default: all.
        home: The workspace. Default: ``querywright.home.home()``.
        progress: Called after each passage, and while questions are embedded. Default None.

    Raises:
        CollectionError: The collection does not exist, it was built with a different embedder, another process is
            writing its questions, or no question was kept.
        OutageError: The LM cannot be reached.
        BudgetError: The call limit is reached.
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
            found = before.get(passage.id)
            return found is not None and found.settings == settings and found.digest == passage.text_digest()

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
        made = None if new else read_made(folder)
        if made is None:
            made = QuestionsOrigin(
                lm=lm.model,
                judge_lm=maker.judge_lm.model,
                num_questions=maker.writer.num_questions,
                batch_size=maker.writer.batch_size,
            )
            made.write(folder / MADE)
    return QuestionsReport(
        collection=collection,
        passages=len(looked_at),
        written=len(new),
        current=len(looked_at) - len(wanted),
        failed=dict(failures.kinds),
        removed=len(removed),
        made=made,
        index=index,
        seconds=time.monotonic() - began,
        cost=meter.total.to_json(),
    )


def read_made(folder: Path) -> QuestionsOrigin | None:
    """Return the LMs that wrote and judged the questions in a folder; None if the questions are not from a build."""
    try:
        return QuestionsOrigin.read(folder / MADE)
    except ValueError as error:
        raise CollectionError(
            f"{MADE} in {folder.name!r} is damaged ({error}); delete this file. Only the names of the LMs that wrote "
            "the questions will be lost"
        ) from error


def question_stats(collection: str, home: Path | None = None) -> dict[str, Any]:
    """Return the counts for a collection's questions.

    Args:
        collection: Name of the collection whose passages the questions are about.
        home: The workspace. Default: ``querywright.home.home()``.

    Returns:
        ``collection``; the number of ``passages``, and how many of them have up-to-date questions (``recorded``),
        questions from before they changed (``stale``), or no questions (``unwritten``); the number of ``written``
        questions, and how many have each of the ``labels``; ``per_passage``, the mean, smallest, and largest number of
        complete questions per recorded passage; ``bare``, the ids of recorded passages without a complete question,
        which a search over the questions cannot find; ``coverage``, the share of the collection's passages with a
        complete question; ``dropped``, the number of questions that were dropped before being judged, by reason; and
        ``made``, the LMs, or None if the questions are not from a build.

    Raises:
        CollectionError: The collection does not exist or has no questions.
    """
    home = working_folder(home)
    _, passages = published_passages(collection_folder(collection, home), home)
    folder = questions_folder(collection, home)
    records = read_records(folder)
    if not records:
        raise CollectionError(f"the collection {collection!r} has no questions; run {build_command(collection)}")
    made, known = read_made(folder), records.keys() & passages.keys()
    current = [records[id] for id in sorted(known) if records[id].digest == passages[id].text_digest()]
    labels = Counter(question.label or "unreadable" for record in current for question in record.questions)
    dropped: Counter[str] = Counter()
    for record in current:
        dropped.update({**record.unfit, REPEATED: record.repeated})
    complete = {record.passage: sum(one.label == COMPLETE for one in record.questions) for record in current}
    counts = list(complete.values()) or [0]
    return {
        "collection": collection,
        "passages": len(passages),
        "recorded": len(current),
        "stale": len(known) - len(current),
        "unwritten": len(passages) - len(known),
        "written": labels.total(),
        "labels": {label: labels[label] for label in (COMPLETE, PARTIAL, NONE, "unreadable")},
        "per_passage": (sum(counts) / len(counts), min(counts), max(counts)),
        "bare": [id for id, count in complete.items() if not count],
        "coverage": sum(count > 0 for count in counts) / len(passages),
        "dropped": {why: count for why, count in sorted(dropped.items()) if count},
        "made": None if made is None else made.model_dump(),
    }
