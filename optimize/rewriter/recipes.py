"""How a rewriter is reinforced: three recipes, their baselines, and how far they may drift from the warmed-up model.

The loop is our own and not TRL's: a question may take several completions and searches between them, all that is drawn
depends on the seed and the step alone, and a killed run goes on from plain tensors and JSON as if nothing had been.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from querywright.errors import InputError
from querywright.optimize.rewriter.ranges import check_least

MOVING_STEPS = 100
"""Steps that the moving baseline of ``seed`` looks back."""

_LARGEST_ERROR = 0.2
_HORIZON = 0.1


@dataclass(frozen=True, slots=True)
class KLSettings:
    """What drifting from the warmed-up model costs.

    Args:
        beta: Its price a nat, from 0; where it adapts, the first one.
        target: The divergence that an adaptive price steers to, in nats a token; None for a price that stays.
        place: ``reward``: the log-ratio of each drawn token (k1) is taken off that token's reward. ``loss``: the
            estimate k3 of each token is added to the loss.
    """

    beta: float
    target: float | None = None
    place: Literal["reward", "loss"] = "reward"


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
        kl: What drifting costs.
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
        top_p: Tokens are drawn from the likeliest whose probabilities sum up to this.
        max_grad_norm: Longest gradient.
    """

    name: str
    reward: Literal["retrieval", "answer", "paper"]
    baseline: Literal["group", "moving", "batch"]
    kl: KLSettings
    lr: float
    optimizer: Literal["adamw", "adafactor"]
    batch: int
    group: int = 1
    epochs: int = 1
    clip: float = 0.2
    steps: int = 200
    room: int = 64
    length_penalty: float = 0.0
    unreadable: float = 0.0
    temperature: float = 1.0
    top_k: int = 100
    top_p: float = 1.0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        least = {"batch": 1, "group": 1, "epochs": 1, "steps": 0, "room": 1, "top_k": 0}
        check_least(self, least, " of a recipe")
        for name in ("lr", "clip", "temperature", "max_grad_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} of a recipe must be more than 0, but got {getattr(self, name)}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p of a recipe must be more than 0 and at most 1, but got {self.top_p}")
        if self.baseline == "group" and self.group == 1:
            raise InputError("a baseline of the group needs 2 or more samples a question, but got group=1")
        if min(self.length_penalty, self.unreadable, self.kl.beta) < 0:
            raise InputError(f"penalties of a recipe must be 0 or more, but got {self}")
        if self.kl.target is not None and not 0 < self.kl.target < math.inf:
            raise InputError(f"the target of an adaptive KL must be more than 0, but got {self.kl.target}")

    @property
    def needs_reader(self) -> bool:
        """Whether its reward reads an answer."""
        return self.reward != "retrieval"

    def to_json(self) -> dict[str, Any]:
        """The recipe as a JSON object."""
        return asdict(self)


OURS = Recipe(
    name="ours",
    reward="retrieval",
    baseline="group",
    kl=KLSettings(0.02, place="loss"),
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
    kl=KLSettings(0.001),
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
    kl=KLSettings(0.001, target=0.2),
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
    """The recipe of that name.

    Raises:
        InputError: There is no such recipe.
    """
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; the recipes are: {', '.join(RECIPES)}")
    return RECIPES[name]


def group_advantages(rewards: Sequence[float], groups: Sequence[object]) -> list[float]:
    """Each reward less the mean of the others of its group.

    Args:
        rewards: One a sample; NaN for one that could not be scored, which counts for nobody.
        groups: Which group a sample belongs to, such as its question's id.

    Returns:
        One a sample: 0 for a sample that is NaN, or the only one of its group.
    """
    if len(rewards) != len(groups):
        raise InputError(f"got {len(rewards)} rewards for {len(groups)} samples; give one a sample")
    members: dict[object, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        if not math.isnan(reward):
            members.setdefault(group, []).append(reward)
    found = []
    for reward, group in zip(rewards, groups, strict=True):
        others = len(members.get(group, ())) - 1
        if math.isnan(reward) or others < 1:
            found.append(0.0)
        else:
            found.append(reward - (math.fsum(members[group]) - reward) / others)
    return found


def batch_advantages(rewards: Sequence[float]) -> list[float]:
    """Each reward less the mean of all, in standard deviations; 0 where all are equal, and for a NaN."""
    scored = [reward for reward in rewards if not math.isnan(reward)]
    if not scored:
        return [0.0] * len(rewards)
    mean = math.fsum(scored) / len(scored)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in scored) / len(scored))
    scale = deviation + 1e-8
    return [0.0 if math.isnan(reward) else (reward - mean) / scale for reward in rewards]


class MovingBaseline:
    """The mean reward of the last steps.

    Args:
        steps: Steps that are looked back. Default 100.
    """

    def __init__(self, steps: int = MOVING_STEPS) -> None:
        if steps < 1:
            raise InputError(f"a moving baseline looks back 1 step or more, but got {steps}")
        self._means: deque[float] = deque(maxlen=steps)

    @property
    def value(self) -> float:
        """The baseline; 0 before the first step."""
        return math.fsum(self._means) / len(self._means) if self._means else 0.0

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """Each reward less the baseline; 0 for a NaN. Call ``update`` afterwards."""
        value = self.value
        return [0.0 if math.isnan(reward) else reward - value for reward in rewards]

    def update(self, rewards: Sequence[float]) -> None:
        """Take in the rewards of a step; NaN are left out, and a step without any."""
        scored = [reward for reward in rewards if not math.isnan(reward)]
        if scored:
            self._means.append(math.fsum(scored) / len(scored))

    def to_json(self) -> dict[str, Any]:
        """What it knows."""
        return {"steps": self._means.maxlen, "means": list(self._means)}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> MovingBaseline:
        """The baseline that ``to_json`` wrote."""
        baseline = cls(state["steps"])
        baseline._means.extend(map(float, state["means"]))
        return baseline


class AdaptiveKL:
    """The price of drifting, steered so that the divergence comes to a target.

    After each step: error = (KL - target) / target, at most 0.2 either way, and beta grows by 0.1 * error of itself.

    Args:
        beta: The first price. Default .001.
        target: The divergence aimed at, in nats a token. Default .2. None for a price that stays.

    Source: Ziegler et al. 2019, arXiv:1909.08593, in the form of Ma et al. 2023's code.
    """

    def __init__(self, beta: float = 0.001, target: float | None = 0.2) -> None:
        self.beta = beta
        self.target = target

    def update(self, kl: float) -> float:
        """The price after a step with this divergence; a divergence that is not finite changes nothing."""
        if self.target is not None and math.isfinite(kl):
            error = (kl - self.target) / self.target
            self.beta *= 1 + _HORIZON * min(max(error, -_LARGEST_ERROR), _LARGEST_ERROR)
        return self.beta

    def to_json(self) -> dict[str, Any]:
        """What it knows."""
        return {"beta": self.beta, "target": self.target}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> AdaptiveKL:
        """The controller that ``to_json`` wrote."""
        return cls(state["beta"], state["target"])
