"""Run techniques with a function instead of the LM, and compute rewards from what their rewrites retrieve.

The technique's own code runs with the adapter that all programs use, so a prompt is exactly what the trained model
receives in use.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, local
from typing import Any, NamedTuple

import dspy
from dspy.adapters.json_adapter import JSONAdapter
from dspy.lm15 import Request, Response

from querywright.data.types import Question
from querywright.metrics.dspy_metrics import metric_named
from querywright.models.adapter import PromptAdapter
from querywright.models.constrained_decoding import Form, Schema, choices, resolved
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings, messages_of, schema_of
from querywright.models.response_parsing import apostrophes, text_response
from querywright.models.rewriters import REWRITER_LIMITS
from querywright.optimize.contexts import asking
from querywright.optimize.failures import failure_kind
from querywright.pool import bounded_map
from querywright.programs.rag import RAG
from querywright.retrieval.replay import searched_by
from querywright.shared import Shared

Messages = tuple[tuple[str, str], ...]
"""A prompt as formatted by the adapter: pairs of (role, content) with the roles ``system``, ``user``, and
``assistant``.
"""

UNREADABLE = 0.1
"""Deduction from the reward, multiplied by the share of unreadable completions. For such a completion, the technique
searches with the question alone, so without the deduction, nonsense would be as good as leaving the question unchanged.
"""

_CONTROL = re.compile(r"[\x00-\x1f\\]+")


class Turn(NamedTuple):
    """A request to the LM: the episode's number and the request's number in it (from 0), the prompt, and the schema."""

    place: int
    number: int
    messages: Messages
    schema: Schema | None = None


Answer = Callable[[Turn], str]
"""Returns the text of the LM's answer."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One question answered by a technique.

    Args:
        question: The question.
        turns: The requests to the LM, in order.
        read: What was parsed from each answer, as the embedded LM would have written it: JSON with the fields in order
            and each value within its limits. None for an answer that could not be parsed.
        prediction: The technique's result; None if it failed.
        error: The kind of failure, or None.
    """

    question: Question
    turns: tuple[Turn, ...]
    read: tuple[str | None, ...]
    prediction: Any
    error: str | None = None


def run_episodes(
    program: RAG,
    questions: Sequence[Question],
    answer: Answer,
    *,
    limits: EmbeddedSettings | None = REWRITER_LIMITS,
    threads: int = 4,
) -> list[Episode]:
    """Answer questions with a technique and return an episode per question, in order.

    An answer that cannot be parsed is not requested again; the technique falls back as it does in use.

    Args:
        program: A technique without a reader.
        questions: One question per episode; a question may occur several times.
        answer: Function that answers instead of the LM; called from several threads.
        limits: Limits on the values in an answer; None for no limits. Default: a rewriter's limits.
        threads: Number of episodes to run at a time. Default 4.
    """

    def run(numbered: tuple[int, Question]) -> Episode:
        place, question = numbered
        engine = _FunctionEngine(place, answer, limits)
        prediction = error = None
        try:
            with asking(engine.lm()), dspy.context(adapter=_EpisodeAdapter(engine)):
                prediction = program(**question.inputs)
        except Exception as raised:
            error = failure_kind(raised)
            if error is None:
                raise
        turns = tuple(engine.turns.values())
        return Episode(question, turns, tuple(engine.read.get(turn.number) for turn in turns), prediction, error)

    episodes = bounded_map(run, list(enumerate(questions)), threads=threads)
    for one in episodes:
        if isinstance(one, Exception):
            raise one
    return [one for one in episodes if isinstance(one, Episode)]


class _FirstRequest(BaseException):
    """Ends a program at its first request; a technique must not treat this exception as a failure."""


def first_prompt(run: Callable[[], Any]) -> Messages:
    """Run a program up to its first request to the LM and return the prompt."""

    def answer(turn: Turn) -> str:
        raise _FirstRequest

    engine = _FunctionEngine(0, answer)
    with asking(engine.lm()), suppress(_FirstRequest):
        run()
    return next(iter(engine.turns.values())).messages


class _FunctionEngine(Shared):
    """Calls a function for each answer and records the turns. An adapter treats it as the embedded LM.

    Requests in an episode with the same prompt and seed count as one turn.
    """

    deterministic = True
    decides_by_likelihood = EmbeddedEngine.decides_by_likelihood
    supports_response_schema = EmbeddedEngine.supports_response_schema
    supported_params = EmbeddedEngine.supported_params

    def __init__(self, place: int, answer: Answer, limits: EmbeddedSettings | None = None) -> None:
        self.place, self.answer, self.limits = place, answer, limits
        self.turns: dict[tuple[Messages, int | None], Turn] = {}
        self.read: dict[int, str] = {}
        self._lock, self._answered = Lock(), local()

    def lm(self) -> dspy.LM:
        return dspy.LM("rewriter/in-training", engine=self, temperature=0.0, cache=False, num_retries=0)

    def complete(self, request: Request) -> Response:
        messages = tuple((one["role"], one["content"]) for one in messages_of(request))
        key = messages, request.config.seed
        with self._lock:
            new = Turn(self.place, len(self.turns), messages, schema_of(request.config.response_format))
            turn = self.turns.setdefault(key, new)
        self._answered.turn = turn
        return text_response(self.answer(turn), "stop", request.model, 0, 0)

    def limited(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the last answer to this thread, within the limits."""
        turn: Turn = self._answered.turn
        values = as_written(values, turn.schema, self.limits)
        self.read[turn.number] = json_text(values)
        return values


