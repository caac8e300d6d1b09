"""Questions gone through by the policy: what it wrote, and what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from querywright.data.types import Question
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.optimize.rewriter.recipes import Recipe
from querywright.optimize.rewriter.types import Completion, Episode, Turn

Answer = Callable[[Sequence[Turn]], Sequence[str | Exception]]
"""Answers all turns of a round; an error ends the episode of its turn alone."""
Run = Callable[[Sequence[Question], Answer], list[Episode]]
"""Goes through questions, an episode each, with something that answers."""


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
            top_p=recipe.top_p,
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
