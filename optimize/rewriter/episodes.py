"""Questions gone through side by side by a technique whose LM is the policy in training.

All episodes go on in step: each is gone through until its technique asks the LM, then the policy is asked once for all
of them, and each is gone through again from its beginning with what was written, and so on. So batches are the same
whenever the questions and the answers are. The technique's own code is what runs, and the adapter that frames its
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
from typing import Any, NamedTuple

import dspy
from dspy.lm15 import Request, Response, response_to_events

from querywright.data.types import Question
from querywright.models.constrained_decoding import Form, Schema, apostrophes, choices, resolved
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings
from querywright.models.local_engine import messages_of, schema_of
from querywright.models.response_parsing import as_json, text_response
from querywright.optimize.dspy_context import asking
from querywright.optimize.failures import failure_kind
from querywright.optimize.rewriter.policy import Completion, HFPolicy, Messages
from querywright.optimize.rewriter.recipes import Recipe
from querywright.pool import bounded_map
from querywright.programs.rag import RAG
from querywright.programs.steps import Record, Step, Together, drive
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
        prediction: What the technique (or the technique and its reader) gave; None where it failed.
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
    lm: dspy.LM | None = None,
    settings: EmbeddedSettings | None = REWRITER_LIMITS,
    threads: int = 4,
) -> list[Episode]:
    """Go through questions, asking the policy for all of them at once.

    A completion that cannot be read is asked for only once: the technique falls back as it does in use.

    Args:
        program: A technique, with a reader or without. It is copied; the copy's technique asks the policy.
        questions: One an episode; the same question may stand several times.
        answer: The policy, asked once a round with all turns of it, ordered by place and number.
        lm: What the reader asks. Default None: the program has no reader.
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
    with asking(_PolicyEngine().lm() if lm is None else lm):
        while under_way:
            bounded_map(_Play.go, under_way, threads=threads, on_done=on_done)
            under_way = [play for play in under_way if play.asked]
            turns = [turn for play in under_way for turn in play.asked]
            for turn, text in zip(turns, answer(turns) if turns else (), strict=True):
                plays[turn.place].written.append((turn, text))
    return [play.episode() for play in plays]


class _Asked(BaseException):
    """The policy has to write first; no technique may take this for a failure of its own."""


class _PolicyEngine(Shared):
    """Gives the text that lies there, and keeps what it is asked. To an adapter it is the embedded LM."""

    deterministic = True
    decides_by_likelihood = EmbeddedEngine.decides_by_likelihood
    supports_response_schema = EmbeddedEngine.supports_response_schema
    supported_params = EmbeddedEngine.supported_params

    def __init__(self) -> None:
        self.text: str | None = None
        self.asked: list[Messages] = []
        self.schema: Schema | None = None

    def lm(self) -> dspy.LM:
        return dspy.LM("rewriter/in-training", engine=self, temperature=0.0, cache=False, num_retries=0)

    def given(self, text: str | None, run: Callable[[], Any]) -> Any:
        """What comes of something that asks it; None where there is no text for it."""
        self.text, self.asked, self.schema = text, [], None
        with suppress(_Asked):
            return run()

    def complete(self, request: Request) -> Response:
        self.asked.append(tuple((one["role"], one["content"]) for one in messages_of(request)))
        self.schema = schema_of(request.config.response_format)
        if self.text is None:
            raise _Asked
        return text_response(self.text, "stop", request.model, 0, 0)

    def stream(self, request: Request) -> Iterator[Any]:
        return iter(response_to_events(self.complete(request)))


