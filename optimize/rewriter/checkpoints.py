"""A stage of a training: its steps, its looks at dev, one checkpoint, the best weights and the log.

The log is all that a stage has to remember besides weights: what is best, whether it is over and what comes next are
read from it.
"""

from __future__ import annotations

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

FLAT_STEPS = 10
"""Steps in a row that teach nothing after which a stage ends."""
_KEEP_EACH = 5
_CHECKPOINT, _BEST = "checkpoint.safetensors", "best.safetensors"


class Stage:
    """A stage under way, taken up where its checkpoint stands.

    A checkpoint is one safetensors file: weights, the optimizer's tensors, and in its header the log. It is replaced
    whole. The log also stands in a file of its own, to be read while the stage goes on. ``lines`` is the log: a mapping
    a step (``kind`` step), and one a look at dev, of which the first is of the start; a number that is none is None.
    """

    def __init__(self, policy: HFPolicy, optimizer: Any, folder: Path, log: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._policy, self._optimizer, self._folder, self._log = policy, optimizer, folder, folder / log
        self.lines: list[dict[str, Any]] = []
        if (folder / _CHECKPOINT).exists():
            self._load()

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The lines of the steps."""
        return [line for line in self.lines if line["kind"] == "step"]

    @property
    def looks(self) -> list[dict[str, Any]]:
        """The lines of the looks at dev."""
        return [line for line in self.lines if line["kind"] == "dev"]

    @property
    def best(self) -> dict[str, Any]:
        """The first look of the greatest value."""
        return max(self.looks, key=lambda line: float(line["value"]))

    @property
    def flat(self) -> int:
        """Steps in a row, up to now, that taught nothing."""
        told = [line.get("flat", False) for line in self.steps]
        return next((back for back, flat in enumerate(reversed(told)) if not flat), len(told))

    def is_over(self, steps: int, patience: int | None = None) -> bool:
        """Whether all steps are done, nothing was learnt lately, or so many looks were no better than the best."""
        worse = len(self.looks) - 1 - self.looks.index(self.best)
        tired = patience is not None and worse >= patience
        return len(self.steps) >= steps or self.flat >= FLAT_STEPS or tired

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
        """Go on to the end; the policy then has the weights of the best look.

        ``step`` does a step, numbered from 0, and tells the log of it (``flat``: it taught nothing); ``look`` looks at
        dev each so many steps and tells the log of it, where the greatest ``value`` is the best. After ``patience``
        looks without a better one it ends early.
        """
        if not self.lines:
            self._look(look)
        while not self.is_over(steps, patience):
            number = len(self.steps)
            self.lines.append(as_plain({"kind": "step", "step": number + 1, **step(number)}))
            looked = (number + 1) % look_each == 0 or self.is_over(steps, patience)
            if looked:
                self._look(look)
            elif (number + 1) % _KEEP_EACH == 0:
                self._save()
            if progress is not None:
                progress(name, steps if self.is_over(steps, patience) else number + 1, steps)
        self._policy.set_parameters(self._read(_BEST)[0])

    def _look(self, look: Callable[[], Mapping[str, Any]]) -> None:
        self.lines.append(as_plain({"kind": "dev", "step": len(self.steps), **look()}))
        if self.best is self.looks[-1]:
            self._write(_BEST, self._policy.parameters(), {})
        self._save()

    def _save(self) -> None:
        import torch

        tensors = {f"weights/{name}": one for name, one in self._policy.parameters().items()}
        for number, kept in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{number}/{key}": torch.as_tensor(one) for key, one in kept.items()}
        self._write(_CHECKPOINT, tensors, {"log": json.dumps(self.lines)})
        write_file(self._log, "".join(json.dumps(line) + "\n" for line in self.lines))

    def _load(self) -> None:
        tensors, told = self._read(_CHECKPOINT)
        weights: dict[str, Any] = {}
        kept: dict[int, dict[str, Any]] = {}
        for name, one in tensors.items():
            part, _, key = name.partition("/")
            if part == "weights":
                weights[key] = one
            else:
                number, _, key = key.partition("/")
                kept.setdefault(int(number), {})[key] = one
        self._policy.set_parameters(weights)
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": kept})
        self.lines = json.loads(told["log"])

    def _write(self, name: str, tensors: Mapping[str, Any], told: dict[str, str]) -> None:
        from safetensors.torch import save

        still = {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}
        write_file(self._folder / name, save(still, metadata=told))

    def _read(self, name: str) -> tuple[dict[str, Any], dict[str, str]]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._folder / name, framework="pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{name} in {self._folder.name!r} is damaged ({error}); delete that folder to start the stage anew"
            ) from error


def descend(policy: HFPolicy, optimizer: Any, losses: Iterable[Any], longest: float, what: str) -> tuple[float, float]:
    """Change the weights once, by losses whose sum is the loss; each is only made when the gradient of the one before
    was taken. The gradient is cut at ``longest``.

    Returns:
        The loss, and the length of the gradient before it was cut.

    Raises:
        TrainingError: One of them is no number in ``what``; the weights are those before.
    """
    import torch

    optimizer.zero_grad(set_to_none=True)
    loss = 0.0
    for part in losses:
        part.backward()
        loss += float(part.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(list(policy.parameters().values()), longest))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        optimizer.zero_grad(set_to_none=True)
        raise TrainingError(
            f"the loss of {what} is {loss} (gradient {norm}): the training cannot go on; {SMALLER}. The last "
            "checkpoint is whole"
        )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss, norm


def as_plain(data: Any) -> Any:
    """Dataclasses and other data as JSON has them; a number that is none becomes None."""
    return json.loads(to_json(data, inf_nan_mode="null"))


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON, whole; a number that is none becomes null."""
    write_file(path, to_json(data, indent=1, inf_nan_mode="null") + b"\n")


def read_json(path: Path) -> Any:
    """What ``write_json`` wrote; None where there is no file."""
    return json.loads(path.read_bytes()) if path.exists() else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A file of JSON, a line each; nothing where there is no file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
