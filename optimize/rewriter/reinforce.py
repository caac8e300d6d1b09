"""The third stage: the policy writes, what its rewrites retrieve is its reward, and its weights follow.

Each step draws questions, answers each several times, scores the episodes and changes the weights once an epoch of
the recipe. All that is drawn depends on the run's seed, the step and the place; so a run that was killed goes on from
its last checkpoint to the result of a run that was not. Every now and then the policy answers the dev questions
greedily: the weights that did best there are what is kept, those of the start among them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.checkpoints import load_checkpoint, save_checkpoint
from querywright.optimize.rewriter.gradient import Learnt, TrainingError, Update, learn, make_optimizer
from querywright.optimize.rewriter.guards import guards
from querywright.optimize.rewriter.keeping import add_line, finite_all, keep_lines
from querywright.optimize.rewriter.ranges import check_least
from querywright.optimize.rewriter.recipes import (
    AdaptiveKL,
    MovingBaseline,
    Recipe,
    batch_advantages,
    group_advantages,
)
from querywright.optimize.rewriter.rollouts import Rollout, Run, Sampling, batch_of, roll_out
from querywright.optimize.rewriter.types import Policy, Scored

if TYPE_CHECKING:
    from querywright.optimize.rewriter.rewards import Reward

LOG, BEST = "reinforce.jsonl", "best"
_NOTHING = 1e-6  # advantages below teach nothing


@dataclass(frozen=True, slots=True)
class ReinforceSettings:
    """How long it goes on, and how often it is looked at.

    Args:
        seed: Of all that is drawn.
        keep_each: Steps between checkpoints.
        look_each: Steps between evaluations on dev.
        patience: Evaluations without a better one after which it ends.
        constant: Steps in a row that teach nothing, because all advantages are 0, after which it ends.
        chunk: Completions in memory at a time, on each device, while the weights are changed.

    Raises:
        InputError: A value is out of range.
    """

    seed: int = 0
    keep_each: int = 10
    look_each: int = 20
    patience: int = 5
    constant: int = 10
    chunk: int = 8

    def __post_init__(self) -> None:
        least = {"keep_each": 1, "look_each": 1, "patience": 1, "constant": 1, "chunk": 1}
        check_least(self, least, " of the reinforcement")


@dataclass(slots=True)
class Reached:
    """How far a run has come; it is kept beside the weights.

    Args:
        step: Steps done.
        best: Mean on dev of the best weights; None before the first evaluation.
        first: The same of those it began with.
        plain: The same of the questions as they are written.
        best_step: After how many steps the best were reached.
        worse: Evaluations since.
        level: Steps in a row in which all advantages were 0.
        flat: Such steps in all.
        baseline: State of the moving baseline.
        control: State of the KL's weight.
        ended: Whether it ended early.
        notes: What a reader should know.
    """

    step: int = 0
    best: float | None = None
    first: float | None = None
    plain: float | None = None
    best_step: int = 0
    worse: int = 0
    level: int = 0
    flat: int = 0
    baseline: Any = None
    control: Any = None
    ended: bool = False
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
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
    """

    steps: int
    best_step: int
    first: float
    best: float
    plain: float
    early: bool
    flat: int
    notes: tuple[str, ...] = ()


def reinforce(
    policy: Policy,
    train: Sequence[Question],
    dev: Sequence[Question],
    *,
    run: Run,
    reward: Reward,
    recipe: Recipe,
    settings: ReinforceSettings,
    folder: Path,
    progress: Progress | None = None,
) -> Reinforced:
    """Trains a policy by what its rewrites retrieve; it ends with the weights that did best on dev.

    Args:
        policy: As it was warmed up, which is what the KL is measured from.
        train: Questions that are drawn from.
        dev: Questions that choose the weights and the end.
        run: Goes through questions with the technique.
        reward: Scores episodes.
        recipe: Baseline, KL, optimizer and sizes.
        settings: How long, and how often it is looked at.
        folder: Holds checkpoints and the log, and is taken up again.
        progress: Called after each step.

    Raises:
        InputError: There are too few questions.
        TrainingError: The loss is no number, or nothing was learnt in any step because all rewards are alike.
        OSError: A file cannot be written; the last checkpoint is whole.
    """
    for name, part, least in (("train", train, 1), ("dev", dev, 1)):
        if len(part) < least:
            raise InputError(
                f"the reinforcement needs {least} question in {name} or more, but has {len(part)}: "
                f"{least - len(part)} more is needed; give more questions or other --sizes"
            )
    folder.mkdir(parents=True, exist_ok=True)
    return _Loop(policy, train, dev, run, reward, recipe, settings, folder, progress).go()


