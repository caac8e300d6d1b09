"""Questions gone through side by side by a technique whose LM is the policy in training.

All episodes go on in step: each is run until its technique asks the LM, then the policy is asked once for all of them,
and so on, so that batches are the same whenever the questions and the answers are. The technique's own code is what
runs, and the adapter that frames its prompts is the one of every other program: a prompt here is, letter by letter, the
prompt that the trained model is given in use.
"""

from __future__ import annotations

import contextvars
import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dspy
from dspy.lm15 import Request, Response, response_to_events

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.constrained_decoding import Schema
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings
from querywright.models.response_parsing import text_response
from querywright.optimize.dspy_context import asking
from querywright.optimize.failures import failure_kind
from querywright.optimize.pool import bounded_map
from querywright.optimize.rewriter.canonical import as_written, json_text
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.optimize.rewriter.recipes import Recipe
from querywright.optimize.rewriter.types import Completion, Episode, Messages, Turn
from querywright.programs.base import Technique
from querywright.programs.rag import RAG
from querywright.programs.steps import Record, Step, Together, drive

Answer = Callable[[Sequence[Turn]], Sequence[str | Exception]]
"""What writes: a text a turn, in their order, or an error, such as for a prompt that is too long."""
Run = Callable[[Sequence[Question], Answer], list[Episode]]
"""Goes through questions, an episode each, with something that answers."""

REWRITER_LIMITS = EmbeddedSettings(max_chars=320, max_items=3)
"""What a rewriter over the embedded model may write where a technique does not say: room for a whole question. It
learns when to end, so it needs no such short leash as the model as it comes."""


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
        threads: Searches, and readings, under way at a time. Default 4.

    Returns:
        An episode a question, in their order. One that failed has no prediction and says how.

    Raises:
        InputError: The technique asks for several things within a step.
        QuerywrightError: The reader's LM is out of reach, or its calls are used up.
    """
    policy, played = _policy_lm(), copy.deepcopy(program)
    technique = played.technique
    for predictor in technique.predictors():
        predictor.lm = policy
    walks = [_Walk(place, question, technique, settings) for place, question in enumerate(questions)]
    try:
        with asking(policy if lm is None else lm), played.choosing():
            while True:
                _each(_Walk.advance, [walk for walk in walks if not walk.ended], threads)
                turns = [turn for walk in walks for turn in walk.asking()]
                if not turns:
                    break
                _tell(walks, turns, answer(turns))
            _each(lambda walk: walk.read(played), [walk for walk in walks if walk.error is None], threads)
    finally:
        for walk in walks:
            walk.close()
    return [walk.episode() for walk in walks]


def first_asked(run: Callable[[], Any]) -> tuple[Messages, Schema | None]:
    """What a program asks its LM first, framed as for the policy, and the schema that it asks by.

    Args:
        run: Runs the program; it is left when it asks.

    Raises:
        InputError: It asks nothing.
    """
    try:
        with asking(_policy_lm()):
            run()
    except _Asked as asked:
        return asked.messages, asked.schema
    raise InputError("the program asks no LM, so there is no prompt to learn")


class _Asked(BaseException):
    """The policy is asked; no technique may take this for a failure of its own."""

    def __init__(self, messages: Messages, schema: Schema | None) -> None:
        super().__init__()
        self.messages = messages
        self.schema = schema


@dataclass(slots=True)
class _Desk:
    """What the policy's engine has to give in a step, and what it was asked."""

    text: str | None
    systems: list[str] = field(default_factory=list)


_desk: contextvars.ContextVar[_Desk | None] = contextvars.ContextVar("querywright_desk", default=None)


