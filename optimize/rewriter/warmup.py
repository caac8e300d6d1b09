"""The second stage: the model learns to write the collected rewrites.

The loss is the mean over the tokens of the completions, with the end token and without the prompt. The dev pairs are
measured at the start and after each epoch, and the weights with the lowest loss are kept.
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
from querywright.optimize.rewriter.checkpoints import Stage, descend
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.policy import SMALLER, HFPolicy, TrainingError
from querywright.optimize.rewriter.settings import TrainSettings

LOG = "warmup.jsonl"
_RISE = 0.03


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """Report of a warm-up: its steps; the pairs that were learned from, and the pairs of train and dev that do not fit
    the model's context; the mean loss per token on dev at the start and after each epoch; the epoch whose weights were
    kept (0 for the start); and notes for the reader.
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
    settings: TrainSettings,
    *,
    progress: Progress | None = None,
) -> WarmupReport:
    """Teach a policy the pairs; it ends with the weights that did best on dev.

    ``folder`` holds the checkpoint and the log, from which an interrupted stage resumes. The learning rate of AdamW
    rises over 3 % of the steps and falls to 0 by a cosine.

    Raises:
        InputError: There are too few pairs, or a file cannot be read.
        TrainingError: The loss is not finite; the last checkpoint is whole.
    """
    import torch

    taught = [[policy.taught(pair.messages, pair.text) for pair in pairs] for pairs in (train, dev)]
    learnt, looked_at = (
        [one for one in part if policy.refused(one.prompt, len(one.tokens)) is None] for part in taught
    )
    left_out = len(train) + len(dev) - len(learnt) - len(looked_at)
    for name, count, needed in (("train", len(learnt), settings.least_pairs), ("dev", len(looked_at), 1)):
        if count < needed:
            gone = f" ({left_out} do not fit the model's context)" if left_out else ""
            raise InputError(
                f"the warm-up needs {needed} {name} pairs or more, but there are {count}{gone}: {needed - count} more "
                "needed; collect from more questions, or with more candidates a question"
            )
    batch, epochs, lr = settings.warmup_batch, settings.epochs, settings.warmup_lr
    optimizer = torch.optim.AdamW(policy.parameters().values(), lr=lr, weight_decay=0.0)
    each = math.ceil(len(learnt) / batch)
    rising = math.ceil(_RISE * each * epochs)

    def step(number: int) -> dict[str, Any]:
        epoch, place = divmod(number, each)
        chosen = random.Random(f"{settings.seed} {epoch}").sample(learnt, len(learnt))[
            place * batch : (place + 1) * batch
        ]
        falling = 0.5 * (1 + math.cos(math.pi * (number - rising) / max(1, each * epochs - rising)))
        rate = lr * ((number + 1) / rising if number < rising else falling)
        for group in optimizer.param_groups:
            group["lr"] = rate
        tokens = sum(len(one.tokens) for one in chosen)
        parts = ([chosen[place] for place in places] for places in policy.parts(chosen))
        losses = (-torch.cat(policy.log_probs(part)).sum() / tokens for part in parts)
        loss, norm = descend(policy, optimizer, losses, f"step {number + 1} of the warm-up")
        return {"lr": rate, "loss": loss, "gradient": norm, "tokens": tokens}

    def look() -> dict[str, Any]:
        with torch.no_grad():
            parts = (policy.log_probs([looked_at[place] for place in places]) for places in policy.parts(looked_at))
            total = math.fsum(float(one.sum()) for part in parts for one in part)
        loss = -total / sum(len(one.tokens) for one in looked_at)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss on dev is {loss} in the warm-up: the training cannot go on; {SMALLER}. The last checkpoint "
                "is whole"
            )
        return {"loss": loss, "value": -loss}

    stage = Stage(policy, optimizer, folder, LOG)
    stage.run(step, look, steps=each * epochs, look_each=each, name="warm-up", progress=progress)
    losses = [float(line["loss"]) for line in stage.looks]
    best = stage.looks.index(stage.best)
    notes = () if best else ("no epoch was better on dev than the start, so the weights are those of the start",)
    return WarmupReport(len(stage.steps), len(learnt), left_out, losses[0], tuple(losses[1:]), best, notes)
