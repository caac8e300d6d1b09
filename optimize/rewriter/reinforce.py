"""The third stage: the policy writes, its reward is what its rewrites retrieve, and its weights follow.

Each step draws questions, answers each several times, scores the episodes and changes the weights once. A reward is
compared with the mean of the other samples of its question (REINFORCE leave-one-out, Kool et al. 2019; for LMs Ahmadian
et al. 2024, arXiv 2402.14740). Drifting from the policy at the start costs the estimate k3 of the KL divergence, as in
GRPO (Shao et al. 2024, arXiv 2402.03300); unlike there, rewards are not divided by the deviation of their group, which
would make a question on which samples hardly differ as loud as one on which they do.

The loop is not TRL's, because a question may take several completions with searches between them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.checkpoints import Stage, descend
from querywright.optimize.rewriter.episodes import Episode, Run, batch_of, roll_out
from querywright.optimize.rewriter.policy import Completion, HFPolicy, TrainingError
from querywright.optimize.rewriter.rewards import Reward, Scored
from querywright.optimize.rewriter.settings import TrainSettings

LOG = "reinforce.jsonl"
FLAT_STEPS = 10
"""Steps at the start that may teach nothing before the training stops."""
_NOTHING = 1e-6  # smaller advantages teach nothing


@dataclass(frozen=True, slots=True)
class Reinforced:
    """Report of a reinforcement: its steps; the step of the kept weights (0 for the start); the mean of the metric on
    dev at the start, at its best, and for the questions as they were written (None if unknown); and the number of steps
    in which all samples of a question had the same reward, so that they taught nothing.
    """

    steps: int
    best_step: int
    first: float
    best: float
    plain: float | None
    flat: int


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
    """Train a policy by what its rewrites retrieve; it ends with the weights that did best on dev.

    ``folder`` holds the checkpoint and the log, from which an interrupted stage resumes.

    Raises:
        InputError: No dev question can be scored, or a file cannot be read.
        TrainingError: The loss is not finite, or the first steps taught nothing because all rewards are alike.
    """
    import torch

    policy.set_reference()
    optimizer = torch.optim.AdamW(list(policy.parameters().values()), lr=settings.lr, weight_decay=0.0)
    stage = Stage(policy, optimizer, folder, LOG)

    def look() -> dict[str, Any]:
        """Answer the dev questions greedily."""
        episodes = roll_out(policy, run, dev, room=settings.room)
        scored = reward.score(episodes)
        value = _mean([_on_dev(*one) for one in zip(episodes, scored, strict=True)])
        if math.isnan(value):
            raise InputError(
                f"none of the {len(dev)} dev questions could be scored; they lack what the metric needs (evidence, or "
                "a right answer): give labelled questions or another --metric"
            )
        return {"value": value} | _summary(episodes, scored)

    def step(number: int) -> dict[str, Any]:
        """Answer some questions, each several times, and learn from the rewards."""
        batch = batch_of(train, settings.batch, seed=settings.seed, step=number)
        questions = [one for one in batch for _ in range(settings.group)]
        draws = (settings.seed, "reinforce", number)
        episodes = roll_out(policy, run, questions, room=settings.room, seed=draws, top_k=settings.top_k)
        scored = reward.score(episodes)
        advantages = advantages_of([one.reward for one in scored], [one.id for one in questions])
        flat = all(abs(advantage) < _NOTHING for advantage in advantages)
        if flat and number == FLAT_STEPS - 1 and all(line["flat"] for line in stage.steps):
            raise TrainingError(
                f"nothing can be learned: in {FLAT_STEPS} steps all samples of a question had the same reward (mean "
                f"{_mean([one.reward for one in scored]):.4g} in the last step). Take another --metric, a base model "
                "that can write the form, or warm it up on collected rewrites first (--stages collect,warmup,reinforce)"
            )
        pairs = [
            (completion, advantage)
            for one, score, advantage in zip(episodes, scored, advantages, strict=True)
            if not math.isnan(score.reward)
            for completion in one.completions
            if completion.tokens
        ]
        learned = learn(policy, optimizer, pairs, kl=settings.kl, step=number + 1)
        return {"flat": flat} | learned | _summary(episodes, scored)

    ends = {"steps": settings.steps, "look_each": settings.look_each, "patience": settings.patience}
    stage.run(step, look, name="reinforce", progress=progress, **ends)
    first, best, steps = stage.looks[0], stage.best, stage.steps
    flat = sum(line["flat"] for line in steps)
    return Reinforced(len(steps), best["step"], first["value"], best["value"], first["plain"], flat)


def advantages_of(rewards: Sequence[float], groups: Sequence[object]) -> list[float]:
    """Return each reward less the mean of the other rewards of its group.

    A reward that is NaN is ignored; it, and a reward that is alone in its group, gives 0.
    """
    known: dict[object, list[float]] = defaultdict(list)
    for value, group in zip(rewards, groups, strict=True):
        if not math.isnan(value):
            known[group].append(value)

    def advantage(value: float, others: list[float]) -> float:
        count = len(others)
        return 0.0 if math.isnan(value) or count < 2 else (value - fmean(others)) * count / (count - 1)

    return [advantage(value, known[group]) for value, group in zip(rewards, groups, strict=True)]


def learn(
    policy: HFPolicy, optimizer: Any, pairs: Sequence[tuple[Completion, float]], *, kl: float, step: int = 1
) -> dict[str, float]:
    """Change the weights once, from completions and their advantages.

    The loss is a mean over all tokens of the batch, so that a token counts as much in a long completion. The KL
    divergence from the reference is added at the price ``kl``: k3 = r - log r - 1 per token, where r is the reference's
    probability over the policy's.

    Returns:
        ``loss``, ``gradient`` (its length before it was clipped) and ``kl`` (nats per token, the mean log ratio); empty
        if nothing was written.

    Raises:
        TrainingError: The loss or the gradient is not finite; the weights stay unchanged.
    """
    import torch

    total = sum(len(one.tokens) for one, _ in pairs)
    if not total:
        return {}
    drifts: list[float] = []

    def losses() -> Iterator[Any]:
        for places in policy.parts([one for one, _ in pairs]):
            texts = [pairs[place][0] for place in places]
            refs = torch.cat(policy.log_probs(texts, reference=True))
            news = policy.log_probs(texts)
            earned = torch.cat([torch.full_like(one, pairs[place][1]) for one, place in zip(news, places, strict=True)])
            new = torch.cat(news)
            drifts.append(float((new.detach() - refs).sum()))
            yield (kl * (torch.exp(refs - new) - (refs - new) - 1) - earned * new).sum() / total

    loss, norm = descend(policy, optimizer, losses(), f"step {step}")
    return {"kl": math.fsum(drifts) / total, "loss": loss, "gradient": norm}


def _on_dev(episode: Episode, scored: Scored) -> float:
    """Return the metric of an episode; a failed one counts no more than the question as it was written."""
    return scored.value if episode.error is None else min(scored.plain, 0.0 * scored.plain)


def _summary(episodes: Sequence[Episode], scored: Sequence[Scored]) -> dict[str, Any]:
    """Return what the log has of steps and of measurements."""
    completions = [one for episode in episodes for one in episode.completions]
    return {
        "reward": _mean([one.reward for one in scored]),
        "plain": _mean([one.plain for one in scored]),
        "failed": sum(one.error is not None for one in episodes),
        "tokens": _mean([float(len(one.tokens)) for one in completions]),
    }


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
