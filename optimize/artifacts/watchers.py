"""Exchanges, one a question that was asked, and the watchers that are told of them."""

from __future__ import annotations

import atexit
import contextvars
import logging
import math
import os
import queue
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from querywright.data.declined import says_declined

FORMAT = 1
MOST_WAITING = 1_000
"""Questions that watchers may be behind; of further ones they are not told."""
FLUSH_SECONDS = 5.0

logger = logging.getLogger("querywright.watching")


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
    queries: tuple[AskedQuery, ...]
    passages: tuple[str, ...] | None
    n_passages: int = Field(ge=0)
    support: tuple[str, ...] | None
    answer: str | None
    declined: bool
    fallbacks: tuple[str, ...]
    top_scores: tuple[float, ...]
    seconds: float
    lm_calls: int
    lm_saved: int
    error: str | None
    metadata: dict[str, str]

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two exchanges the same question: its words and its options."""
        return (self.question.strip(), *self.options)


Watcher = Callable[[Exchange], object]
"""Told of every question."""


def exchange_of(
    prediction: Any,
    *,
    at: str,
    artifact: str,
    question: str,
    options: Sequence[str] | None = None,
    seconds: float = 0.0,
    lm_calls: int = 0,
    lm_saved: int = 0,
    error: BaseException | None = None,
    metadata: dict[str, str] | None = None,
) -> Exchange:
    """The exchange of a question: the arguments are fields of ``Exchange``."""
    found = {} if prediction is None else dict(prediction.toDict())
    answer, support = found.get("answer"), found.get("support")
    passages = tuple(passage.id for passage in found.get("passages") or ())
    lists = (scores for step in found.get("steps") or () for scores in getattr(step, "scores", {}).values())
    return Exchange(
        format=FORMAT,
        id=uuid.uuid4().hex,
        at=at,
        artifact=artifact,
        question=question,
        options=bare_options(options),
        queries=tuple(AskedQuery(role=query.role, text=query.text) for query in found.get("queries") or ()),
        passages=passages,
        n_passages=len(passages),
        support=None if support is None else tuple(support),
        answer=answer,
        declined=has_declined(answer, options),
        fallbacks=tuple(found.get("fallbacks") or ()),
        top_scores=tuple(float(scores[0]) for scores in lists if scores and math.isfinite(scores[0])),
        seconds=round(seconds, 4),
        lm_calls=lm_calls,
        lm_saved=lm_saved,
        error=None if error is None else type(error).__name__,
        metadata=metadata or {},
    )


def bare_options(options: Sequence[str] | None) -> tuple[str, ...]:
    """Option texts without the space around them, as readers see them and answer with them."""
    return () if options is None else tuple(str(option).strip() for option in options)


def has_declined(answer: str | None, options: Sequence[str] | None) -> bool:
    """Whether an answer says that the passages do not answer the question. One that is an option never does."""
    return bool(answer) and answer not in bare_options(options) and says_declined(str(answer))


def tell(watchers: Sequence[Watcher], exchange: Exchange) -> None:
    """Tell every watcher. An error of one is logged by its name alone, for its text may hold a question."""
    for watcher in watchers:
        try:
            watcher(exchange)
        except Exception as error:  # noqa: BLE001 - whoever watches must not spoil an answer
            logger.warning("a watcher failed: %s", type(error).__name__)


def tell_later(watchers: Sequence[Watcher], exchange: Exchange) -> None:
    """Have them told by a thread of their own, in the caller's context, and never wait for it."""
    context = contextvars.copy_context()
    _teller.put(lambda: context.run(tell, watchers, exchange))


def flush(seconds: float = FLUSH_SECONDS) -> bool:
    """Wait until watchers were told of everything that was asked in event loops until now.

    This is done when the interpreter ends; who ends a process otherwise calls it before.

    Args:
        seconds: How long at most. Default 5.

    Returns:
        Whether they were told of all of it in that time.
    """
    return _teller.flush(seconds)


class Teller:
    """One thread that does what it is handed, in order.

    Args:
        most: How much may wait; what is handed over beyond that is counted in ``lost`` and not done.
    """

    def __init__(self, most: int = MOST_WAITING) -> None:
        self.lost = 0
        self._most = most
        # Its put may be interrupted by another of the same thread, as where a coroutine is thrown away.
        self._waiting: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._losing = False

    def put(self, work: Callable[[], object]) -> None:
        """Hand work over, and go on."""
        waiting = self._waiting.qsize()
        with self._lock:
            if waiting >= self._most:
                self.lost += 1
                if not self._losing:  # once, until they have caught up
                    logger.warning("watchers are %d questions behind; %d lost so far", self._most, self.lost)
                self._losing = True
                return
            self._losing = self._losing and waiting > 0
            self._waiting.put(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="querywright-watchers")
                self._thread.start()
                atexit.register(self.flush)  # so late, because whoever watches may have registered an end of its own

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until what was handed over until now is done, so long at most; returns whether it is."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._waiting.put(done.set)
        if not done.wait(seconds):
            logger.warning("watchers are still behind after %g s; they were not told of all questions", seconds)
        return done.is_set()

    def _run(self) -> None:
        while True:
            work = self._waiting.get()
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the next one is told all the same
                logger.warning("a watcher failed: %s", type(error).__name__)


def _begin() -> None:
    """A process has a thread of its own; one that was forked has none of its parent's."""
    global _teller
    _teller = Teller()


_teller = Teller()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
