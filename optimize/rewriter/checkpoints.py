"""Where a training stands: its tensors, those of its optimizer and its counts, so that it can go on after a kill.

A checkpoint is ``step-N.safetensors`` and then ``step-N.json``, which names the checksum of the first: without it there
is no checkpoint. Both are written beside their place and renamed, so none is ever half there. The one before is kept
until the one after the next is whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from querywright.errors import InputError
from querywright.optimize.rewriter.keeping import write_whole

KEPT = 2
"""Checkpoints that stay."""
_FORMAT = 1
_NAME = re.compile(r"step-(\d{8})\.json")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was kept.

    Args:
        step: Steps that were done.
        parameters: The tensors in training, by name.
        optimizer: The optimizer's tensors of each of them, by name.
        numbers: The optimizer's numbers of each of them that are no tensors.
        state: What else the training kept, as JSON has it.
        notes: Newer checkpoints that are damaged, a sentence each.
    """

    step: int
    parameters: Mapping[str, Any]
    optimizer: Mapping[str, Mapping[str, Any]]
    numbers: Mapping[str, Mapping[str, float]]
    state: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def restore(self, parameters: Mapping[str, Any], optimizer: Any) -> None:
        """Put the optimizer where it stood. The parameters are the policy's to take.

        Args:
            parameters: The tensors in training, by name.
            optimizer: A fresh one of the same kind, made of them in this order.
        """
        made = optimizer.state_dict()
        made["state"] = {
            number: {**self.optimizer.get(name, {}), **self.numbers.get(name, {})}
            for number, name in enumerate(parameters)
            if name in self.optimizer or name in self.numbers
        }
        optimizer.load_state_dict(made)


def save_checkpoint(
    folder: Path,
    step: int,
    parameters: Mapping[str, Any],
    optimizer: Any = None,
    state: Mapping[str, Any] | None = None,
    *,
    kept: int = KEPT,
) -> None:
    """Keep where a training stands; older checkpoints than the last few are removed.

    Args:
        folder: Made where it is not there.
        step: Steps that were done.
        parameters: The tensors in training, by name.
        optimizer: Whose tensors are kept too, or None.
        state: What else is to be kept, as JSON has it.
        kept: Checkpoints that stay.

    Raises:
        InputError: There is no room, or the folder cannot be written; the checkpoints before are as they were.
    """
    tensors = {f"parameter/{name}": one for name, one in parameters.items()}
    numbers: dict[str, dict[str, float]] = {}
    states = {} if optimizer is None else optimizer.state
    for name, one in parameters.items():
        for key, value in states.get(one, {}).items():
            if hasattr(value, "detach"):
                tensors[f"optimizer/{key}/{name}"] = value
            else:
                numbers.setdefault(name, {})[key] = value
    data, digest = _bytes(tensors)
    record = {
        "format": _FORMAT,
        "step": step,
        "sha256": digest,
        "numbers": numbers,
        "state": dict(state or {}),
    }
    text = json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    stem = f"step-{step:08d}"
    with _told(f"the checkpoint of step {step}", folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem}.json").unlink(missing_ok=True)
        write_whole(folder / f"{stem}.safetensors", data)
        write_whole(folder / f"{stem}.json", text)
    _remove_old(folder, kept)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none yet.

    Args:
        folder: Where they are.

    Raises:
        InputError: There are checkpoints, and all are damaged.
    """
    notes: list[str] = []
    for step in reversed(_steps(folder)):
        try:
            return _read(folder, step, tuple(notes))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error) or type(error).__name__
            notes.append(f"the checkpoint of step {step} is damaged ({reason}) and was left out")
    if notes:
        raise InputError(
            f"no checkpoint in {folder.name!r} can be read: {'; '.join(notes)}; delete the folder to start anew"
        )
    return None


def save_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write tensors as safetensors, whole or not at all.

    Args:
        path: The file; its folder is made where it is not there.
        tensors: By name.

    Raises:
        InputError: There is no room, or the folder cannot be written; the file is as it was.
    """
    with _told(path.name, path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _bytes(tensors)[0])


def load_tensors(path: Path) -> dict[str, Any]:
    """What ``save_tensors`` wrote.

    Args:
        path: The file.

    Raises:
        InputError: It is missing or damaged.
    """
    try:
        return _tensors(path.read_bytes())[0]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{path.name!r} in {path.parent.name!r} cannot be read ({reason}); delete that folder to start anew"
        ) from error


def _read(folder: Path, step: int, notes: tuple[str, ...]) -> Checkpoint:
    record = json.loads((folder / f"step-{step:08d}.json").read_bytes())
    if record["format"] != _FORMAT or record["step"] != step:
        raise ValueError(f"it is of format {record['format']}, step {record['step']}")
    tensors, digest = _tensors((folder / f"step-{step:08d}.safetensors").read_bytes())
    if digest != record["sha256"]:
        raise ValueError("its tensors are another step's")
    parameters: dict[str, Any] = {}
    optimizer: dict[str, dict[str, Any]] = {}
    for place, tensor in tensors.items():
        part, _, name = place.partition("/")
        if part == "parameter":
            parameters[name] = tensor
        else:
            key, _, name = name.partition("/")
            optimizer.setdefault(name, {})[key] = tensor
    return Checkpoint(step, parameters, optimizer, dict(record["numbers"]), dict(record["state"]), notes)


def _bytes(tensors: Mapping[str, Any]) -> tuple[bytes, str]:
    """As safetensors, and the checksum of the values, which stands in the header."""
    from safetensors.torch import save

    still = {name: one.detach().cpu().contiguous().clone() for name, one in sorted(tensors.items())}
    digest = _checksum(still)
    return save(still, metadata={"sha256": digest}), digest


def _tensors(data: bytes) -> tuple[dict[str, Any], str]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        found: dict[str, Any] = load(data)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    digest = _checksum(found)
    if header.get("__metadata__", {}).get("sha256") != digest:
        raise ValueError("its checksum is another one")
    return found, digest


def _checksum(tensors: Mapping[str, Any]) -> str:
    import torch

    digest = hashlib.sha256()
    for name, one in sorted(tensors.items()):
        digest.update(f"{name} {one.dtype} {list(one.shape)}\n".encode())
        digest.update(one.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def _told(what: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "make room" if error.errno in _NO_ROOM else "make the folder writable"
        raise InputError(
            f"{what} cannot be written into {folder.name!r} ({error.strerror}); {remedy} and start again with the "
            "same command: the training goes on from the last checkpoint"
        ) from error


def _steps(folder: Path) -> list[int]:
    found = [_NAME.fullmatch(path.name) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match.group(1)) for match in found if match)


def _remove_old(folder: Path, kept: int) -> None:
    """All but the last few, and what a killed process left: the record first, so that none is ever without tensors."""
    stay = {f"step-{step:08d}" for step in _steps(folder)[-kept:]}
    for pattern in ("step-*.json", "step-*.safetensors", ".step-*.new"):
        for path in folder.glob(pattern):
            if path.name.startswith(".") or path.name.partition(".")[0] not in stay:
                with suppress(OSError):
                    path.unlink()