class _PolicyEngine:
    """Gives the text that lies on the desk; asks for it where there is none. To an adapter it is the embedded LM."""

    deterministic = True
    decides_by_likelihood = EmbeddedEngine.decides_by_likelihood
    supports_response_schema = EmbeddedEngine.supports_response_schema
    supported_params = EmbeddedEngine.supported_params

    def __deepcopy__(self, memo: dict[int, Any]) -> _PolicyEngine:
        return self

    def complete(self, request: Request) -> Response:
        desk = _desk.get()
        messages = _messages(request)
        if desk is None or desk.text is None:
            raise _Asked(messages, _schema(request))
        desk.systems.append(messages[0][1])
        return text_response(desk.text, "stop", request.model, 0, 0)

    def stream(self, request: Request) -> Iterator[Any]:
        return iter(response_to_events(self.complete(request)))


def _policy_lm() -> dspy.LM:
    return dspy.LM("rewriter/in-training", engine=_PolicyEngine(), temperature=0.0, cache=False, num_retries=0)


@dataclass(slots=True)
class _Leaf:
    """A step that is no group of others."""

    step: Step[Any]
    schema: Schema | None = None
    turn: Turn | None = None
    text: str | None = None
    result: Any = None
    done: bool = False


class _Walk:
    """One episode under way."""

    def __init__(self, place: int, question: Question, technique: Technique, settings: EmbeddedSettings | None) -> None:
        self.place = place
        self.question = question
        self.ended = False
        self.error: str | None = None
        self.prediction: Any = None
        self._settings = settings
        self._log: list[Record] = []
        self._work = technique.walk(question.question, list(question.options), self._log)
        self._stage = 0
        self._step: Step[Any] | None = None
        self._leaves: list[_Leaf] = []
        self._turns: list[Turn] = []
        self._texts: list[str] = []
        self._read: list[str | None] = []

    def advance(self) -> None:
        """Go on until the policy has to be asked, or to the end."""
        try:
            step = self._work.send(None) if self._step is None else self._step
            while True:
                if step is not self._step:
                    self._stage += 1
                    self._step, self._leaves = step, [_Leaf(one) for one in _parts(step)]
                try:
                    waiting = [leaf for leaf in self._leaves if not leaf.done and not self._take(leaf)]
                except Exception as error:  # noqa: BLE001 - the technique decides what to do with it
                    step = self._work.throw(error)
                    continue
                if waiting:
                    return
                result = _result(step, iter(self._leaves))
                self._log.extend(step.records(result, self._stage))
                step = self._work.send(result)
        except StopIteration as stop:
            self.ended, self.prediction = True, stop.value

    def asking(self) -> list[Turn]:
        """The turns that the policy has to answer now."""
        if self.ended:
            return []
        for leaf in self._leaves:
            if not leaf.done and leaf.turn is not None and leaf.turn.number < 0:
                leaf.turn = Turn(self.place, len(self._turns), leaf.turn.messages)
                self._turns.append(leaf.turn)
        return self._turns[len(self._texts) :]

    def tell(self, texts: Sequence[str]) -> None:
        """What the policy wrote, one a turn."""
        self._texts += texts
        self._read += [None] * len(texts)
        for leaf in self._leaves:
            if not leaf.done and leaf.turn is not None:
                leaf.text = self._texts[leaf.turn.number]

    def read(self, program: RAG) -> None:
        """Have the reader, where there is one, answer from what was found."""
        question = self.question
        self.prediction = drive(program.read(question.question, list(question.options), self.prediction), [])

    def fail(self, error: Exception) -> None:
        """The episode ends here; an error for which everything must stop is raised."""
        kind = failure_kind(error)
        if kind is None:
            raise error
        self.ended, self.error, self.prediction = True, kind, None

    def close(self) -> None:
        self._work.close()

    def episode(self) -> Episode:
        turns, texts, read = tuple(self._turns), tuple(self._texts), tuple(self._read)
        return Episode(self.question, turns[: len(texts)], texts, self.prediction, self.error, read)

    def _take(self, leaf: _Leaf) -> bool:
        """Whether a step has its result now; a step that needs the policy's text keeps what it asks."""
        desk = _Desk(leaf.text)
        try:
            leaf.result = _run(leaf.step, desk)
        except _Asked as asked:
            leaf.turn, leaf.schema = Turn(self.place, -1, asked.messages), asked.schema
            return False
        if len(set(desk.systems)) > 1:
            raise InputError(
                f"a step of {type(leaf.step).__name__} asks the LM for several things; a technique that is trained "
                "asks for one thing a step (self.ask)"
            )
        if leaf.turn is not None and leaf.text is not None and isinstance(leaf.result, dspy.Prediction):
            values = leaf.result.toDict()
            limited = as_written(values, leaf.schema, self._settings)
            text = json_text(limited)
            if limited != values:
                leaf.result = _run(leaf.step, _Desk(text))
            self._read[leaf.turn.number] = text
        leaf.done = True
        return True


