"""Questions gone through side by side by a technique whose LM is the policy in training.

All episodes run in step: each runs until its technique asks the LM, then the policy is asked once for all of them, and
each runs again from its beginning with what was written, and so on. So batches are the same whenever the questions and
the answers are. The technique's own code is what runs, and the adapter that frames its
prompts is the one of every other program: a prompt here is, letter by letter, the prompt that the trained model is
given in use.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from threading import local
from typing import Any, NamedTuple

import dspy
from dspy.adapters.json_adapter import JSONAdapter
from dspy.lm15 import Request, Response, response_to_events

from querywright.data.types import Question
from querywright.models.adapter import PromptAdapter
from querywright.models.constrained_decoding import Form, Schema, apostrophes, choices, resolved
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings
from querywright.models.local_engine import messages_of, schema_of
from querywright.models.response_parsing import text_response
from querywright.models.transcript import next_place
from querywright.optimize.dspy_context import asking
from querywright.optimize.failures import failure_kind
from querywright.optimize.rewriter.policy import Completion, HFPolicy, Messages
from querywright.pool import bounded_map
from querywright.programs.rag import RAG
from querywright.shared import Shared

REWRITER_LIMITS = EmbeddedSettings(max_chars=320, max_items=3)
"""What a rewriter over the embedded model may write where a technique does not say: room for a whole question. It
learns when to end, so it needs no such short leash as the model as it comes."""

_CONTROL = re.compile(r"[\x00-\x1f\\]+")


class Turn(NamedTuple):
    """The policy is asked in which episode, for which time in it (both from 0), with which prompt, for what fields."""

    place: int
    number: int
    messages: Messages
    schema: Schema | None = None


Answer = Callable[[Sequence[Turn]], Sequence[str | Exception]]
"""What writes: a text a turn, in their order, or an error, such as for a prompt that is too long."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One question, answered by a technique whose LM is the policy in training.

    Args:
        question: The question.
        turns: Each time the LM was asked, in order.
        texts: What it answered, one a turn.
        prediction: What the technique returned; None if it failed.
        error: The kind of failure, or None.
        read: What was read of each text, as the embedded LM would have written it: JSON, the fields in order, each
            value within its limits. None for a text that could not be read.
        completions: What the policy wrote, one a turn; none where somebody else wrote.
    """

    question: Question
    turns: tuple[Turn, ...]
    texts: tuple[str, ...]
    prediction: Any
    error: str | None = None
    read: tuple[str | None, ...] = ()
    completions: tuple[Completion, ...] = ()

    @property
    def queries(self) -> tuple[str, ...]:
        """The texts that were searched for; none where it failed."""
        found = [] if self.prediction is None else self.prediction.queries
        return tuple(query.text for query in found)


Run = Callable[[Sequence[Question], Answer], list[Episode]]
"""Goes through questions, an episode each, with something that answers."""


def run_episodes(
    program: RAG,
    questions: Sequence[Question],
    answer: Answer,
    *,
    settings: EmbeddedSettings | None = REWRITER_LIMITS,
    threads: int = 4,
) -> list[Episode]:
    """Go through questions, asking the policy for all of them at once.

    A completion that cannot be read is asked for only once: the technique falls back as it does in use.

    Args:
        program: A technique without a reader. It is copied; the copy asks the policy.
        questions: One an episode; the same question may stand several times.
        answer: The policy, asked once a round with all turns of it, ordered by place and number.
        settings: Limits of a completion's values, those of the LM that the rewriter will run in; a technique is given
            what is left within them. None: no limits. Default: those of a rewriter.
        threads: Episodes gone through at a time. Default 4.

    Returns:
        An episode a question, in their order. One that failed has no prediction and says how.
    """
    plays = [_Play(place, question, program, settings) for place, question in enumerate(questions)]

    def on_done(place: int, result: Exception | None) -> None:
        if result is not None:
            raise result

    under_way = plays
    with asking(_PolicyEngine().lm()), dspy.context(adapter=_EpisodeAdapter()):
        while under_way:
            bounded_map(_Play.go, under_way, threads=threads, on_done=on_done)
            under_way = [play for play in under_way if play.engine.asked]
            turns = [turn for play in under_way for turn in play.turns()]
            for turn, text in zip(turns, answer(turns) if turns else (), strict=True):
                plays[turn.place].engine.written[turn.number] = text
    return [play.episode() for play in plays]


class _Asked(BaseException):
    """The policy has to write first; no technique may take this for a failure of its own."""


_Key = tuple[Messages, int | None]
"""What tells one request of an episode from another: the prompt and the seed. Equal requests share an answer."""


class _PolicyEngine(Shared):
    """Gives the texts that are written, and keeps the requests that are not. To an adapter it is the embedded LM.

    Args:
        limits: What a completion's values are cut to, see ``as_written``.
    """

    deterministic = True
    decides_by_likelihood = EmbeddedEngine.decides_by_likelihood
    supports_response_schema = EmbeddedEngine.supports_response_schema
    supported_params = EmbeddedEngine.supported_params

    def __init__(self, limits: EmbeddedSettings | None = None) -> None:
        self.limits = limits
        self.turns: dict[_Key, Turn] = {}
        self.written: dict[int, str | Exception] = {}
        self.read: dict[int, str] = {}
        self.asked: dict[_Key, tuple[Any, Schema | None]] = {}
        """Requests without a text, each with its place in the program and its schema."""
        self._answered = local()

    def lm(self) -> dspy.LM:
        return dspy.LM("rewriter/in-training", engine=self, temperature=0.0, cache=False, num_retries=0)

    def complete(self, request: Request) -> Response:
        messages = tuple((one["role"], one["content"]) for one in messages_of(request))
        key = messages, request.config.seed
        turn = self.turns.get(key)
        if turn is None:
            self.asked.setdefault(key, (next_place(), schema_of(request.config.response_format)))
            raise _Asked
        written = self.written[turn.number]
        if isinstance(written, Exception):
            raise written
        self._answered.turn = turn
        return text_response(self.read.get(turn.number, written), "stop", request.model, 0, 0)

    def limited(self, values: dict[str, Any]) -> dict[str, Any]:
        """What is read of the answer that this thread was given last, within the limits."""
        turn: Turn = self._answered.turn
        values = as_written(values, turn.schema, self.limits)
        self.read[turn.number] = json_text(values)
        return values

    def stream(self, request: Request) -> Iterator[Any]:
        return iter(response_to_events(self.complete(request)))


class _EpisodeAdapter(PromptAdapter):
    """The adapter of all programs, but an answer of the policy is read within its limits and asked for only once."""

    def __call__(self, lm: Any, *given: Any, **more: Any) -> list[dict[str, Any]]:
        engine = getattr(lm, "engine", None)
        if not isinstance(engine, _PolicyEngine):
            return super().__call__(lm, *given, **more)
        return list(JSONAdapter.__call__(_PolicyAdapter(engine), lm, *given, **more))


class _PolicyAdapter(PromptAdapter):
    def __init__(self, engine: _PolicyEngine) -> None:
        super().__init__(grammar=True)
        self._engine = engine

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        return self._engine.limited(super().parse(signature, completion))


class _Play:
    """One episode: a run through it gives the policy's texts again and notes what it has to write next."""

    def __init__(self, place: int, question: Question, program: RAG, limits: EmbeddedSettings | None) -> None:
        self.place, self.question = place, question
        self.program, self.engine = copy.deepcopy(program), _PolicyEngine(limits)
        self.program.technique.writer_lm = self.engine.lm()
        self.prediction: Any = None
        self.error: str | None = None

    def go(self) -> None:
        """Run as far as the episode is written, and read if it is written to its end."""
        self.engine.asked.clear()
        try:
            self.prediction = self.program(**self.question.inputs)
        except _Asked:
            return
        except Exception as error:
            self.engine.asked.clear()
            self.error = failure_kind(error)
            if self.error is None:
                raise

    def turns(self) -> list[Turn]:
        """What the policy has to write next, in the order of the program."""
        asked = sorted(self.engine.asked.items(), key=lambda one: one[1][0])
        begun = len(self.engine.turns)
        made = {key: Turn(self.place, number, key[0], schema) for number, (key, (_, schema)) in enumerate(asked, begun)}
        self.engine.turns |= made
        return list(made.values())

    def episode(self) -> Episode:
        """The episode at its end."""
        texts = {number: text for number, text in self.engine.written.items() if isinstance(text, str)}
        turns = tuple(turn for turn in self.engine.turns.values() if turn.number in texts)
        read = tuple(self.engine.read.get(turn.number) for turn in turns)
        return Episode(self.question, turns, tuple(texts.values()), self.prediction, self.error, read)


