"""Prompts and completions in batches: what several of them begin with is gone through once.

Groups of samples share their prompt, and prompts of one technique share its instructions; both are much longer than
what is written after them, so most of the work of writing and of learning is done once. Gradients flow back through
the shared part as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

Kind = Literal["causal", "seq2seq"]
SHARED = 32
"""Tokens that prompts must have in common at least to be begun together."""


def portions(
    prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], budget: int, *, share: bool = True
) -> list[list[int]]:
    """Places in portions of a limited size, those of one prompt side by side and prompts of like length together.

    Args:
        prompts: Tokens of the prompt, one a place.
        lengths: Tokens beside the prompt, one a place.
        budget: Tokens of a portion with its padding; a place that is larger by itself is a portion.
        share: Whether prompts that begin alike are kept apart from others.

    Returns:
        The same for the same input: each place once.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for place, prompt in enumerate(prompts):
        places.setdefault(prompt, []).append(place)
    found: list[list[int]] = []
    for group in _alike(list(places)) if share else [list(places)]:
        shared = common(group) if share and len(group) > 1 else 0
        part: list[int] = []
        unique = longest = most = 0
        for prompt in sorted(group, key=len, reverse=True):
            new = 1
            for place in places[prompt]:
                longest, most = longest or len(prompt) - shared, max(most, lengths[place])
                if part and shared + (unique + new) * longest + (len(part) + 1) * most > budget:
                    found.append(part)
                    part, unique, longest, most, new = [], 0, len(prompt) - shared, lengths[place], 1
                part.append(place)
                unique, new = unique + new, 0
        if part:
            found.append(part)
    return found


def _alike(prompts: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Prompts in groups that begin alike; those that are like no other are one group together."""
    groups: list[list[tuple[int, ...]]] = []
    for prompt in sorted(prompts):
        if groups and common([groups[-1][0], prompt]) >= SHARED:
            groups[-1].append(prompt)
        else:
            groups.append([prompt])
    single = [group[0] for group in groups if len(group) == 1]
    return [group for group in groups if len(group) > 1] + ([single] if single else [])


def common(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all begin with; the last of a prompt is not counted.

    Args:
        prompts: One or more.
    """
    low, high = min(prompts), max(prompts)
    most = min(map(len, prompts)) - 1
    return next((place for place in range(most) if low[place] != high[place]), most)


class Batch:
    """Prompts that a model has read, to be gone on with token by token or many at a time.

    Args:
        call: The model.
        kind: How it writes.
        prompts: Tokens, one row a prompt.
        pad: The token that fills short rows.
        start: The first token of a sequence-to-sequence model's output.
        device: Where the model is.
        takes: Names of the arguments that the model takes.
        share: Whether what all prompts begin with is gone through once.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        kind: Kind,
        prompts: Sequence[tuple[int, ...]],
        *,
        pad: int,
        start: int,
        device: str,
        takes: frozenset[str],
        share: bool = True,
    ) -> None:
        import torch

        self._call, self._kind, self._takes, self.device = call, kind, takes, device
        unique = list(dict.fromkeys(prompts))
        shared = common(unique) if share and kind == "causal" and len(unique) > 1 else 0
        shared = shared if shared >= SHARED else 0
        tokens, mask = padded([prompt[shared:] for prompt in unique], pad, left=kind == "causal")
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
            given["decoder_input_ids"] = torch.full((len(unique), 1), start, device=device)
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
        """Go on with some rows only, or with some several times.

        Args:
            rows: A tensor of their places.
        """
        self._cache.batch_select_indices(rows)
        self.logits, self._mask, self._next = self.logits[rows], self._mask[rows], self._next[rows]
        if self._encoded is not None:
            self._encoded = self._encoded[rows]

    def feed(self, tokens: Any) -> Any:
        """The logits after each of some more tokens; ``logits`` are then those after the last.

        Args:
            tokens: As many a row.
        """
        import torch

        given = {"past_key_values": self._cache, "use_cache": True}
        if self._kind == "seq2seq":
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
        return self._call(**{name: value for name, value in given.items() if name in self._takes})


def padded(rows: Sequence[Sequence[int]], pad: int, *, left: bool = False) -> tuple[Any, Any]:
    """Tokens as a tensor, and a tensor that is 1 where they are.

    Args:
        rows: Of any lengths.
        pad: Fills the short ones.
        left: Whether they are filled on the left.
    """
    import torch

    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), pad)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        tokens[number, place] = torch.tensor(row, dtype=torch.long)
        mask[number, place] = 1
    return tokens, mask


def token_log_probs(batch: Batch, completions: Sequence[tuple[int, ...]], pad: int, device: str) -> list[Any]:
    """A tensor a completion: the log-probability of each of its tokens after the prompt of its row.

    Args:
        batch: Fresh, a row a completion.
        completions: Tokens, one or more each.
        pad: Fills short rows.
        device: Where the model is.
    """
    import torch

    tokens, _ = padded(completions, pad)
    tokens = tokens.to(device)
    logits = batch.logits[:, None]
    if tokens.shape[1] > 1:
        logits = torch.cat([logits, batch.feed(tokens[:, :-1])], dim=1)
    losses = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), tokens.flatten(), reduction="none"
    ).view_as(tokens)
    return [-losses[number, : len(one)] for number, one in enumerate(completions)]