class _Play:
    """One episode: a pass through it gives the policy's texts again and notes what it has to write next."""

    def __init__(self, place: int, question: Question, program: RAG, limits: EmbeddedSettings | None) -> None:
        self.place, self.question, self.limits = place, question, limits
        self.program, self.engine = copy.deepcopy(program), _PolicyEngine()
        for predictor in self.program.technique.predictors():
            predictor.lm = self.engine.lm()
        self.written: list[tuple[Turn, str | Exception]] = []
        self.read: dict[int, str] = {}
        self.asked: list[Turn] = []
        self.prediction: Any = None
        self.error: str | None = None

    def go(self) -> None:
        """Go through it as far as it is written, and read where it is written to its end."""
        self.asked, self._number = [], 0
        given, log = self.question.inputs, list[Record]()
        try:
            with self.program.choosing():
                found = drive(self.program.technique.walk(log, **given), log, self._step)
                self.prediction = drive(self.program.read(found, **given), [])
        except _Asked:
            return
        except Exception as error:
            self.asked, self.error = [], failure_kind(error)
            if self.error is None:
                raise

    def episode(self) -> Episode:
        """What came of it."""
        written = [(turn, text) for turn, text in self.written if isinstance(text, str)]
        turns, texts = tuple(turn for turn, _ in written), tuple(text for _, text in written)
        read = tuple(self.read.get(turn.number) for turn in turns)
        return Episode(self.question, turns, texts, self.prediction, self.error, read)

    def _step(self, step: Step[Any]) -> Any:
        result = self._take(step)
        if self.asked:
            raise _Asked
        return result

    def _take(self, step: Step[Any]) -> Any:
        """The result of a step; where it needs a text that is not written yet, what it asks is noted."""
        if isinstance(step, Together):
            return [self._take(one) for one in step.steps]
        number, engine = self._number, self.engine
        given = self.read.get(number) or (self.written[number][1] if number < len(self.written) else None)
        result = engine.given(given if isinstance(given, str) else None, step.run)
        if not engine.asked:
            return result
        self._number += 1
        if given is None:
            self.asked.append(Turn(self.place, number, engine.asked[0], engine.schema))
            return None
        if isinstance(given, Exception):
            raise given
        if number in self.read or not isinstance(result, dspy.Prediction):  # one that could not be read is None
            return result
        values = result.toDict()
        limited = as_written(values, engine.schema, self.limits)
        self.read[number] = json_text(limited)
        return result if limited == values else engine.given(self.read[number], step.run)


def first_asked(run: Callable[[], Any]) -> tuple[Messages, Schema | None]:
    """What a program asks its LM first, framed as for the policy, and the schema that it asks by; it is left when it
    asks.
    """
    engine = _PolicyEngine()
    with asking(engine.lm()):
        engine.given(None, run)
    return engine.asked[0], engine.schema


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
    policy: HFPolicy, run: Run, questions: Sequence[Question], recipe: Recipe, *, seed: tuple[object, ...] | None = None
) -> list[Episode]:
    """Go through questions, an episode each, which has what the policy wrote.

    A recipe says how it draws, and tokens of a completion at most. The draws depend on the seed and the round; without
    a seed the likeliest is written.
    """
    written: dict[tuple[int, int], Completion] = {}

    def answer(turns: Sequence[Turn]) -> list[str | Exception]:
        refused = [policy.refused(policy.prompt(turn.messages), recipe.room) for turn in turns]
        asked = [turn for turn, error in zip(turns, refused, strict=True) if error is None]
        made = policy.write(
            [turn.messages for turn in asked],
            room=recipe.room,
            seed=None if seed is None else seed_of(*seed, len(written)),
            temperature=recipe.temperature,
            top_k=recipe.top_k,
        )
        written.update({(turn.place, turn.number): one for turn, one in zip(asked, made, strict=True)})
        texts = iter(made)
        read = as_json if policy.kind == "seq2seq" else lambda text, _: text
        each = zip(turns, refused, strict=True)
        return [read(next(texts).text, turn.schema) if error is None else error for turn, error in each]

    return [
        replace(episode, completions=tuple(written[place, turn.number] for turn in episode.turns))
        for place, episode in enumerate(run(questions, answer))
    ]


def batch_of(questions: Sequence[Question], size: int, *, seed: int, step: int) -> list[Question]:
    """The questions of a step, from 0, so many: all are met before any is met again, each time in another order."""
    places = [divmod(position, len(questions)) for position in range(step * size, (step + 1) * size)]
    orders = {turn: Random(f"{seed} {turn}").sample(questions, len(questions)) for turn in dict(places)}
    return [orders[turn][place] for turn, place in places]