def first_asked(run: Callable[[], Any]) -> tuple[Messages, Schema | None]:
    """What a program asks its LM first, framed as for the policy, and the schema that it asks by; it is left when it
    asks.
    """
    engine = _PolicyEngine()
    with asking(engine.lm()), suppress(_Asked):
        run()
    ((messages, _), (_, schema)) = min(engine.asked.items(), key=lambda one: one[1][0])
    return messages, schema


def as_written(values: Mapping[str, Any], schema: Schema | None, settings: EmbeddedSettings | None) -> dict[str, Any]:
    """The values of an answer, in the order of the schema that it was asked for by (None: by none), as the embedded LM
    could have written them.

    It writes by a grammar: a text has so many characters and neither quotation marks nor backslashes, a list so many
    items, by the settings where the schema says nothing (None: values stay as they are). A model is taught, and
    rewarded for, what it can write in use.
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
    """The values as the embedded LM writes them."""
    return json.dumps(values, ensure_ascii=False, default=str)


def seed_of(*parts: object) -> int:
    """A seed from 0 to 2**63 - 1 that depends on the parts alone."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def roll_out(
    policy: HFPolicy,
    run: Run,
    questions: Sequence[Question],
    *,
    room: int,
    seed: tuple[object, ...] | None = None,
    top_k: int = 0,
) -> list[Episode]:
    """Return an episode per question, with the policy's completions of ``room`` tokens at most.

    The draws, from the ``top_k`` likeliest tokens (0 for all), depend on the seed and the round; without a seed the
    policy writes greedily.
    """
    written: dict[tuple[int, int], Completion] = {}

    def answer(turns: Sequence[Turn]) -> list[str | Exception]:
        refused = [policy.refused(policy.prompt(turn.messages), room) for turn in turns]
        asked = [turn for turn, error in zip(turns, refused, strict=True) if error is None]
        made = policy.write(
            [turn.messages for turn in asked],
            room=room,
            seed=None if seed is None else seed_of(*seed, len(written)),
            top_k=top_k,
        )
        written.update({(turn.place, turn.number): one for turn, one in zip(asked, made, strict=True)})
        texts = iter(made)
        return [next(texts).text if error is None else error for error in refused]

    return [
        replace(episode, completions=tuple(written[place, turn.number] for turn in episode.turns))
        for place, episode in enumerate(run(questions, answer))
    ]


def batch_of(questions: Sequence[Question], size: int, *, seed: int, step: int) -> list[Question]:
    """The questions of a step, from 0, so many: all are met before any is met again, each time in another order."""
    places = [divmod(position, len(questions)) for position in range(step * size, (step + 1) * size)]
    orders = {turn: Random(f"{seed} {turn}").sample(questions, len(questions)) for turn in dict(places)}
    return [orders[turn][place] for turn, place in places]
