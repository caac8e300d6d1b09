"""The next token: drawn by a number between 0 and 1 that the caller gives, or the likeliest.

The numbers of a completion come from its own seed, so what it draws hangs neither on its neighbours in a batch nor on
anything drawn before; the same seed draws the same on a CPU and on a GPU, as far as their arithmetic agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from querywright.errors import InputError


def numbers_of(seeds: Sequence[int], room: int) -> Any:
    """A tensor with a row a seed: numbers from 0 to below 1, one a token.

    Args:
        seeds: Any whole numbers.
        room: Numbers a row.
    """
    import torch

    generators = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]
    return torch.stack([torch.rand(room, generator=one, dtype=torch.float64) for one in generators])


def likeliest(logits: Any) -> tuple[Any, Any]:
    """Per row the likeliest token, and its log-probability.

    Args:
        logits: A row a completion.
    """
    import torch

    scores = torch.log_softmax(logits.float(), dim=-1)
    found = scores.max(dim=-1)
    return found.indices, found.values


def draw(logits: Any, numbers: Any, *, temperature: float, top_k: int, top_p: float) -> tuple[Any, Any]:
    """Per row a token, and its log-probability among those that it was drawn from.

    Args:
        logits: A row a completion.
        numbers: From 0 to below 1, one a row: how far into the probabilities the token lies.
        temperature: Divides the logits.
        top_k: The likeliest tokens that are drawn from; 0 for all.
        top_p: Tokens are drawn from the likeliest whose probabilities sum up to this.
    """
    import torch

    scores = torch.log_softmax(logits.float() / temperature, dim=-1)
    names = None
    if 0 < top_k < scores.shape[-1]:
        scores, names = scores.topk(top_k, dim=-1)
        scores = torch.log_softmax(scores, dim=-1)
    if top_p < 1:
        if names is None:
            scores, names = scores.sort(dim=-1, descending=True, stable=True)
        shares = scores.double().exp()
        before = shares.cumsum(dim=-1) - shares
        scores = torch.log_softmax(scores.masked_fill(before >= top_p, -torch.inf), dim=-1)
    sums = scores.double().exp().cumsum(dim=-1)
    whole = sums[:, -1:]
    aim = torch.minimum(numbers.to(sums)[:, None] * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    places = torch.searchsorted(sums, aim, right=True)
    tokens = places if names is None else names.gather(-1, places)
    return tokens[:, 0], scores.gather(-1, places)[:, 0]


def check_drawing(
    prompts: int, seeds: Sequence[int] | None, temperature: float, top_k: int, top_p: float, room: int
) -> None:
    """Refuse what cannot be drawn by.

    Args:
        prompts: How many.
        seeds: One a prompt, or None.
        temperature: More than 0.
        top_k: 0 or more.
        top_p: More than 0, at most 1.
        room: 1 or more.

    Raises:
        InputError: A value is out of range, or there are more or fewer seeds than prompts.
    """
    if seeds is not None and len(seeds) != prompts:
        raise InputError(f"there are {len(seeds)} seeds for {prompts} prompts; give one a prompt")
    if not temperature > 0:
        raise InputError(f"temperature must be more than 0, but got {temperature}; without seeds nothing is drawn")
    if top_k < 0:
        raise InputError(f"top_k must be 0 or more, but got {top_k}")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must be more than 0 and at most 1, but got {top_p}")
    if room < 1:
        raise InputError(f"room must be 1 token or more, but got {room}")