def _run(step: Step[Any], desk: _Desk) -> Any:
    token = _desk.set(desk)
    try:
        return step.run()
    finally:
        _desk.reset(token)


def _parts(step: Step[Any]) -> list[Step[Any]]:
    """The steps of a group, in order; the step itself where it is none."""
    return [part for one in step.steps for part in _parts(one)] if isinstance(step, Together) else [step]


def _result(step: Step[Any], leaves: Iterator[_Leaf]) -> Any:
    return [_result(one, leaves) for one in step.steps] if isinstance(step, Together) else next(leaves).result


def _each(work: Callable[[_Walk], None], walks: Sequence[_Walk], threads: int) -> None:
    """Do something with each episode; one that fails ends."""

    def on_done(place: int, result: Exception | None) -> None:
        if isinstance(result, Exception):
            walks[place].fail(result)

    bounded_map(work, walks, threads=threads, deadline=None, on_done=on_done)


def _tell(walks: Sequence[_Walk], turns: Sequence[Turn], texts: Sequence[str | Exception]) -> None:
    for walk in walks:
        mine = [text for turn, text in zip(turns, texts, strict=True) if turn.place == walk.place]
        errors = [text for text in mine if isinstance(text, Exception)]
        if errors:
            walk.fail(errors[0])
        elif mine:
            walk.tell([text for text in mine if isinstance(text, str)])


def _messages(request: Request) -> Messages:
    system = request.system
    text = system if isinstance(system, str) else "".join(getattr(part, "text", "") for part in system or ())
    return (("system", text), *((message.role, message.text or "") for message in request.messages))


def _schema(request: Request) -> Schema | None:
    form: Any = request.config.response_format or {}
    inner = form.get("json_schema", form)
    schema = inner.get("schema", inner)
    return schema if "properties" in schema else None


def seed_of(*parts: object) -> int:
    """A seed from 0 to 2**63 - 1 that depends on the parts alone.

    Args:
        parts: Such as the run's seed, the step and the place.
    """
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def roll_out(
    policy: HFPolicy, run: Run, questions: Sequence[Question], recipe: Recipe, *, seed: tuple[object, ...] | None = None
) -> list[Episode]:
    """Go through questions; each episode has what the policy wrote.

    Args:
        policy: Writes.
        run: Goes through them.
        questions: An episode each; one that stands several times is gone through several times.
        recipe: How it draws, and tokens of a completion at most.
        seed: What the draws depend on, besides the round. None writes the likeliest.
    """
    written: dict[tuple[int, int], Completion] = {}

    def answer(turns: Sequence[Turn]) -> list[str | Exception]:
        refused = [policy.refused(turn.messages, recipe.room) for turn in turns]
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
        return [next(texts).text if error is None else error for error in refused]

    return [
        replace(episode, completions=tuple(written[place, turn.number] for turn in episode.turns))
        for place, episode in enumerate(run(questions, answer))
    ]


def batch_of(questions: Sequence[Question], size: int, *, seed: int, step: int) -> list[Question]:
    """The questions of a step: all are met once before any is met again.

    Args:
        questions: Those to train on, one or more.
        size: How many.
        seed: Of the order, which is another one each time all were met.
        step: From 0.
    """
    places = (divmod(position, len(questions)) for position in range(step * size, (step + 1) * size))
    return [
        sorted(questions, key=lambda question: seed_of(seed, "order", turn, question.id))[place]
        for turn, place in places
    ]
