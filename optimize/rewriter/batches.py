"""Prompts and completions in batches: what several of them begin with is gone through once.

Groups of samples share their prompt, and prompts of one technique share its instructions; both are much longer than
what is written after them, so most of the work of writing and of learning is done once. Gradients flow back through
the shared part as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from querywright.optimize.rewriter.policy import HFPolicy

SHARED = 32
"""Tokens that prompts must have in common at least to be begun together."""


def portions(
    prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], budget: int, *, shares: bool = True
) -> list[list[int]]:
    """Places in portions of a limited size, those whose prompts begin alike side by side.

    Args:
        prompts: Tokens of the prompt, one a place.
        lengths: Tokens beside the prompt, one a place.
        budget: Tokens of a portion with its padding; a place that is larger by itself is a portion.
        shares: Whether what all prompts of a portion begin with counts once.

    Returns:
        Each place once.
    """
    found: list[list[int]] = []
    for place in sorted(range(len(prompts)), key=lambda place: prompts[place]):
        part = [*found[-1], place] if found else []
        if part and _size([prompts[one] for one in part], max(lengths[one] for one in part), shares) <= budget:
            found[-1] = part
        else:
            found.append([place])
    return found


def _size(prompts: Sequence[tuple[int, ...]], longest: int, shares: bool) -> int:
    """Tokens of a batch of prompts in their order, each with so many behind it."""
    unique = list(dict.fromkeys(prompts))
    shared = common(unique) if shares and len(unique) > 1 else 0
    return shared + len(unique) * (max(map(len, unique)) - shared) + len(prompts) * longest


def common(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all begin with; the last of a prompt is not counted."""
    low, high = min(prompts), max(prompts)
    most = min(map(len, prompts)) - 1
    return next((place for place in range(most) if low[place] != high[place]), most)


class Batch:
    """Prompts that a model has read, to be gone on with token by token or many at a time.

    Args:
        policy: Says how its model is asked.
        call: The model.
        prompts: Tokens, one row a prompt.
    """

    def __init__(self, policy: HFPolicy, call: Callable[..., Any], prompts: Sequence[tuple[int, ...]]) -> None:
        import torch

        self._policy, self._call = policy, call
        kind, device = policy.kind, policy.device
        unique = list(dict.fromkeys(prompts))
        shared = common(unique) if policy.shares and len(unique) > 1 else 0
        shared = shared if shared >= SHARED else 0
        tokens, mask = padded([prompt[shared:] for prompt in unique], policy.pad, left=kind == "causal")
        tokens, self._mask = tokens.to(device), mask.to(device)
        given: dict[str, Any] = {"input_ids": tokens, "use_cache": True}
        if shared:
            first = torch.tensor([unique[0][:shared]], device=device)
            positions = torch.arange(shared, device=device)[None]
            begun = {"input_ids": first, "attention_mask": torch.ones_like(first), "position_ids": positions}
            cache = self._ask(begun | {"use_cache": True, "logits_to_keep": 1}).past_key_values
            cache.batch_select_indices(torch.zeros(len(unique), dtype=torch.long, device=device))
            given["past_key_values"] = cache
            self._mask = torch.cat([self._mask.new_ones(len(unique), shared), self._mask], dim=-1)
        given["attention_mask"] = self._mask
        if kind == "seq2seq":
            given["decoder_input_ids"] = torch.full((len(unique), 1), policy.start, device=device)
        else:
            given["position_ids"] = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, shared:]
            given["logits_to_keep"] = 1
        out = self._ask(given)
        self._cache, self.logits = out.past_key_values, out.logits[:, -1]
        self._encoded = out.encoder_last_hidden_state if kind == "seq2seq" else None
        self._next = self._mask.sum(-1)
        if unique != list(prompts):
            numbers = {prompt: number for number, prompt in enumerate(unique)}
            self.keep(torch.tensor([numbers[prompt] for prompt in prompts], device=device))

    def keep(self, rows: Any) -> None:
        """Go on with the rows at these places only, or with some several times."""
        self._cache.batch_select_indices(rows)
        self.logits, self._mask, self._next = self.logits[rows], self._mask[rows], self._next[rows]
        if self._encoded is not None:
            self._encoded = self._encoded[rows]

    def feed(self, tokens: Any) -> Any:
        """The logits after each of some more tokens, as many a row; ``logits`` are then those after the last."""
        import torch

        given = {"past_key_values": self._cache, "use_cache": True}
        if self._policy.kind == "seq2seq":
            given |= {"encoder_outputs": (self._encoded,), "attention_mask": self._mask, "decoder_input_ids": tokens}
        else:
            self._mask = torch.cat([self._mask, torch.ones_like(tokens)], dim=-1)
            steps = torch.arange(tokens.shape[1], device=tokens.device)
            given |= {"input_ids": tokens, "attention_mask": self._mask, "position_ids": self._next[:, None] + steps}
            self._next = self._next + tokens.shape[1]
        out = self._ask(given)
        self._cache, self.logits = out.past_key_values, out.logits[:, -1]
        return out.logits

    def _ask(self, given: dict[str, Any]) -> Any:
        return self._call(**{name: value for name, value in given.items() if name in self._policy.takes})


def padded(rows: Sequence[Sequence[int]], pad: int, *, left: bool = False) -> tuple[Any, Any]:
    """Tokens as a tensor, filled up on one side, and a tensor that is 1 where they are."""
    import torch

    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    side: Literal["left", "right"] = "left" if left else "right"
    fill = torch.nn.utils.rnn.pad_sequence
    tokens = fill(tensors, batch_first=True, padding_value=pad, padding_side=side)
    return tokens, fill([torch.ones_like(one) for one in tensors], batch_first=True, padding_side=side)
