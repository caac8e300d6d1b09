"""The third stage: the policy writes, what its rewrites retrieve is its reward, and its weights follow.

Each step draws questions, answers each several times, scores the episodes and changes the weights once an epoch of
the recipe. Every now and then the policy answers the dev questions greedily: the weights that did best there are what
is kept, those of the start among them. The loop is our own and not TRL's: three recipes share it, and an episode may
have several completions and searches between them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.checkpoints import Checkpoints
from querywright.optimize.rewriter.episodes import Run, batch_of, roll_out
from querywright.optimize.rewriter.evaluation import checked
from querywright.optimize.rewriter.policy import SMALLER, HFPolicy, TrainingError
from querywright.optimize.rewriter.recipes import MOVING_STEPS, Recipe, advantages_of, steered
from querywright.optimize.rewriter.rewards import Reward
from querywright.optimize.rewriter.types import Completion, Episode, Scored

LOG = "reinforce.jsonl"
FLAT_STEPS = 10
"""Steps in a row that teach nothing, because all advantages are 0, after which it ends."""

_NOTHING = 1e-6  # advantages below teach nothing
_KEEP_EACH = 5


@dataclass(slots=True)
class Reinforced:
    """What a reinforcement did.

    Args:
        steps: Steps done.
        best_step: After how many of them the kept weights were reached; 0 for those of the start.
        first: Mean of the measure on dev at the start.
        best: The same at its best.
        plain: The same for the questions as they are written.
        early: Whether it ended before the last step, because dev no longer got better or nothing was learnt any more.
        flat: Steps in which all advantages were 0, so that they taught nothing.
        notes: What a reader should know.
        beta: Price of drifting now.
        worse: Looks at dev since the best.
        level: Steps in a row in which all advantages were 0.
        means: Mean rewards of the last steps.
    """

    steps: int = 0
    best_step: int = 0
    first: float | None = None
    best: float | None = None
    plain: float | None = None
    early: bool = False
    flat: int = 0
    notes: list[str] = field(default_factory=list)
    beta: float = 0.0
    worse: int = 0
    level: int = 0
    means: list[float] = field(default_factory=list)


class Learnt(NamedTuple):
    """What a change of the weights did: the loss and the length of the gradient before it was cut, both of the last
    epoch; the KL to the warmed-up policy in nats a token (mean log ratio of all tokens, k1, as RL4LMs has it); tokens.
    """

    loss: float = 0.0
    kl: float = 0.0
    norm: float = 0.0
    tokens: int = 0


def reinforce(
    policy: HFPolicy,
    train: Sequence[Question],
    dev: Sequence[Question],
    *,
    run: Run,
    reward: Reward,
    recipe: Recipe,
    folder: Path,
    look_each: int = 20,
    patience: int = 5,
    progress: Progress | None = None,
    seed: int = 0,
) -> Reinforced:
    """Trains a policy by what its rewrites retrieve; it ends with the weights that did best on dev.

    Args:
        policy: As it was warmed up, which is what the KL is measured from.
        train: Questions that are drawn from, one or more.
        dev: Questions that choose the weights and the end, one or more.
        run: Goes through questions with the technique.
        reward: Scores episodes.
        recipe: Baseline, KL, optimizer and sizes.
        folder: Holds the checkpoint and the log, and is taken up again.
        look_each: Steps between evaluations on dev. Default 20.
        patience: Evaluations without a better one after which it ends. Default 5.
        progress: Called after each step.
        seed: Of all that is drawn.

    Raises:
        InputError: No dev question can be scored, or a file cannot be written or read.
        TrainingError: The loss is no number, or nothing was learnt in any step because all rewards are alike; the last
            checkpoint is whole.
    """
    policy.set_reference()
    optimizer, files = make_optimizer(recipe, list(policy.parameters().values())), Checkpoints(folder, LOG)
    known = files.load(policy, optimizer)
    done = Reinforced(beta=recipe.kl.beta) if known is None else Reinforced(**known)
    loop = _Loop(policy, run, reward, recipe, patience, optimizer, files, done, seed)
    if known is None:
        loop.look(dev)
        loop.keep()
    while not loop.is_over():
        loop.step(batch_of(train, recipe.batch, seed=seed, step=done.steps))
        looked = loop.is_over() or done.steps % look_each == 0
        if looked:
            loop.look(dev)
        if looked or done.steps % _KEEP_EACH == 0:
            loop.keep()
        if progress is not None:
            progress("reinforce", recipe.steps if loop.is_over() else done.steps, recipe.steps)
    files.load_best(policy)
    return done


@dataclass(slots=True)
class _Loop:
    policy: HFPolicy
    run: Run
    reward: Reward
    recipe: Recipe
    patience: int
    optimizer: Any
    files: Checkpoints
    done: Reinforced
    seed: int

    def is_over(self) -> bool:
        return self.done.early or self.done.steps >= self.recipe.steps

    def keep(self) -> None:
        self.files.save(self.policy, self.optimizer, asdict(self.done))

    def look(self, dev: Sequence[Question]) -> None:
        """Answer the dev questions greedily; the best weights so far are kept."""
        done = self.done
        episodes = roll_out(self.policy, self.run, dev, self.recipe)
        scored = self.reward.score(episodes)
        value = _mean([_on_dev(*one) for one in zip(episodes, scored, strict=True)])
        if math.isnan(value):
            raise InputError(
                f"none of the {len(dev)} dev questions could be scored; they lack what the measure needs (evidence, or "
                "a right answer): give labelled questions or another --metric"
            )
        if done.best is None:
            done.first, done.plain = value, _mean([one.plain for one in scored])
        if done.best is None or value > done.best:
            done.best, done.best_step, done.worse = value, done.steps, 0
            self.files.save_best(self.policy)
        else:
            done.worse += 1
            done.early = done.early or done.worse >= self.patience
        line = {"kind": "dev", "step": done.steps, "value": value, "plain": done.plain}
        self.files.lines.append(line | _told(episodes, scored))

    def step(self, batch: Sequence[Question]) -> None:
        """Answer the questions, each several times, and learn from what came of it."""
        began, done, recipe = time.monotonic(), self.done, self.recipe
        questions = [one for one in batch for _ in range(recipe.group)]
        episodes = roll_out(self.policy, self.run, questions, recipe, seed=(self.seed, "reinforce", done.steps))
        scored = self.reward.score(episodes)
        rewards = [one.reward for one in scored]
        known = [reward for reward in rewards if not math.isnan(reward)]
        moving = statistics.fmean(done.means) if done.means else 0.0
        advantages = advantages_of(recipe, rewards, [one.id for one in questions], moving)
        done.means = [*done.means, *([statistics.fmean(known)] if known else [])][-MOVING_STEPS:]
        flat = all(abs(advantage) < _NOTHING for advantage in advantages)
        done.level = done.level + 1 if flat else 0
        done.flat += flat
        if done.level >= FLAT_STEPS:
            _end_level(done, rewards)
        pairs = [
            (completion, advantage)
            for one, score, advantage in zip(episodes, scored, advantages, strict=True)
            if not math.isnan(score.reward)
            for completion in one.completions
            if completion.tokens
        ]
        # A batch that teaches nothing is not scaled, which would make the cost of drifting as loud as a reward.
        scaled, beta = recipe.baseline == "batch" and not flat, done.beta
        learnt = learn(self.policy, self.optimizer, pairs, recipe, beta=beta, scaled=scaled, step=done.steps + 1)
        if learnt.tokens:
            done.beta = steered(recipe.kl, beta, learnt.kl)
        done.steps += 1
        line = {
            "kind": "step",
            "step": done.steps,
            "deviation": statistics.pstdev(known) if known else math.nan,
            "value": _mean([one.value for one in scored]),
            "plain": _mean([one.plain for one in scored]),
            "unscored": len(rewards) - len(known),
            "kl": learnt.kl,
            "beta": beta,
            "loss": learnt.loss,
            "gradient": learnt.norm,
            "seconds": round(time.monotonic() - began, 3),
        }
        self.files.lines.append(line | _told(episodes, scored))


def learn(
    policy: HFPolicy,
    optimizer: Any,
    pairs: Sequence[tuple[Completion, float]],
    recipe: Recipe,
    *,
    beta: float,
    scaled: bool = False,
    step: int = 1,
) -> Learnt:
    """Change the weights once an epoch of the recipe.

    The loss is a mean over all tokens of the batch, so that long completions do not count less a token. The KL is taken
    off what each token earns (k1, of it and those after it) or added to the loss (k3, which is never negative).

    Args:
        policy: In training.
        optimizer: Of its parameters.
        pairs: What was written, a token or more each, and its advantage: the reward of its episode less the baseline.
        recipe: Says where the KL stands, how often and how far the weights are changed.
        beta: Price of the KL.
        scaled: Whether what the tokens of the batch earn, the cost of drifting included, is brought to mean 0 and
            deviation 1 (the ``paper`` recipe).
        step: For the message of an error.

    Raises:
        TrainingError: The loss or the gradient is no number; the weights are those before this epoch.
    """
    import torch

    total = sum(len(one.tokens) for one, _ in pairs)
    if not total:
        return Learnt()
    parts = [[pairs[place] for place in part] for part in policy.parts([one for one, _ in pairs])]
    texts = [[one for one, _ in part] for part in parts]
    with torch.no_grad():
        olds = [policy.log_probs(one) for one in texts]
        refs = [policy.log_probs(one, reference=True) for one in texts]
    ratios = [[old - ref for old, ref in zip(*one, strict=True)] for one in zip(olds, refs, strict=True)]
    earned = [
        [_earned(advantage, ratio, recipe, beta) for (_, advantage), ratio in zip(*one, strict=True)]
        for one in zip(parts, ratios, strict=True)
    ]
    if scaled:
        every = torch.cat([one for part in earned for one in part]).double()
        mean, deviation = float(every.mean()), float(every.std(correction=0))
        earned = [[(one - mean) / (deviation + 1e-8) for one in part] for part in earned]
    kl = math.fsum(float(one.sum()) for part in ratios for one in part) / total
    tensors, loss, norm = list(policy.parameters().values()), math.nan, math.nan
    for _ in range(recipe.epochs):
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for part in zip(texts, olds, refs, earned, strict=True):
            news = policy.log_probs(part[0])
            losses = [_loss(*one, recipe, beta) for one in zip(news, *part[1:], strict=True)]
            part_loss = torch.cat(losses).sum() / total
            part_loss.backward()
            loss += float(part_loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(tensors, recipe.max_grad_norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"the loss of step {step} is {loss} (gradient {norm}): the training cannot go on; "
                f"{SMALLER.format('--lr')}. The weights of the last checkpoint are kept"
            )
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return Learnt(loss, kl, norm, total)


def _earned(advantage: float, ratio: Any, recipe: Recipe, beta: float) -> Any:
    """What each token is worth: with the KL as reward, less beta times the log ratios of it and those after it."""
    import torch

    earned = torch.full_like(ratio, advantage)
    return earned - beta * ratio.flip(0).cumsum(0).flip(0) if recipe.kl.place == "reward" else earned


def _loss(new: Any, old: Any, ref: Any, earned: Any, recipe: Recipe, beta: float) -> Any:
    """Of each token; k3 = r - log r - 1, where r is the reference's probability over the policy's."""
    import torch

    ratio = torch.exp(new - old)
    loss = -torch.minimum(ratio * earned, ratio.clamp(1 - recipe.clip, 1 + recipe.clip) * earned)
    return loss if recipe.kl.place == "reward" else loss + beta * (torch.exp(ref - new) - (ref - new) - 1)


def make_optimizer(recipe: Recipe, tensors: Sequence[Any]) -> Any:
    """The optimizer of a recipe, without weight decay.

    AdaFactor takes steps of the size of the learning rate, and not in proportion to the weights, of which those of a
    fresh adapter are zero.

    Args:
        recipe: Names it, and the learning rate.
        tensors: What is trained.
    """
    import torch

    if recipe.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(tensors, lr=recipe.lr, scale_parameter=False, relative_step=False, warmup_init=False)
    return torch.optim.AdamW(tensors, lr=recipe.lr, weight_decay=0.0)


def _end_level(done: Reinforced, rewards: Sequence[float]) -> None:
    """The end, since nothing is learnt any more; an error where nothing ever was."""
    if done.flat <= done.steps:
        done.early = True
        done.notes.append(
            f"it ended after step {done.steps + 1}: the last {done.level} steps taught nothing, since the rewards of "
            "a question's samples were all alike"
        )
        return
    told, known = "could not be worked out for any", [reward for reward in rewards if not math.isnan(reward)]
    if known:
        low, high = min(known), max(known)
        told = f"was {low:.4g} each time" if high - low < _NOTHING else "was that of the other samples each time"
    raise TrainingError(
        f"nothing can be learnt: in the last {done.level} steps the reward of all {done.level * len(rewards)} "
        f"episodes {told}. Take another --metric or --recipe, a base model that can write the form, or warm it up on "
        "collected rewrites first (--stages collect,warmup,reinforce)"
    )


def _on_dev(episode: Episode, scored: Scored) -> float:
    """What an episode counts; one that failed, never more than the question as it is written."""
    return scored.value if episode.error is None else min(scored.plain, 0.0 * scored.plain)


def _told(episodes: Sequence[Episode], scored: Sequence[Scored]) -> dict[str, Any]:
    """What a step and a look have in common in the log."""
    completions = [one for episode in episodes for one in episode.completions]
    return {
        "reward": _mean([one.reward for one in scored]),
        "failed": sum(one.error is not None for one in episodes),
        "tokens": _mean([float(len(one.tokens)) for one in completions]),
        "ended": _mean([float(one.ended) for one in completions]),
        "guards": asdict(checked(episodes)),
    }


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
