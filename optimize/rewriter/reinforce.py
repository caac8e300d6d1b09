"""The third stage: the policy writes, what its rewrites retrieve is its reward, and its weights follow.

Each step draws questions, answers each several times, scores the episodes and changes the weights once an epoch of
the recipe. Every now and then the policy answers the dev questions greedily: the weights that did best there are what
is kept, those of the start among them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.checkpoints import FLAT_STEPS, Stage, descend
from querywright.optimize.rewriter.episodes import Episode, Run, batch_of, roll_out
from querywright.optimize.rewriter.evaluation import guards_of
from querywright.optimize.rewriter.policy import Completion, HFPolicy, TrainingError
from querywright.optimize.rewriter.recipes import MOVING_STEPS, Recipe, advantages_of, steered
from querywright.optimize.rewriter.rewards import Reward, Scored
from querywright.optimize.rewriter.settings import TrainSettings

LOG = "reinforce.jsonl"
_NOTHING = 1e-6  # advantages below teach nothing


@dataclass(frozen=True, slots=True)
class Reinforced:
    """What a reinforcement did: its steps, and after how many of them the kept weights were reached (0 for those of the
    start); the mean of the measure on dev at the start, at its best, and for the questions as they are written (None
    where that is not known); whether it ended before the last step, because dev no longer got better or nothing was
    learnt any more; in how many steps all advantages were 0, so that they taught nothing; and what a reader should
    know.
    """

    steps: int
    best_step: int
    first: float
    best: float
    plain: float | None
    early: bool
    flat: int
    notes: tuple[str, ...]


def reinforce(
    policy: HFPolicy,
    train: Sequence[Question],
    dev: Sequence[Question],
    folder: Path,
    settings: TrainSettings,
    *,
    run: Run,
    reward: Reward,
    progress: Progress | None = None,
) -> Reinforced:
    """Trains a policy by what its rewrites retrieve; it ends with the weights that did best on dev.

    The KL is measured from what it is at the start. ``folder`` holds the checkpoint and the log, and is taken up again.

    Raises:
        InputError: No dev question can be scored, or a file cannot be read.
        TrainingError: The loss is no number, or nothing was learnt in any step because all rewards are alike; the last
            checkpoint is whole.
    """
    recipe, seed = settings.recipe, settings.seed
    policy.set_reference()
    optimizer = make_optimizer(recipe, list(policy.parameters().values()))
    stage = Stage(policy, optimizer, folder, LOG)

    def look() -> dict[str, Any]:
        """Answer the dev questions greedily."""
        episodes = roll_out(policy, run, dev, recipe)
        scored = reward.score(episodes)
        value = _mean([_on_dev(*one) for one in zip(episodes, scored, strict=True)])
        if math.isnan(value):
            raise InputError(
                f"none of the {len(dev)} dev questions could be scored; they lack what the measure needs (evidence, or "
                "a right answer): give labelled questions or another --metric"
            )
        return {"value": value} | _told(episodes, scored)

    def step(number: int) -> dict[str, Any]:
        """Answer some questions, each several times, and learn from what came of it."""
        began, steps = time.monotonic(), stage.steps
        batch = batch_of(train, recipe.batch, seed=seed, step=number)
        questions = [one for one in batch for _ in range(recipe.group)]
        episodes = roll_out(policy, run, questions, recipe, seed=(seed, "reinforce", number))
        scored = reward.score(episodes)
        rewards = [one.reward for one in scored]
        last = [float(line["reward"]) for line in steps if line["reward"] is not None][-MOVING_STEPS:]
        advantages = advantages_of(recipe, rewards, [one.id for one in questions], statistics.fmean(last or [0.0]))
        flat = all(abs(advantage) < _NOTHING for advantage in advantages)
        known = [one for one in rewards if not math.isnan(one)]
        if flat and stage.flat == number == FLAT_STEPS - 1:
            said = f"between {min(known):.4g} and {max(known):.4g}" if known else "could not be worked out"
            raise TrainingError(
                f"nothing can be learnt: in {FLAT_STEPS} steps the rewards of a question's samples were all alike (in "
                f"the last one {said}). Take another --metric or --recipe, a base model that can write the form, or "
                "warm it up on collected rewrites first (--stages collect,warmup,reinforce)"
            )
        pairs = [
            (completion, advantage)
            for one, score, advantage in zip(episodes, scored, advantages, strict=True)
            if not math.isnan(score.reward)
            for completion in one.completions
            if completion.tokens
        ]
        beta = float(steps[-1]["next_beta"]) if steps else recipe.kl
        # A batch that teaches nothing is not scaled, which would make the cost of drifting as loud as a reward.
        scaled = recipe.baseline == "batch" and not flat
        learnt = learn(policy, optimizer, pairs, recipe, beta=beta, scaled=scaled, step=number + 1)
        told = {
            "deviation": statistics.pstdev(known) if known else math.nan,
            "value": _mean([one.value for one in scored]),
            "unscored": len(rewards) - len(known),
            "flat": flat,
            "beta": beta,
            "next_beta": steered(recipe, beta, learnt.get("kl", math.nan)),
            "seconds": round(time.monotonic() - began, 3),
        }
        return told | learnt | _told(episodes, scored)

    ends = {"steps": recipe.steps, "look_each": settings.look_each, "patience": settings.patience}
    stage.run(step, look, name="reinforce", progress=progress, **ends)
    first, best, steps = stage.looks[0], stage.best, stage.steps
    notes = (
        f"it ended after step {len(steps)}: the last {FLAT_STEPS} steps taught nothing, since the rewards of a "
        "question's samples were all alike",
    )
    return Reinforced(
        steps=len(steps),
        best_step=best["step"],
        first=first["value"],
        best=best["value"],
        plain=first["plain"],
        early=len(steps) < recipe.steps,
        flat=sum(line["flat"] for line in steps),
        notes=notes if stage.flat >= FLAT_STEPS else (),
    )


def learn(
    policy: HFPolicy,
    optimizer: Any,
    pairs: Sequence[tuple[Completion, float]],
    recipe: Recipe,
    *,
    beta: float,
    scaled: bool = False,
    step: int = 1,
) -> dict[str, float]:
    """Change the weights once an epoch of the recipe, from what was written and its advantage: the reward of its
    episode less the baseline.

    The loss is a mean over all tokens of the batch, so that long completions do not count less a token. The KL, of
    price ``beta``, is taken off what each token earns (k1, of it and those after it) or added to the loss (k3, which is
    never negative). ``scaled`` brings what the tokens of the batch earn, the cost of drifting included, to mean 0 and
    deviation 1 (the ``paper`` recipe). ``step`` is for the message of an error.

    Returns:
        ``loss`` and ``gradient`` (its length before it was cut) of the last epoch, and ``kl``, to the warmed-up policy
        in nats a token (mean log ratio of all tokens, k1, as RL4LMs has it). Nothing where nothing was written.

    Raises:
        TrainingError: The loss or the gradient is no number; the weights are those before this epoch.
    """
    import torch

    total = sum(len(one.tokens) for one, _ in pairs)
    if not total:
        return {}
    parts = [[pairs[place] for place in part] for part in policy.parts([one for one, _ in pairs])]
    texts = [[one for one, _ in part] for part in parts]
    with torch.no_grad():
        refs = [policy.log_probs(one, reference=True) for one in texts]
        # Where nothing needs them before, what the policy thinks before it learns comes of its first pass.
        olds = [policy.log_probs(one) if scaled else [] for one in texts]
    mean, deviation = 0.0, 1.0

    def earned(place: int) -> list[Any]:
        each = zip(parts[place], olds[place], refs[place], strict=True)
        return [(_earned(advantage, old - ref, recipe, beta) - mean) / deviation for (_, advantage), old, ref in each]

    if scaled:
        every = torch.cat([one for place in range(len(parts)) for one in earned(place)]).double()
        mean, deviation = float(every.mean()), float(every.std(correction=0)) + 1e-8

    def losses() -> Iterator[Any]:
        for place, part in enumerate(texts):
            news = policy.log_probs(part)
            olds[place] = olds[place] or [one.detach() for one in news]
            each = zip(news, olds[place], refs[place], earned(place), strict=True)
            yield torch.cat([_loss(*one, recipe, beta) for one in each]).sum() / total

    loss, norm = math.nan, math.nan
    for _ in range(recipe.epochs):
        loss, norm = descend(policy, optimizer, losses(), recipe.max_grad_norm, f"step {step}")
    drifts = [(old - ref).sum() for part in zip(olds, refs, strict=True) for old, ref in zip(*part, strict=True)]
    return {"kl": math.fsum(map(float, drifts)) / total, "loss": loss, "gradient": norm}


def _earned(advantage: float, ratio: Any, recipe: Recipe, beta: float) -> Any:
    """What each token is worth: with the KL as reward, less beta times the log ratios of it and those after it."""
    import torch

    earned = torch.full_like(ratio, advantage)
    return earned - beta * ratio.flip(0).cumsum(0).flip(0) if recipe.kl_place == "reward" else earned


def _loss(new: Any, old: Any, ref: Any, earned: Any, recipe: Recipe, beta: float) -> Any:
    """Of each token; k3 = r - log r - 1, where r is the reference's probability over the policy's."""
    import torch

    ratio = torch.exp(new - old)
    loss = -torch.minimum(ratio * earned, ratio.clamp(1 - recipe.clip, 1 + recipe.clip) * earned)
    return loss if recipe.kl_place == "reward" else loss + beta * (torch.exp(ref - new) - (ref - new) - 1)


def make_optimizer(recipe: Recipe, tensors: Sequence[Any]) -> Any:
    """The optimizer of a recipe for some tensors, without weight decay.

    AdaFactor takes steps of the size of the learning rate, and not in proportion to the weights, of which those of a
    fresh adapter are zero.
    """
    import torch

    if recipe.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(tensors, lr=recipe.lr, scale_parameter=False, relative_step=False, warmup_init=False)
    return torch.optim.AdamW(tensors, lr=recipe.lr, weight_decay=0.0)


def _on_dev(episode: Episode, scored: Scored) -> float:
    """What an episode counts; one that failed, never more than the question as it is written."""
    return scored.value if episode.error is None else min(scored.plain, 0.0 * scored.plain)


def _told(episodes: Sequence[Episode], scored: Sequence[Scored]) -> dict[str, Any]:
    """What a step and a look have in common in the log."""
    completions = [one for episode in episodes for one in episode.completions]
    return {
        "reward": _mean([one.reward for one in scored]),
        "plain": _mean([one.plain for one in scored]),
        "failed": sum(one.error is not None for one in episodes),
        "tokens": _mean([float(len(one.tokens)) for one in completions]),
        "ended": _mean([float(one.ended) for one in completions]),
        "guards": guards_of(episodes),
    }


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
