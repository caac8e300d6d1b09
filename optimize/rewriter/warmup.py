"""The second stage: the model learns to write what was kept of the collected rewrites.

The loss is the mean over the tokens of the completions, the end token among them; the prompt is not learnt. After each
epoch the dev pairs are measured, and the weights of the best epoch are kept, those of the start among them. The order
of the pairs comes from the seed and the epoch alone, so a run that was killed ends as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from querywright.errors import InputError
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.batches import portions
from querywright.optimize.rewriter.checkpoints import load_checkpoint, load_tensors, save_checkpoint, save_tensors
from querywright.optimize.rewriter.gradient import SMALLER, TrainingError
from querywright.optimize.rewriter.keeping import add_line, keep_lines
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.optimize.rewriter.ranges import check_least
from querywright.optimize.rewriter.types import Completion, Pair

LOG = "warmup.jsonl"
BEST = "best.safetensors"


@dataclass(frozen=True, slots=True)
class WarmupSettings:
    """How the model is warmed up.

    Args:
        epochs: Times that each pair is learnt from. Default 3.
        batch: Pairs a step. Default 16.
        lr: Highest learning rate. Default 2e-4, for LoRA; all weights want a tenth.
        schedule: ``cosine`` lets the rate fall to nothing; ``constant`` does not. Default ``cosine``.
        rise: Share of the steps in which the rate rises. Default 0.03.
        decay: Of AdamW. Default 0.
        norm: Longest gradient. Default 1.
        seed: Of the order. Default 0.
        least: Pairs that there must be. Default 16.
        keep_each: Steps between checkpoints. Default 5.
        chunk: Tokens in memory at a time, on each device, while the weights are changed. Default 4096.

    Raises:
        InputError: A value is out of range.
    """

    epochs: int = 3
    batch: int = 16
    lr: float = 2e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    rise: float = 0.03
    decay: float = 0.0
    norm: float = 1.0
    seed: int = 0
    least: int = 16
    keep_each: int = 5
    chunk: int = 4096

    def __post_init__(self) -> None:
        check_least(self, dict.fromkeys(("epochs", "batch", "least", "keep_each", "chunk"), 1), " of the warm-up")
        if not (self.lr > 0 and self.norm > 0 and self.decay >= 0 and 0 <= self.rise < 1):
            raise InputError(
                f"of the warm-up, lr ({self.lr}) and norm ({self.norm}) must be more than 0, decay ({self.decay}) 0 or "
                f"more, and rise ({self.rise}) from 0 to below 1"
            )
        if self.schedule not in ("cosine", "constant"):
            raise InputError(f"there is no schedule {self.schedule!r}; give cosine or constant")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate.

        Args:
            step: From 0.
            steps: How many there are.
        """
        rising = math.ceil(self.rise * steps)
        if step < rising:
            return self.lr * (step + 1) / rising
        if self.schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """What a warm-up did.

    Args:
        steps: Steps done.
        pairs: Pairs that were learnt from.
        left_out: Pairs that do not fit the model's context, of train and dev together.
        before: Mean loss a token on dev at the start.
        losses: The same after each epoch.
        best_epoch: Whose weights were kept; 0 for those of the start.
        notes: What a reader should know.
    """

    steps: int
    pairs: int
    left_out: int
    before: float
    losses: tuple[float, ...]
    best_epoch: int
    notes: tuple[str, ...] = ()


def warm_up(
    policy: HFPolicy,
    train: Sequence[Pair],
    dev: Sequence[Pair],
    settings: WarmupSettings,
    folder: Path,
    progress: Progress | None = None,
) -> WarmupReport:
    """Teach a policy what to write; it ends with the weights that did best on dev.

    Args:
        policy: As it is at the start.
        train: Pairs to learn from.
        dev: Pairs to choose the epoch by.
        settings: How.
        folder: Holds checkpoints and the log, and is taken up again.
        progress: Called after each step.

    Raises:
        InputError: There are too few pairs, the folder is another warm-up's, or a file cannot be written.
        TrainingError: The loss is no number; the last checkpoint is whole.
    """
    taught = [_fitting(policy, pairs) for pairs in (train, dev)]
    left_out = len(train) + len(dev) - sum(map(len, taught))
    for name, pairs, least in (("train", taught[0], settings.least), ("dev", taught[1], 1)):
        if len(pairs) < least:
            gone = f" ({left_out} do not fit the model's context)" if left_out else ""
            raise InputError(
                f"the warm-up needs {least} {name} pairs or more, but there are {len(pairs)}{gone}: "
                f"{least - len(pairs)} more needed; collect from more questions, or with more candidates a question"
            )
    return _Loop(policy, taught[0], taught[1], settings, folder, progress).go(left_out)