class _Loop:
    def __init__(
        self,
        policy: Policy,
        train: Sequence[Question],
        dev: Sequence[Question],
        run: Run,
        reward: Reward,
        recipe: Recipe,
        settings: ReinforceSettings,
        folder: Path,
        progress: Progress | None,
    ) -> None:
        self.policy, self.train, self.dev, self.run, self.reward = policy, train, dev, run, reward
        self.recipe, self.settings, self.folder, self.progress = recipe, settings, folder, progress
        self.sampling = Sampling(recipe.temperature, recipe.top_k, recipe.top_p, recipe.room)
        self.log = folder / LOG
        self.at = Reached()

    def go(self) -> Reinforced:
        self.policy.set_reference()
        self.optimizer = make_optimizer(self.recipe.optimizer, list(self.policy.parameters().values()), self.recipe.lr)
        self.baseline, self.control = MovingBaseline(), AdaptiveKL(self.recipe.kl.beta, self.recipe.kl.target)
        self._resume()
        if self.at.best is None:
            self._look()
            self._keep()
        while not self._is_over():
            self._step()
            step = self.at.step
            looked = self._is_over() or step % self.settings.look_each == 0
            if looked:
                self._look()
            if looked or step % self.settings.keep_each == 0:
                self._keep()
            if self.progress is not None:
                self.progress("reinforce", self.recipe.steps if self.at.ended else step, self.recipe.steps)
        return self._finish()

    def _is_over(self) -> bool:
        return self.at.ended or self.at.step >= self.recipe.steps

    def _step(self) -> None:
        began, number, recipe = time.monotonic(), self.at.step, self.recipe
        batch = batch_of(self.train, recipe.batch, seed=self.settings.seed, step=number)
        questions = [one for one in batch for _ in range(recipe.group)]
        seed = (self.settings.seed, "reinforce", number)
        rollouts = roll_out(self.policy, self.run, questions, self.sampling, seed=seed)
        scored = self._scored(rollouts)
        rewards = [one.reward for one in scored]
        advantages = self._advantages(rewards, [one.id for one in questions])
        learnt = self._learn(rollouts, rewards, advantages)
        beta = self.control.beta
        if learnt.tokens:
            self.control.update(learnt.kl)
        self.at.step += 1
        line = {
            "kind": "step",
            "step": self.at.step,
            "reward": _mean(rewards),
            "deviation": _deviation(rewards),
            "value": _mean([one.value for one in scored]),
            "plain": _mean([one.plain for one in scored]),
            "unscored": sum(math.isnan(reward) for reward in rewards),
            "failed": _failed(rollouts),
            "kl": learnt.kl,
            "beta": beta,
            "loss": learnt.loss,
            "gradient": learnt.norm,
            "tokens": _mean([float(len(c.tokens)) for one in rollouts for c in one.completions]),
            "ended": _mean([float(c.ended) for one in rollouts for c in one.completions]),
            "guards": _guards(rollouts),
            "seconds": round(time.monotonic() - began, 3),
        }
        add_line(self.log, line)

    def _advantages(self, rewards: Sequence[float], groups: Sequence[str]) -> list[float]:
        if self.recipe.baseline == "group":
            return group_advantages(rewards, groups)
        if self.recipe.baseline == "batch":
            return batch_advantages(rewards)
        advantages = self.baseline.advantages(rewards)
        self.baseline.update(rewards)
        return advantages

    def _learn(self, rollouts: Sequence[Rollout], rewards: Sequence[float], advantages: Sequence[float]) -> Learnt:
        """Change the weights; end where no step has taught anything for long."""
        flat = all(abs(advantage) < _NOTHING for advantage in advantages)
        self.at.level = self.at.level + 1 if flat else 0
        self.at.flat += flat
        if self.at.level >= self.settings.constant:
            self._level(rewards)
        recipe = self.recipe
        # A batch that teaches nothing is not scaled, which would make the cost of drifting as loud as a reward.
        scaled = recipe.baseline == "batch" and recipe.kl.place == "reward" and not flat
        update = Update(
            beta=self.control.beta,
            kl=recipe.kl.place,
            scaled=scaled,
            clip=recipe.clip,
            epochs=recipe.epochs,
            norm=recipe.max_grad_norm,
            chunk=self.settings.chunk,
        )
        pairs = [
            (completion, advantage)
            for one, reward, advantage in zip(rollouts, rewards, rewards if scaled else advantages, strict=True)
            if not math.isnan(reward)
            for completion in one.completions
        ]
        completions, values = [one for one, _ in pairs], [value for _, value in pairs]
        return learn(self.policy, self.optimizer, completions, values, update, step=self.at.step + 1)

    def _level(self, rewards: Sequence[float]) -> None:
        """The end, since nothing is learnt any more; an error where nothing ever was."""
        at, known = self.at, [reward for reward in rewards if not math.isnan(reward)]
        if at.flat <= at.step:
            at.ended = True
            at.notes = [
                *at.notes,
                f"it ended after step {at.step + 1}: the last {at.level} steps taught nothing, since the rewards of a "
                "question's samples were all alike",
            ]
            return
        told = "could not be worked out for any"
        if known:
            low, high = min(known), max(known)
            told = f"was {low:.4g} each time" if high - low < _NOTHING else "was that of the other samples each time"
        raise TrainingError(
            f"nothing can be learnt: in the last {at.level} steps the reward of all {at.level * len(rewards)} episodes "
            f"{told}. Take another --metric or --recipe, a base model that can write the form, or warm it up on "
            "collected rewrites first (--stages collect,warmup,reinforce)"
        )

    def _scored(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        return self.reward.score([one.episode for one in rollouts], [one.counts for one in rollouts])

    def _look(self) -> None:
        """Answer the dev questions greedily; the best weights so far are kept."""
        rollouts = roll_out(self.policy, self.run, self.dev, self.sampling)
        scored = self._scored(rollouts)
        value, at = _mean([_on_dev(*one) for one in zip(rollouts, scored, strict=True)]), self.at
        if math.isnan(value):
            raise InputError(
                f"none of the {len(self.dev)} dev questions could be scored; they lack what the measure needs "
                "(evidence, or a right answer): give labelled questions or another --metric"
            )
        if at.best is None:
            at.first, at.plain = value, _mean([one.plain for one in scored])
        if at.best is None or value > at.best:
            at.best, at.best_step, at.worse = value, at.step, 0
            save_checkpoint(self.folder / BEST, at.step, self.policy.parameters())
        else:
            at.worse += 1
            at.ended = at.ended or at.worse >= self.settings.patience
        line = {
            "kind": "dev",
            "step": at.step,
            "value": value,
            "plain": at.plain,
            "reward": _mean([one.reward for one in scored]),
            "failed": _failed(rollouts),
            "tokens": _mean([float(len(c.tokens)) for one in rollouts for c in one.completions]),
            "guards": _guards(rollouts),
        }
        add_line(self.log, line)

    def _keep(self) -> None:
        self.at.baseline, self.at.control = self.baseline.to_json(), self.control.to_json()
        save_checkpoint(
            self.folder, self.at.step, self.policy.parameters(), self.optimizer, finite_all(asdict(self.at))
        )

    def _resume(self) -> None:
        """Go back to the last checkpoint: what was logged or kept after it is done again."""
        found = load_checkpoint(self.folder)
        if found is not None:
            self.at = Reached(**found.state)
            self.baseline = MovingBaseline.from_json(self.at.baseline)
            self.control = AdaptiveKL.from_json(self.at.control)
            self.policy.set_parameters(found.parameters)
            found.restore(self.policy.parameters(), self.optimizer)
            self.at.notes = [*self.at.notes, *found.notes]
        reached = -1 if found is None else self.at.step
        keep_lines(self.log, lambda line: line["step"] <= reached)
        for path in self.folder.glob(f"{BEST}/step-*"):
            if int(path.stem.removeprefix("step-")) > reached:
                path.unlink()

    def _finish(self) -> Reinforced:
        """The best weights become the policy's."""
        best = load_checkpoint(self.folder / BEST)
        at = self.at
        if best is None or best.step != at.best_step:
            raise InputError(
                f"the best weights, those of step {at.best_step}, are missing from {self.folder.name!r} or damaged; "
                "delete the folder to start anew"
            )
        self.policy.set_parameters(best.parameters)
        return Reinforced(
            steps=at.step,
            best_step=at.best_step,
            first=math.nan if at.first is None else at.first,
            best=math.nan if at.best is None else at.best,
            plain=math.nan if at.plain is None else at.plain,
            early=at.ended,
            flat=at.flat,
            notes=(*at.notes, *best.notes),
        )


def _on_dev(rollout: Rollout, scored: Scored) -> float:
    """What an episode counts; one that failed, never more than the question as it is written."""
    return scored.value if rollout.episode.error is None else min(scored.plain, 0.0 * scored.plain)


def _failed(rollouts: Sequence[Rollout]) -> int:
    return sum(one.episode.error is not None for one in rollouts)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _deviation(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.pstdev(known) if known else math.nan


def _guards(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    ended = [[one.ended for one in rollout.completions] for rollout in rollouts]
    return guards([rollout.episode for rollout in rollouts], ended).to_json()
