"""How a rewriter is reinforced: three recipes, their baselines, and how far they may drift from the warmed-up model.

The loop is our own and not TRL's: a question may take several completions and searches between them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from querywright.errors import InputError, unknown

MOVING_STEPS = 100
"""Steps that the moving baseline of ``seed`` looks back."""


def check_numbers(settings: Any, of: str, zero: Collection[str] = ()) -> None:
    """Raise where a number of a dataclass, of which the message tells as ``of``, is out of range: below 0, or 0 and
    none of those that may be.
    """
    for name, value in ((one.name, getattr(settings, one.name)) for one in fields(settings)):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            least = "0 or more" if name in zero else "more than 0"
            if not (0 <= value < math.inf and (value or name in zero)):
                raise InputError(f"{name} of {of} must be {least}, but got {value}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is reinforced.

    Args:
        name: ``ours``, ``seed`` or ``paper``.
        reward: ``retrieval``: gain of the metric over the plain question. ``answer``: gain in token F1 over the answer
            without rewriting. ``paper``: exact match, token F1 and hit.
        baseline: What a reward is held against: the other samples of its question (``group``), the mean of the last
            100 steps (``moving``), or the mean of its batch, in standard deviations (``batch``; what the tokens earn,
            where drifting is paid for out of the reward).
        kl: Price of drifting from the warmed-up model a nat, 0 or more; where it adapts, the first one.
        kl_target: The divergence that an adaptive price steers to, in nats a token; None for a price that stays.
        kl_place: ``reward``: the log-ratio of each drawn token (k1) is taken off that token's reward. ``loss``: the
            estimate k3 of each token is added to the loss.
        lr: Learning rate.
        optimizer: ``adamw`` or ``adafactor``.
        batch: Questions a step.
        group: Samples a question, 1 or more; 2 or more for ``group``.
        epochs: Times that a step's samples are learnt from.
        clip: How far the probability ratio may leave 1 before it is cut, where ``epochs`` is more than 1.
        steps: Steps in all.
        room: Tokens of a completion at most.
        length_penalty: Taken off the reward for each token that a completion is away from the length aimed at (the
            median of the warm-up's completions); 0 for none.
        unreadable: Taken off the reward in proportion to the completions that could not be read. A technique then
            searches with the question alone, which would make writing nonsense as good as not rewriting.
        temperature: Of sampling.
        top_k: The likeliest tokens that are drawn from; 0 for all.
        max_grad_norm: Longest gradient.
    """

    name: str
    reward: Literal["retrieval", "answer", "paper"]
    baseline: Literal["group", "moving", "batch"]
    kl: float
    lr: float
    optimizer: Literal["adamw", "adafactor"]
    batch: int
    kl_target: float | None = None
    kl_place: Literal["reward", "loss"] = "reward"
    group: int = 1
    epochs: int = 1
    clip: float = 0.2
    steps: int = 200
    room: int = 64
    length_penalty: float = 0.0
    unreadable: float = 0.0
    temperature: float = 1.0
    top_k: int = 100
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, "a recipe", ("kl", "steps", "top_k", "length_penalty", "unreadable"))
        if self.baseline == "group" and self.group == 1:
            raise InputError("a baseline of the group needs 2 or more samples a question, but got group=1")

    @property
    def needs_reader(self) -> bool:
        """Whether its reward reads an answer."""
        return self.reward != "retrieval"


OURS = Recipe(
    name="ours",
    reward="retrieval",
    baseline="group",
    kl=0.02,
    kl_place="loss",
    lr=1e-4,
    optimizer="adamw",
    batch=8,
    group=8,
    steps=200,
    room=128,
    unreadable=0.1,
)
"""Rewarded by what is found alone: no reader is asked. The baseline is the mean of the other samples of the question
(REINFORCE leave-one-out, Kool et al. 2019; for LMs Ahmadian et al. 2024, arXiv 2402.14740); the KL term is added to the
loss as in GRPO (Shao et al. 2024, arXiv 2402.03300), but rewards are not divided by the group's deviation, which would
make a question on which samples hardly differ as loud as one on which they do."""

SEED = Recipe(
    name="seed",
    reward="answer",
    baseline="moving",
    kl=0.001,
    lr=1e-4,
    optimizer="adafactor",
    batch=32,
    steps=2000,
    room=64,
    length_penalty=0.01,
)
"""The recipe of a published summary of Rewrite-Retrieve-Read: REINFORCE, reward F1(rewritten) - F1(original), the mean
of the last 100 steps as the baseline, KL to the fine-tuned model and a length penalty, AdaFactor at 1e-4, batches of
32, about 2,000 steps, 64 tokens. It gives no weight for either penalty: .01 a token, and the paper's .001 a nat. It
searches by a beam of 5, which explores nothing; here rewrites are sampled (temperature 1, top-k 100), and greedy in
evaluation."""

PAPER = Recipe(
    name="paper",
    reward="paper",
    baseline="batch",
    kl=0.001,
    kl_target=0.2,
    lr=2e-6,
    optimizer="adamw",
    batch=16,
    epochs=3,
    clip=0.2,
    steps=500,
    room=50,
    max_grad_norm=0.5,
)
"""Ma et al. 2023 (arXiv 2305.14283): EM + F1 + Hit at the end of a rewrite, an adaptive price for each token's
log-ratio (.001 at first, .2 aimed at), a clipped ratio (.2), AdamW at 2e-6, three epochs a batch, 50 tokens, no length
penalty. Where it differs from the paper's PPO: there is no value network and so no generalised advantage estimation
(what a token earns to the end of the rewrite, the cost of drifting included, undiscounted where the paper has gamma
.99; less its mean over the tokens of the batch, in standard deviations); rewrites are sampled where the paper's code
searches by four beams; a step is a batch of questions and not 5,120 tokens; the prompt is the technique's own."""

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in (OURS, SEED, PAPER)}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise InputError(unknown("recipe", name, RECIPES))
    return RECIPES[name]


def advantages_of(recipe: Recipe, rewards: Sequence[float], groups: Sequence[object], moving: float) -> list[float]:
    """Each reward less its baseline: the mean of the others of its group (such as its question's id), of the last steps
    (``moving``), or of the batch, which ``learn`` also brings to deviation 1.

    A reward that is NaN could not be worked out and counts for nobody; it, and one that stands alone, gives 0.
    """
    import pandas

    values = pandas.Series(rewards, dtype=float)
    if recipe.baseline == "moving":
        return list((values - moving).fillna(0.0))
    alike = values.groupby(list(groups) if recipe.baseline == "group" else ["all"] * len(values))
    count, apart = alike.transform("count"), values - alike.transform("mean")
    if recipe.baseline == "group":
        apart *= count / (count - 1)
    return list(apart.where(count > 1).fillna(0.0))


def steered(recipe: Recipe, beta: float, measured: float) -> float:
    """The price of drifting after a step of which this divergence (nats a token) was measured: where a target is set,
    it grows by 0.1 * error of itself. A divergence that is not finite changes nothing.

    Source: Ziegler et al. 2019, arXiv:1909.08593, in the form of Ma et al. 2023's code: error = (KL - target) / target,
    at most 0.2 either way.
    """
    if recipe.kl_target is None or not math.isfinite(measured):
        return beta
    error = (measured - recipe.kl_target) / recipe.kl_target
    return beta * (1 + 0.1 * min(max(error, -0.2), 0.2))
