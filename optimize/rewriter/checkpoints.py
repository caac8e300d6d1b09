"""A stage of a training: its steps, its measurements on dev, one checkpoint with the best weights, and the log."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from querywright.errors import InputError
from querywright.files import write_file
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.policy import SMALLER, HFPolicy, TrainingError

_CHECKPOINT = "checkpoint.pt"


class Stage:
    """A stage in progress, which resumes at its last measurement on dev.

    ``lines`` is the log: a mapping per step (``kind`` is ``step``) and per measurement (``dev``), of which the first is
    of the start. The file next to the checkpoint repeats it for readers.
    """

    def __init__(self, policy: HFPolicy, optimizer: Any, folder: Path, log: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._policy, self._optimizer, self._folder, self._log = policy, optimizer, folder, folder / log
        self.lines: list[dict[str, Any]] = []
        self._best: dict[str, Any] = {}
        if (folder / _CHECKPOINT).exists():
            self._load()

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The lines of the steps."""
        return [line for line in self.lines if line["kind"] == "step"]

    @property
    def looks(self) -> list[dict[str, Any]]:
        """The lines of the measurements on dev."""
        return [line for line in self.lines if line["kind"] == "dev"]

    @property
    def best(self) -> dict[str, Any]:
        """The first measurement with the greatest value."""
        return max(self.looks, key=lambda line: float(line["value"]))

    def run(
        self,
        step: Callable[[int], Mapping[str, Any]],
        look: Callable[[], Mapping[str, Any]],
        *,
        steps: int,
        look_each: int,
        patience: int | None = None,
        name: str,
        progress: Progress | None = None,
    ) -> None:
        """Run to the end; the policy then has the weights of the best measurement.

        Args:
            step: Does a step, numbered from 0, and returns its line of the log.
            look: Measures dev and returns its line of the log; the greatest ``value`` is the best.
            steps: Number of steps.
            look_each: Steps between two measurements.
            patience: Measurements without a better one after which the stage ends. If None, it runs to the last step.
            name: Name of the stage in the progress.
            progress: Called after each step with the name, the steps done and their number.
        """
        if not self.lines:
            self._look(look)
        while not self._is_over(steps, patience):
            number = len(self.steps)
            self.lines.append(as_plain({"kind": "step", "step": number + 1, **step(number)}))
            if (number + 1) % look_each == 0 or number + 1 == steps:
                self._look(look)
            if progress is not None:
                progress(name, number + 1, steps)
        self._policy.set_parameters(self._best)

    def _is_over(self, steps: int, patience: int | None) -> bool:
        worse = len(self.looks) - 1 - self.looks.index(self.best)
        return len(self.steps) >= steps or (patience is not None and worse >= patience)

    def _look(self, look: Callable[[], Mapping[str, Any]]) -> None:
        import torch

        self.lines.append(as_plain({"kind": "dev", "step": len(self.steps), **look()}))
        if self.best is self.looks[-1]:
            self._best = {name: one.detach().clone() for name, one in self._policy.parameters().items()}
        state = {
            "weights": {name: one.detach() for name, one in self._policy.parameters().items()},
            "best": self._best,
            "optimizer": self._optimizer.state_dict(),
            "lines": json.dumps(self.lines),
        }
        torch.save(state, file := io.BytesIO())
        write_file(self._folder / _CHECKPOINT, file.getvalue())
        write_file(self._log, "".join(json.dumps(line) + "\n" for line in self.lines))

    def _load(self) -> None:
        import torch

        try:
            state = torch.load(self._folder / _CHECKPOINT, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file raises errors of many kinds
            raise InputError(
                f"{_CHECKPOINT} in {self._folder.name!r} is damaged ({error}); delete that folder to start the stage "
                "again"
            ) from error
        self._policy.set_parameters(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._best, self.lines = state["best"], json.loads(state["lines"])


def descend(policy: HFPolicy, optimizer: Any, losses: Iterable[Any], what: str) -> tuple[float, float]:
    """Change the weights once, by losses whose sum is the loss; each is made after the gradient of the one before.

    The gradient is clipped to length 1.

    Returns:
        The loss, and the length of the gradient before it was clipped.

    Raises:
        TrainingError: The loss or the gradient of ``what`` is not finite; the weights stay unchanged.
    """
    import torch

    optimizer.zero_grad(set_to_none=True)
    loss = 0.0
    for part in losses:
        part.backward()
        loss += float(part.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(list(policy.parameters().values()), 1.0))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise TrainingError(f"the loss of {what} is {loss} (gradient {norm}); {SMALLER}. The last checkpoint is whole")
    optimizer.step()
    return loss, norm


def as_plain(data: Any) -> Any:
    """Return dataclasses and other data as JSON data; a number that is not finite becomes None."""
    return json.loads(to_json(data, inf_nan_mode="null"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON lines file; empty if there is no file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
