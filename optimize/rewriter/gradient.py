"""The step of a policy gradient: what the loss is, and the change of the weights.

A loop of our own and not TRL's trainers: three recipes share it, all that is drawn depends on seed and step alone, and
a run that was killed goes on to the same result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from querywright.errors import QuerywrightError
from querywright.optimize.rewriter.types import Completion, Policy

if TYPE_CHECKING:
    import torch


SMALLER = (
    "begin again with a smaller learning rate ({}) or 32 bits (--dtype float32), in another working folder (--work)"
)
"""What to do about numbers that are none, with the name of the option."""


class TrainingError(QuerywrightError):
    """A training that cannot go on; what was kept of it is whole."""


@dataclass(frozen=True, slots=True)
class Update:
    """How the weights are changed.

    Args:
        beta: Weight of the KL to the warmed-up policy.
        kl: ``reward`` takes the per-token log ratio times beta off what each token earns (the ``seed`` and ``paper``
            recipes); ``loss`` adds the estimator k3, which is never negative, to the loss (``ours``).
        scaled: Whether what the tokens of the batch earn, the cost of drifting included, is brought to mean 0 and
            deviation 1 (the ``paper`` recipe).
        clip: Ratios of new to old probability count from 1 - clip to 1 + clip.
        epochs: Times that a batch is learnt from.
        norm: Longest gradient.
        chunk: Completions in memory at a time, on each device.
    """

    beta: float
    kl: Literal["reward", "loss"] = "loss"
    scaled: bool = False
    clip: float = 0.2
    epochs: int = 1
    norm: float = 1.0
    chunk: int = 8


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a step did.

    Args:
        loss: Of the last epoch.
        kl: To the warmed-up policy, in nats a token: mean log ratio of all tokens (estimator k1), as RL4LMs has it.
        norm: Length of the gradient before it was cut, of the last epoch.
        tokens: Tokens that were learnt from.
    """

    loss: float
    kl: float
    norm: float
    tokens: int


def learn(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    completions: Sequence[Completion],
    advantages: Sequence[float],
    update: Update,
    *,
    step: int,
) -> Learnt:
    """Change the weights once an epoch.

    The loss is a mean over all tokens of the batch, so that long completions do not count less a token.

    Args:
        policy: In training.
        optimizer: Of its parameters.
        completions: What was written; those without a token are left out.
        advantages: One a completion: the reward of its episode less the baseline, or the reward itself where ``update``
            scales.
        update: How.
        step: For the message of an error.

    Raises:
        TrainingError: The loss or the gradient is no number; the weights are those before this epoch.
    """
    import torch

    kept = [(one, value) for one, value in zip(completions, advantages, strict=True) if one.tokens]
    kept.sort(key=lambda one: one[0].prompt)  # a prompt that several share is gone through once a chunk
    total = sum(len(one.tokens) for one, _ in kept)
    if not total:
        return Learnt(0.0, 0.0, 0.0, 0)
    texts = [one for one, _ in kept]
    chunk = update.chunk * policy.width
    parts = [slice(start, start + chunk) for start in range(0, len(texts), chunk)]
    with torch.no_grad():
        olds = [one.detach() for part in parts for one in policy.log_probs(texts[part])]
        refs = [one.detach() for part in parts for one in policy.log_probs(texts[part], reference=True)]
    ratios = [(old - ref).float() for old, ref in zip(olds, refs, strict=True)]
    kl = math.fsum(float(one.sum()) for one in ratios) / total
    earned = [_earned(value, ratio, update) for (_, value), ratio in zip(kept, ratios, strict=True)]
    if update.scaled:
        earned = _scaled(earned)
    tensors = list(policy.parameters().values())
    loss, norm = math.nan, math.nan
    for _ in range(update.epochs):
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for part in parts:
            news = policy.log_probs(texts[part])
            each = zip(news, olds[part], refs[part], earned[part], strict=True)
            part_loss = torch.stack([_loss(*one, update).sum() for one in each]).sum() / total
            losses.append(float(part_loss.detach()))
            if math.isfinite(losses[-1]):
                part_loss.backward()
        loss = math.fsum(losses)
        norm = float(torch.nn.utils.clip_grad_norm_(tensors, update.norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"the loss of step {step} is {loss} (gradient {norm}): the training cannot go on; "
                f"{SMALLER.format('--lr')}. The weights of the last checkpoint are kept"
            )
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return Learnt(loss, kl, norm, total)


def _earned(advantage: float, ratio: Any, update: Update) -> Any:
    """What each token is worth: with the KL as reward, less beta times the log ratios of it and those after it.

    Args:
        advantage: Of the completion.
        ratio: log pi - log reference of each drawn token (the estimate k1 of the divergence).
        update: How.
    """
    import torch

    earned = torch.full_like(ratio, advantage)
    if update.kl == "reward":
        earned = earned - update.beta * torch.flip(torch.cumsum(torch.flip(ratio, (0,)), 0), (0,))
    return earned


def _scaled(earned: Sequence[Any]) -> list[Any]:
    """What tokens earn, less the mean of all, in standard deviations."""
    import torch

    every = torch.cat(list(earned)).double()
    mean, deviation = float(every.mean()), float(every.std(correction=0))
    return [(one - mean) / (deviation + 1e-8) for one in earned]


def _loss(new: Any, old: Any, ref: Any, earned: Any, update: Update) -> Any:
    """Of each token; k3 = r - log r - 1, where r is the reference's probability over the policy's."""
    import torch

    ratio = torch.exp(new - old)
    loss = -torch.minimum(ratio * earned, torch.clamp(ratio, 1 - update.clip, 1 + update.clip) * earned)
    if update.kl == "loss":
        apart = ref - new
        loss = loss + update.beta * (torch.exp(apart) - apart - 1)
    return loss


def make_optimizer(kind: str, tensors: Sequence[Any], lr: float) -> Any:
    """The optimizer of a recipe, without weight decay.

    AdaFactor takes steps of the size of the learning rate, and not in proportion to the weights, of which those of a
    fresh adapter are zero.

    Args:
        kind: ``adamw`` or ``adafactor``.
        tensors: What is trained.
        lr: Learning rate.
    """
    import torch

    if kind == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(tensors, lr=lr, scale_parameter=False, relative_step=False, warmup_init=False)
    return torch.optim.AdamW(tensors, lr=lr, weight_decay=0.0)
