"""Exchanges, one a question that was asked, and the watchers that are told of them."""

from __future__ import annotations

import atexit
import contextvars
import functools
import logging
import math
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import dspy
from pydantic import BaseModel, ConfigDict, Field

from querywright.data.declined import says_declined
from querywright.models.usage import metered

FORMAT = 1
MOST_WAITING = 1_000
"""Questions that watchers may be behind; of further ones they are not told."""
FLUSH_SECONDS = 5.0

logger = logging.getLogger("querywright.watching")

# What is done with these may be interrupted by the same thread, as where a coroutine is thrown away.
_waiting: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
_starting, _started = threading.RLock(), False


class AskedQuery(BaseModel):
    """A query, and why it was asked."""

    model_config = ConfigDict(frozen=True)

    role: str
    text: str


class Exchange(BaseModel):
    """One question and what came of it; also a line of recorded traffic, where later fields are left out.

    Args:
        format: Form of a recorded line.
        id: A UUID of its own, as hex.
        at: When it was asked, ISO 8601 in UTC.
        artifact: Id of the artifact that was asked.
        question: The question as it was asked.
        options: Option texts as readers see them, without space around them; empty without.
        history: The turns of the conversation before the question; empty without.
        queries: Role and text of each query.
        passages: Ids of the passages found, best first; None where they were not kept.
        n_passages: How many were found.
        support: Ids of the passages that the answer rests on; None where the reader does not say.
        answer: The answer; None without a reader, or when the question failed.
        declined: Whether the reader said that the passages do not answer the question.
        fallbacks: Names of the steps that fell back.
        top_scores: The best retrieval score of each query searched, in their order; a query that found nothing has
            none.
        seconds: How long it took.
        lm_calls: LM calls made.
        lm_saved: LM calls saved: taken from the store.
        error: Name of the error's class; None when the question was answered.
        metadata: What the caller gave, such as the id of a request.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    format: int = Field(ge=1, le=FORMAT)
    id: str = Field(min_length=1)
    at: str
    artifact: str
    question: str
    options: tuple[str, ...]
    history: tuple[str, ...] = ()
    queries: tuple[AskedQuery, ...]
    passages: tuple[str, ...] | None
    n_passages: int = Field(ge=0)
    support: tuple[str, ...] | None
    answer: str | None
    declined: bool
    fallbacks: tuple[str, ...]
    top_scores: tuple[float, ...]
    seconds: float = 0.0
    lm_calls: int = 0
    lm_saved: int = 0
    error: str | None
    metadata: dict[str, str] = Field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two exchanges the same question: its words, its options and what came before it."""
        return (self.question.strip(), *self.options, *self.history)


Watcher = Callable[[Exchange], object]
"""Told of every question."""


def exchange_of(
    prediction: Any, *, options: Sequence[str] | None = None, error: BaseException | None = None, **facts: Any
) -> Exchange:
    """The exchange of a question.

    Args:
        prediction: What came of it; None where it failed.
        options: As they were given.
        error: Why it failed.
        facts: ``at``, ``artifact``, ``question`` and further fields of ``Exchange``.
    """
    found = {} if prediction is None else dict(prediction.toDict())
    answer, support = found.get("answer"), found.get("support")
    passages = tuple(passage.id for passage in found.get("passages") or ())
    lists = (scores for step in found.get("steps") or () for scores in getattr(step, "scores", {}).values())
    return Exchange(
        format=FORMAT,
        id=uuid.uuid4().hex,
        options=bare_options(options),
        queries=tuple(AskedQuery(role=query.role, text=query.text) for query in found.get("queries") or ()),
        passages=passages,
        n_passages=len(passages),
        support=None if support is None else tuple(support),
        answer=answer,
        declined=has_declined(answer, options),
        fallbacks=tuple(found.get("fallbacks") or ()),
        top_scores=tuple(float(scores[0]) for scores in lists if scores and math.isfinite(scores[0])),
        error=None if error is None else type(error).__name__,
        **facts,
    )


def bare_options(options: Sequence[str] | None) -> tuple[str, ...]:
    """Option texts without the space around them, as readers see them and answer with them."""
    return () if options is None else tuple(str(option).strip() for option in options)


def has_declined(answer: str | None, options: Sequence[str] | None) -> bool:
    """Whether an answer says that the passages do not answer the question. One that is an option never does."""
    return bool(answer) and answer not in bare_options(options) and says_declined(str(answer))


@contextmanager
def watched(
    watchers: Sequence[Watcher],
    artifact: str,
    given: Mapping[str, Any],
    metadata: Mapping[str, str] | None,
    *,
    later: bool = False,
) -> Iterator[list[dspy.Prediction]]:
    """Takes the prediction of a question, and tells the watchers of it when it ends, however it ends.

    Args:
        watchers: Who is told. An error of one is logged by its name alone, for its text may hold a question.
        artifact: Id of what is asked.
        given: ``question``, ``options`` and, where there is one, ``history``.
        metadata: What the caller gave.
        later: Have them told by a thread of their own, in the caller's context, and never wait for it.
    """
    made: list[dspy.Prediction] = []
    failure: BaseException | None = None
    at, began = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    with metered() as meter:
        try:
            yield made
        except BaseException as error:
            failure = error
            raise
        finally:
            seconds, cost = round(time.monotonic() - began, 4), meter.total

            def tell() -> None:
                exchange = exchange_of(
                    made[0] if made else None, **given, error=failure, at=at, artifact=artifact,
                    seconds=seconds, lm_calls=cost.calls, lm_saved=cost.saved,
                    metadata=dict(metadata or {}),
                )  # fmt: skip
                for watcher in watchers:
                    _do(functools.partial(watcher, exchange))

            if watchers:
                (_later if later else _do)(tell)


def flush(seconds: float = FLUSH_SECONDS) -> bool:
    """Wait until watchers were told of everything that was asked in event loops until now.

    This is done when the interpreter ends; who ends a process otherwise calls it before.

    Args:
        seconds: How long at most. Default 5.

    Returns:
        Whether they were told of all of it in that time.
    """
    if not _started:
        return True
    done = threading.Event()
    _waiting.put(done.set)
    if not done.wait(seconds):
        logger.warning("watchers are still behind after %g s; they were not told of all questions", seconds)
    return done.is_set()


def _later(work: Callable[[], object]) -> None:
    """Have it done by a thread of its own, in the order of the questions and in the caller's context."""
    if _waiting.qsize() >= MOST_WAITING:
        logger.warning("watchers are %d questions behind; one more is lost", MOST_WAITING)
        return
    run = contextvars.copy_context().run
    _waiting.put(lambda: run(work))
    _start()


def _do(work: Callable[[], object], caught: type[BaseException] = Exception) -> None:
    """Whoever watches must not spoil an answer."""
    try:
        work()
    except caught as error:  # by its name alone
        logger.warning("a watcher failed: %s", type(error).__name__)


def _start() -> None:
    """Start the one thread of this process."""
    global _started

    def run() -> None:
        while True:
            _do(_waiting.get(), BaseException)

    with _starting:
        if not _started:
            _started = True
            threading.Thread(target=run, daemon=True, name="querywright-watchers").start()
            atexit.register(flush)  # so late, because whoever watches may have registered an end of its own


def _forked() -> None:
    """A forked process has none of its parent's threads, and tells none of what its parent will tell."""
    global _waiting, _starting, _started
    _waiting, _starting, _started = queue.SimpleQueue(), threading.RLock(), False


os.register_at_fork(after_in_child=_forked)
