"""The devices that a policy in training runs on: each has a copy of the model and does its share of a batch.

Gradients flow from the copies back to the weights of the first, of which there is one set: what a copy computes with is
taken from there each time. The shares run in threads of one process, so this is for models whose arithmetic takes
longer than Python needs to ask for it. Unlike ``accelerate``, which starts a process for each device, it leaves one
process that searches, draws and keeps checkpoints, and so the same loop as on one device. On GPUs the order in which
gradients are added up is not fixed, so the same training comes to the same result but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import pairwise
from typing import Any, TypeVar

from querywright.errors import InputError

Result = TypeVar("Result")


def devices_of(name: str) -> tuple[str, ...]:
    """The devices that a name stands for.

    Args:
        name: Such as ``cpu``, ``cuda:0`` or ``cuda:0,cuda:1``; ``auto`` for a GPU where there is one.

    Raises:
        InputError: There is no such device, or they are of several kinds.
    """
    import torch

    if name == "auto":
        return ("cuda" if torch.cuda.is_available() else "cpu",)
    found = tuple(one.strip() for one in name.split(","))
    for one in found:
        _check_device(one)
    if len({one.partition(":")[0] for one in found}) > 1:
        raise InputError(f"the devices {name!r} are of several kinds; give some of one kind")
    numbers = [torch.device(one).index or 0 for one in found]
    if found[0] != "cpu" and len(set(numbers)) < len(numbers):
        raise InputError(f"the devices {name!r} name one twice; give each once")
    return found


def _check_device(name: str) -> None:
    import torch

    try:
        device = torch.device(name)
        here = torch.get_device_module(device.type)
    except RuntimeError:
        raise InputError(f"there is no device {name!r}; give cpu, cuda:0, several with commas, or auto") from None
    if not here.is_available():
        raise InputError(f"there is no GPU for the device {name!r}; give cpu, or install torch for the GPU")
    if (device.index or 0) >= here.device_count():
        raise InputError(f"there is no device {name!r}: those of its kind are numbered 0 to {here.device_count() - 1}")


class Copies:
    """A model on each of some devices.

    Args:
        model: The first of them, whose weights are trained.
        devices: One or more.
    """

    def __init__(self, model: Any, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        # One after another, so that there are never more than two where they are made.
        copies = [deepcopy(model).requires_grad_(False).to(device).eval() for device in devices[1:]]
        self._models = [model.to(devices[0]).eval(), *copies]

    def model(self, place: int, tensors: Mapping[str, Any] | None) -> Callable[..., Any]:
        """The model on a device, to be called with its arguments.

        Args:
            place: Of the device.
            tensors: Values of those that are trained, wherever they are: gradients flow to them. None for the model's
                own, which are up to date on the first device alone.
        """
        from torch.func import functional_call

        model, device = self._models[place], self.devices[place]
        if tensors is None:
            return model  # type: ignore[no-any-return]
        near = {name: one.to(device) for name, one in tensors.items()}
        return lambda **given: functional_call(model, near, (), given)

    def share_out(
        self, prompts: Sequence[tuple[int, ...]], work: Callable[[int, list[int]], list[Result]]
    ) -> list[Result]:
        """Do work on all devices at the same time.

        Args:
            prompts: One a piece of work; those that are alike stay together, but where a share ends among them.
            work: Does some pieces on a device; it is given the place of the device and those of the pieces, and sets
                what torch keeps for each thread, such as whether there are gradients.

        Returns:
            What came of each piece, in order.
        """
        shares = shares_of(prompts, len(self.devices))
        if len(shares) <= 1:
            done = [work(0, share) for share in shares]
        else:
            with ThreadPoolExecutor(len(shares)) as pool:
                done = list(pool.map(work, range(len(shares)), shares))
        found = {
            place: one for share, made in zip(shares, done, strict=True) for place, one in zip(share, made, strict=True)
        }
        return [found[place] for place in range(len(prompts))]


def shares_of(prompts: Sequence[tuple[int, ...]], number: int) -> list[list[int]]:
    """Places in shares of as many places each as can be, in the order of their prompts.

    Args:
        prompts: One a place.
        number: Of shares at most; there are fewer where there are fewer places.
    """
    order = sorted(range(len(prompts)), key=lambda place: prompts[place]) if number > 1 else list(range(len(prompts)))
    number = min(number, len(order))
    ends = [len(order) * share // number for share in range(number + 1)] if number else []
    return [sorted(order[start:end]) for start, end in pairwise(ends)]
