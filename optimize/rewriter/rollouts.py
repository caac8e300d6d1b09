"""Questions gone through by the policy: what it wrote, and what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from querywright.data.types import Question
from querywright.optimize.rewriter.types import Completion, Episode, Policy, Turn

Answer = Callable[[Sequence[Turn]], Sequence[str | Exception]]
"""Answers all turns of a round; an error ends the episode of its turn alone."""
Run = Callable[[Sequence[Question], Answer], list[Episode]]
"""Goes through questions, an episode each, with something that answers."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the policy draws.

    Args:
        temperature: More than 0.
        top_k: The likeliest tokens that are drawn from; 0 for all.
        top_p: Tokens are drawn from the likeliest whose probabilities sum up to this.
        room: Tokens of a completion at most.
    """

    temperature: float = 1.0
    top_k: int = 100
    top_p: float = 1.0
    room: int = 96


@dataclass(frozen=True, slots=True)
class Rollout:
    """An episode and the completions that it is made of, one a turn."""

    episode: Episode
    completions: tuple[Completion, ...]

    @property
    def counts(self) -> list[int]:
        """Tokens of each completion."""
        return [len(one.tokens) for one in self.completions]


def seed_of(*parts: object) -> int:
    """A seed from 0 to 2**63 - 1 that depends on the parts alone, and never on what was drawn before.

    Args:
        parts: Such as the run's seed, the step and the place.
    """
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def roll_out(
    policy: Policy,
    run: Run,
    questions: Sequence[Question],
    sampling: Sampling,
    *,
    seed: tuple[object, ...] | None = None,
) -> list[Rollout]:
    """Go through questions.

    Args:
        policy: Writes.
        run: Goes through them.
        questions: An episode each; one that stands several times is gone through several times.
        sampling: How it draws.
        seed: What the draws depend on, besides the place and the number of a turn. None writes the likeliest.
    """
    written: dict[tuple[int, int], Completion] = {}

    def answer(turns: Sequence[Turn]) -> list[str | Exception]:
        refused = [policy.refused(turn.messages, sampling.room) for turn in turns]
        wrote = iter(write([turn for turn, error in zip(turns, refused, strict=True) if error is None]))
        return [next(wrote) if error is None else error for error in refused]

    def write(turns: Sequence[Turn]) -> list[str]:
        seeds = None if seed is None else [seed_of(*seed, turn.place, turn.number) for turn in turns]
        made = policy.write(
            [turn.messages for turn in turns],
            seeds=seeds,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            room=sampling.room,
        )
        written.update({(turn.place, turn.number): one for turn, one in zip(turns, made, strict=True)})
        return [one.text for one in made]

    episodes = run(questions, answer)
    return [
        Rollout(episode, tuple(written[place, turn.number] for turn in episode.turns))
        for place, episode in enumerate(episodes)
    ]


def batch_of(questions: Sequence[Question], size: int, *, seed: int, step: int) -> list[Question]:
    """The questions of a step: all are met once before any is met again.

    Args:
        questions: Those to train on, one or more.
        size: How many.
        seed: Of the order, which is another one each time all were met.
        step: From 0.
    """
    chosen = []
    for position in range(step * size, (step + 1) * size):
        turn, place = divmod(position, len(questions))
        chosen.append(_ordered(questions, seed, turn)[place])
    return chosen


def _ordered(questions: Sequence[Question], seed: int, turn: int) -> list[Question]:
    return sorted(questions, key=lambda question: seed_of(seed, "order", turn, question.id))
