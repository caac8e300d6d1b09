"""What is remembered of one question that an application asked: plain data, for whoever watches a program."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from querywright.data.declined import says_declined


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and what came of it.

    Args:
        id: A UUID of its own, as hex.
        at: When it was asked, ISO 8601 in UTC.
        artifact: Id of the artifact that was asked.
        question: The question as it was asked.
        options: Option texts as readers see them, without space around them; empty without.
        queries: Role and text of each query.
        passages: Ids of the passages found, best first.
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

    id: str
    at: str
    artifact: str
    question: str
    options: tuple[str, ...]
    queries: tuple[tuple[str, str], ...]
    passages: tuple[str, ...]
    support: tuple[str, ...] | None
    answer: str | None
    declined: bool
    fallbacks: tuple[str, ...]
    top_scores: tuple[float, ...]
    seconds: float
    lm_calls: int
    lm_saved: int
    error: str | None
    metadata: Mapping[str, str] = field(default_factory=dict)


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
    metadata: Mapping[str, str] | None = None,
) -> Exchange:
    """What is remembered of a question.

    Args:
        prediction: What the program gave; None when the question failed.
        at: When it was asked, ISO 8601 in UTC.
        artifact: Id of the artifact.
        question: The question.
        options: Its options, or None.
        seconds: How long it took.
        lm_calls: LM calls made.
        lm_saved: LM calls saved.
        error: Why it failed, or None.
        metadata: What the caller gave.
    """
    found = {} if prediction is None else dict(prediction.toDict())
    answer, support = found.get("answer"), found.get("support")
    return Exchange(
        id=uuid.uuid4().hex,
        at=at,
        artifact=artifact,
        question=question,
        options=bare_options(options),
        queries=tuple((query.role, query.text) for query in found.get("queries") or ()),
        passages=tuple(passage.id for passage in found.get("passages") or ()),
        support=None if support is None else tuple(support),
        answer=answer,
        declined=has_declined(answer, options),
        fallbacks=tuple(found.get("fallbacks") or ()),
        top_scores=_top_scores(found.get("steps") or ()),
        seconds=seconds,
        lm_calls=lm_calls,
        lm_saved=lm_saved,
        error=None if error is None else type(error).__name__,
        metadata=dict(metadata or {}),
    )


def bare_options(options: Sequence[str] | None) -> tuple[str, ...]:
    """Option texts without the space around them, as readers see them and answer with them.

    Args:
        options: As they were given, or None.
    """
    return () if options is None else tuple(str(option).strip() for option in options)


def has_declined(answer: str | None, options: Sequence[str] | None) -> bool:
    """Whether an answer says that the passages do not answer the question. One that is an option never does.

    Args:
        answer: What the reader said; None without one.
        options: Of the question, as they were given, or None.
    """
    return bool(answer) and answer not in bare_options(options) and says_declined(str(answer))


def _top_scores(steps: Sequence[Any]) -> tuple[float, ...]:
    """The best score of each query of each search."""
    lists = (scores for step in steps for scores in getattr(step, "scores", {}).values())
    return tuple(float(scores[0]) for scores in lists if scores)