class _Loop:
    def __init__(
        self,
        policy: HFPolicy,
        train: Sequence[Completion],
        dev: Sequence[Completion],
        settings: WarmupSettings,
        folder: Path,
        progress: Progress | None,
    ) -> None:
        import torch

        self.policy, self.train, self.dev = policy, train, dev
        self.settings, self.folder, self.progress = settings, folder, progress
        self.parameters = dict(policy.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=settings.lr, weight_decay=settings.decay)
        self.digest = _digest(settings, train, dev, {name: list(one.shape) for name, one in self.parameters.items()})
        self.each = math.ceil(len(train) / settings.batch)
        self.steps = self.each * settings.epochs
        self.chunk = settings.chunk * policy.width
        self.step, self.losses = 0, list[float]()
        self.notes: tuple[str, ...] = ()

    def go(self, left_out: int) -> WarmupReport:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._resume()
        if not self.losses:
            self._look()
            self._keep()
        while self.step < self.steps:
            self._learn()
            whole = self.step % self.each == 0
            if whole:
                self._look()
            if whole or self.step % self.settings.keep_each == 0:
                self._keep()
            if self.progress is not None:
                self.progress("warm-up", self.step, self.steps)
        self.policy.set_parameters(load_tensors(self.folder / BEST))
        before, *losses = self.losses
        notes = self.notes
        if self._best() == 0:
            notes += ("no epoch was better on dev than the start, so the weights are those of the start",)
        return WarmupReport(self.step, len(self.train), left_out, before, tuple(losses), self._best(), notes)

    def _resume(self) -> None:
        found = load_checkpoint(self.folder)
        if found is None:
            keep_lines(self.folder / LOG, lambda line: False)
            return
        if found.state.get("digest") != self.digest:
            raise InputError(
                f"{self.folder.name!r} holds a warm-up with other pairs, settings or weights; give another folder, or "
                "delete it to start anew"
            )
        self.policy.set_parameters(found.parameters)
        found.restore(self.parameters, self.optimizer)
        self.step, self.losses, self.notes = found.step, [float(one) for one in found.state["losses"]], found.notes
        keep_lines(self.folder / LOG, lambda line: line["step"] <= found.step)

    def _learn(self) -> None:
        import torch

        rate = self.settings.rate(self.step, self.steps)
        batch = self._batch()
        total = sum(len(one.tokens) for one in batch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for part in self._parts(batch):
            loss = -torch.cat(self.policy.log_probs(part)).sum() / total
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                break
            loss.backward()
        loss = math.fsum(losses)
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), self.settings.norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.optimizer.zero_grad(set_to_none=True)
            raise _no_number(f"the loss of step {self.step + 1} of the warm-up is {loss} (gradient {norm})")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._log({"kind": "step", "step": self.step, "loss": loss, "gradient": norm, "lr": rate, "tokens": total})

    def _parts(self, completions: Sequence[Completion]) -> Iterator[list[Completion]]:
        """As many at a time as fit into memory."""
        prompts, lengths = [one.prompt for one in completions], [len(one.tokens) for one in completions]
        for places in portions(prompts, lengths, self.chunk, share=self.policy.shares_prompts):
            yield [completions[place] for place in places]

    def _batch(self) -> list[Completion]:
        epoch, place = divmod(self.step, self.each)
        order = sorted(range(len(self.train)), key=lambda one: _drawn(self.settings.seed, epoch, one))
        size = self.settings.batch
        return [self.train[one] for one in order[place * size : (place + 1) * size]]

    def _look(self) -> None:
        """Measure the dev pairs; the best weights so far are kept."""
        import torch

        with torch.no_grad():
            sums = [float(one.sum()) for part in self._parts(self.dev) for one in self.policy.log_probs(part)]
        loss = -math.fsum(sums) / sum(len(one.tokens) for one in self.dev)
        if not math.isfinite(loss):
            raise _no_number(f"the loss on dev is {loss} after step {self.step} of the warm-up")
        self.losses.append(loss)
        if self._best() == len(self.losses) - 1:
            save_tensors(self.folder / BEST, self.parameters)
        self._log({"kind": "dev", "step": self.step, "epoch": len(self.losses) - 1, "loss": loss})

    def _best(self) -> int:
        return self.losses.index(min(self.losses))

    def _keep(self) -> None:
        state = {"digest": self.digest, "losses": self.losses}
        save_checkpoint(self.folder, self.step, self.parameters, self.optimizer, state)

    def _log(self, line: dict[str, Any]) -> None:
        try:
            add_line(self.folder / LOG, line)
        except OSError as error:
            raise InputError(
                f"{LOG} cannot be written into {self.folder.name!r} ({error.strerror}); make room and start again with "
                "the same command: the training goes on from the last checkpoint"
            ) from error


def _fitting(policy: HFPolicy, pairs: Sequence[Pair]) -> list[Completion]:
    taught = [policy.taught(pair.messages, pair.text) for pair in pairs]
    return [one for one in taught if policy.fits(one)]


def _drawn(*parts: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()


def _digest(settings: WarmupSettings, *parts: Any) -> str:
    """Of all that the result depends on; how often it is kept is not among it."""
    told = {name: value for name, value in asdict(settings).items() if name not in ("keep_each", "least")}
    taught = [[[one.prompt, one.tokens] for one in part] if isinstance(part, list) else part for part in parts]
    return hashlib.sha256(json.dumps([told, taught], sort_keys=True).encode()).hexdigest()


def _no_number(what: str) -> TrainingError:
    return TrainingError(
        f"{what}: the training cannot go on; {SMALLER.format('--warmup-lr')}. The last checkpoint is whole"
    )
