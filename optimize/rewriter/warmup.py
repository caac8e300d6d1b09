"""The second stage: the model learns to write what was kept of the collected rewrites.

The loss is the mean over the tokens of the completions, the end token among them; the prompt is not learnt. After each
epoch the dev pairs are measured, and the weights of the best epoch are kept, those of the start among them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from querywright.errors import InputError
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.checkpoints import Checkpoints
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.policy import SMALLER, HFPolicy, TrainingError
from querywright.optimize.rewriter.types import Completion

LOG = "warmup.jsonl"
LEAST_PAIRS = 16
_RISE, _LONGEST_GRADIENT, _KEEP_EACH = 0.03, 1.0, 5


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
    folder: Path,
    *,
    epochs: int = 3,
    batch: int = 16,
    lr: float = 2e-4,
    least: int = LEAST_PAIRS,
    seed: int = 0,
    progress: Progress | None = None,
) -> WarmupReport:
    """Teach a policy what to write; it ends with the weights that did best on dev.

    AdamW; the rate rises over 3 % of the steps and falls to nothing by a cosine.

    Args:
        policy: As it is at the start.
        train: Pairs to learn from.
        dev: Pairs to choose the epoch by.
        folder: Holds the checkpoint and the log, and is taken up again.
        epochs: Times that each pair is learnt from. Default 3.
        batch: Pairs a step. Default 16.
        lr: Highest learning rate. Default 2e-4, for LoRA; all weights want a tenth.
        least: Pairs that there must be. Default 16.
        seed: Of the order.
        progress: Called after each step.

    Raises:
        InputError: There are too few pairs, or a file cannot be written or read.
        TrainingError: The loss is no number; the last checkpoint is whole.
    """
    import torch

    learnt, looked_at = (_fitting(policy, pairs) for pairs in (train, dev))
    left_out = len(train) + len(dev) - len(learnt) - len(looked_at)
    _check_enough(learnt, looked_at, left_out, least)
    optimizer = torch.optim.AdamW(policy.parameters().values(), lr=lr, weight_decay=0.0)
    each = math.ceil(len(learnt) / batch)
    steps = each * epochs
    files = Checkpoints(folder, LOG)
    state = files.load(policy, optimizer) or {"step": 0, "losses": []}
    step, losses = state["step"], list(state["losses"])

    def look() -> None:
        loss = _dev_loss(policy, looked_at, step)
        losses.append(loss)
        if loss == min(losses):
            files.save_best(policy)
        files.lines.append({"kind": "dev", "step": step, "epoch": len(losses) - 1, "loss": loss})
        files.save(policy, optimizer, {"step": step, "losses": losses})

    if not losses:
        look()
    while step < steps:
        epoch, place = divmod(step, each)
        order = random.Random(f"{seed} {epoch}").sample(learnt, len(learnt))
        rate = lr * _share(step, steps)
        step += 1
        learn = order[place * batch : (place + 1) * batch]
        files.lines.append({"kind": "step", "step": step, "lr": rate, **_step(policy, optimizer, learn, rate, step)})
        if step % each == 0:
            look()
        elif step % _KEEP_EACH == 0:
            files.save(policy, optimizer, {"step": step, "losses": losses})
        if progress is not None:
            progress("warm-up", step, steps)
    files.load_best(policy)
    best = losses.index(min(losses))
    notes = () if best else ("no epoch was better on dev than the start, so the weights are those of the start",)
    return WarmupReport(step, len(learnt), left_out, losses[0], tuple(losses[1:]), best, notes)


def _fitting(policy: HFPolicy, pairs: Sequence[Pair]) -> list[Completion]:
    taught = [policy.taught(pair.messages, pair.text) for pair in pairs]
    return [one for one in taught if policy.fits(one)]


def _check_enough(train: Sequence[Completion], dev: Sequence[Completion], left_out: int, enough: int) -> None:
    for name, pairs, least in (("train", train, enough), ("dev", dev, 1)):
        if len(pairs) < least:
            gone = f" ({left_out} do not fit the model's context)" if left_out else ""
            raise InputError(
                f"the warm-up needs {least} {name} pairs or more, but there are {len(pairs)}{gone}: "
                f"{least - len(pairs)} more needed; collect from more questions, or with more candidates a question"
            )


def _share(step: int, steps: int) -> float:
    """Of the highest learning rate, at a step from 0."""
    rising = math.ceil(_RISE * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def _step(policy: HFPolicy, optimizer: Any, batch: Sequence[Completion], rate: float, number: int) -> dict[str, float]:
    """Learn from a batch; what the log says of it."""
    import torch

    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    total, loss = sum(len(one.tokens) for one in batch), 0.0
    for places in policy.parts(batch):
        part = -torch.cat(policy.log_probs([batch[place] for place in places])).sum() / total
        part.backward()
        loss += float(part.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(list(policy.parameters().values()), _LONGEST_GRADIENT))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise _no_number(f"the loss of step {number} of the warm-up is {loss} (gradient {norm})")
    optimizer.step()
    return {"loss": loss, "gradient": norm, "tokens": total}


def _dev_loss(policy: HFPolicy, dev: Sequence[Completion], step: int) -> float:
    import torch

    with torch.no_grad():
        parts = [policy.log_probs([dev[place] for place in places]) for places in policy.parts(dev)]
    loss = -math.fsum(float(one.sum()) for part in parts for one in part) / sum(len(one.tokens) for one in dev)
    if not math.isfinite(loss):
        raise _no_number(f"the loss on dev is {loss} after step {step} of the warm-up")
    return loss


def _no_number(what: str) -> TrainingError:
    return TrainingError(
        f"{what}: the training cannot go on; {SMALLER.format('--warmup-lr')}. The last checkpoint is whole"
    )
