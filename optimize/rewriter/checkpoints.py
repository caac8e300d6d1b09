"""The files of a stage of a training: one checkpoint, the best weights, and the log of its steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from querywright.errors import InputError
from querywright.files import write_file
from querywright.optimize.rewriter.policy import HFPolicy


class Checkpoints:
    """Where a stage stands, so that it goes on from there.

    A checkpoint is one safetensors file: weights, the optimizer's tensors, and in its header what else the stage keeps
    and its log. It is replaced whole. The log also stands in a file of its own, to be read while it goes on.

    Args:
        folder: The stage's; made when it is missing.
        log: The file of the log.

    Raises:
        InputError: A file cannot be written, or the checkpoint cannot be read.
    """

    def __init__(self, folder: Path, log: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._log = folder, folder / log
        self.lines: list[dict[str, Any]] = []
        """The log: a mapping a step, and one a look at dev."""

    def save(self, policy: HFPolicy, optimizer: Any, state: Mapping[str, Any]) -> None:
        """Keep the weights, the optimizer, the log and some state.

        Args:
            policy: In training.
            optimizer: Of its parameters.
            state: As JSON has it.
        """
        import torch

        tensors = {f"weights/{name}": one for name, one in policy.parameters().items()}
        for number, kept in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{number}/{key}": torch.as_tensor(one) for key, one in kept.items()}
        self._write("checkpoint.safetensors", tensors, {"state": state, "log": self.lines})
        write_lines(self._log, self.lines)

    def load(self, policy: HFPolicy, optimizer: Any) -> dict[str, Any] | None:
        """Put weights, optimizer and log where the checkpoint has them.

        Args:
            policy: In training.
            optimizer: A fresh one of its parameters.

        Returns:
            The state; None where there is no checkpoint yet.
        """
        found = self._read("checkpoint.safetensors")
        if found is None:
            return None
        parts: dict[str, dict[str, Any]] = {"weights": {}, "optimizer": {}}
        for name, one in found[0].items():
            part, _, key = name.partition("/")
            parts[part][key] = one
        policy.set_parameters(parts["weights"])
        kept: dict[int, dict[str, Any]] = {}
        for name, one in parts["optimizer"].items():
            number, _, key = name.partition("/")
            kept.setdefault(int(number), {})[key] = one
        optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})
        self.lines = found[1]["log"]
        return dict(found[1]["state"])

    def save_best(self, policy: HFPolicy) -> None:
        """Keep the weights as the best so far."""
        self._write("best.safetensors", policy.parameters(), {})

    def load_best(self, policy: HFPolicy) -> None:
        """Take the best weights."""
        found = self._read("best.safetensors")
        policy.set_parameters({} if found is None else found[0])

    def _write(self, name: str, tensors: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        from safetensors.torch import save

        still = {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}
        try:
            write_file(self._folder / name, save(still, metadata={"told": plain_json(told).decode()}))
        except OSError as error:
            raise InputError(
                f"{name} cannot be written into {self._folder.name!r} ({error.strerror}); make room and start again "
                "with the same command: the training goes on from the last checkpoint"
            ) from error

    def _read(self, name: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        from safetensors import SafetensorError, safe_open

        if not (self._folder / name).exists():
            return None
        try:
            with safe_open(self._folder / name, framework="pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["told"])  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{name} in {self._folder.name!r} is damaged ({error}); delete that folder to start the stage anew"
            ) from error


def plain_json(data: Any, *, indent: int | None = None) -> bytes:
    """Dataclasses and other plain data as JSON; a number that is none becomes null."""
    return to_json(data, indent=indent, inf_nan_mode="null")


def as_plain(data: Any) -> Any:
    """Data as ``plain_json`` and ``read_json`` hand it on."""
    return json.loads(plain_json(data))


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON, whole; a number that is none becomes null."""
    write_file(path, plain_json(data, indent=1) + b"\n")


def read_json(path: Path) -> Any:
    """What ``write_json`` wrote; None where there is no file."""
    return json.loads(path.read_bytes()) if path.exists() else None


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write a file of JSON, a line each, whole."""
    write_file(path, b"".join(plain_json(line) + b"\n" for line in lines))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What ``write_lines`` wrote; nothing where there is no file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