class _EpisodeAdapter(PromptAdapter):
    """The adapter that all programs use, except that it applies the limits to an answer and requests it only once."""

    def __init__(self, engine: _FunctionEngine) -> None:
        super().__init__(grammar=True)
        self._engine = engine

    def __call__(self, *given: Any, **more: Any) -> list[dict[str, Any]]:
        return list(JSONAdapter.__call__(self, *given, **more))

    def parse(self, signature: Any, completion: str, *, repair: bool = True) -> dict[str, Any]:
        return self._engine.limited(super().parse(signature, completion, repair=repair))


def as_written(values: Mapping[str, Any], schema: Schema | None, settings: EmbeddedSettings | None) -> dict[str, Any]:
    """Return an answer's values in the order of its schema, in a form that the embedded LM could have written.

    The embedded LM is constrained by a grammar: a string has a limited length and no quotation marks or backslashes,
    and a list has a limited number of items. The settings apply if the schema has no limits. The model is taught, and
    rewarded for, only what it can write in use.

    Args:
        values: The values of the answer.
        schema: The schema of the answer; None without a schema, which leaves the values unchanged.
        settings: The limits; None for no limits.
    """
    if schema is None:
        return dict(values)
    fields: Mapping[str, Any] = schema["properties"]
    ordered = {name: values[name] for name in fields if name in values}
    if settings is None:
        return ordered
    return {name: _limited(value, fields[name], schema, settings) for name, value in ordered.items()}


def _limited(value: Any, field: Schema, root: Schema, settings: EmbeddedSettings) -> Any:
    if choices(field, root) is not None:
        return value
    field = resolved(field, root)
    if isinstance(value, str):
        value = _plain(value, int(field.get("maxLength", settings.max_chars)))
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        longest = int(resolved(field.get("items", {}), root).get("maxLength", settings.max_chars))
        most = max(int(field.get("maxItems", settings.max_items)), 1)
        value = [_plain(item, longest) for item in value if item.strip()][:most]
    elif not isinstance(value, (int, float)):
        return value
    return Form(field, root, settings.max_chars, settings.max_items).read(json.dumps(value))[0]


def _plain(text: str, limit: int) -> str:
    return " ".join(_CONTROL.sub(" ", apostrophes(text)).split())[:limit]


def json_text(values: Mapping[str, Any]) -> str:
    """Return the values as the embedded LM writes them."""
    return json.dumps(values, ensure_ascii=False, default=str)


class Score(NamedTuple):
    """An episode's score.

    Args:
        reward: The reward; NaN if the episode failed or its question has no labels.
        value: The episode's metric.
        plain: The metric for the unchanged question.
    """

    reward: float
    value: float
    plain: float


class Reward:
    """Scores whole episodes; all completions in an episode share its reward.

    The reward is the gain in the metric over the unchanged question, with the same number of passages.

    Args:
        program: The technique to train.
        metric: A retrieval metric. Default ``ndcg@10``.
    """

    def __init__(self, program: RAG, metric: str = "ndcg@10") -> None:
        self._retriever: Any = searched_by(program.technique.retriever)
        self._passages = program.technique.max_passages
        self._measured = metric_named(metric)
        self._known: dict[str, float] = {}

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """Return the score of each episode, in order."""
        plains = self.plain_values([episode.question for episode in episodes])
        return [self._scored(*one) for one in zip(episodes, plains, strict=True)]

    def plain_values(self, questions: Sequence[Question]) -> list[float]:
        """Return the metric for each unchanged question, searching each only once; NaN if a question has no labels."""
        new = list({one.id: one for one in questions if one.id not in self._known}.values())
        values = self.found(new, [one.question for one in new]) if new else []
        self._known |= {one.id: value for one, value in zip(new, values, strict=True)}
        return [self._known[question.id] for question in questions]

    def found(self, questions: Sequence[Question], texts: Sequence[str]) -> list[float]:
        """Return the metric for each question if its text in ``texts`` is searched for instead, all in one batch."""
        rankings = self._retriever.search(texts, self._passages)
        predictions = (dspy.Prediction(passages=[hit.passage for hit in hits]) for hits in rankings)
        return [self._value(*one) for one in zip(questions, predictions, strict=True)]

    def _value(self, question: Question, prediction: Any) -> float:
        return float(self._measured(question.to_example(), prediction))

    def _scored(self, episode: Episode, plain: float) -> Score:
        if episode.prediction is None:
            return Score(math.nan, math.nan, plain)
        value = self._value(episode.question, episode.prediction)
        unreadable = episode.read.count(None) / len(episode.read) if episode.read else 0.0
        return Score(value - plain - UNREADABLE * unreadable, value, plain)
