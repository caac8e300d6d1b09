"""A transformers model in training: it writes, says how likely its words were, and learns.

LoRA trains small matrices next to the frozen weights. The model runs without dropout even while it learns, so only
tokens are random. Samples of one question share their prompt, and prompts of one technique share its
instructions; both are much longer than what is written after them, so what the prompts of a batch begin with is gone
through once. Gradients flow back through the shared part as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from querywright.errors import InputError, ModelError, QuerywrightError
from querywright.models.engine_errors import LMPromptTooLongError
from querywright.models.hf import Base, context_of, encode, encode_completion, end_tokens, quietly_adapting
from querywright.models.rewriters import save_weights

Messages = tuple[tuple[str, str], ...]
"""A prompt as the adapter framed it: (role, content), the roles ``system``, ``user`` and ``assistant``."""

SMALLER = "begin again with a smaller learning rate (--warmup-lr or --lr) in another working folder (--work)"
"""What to do about numbers that are none."""
SHARED = 32
"""Tokens that prompts must have in common at least to be begun together."""
_WRITTEN = 32_768  # tokens whose keys and values are in memory when writing
_READ = 4_096  # tokens that are gone through at a time when learning


class TrainingError(QuerywrightError):
    """A training that cannot go on; its last checkpoint is whole."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model wrote: a text without its end token, the token ids of the prompt and of the completion (with the end
    token if it was written), and whether the completion ended by itself and not for lack of room.
    """

    text: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    ended: bool


class HFPolicy:
    """A causal model of transformers as the policy in training, with LoRA.

    The reference is the policy at its start, until ``set_reference`` is called. Weights are kept in 32 bits; a GPU that
    has bfloat16 computes in it.

    Args:
        base: From ``load_base``; LoRA is put into its model.
        rank: Inner size of LoRA's matrices; alpha is twice as large. Default 16.
        device: Such as ``cpu`` or ``cuda:0``. Default ``auto``: a GPU if there is one.
        seed: Seed of the first values of LoRA. Default 0.

    Raises:
        InputError: The device does not exist, or LoRA cannot be put into the model.
        ModelError: The tokenizer has no end token, or the extra ``train`` is missing.
    """

    def __init__(self, base: Base, *, rank: int = 16, device: str = "auto", seed: int = 0) -> None:
        import torch

        model, tokenizer = base
        if tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer of the base model has no end token; take a model whose tokenizer has one")
        self.device, self.tokenizer = device_of(device), tokenizer
        self._ends = end_tokens(base)
        self.pad = self._ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        """Fills short rows."""
        self.takes = frozenset(inspect.signature(model.forward).parameters)
        """The arguments that the model takes."""
        # A window counts places and not positions, so there must be no gap between prompt and completion.
        self.shares = not getattr(model.config, "sliding_window", None)
        """Whether what all prompts of a batch begin with is gone through once."""
        model.to(torch.float32)  # float() is refused for a model that was read from a GGUF file
        self._saved = base._replace(model=_with_lora(base, rank, seed))
        self.model = model.to(self.device).eval()
        half = self.device.startswith("cuda") and torch.cuda.is_bf16_supported()
        self._autocast = partial(torch.autocast, self.device.partition(":")[0], torch.bfloat16, enabled=half)
        self._reference: dict[str, Any] = {}
        self.set_reference()

    def parameters(self) -> dict[str, Any]:
        """The tensors in training, by name."""
        return {name: one for name, one in self.model.named_parameters() if one.requires_grad}

    def set_reference(self) -> None:
        """What the policy is now becomes the reference."""
        self._reference = {name: one.detach().clone() for name, one in self.parameters().items()}

    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        """Take values for all tensors in training, by name."""
        import torch

        with torch.no_grad():
            for name, one in self.parameters().items():
                one.copy_(tensors[name])

    def prompt(self, messages: Messages) -> tuple[int, ...]:
        """Tokens of a prompt."""
        return tuple(encode(self.tokenizer, messages))

    def taught(self, messages: Messages, text: str) -> Completion:
        """Return a given text as a completion, with the end token."""
        tokens = tuple(encode_completion(self.tokenizer, text))
        return Completion(text, self.prompt(messages), tokens, ended=True)

    def refused(self, prompt: tuple[int, ...], room: int) -> LMPromptTooLongError | None:
        """Return an error if the prompt leaves less than ``room`` tokens of the model's context, else None."""
        context = context_of(self.model)
        if context is None or len(prompt) + room <= context:
            return None
        return LMPromptTooLongError(len(prompt), context, room)

    def write(
        self, prompts: Sequence[Messages], *, room: int, seed: int | None = None, top_k: int = 0
    ) -> list[Completion]:
        """Return a completion per prompt, in order.

        Args:
            prompts: Prompts that are not ``refused``.
            room: Tokens of a completion at most.
            seed: Seed of the draws. If None, the likeliest token is written each time.
            top_k: Number of likeliest tokens to draw from. Default 0: all.

        Raises:
            TrainingError: The logits are not finite.
        """
        import torch

        generator = None if seed is None else torch.Generator(self.device).manual_seed(seed)

        def choose(logits: Any) -> Any:
            """A token a row."""
            if not bool(torch.isfinite(logits.amax(-1)).all()):
                raise TrainingError(f"the logits are no numbers: the training cannot go on; {SMALLER}")
            if generator is None:
                return logits.argmax(-1)
            scores, names = logits.float().topk(min(top_k or logits.shape[-1], logits.shape[-1]))
            return names.gather(-1, torch.multinomial(torch.softmax(scores, -1), 1, generator=generator))[:, 0]

        made = [self.prompt(messages) for messages in prompts]
        found: dict[int, Completion] = {}
        with torch.inference_mode(), self._autocast():
            for places in self._portions(made, [len(prompt) + room for prompt in made], _WRITTEN):
                found.update(zip(places, self._written([made[place] for place in places], choose, room), strict=True))
        return [found[place] for place in range(len(made))]

    def parts(self, completions: Sequence[Completion]) -> list[list[int]]:
        """Places of completions in portions that ``log_probs`` can go through with gradients at a time."""
        return self._portions([one.prompt for one in completions], [len(one.tokens) for one in completions], _READ)

    def log_probs(self, completions: Sequence[Completion], *, reference: bool = False) -> list[Any]:
        """A tensor a completion: the log-probability of each of its tokens, at temperature 1 and without cuts.

        All that one call goes through stays in memory until the gradient was taken; see ``parts``.

        Args:
            completions: What ``write`` gave, or tokens of someone else, one or more each.
            reference: Under the reference, without gradients, instead of the policy in training.
        """
        import torch
        from torch.func import functional_call

        if not completions:
            return []
        call: Callable[..., Any] = self.model
        if reference:
            call = lambda **given: functional_call(self.model, self._reference, (), given)  # noqa: E731
        tokens, _ = _padded([one.tokens for one in completions], self.pad)
        tokens = tokens.to(self.device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reference), self._autocast():
            batch = _Batch(self, call, [one.prompt for one in completions])
            logits = batch.logits[:, None]
            if tokens.shape[1] > 1:
                logits = torch.cat([logits, batch.feed(tokens[:, :-1])], dim=1)
            losses = torch.nn.functional.cross_entropy(
                logits.float().flatten(0, 1), tokens.flatten(), reduction="none"
            ).view_as(tokens)
        return [-losses[number, : len(one.tokens)] for number, one in enumerate(completions)]

    def save(self, folder: Path) -> None:
        """Write what was trained, and the tokenizer, as ``write_rewriter`` takes them."""
        save_weights(self._saved, folder)

    def _written(self, prompts: Sequence[tuple[int, ...]], choose: Callable[[Any], Any], room: int) -> list[Completion]:
        """A completion a prompt, all written side by side; who has ended waits for nobody."""
        import torch

        batch = _Batch(self, self.model, prompts)
        tokens: list[list[int]] = [[] for _ in prompts]
        rows = list(range(len(prompts)))
        for left in range(room - 1, -1, -1):
            chosen = choose(batch.logits)
            for row, token in zip(rows, chosen.tolist(), strict=True):
                tokens[row].append(token)
            going = [number for number, row in enumerate(rows) if tokens[row][-1] not in self._ends]
            if not going or not left:
                break
            if len(going) < len(rows):
                kept = torch.tensor(going, device=chosen.device)
                batch.keep(kept)
                chosen, rows = chosen[kept], [rows[number] for number in going]
            batch.feed(chosen[:, None])
        ended = [row[-1] in self._ends for row in tokens]
        words = [row[:-1] if whole else row for row, whole in zip(tokens, ended, strict=True)]
        texts = self.tokenizer.batch_decode(words, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        each = zip(texts, prompts, tokens, ended, strict=True)
        return [Completion(text, prompt, tuple(row), whole) for text, prompt, row, whole in each]

    def _portions(self, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], budget: int) -> list[list[int]]:
        """Each place once, in portions of so many tokens with their padding, alike prompts side by side."""
        found: list[list[int]] = []
        for place in sorted(range(len(prompts)), key=lambda place: prompts[place]):
            part = [*found[-1], place] if found else []
            unique = list(dict.fromkeys(prompts[one] for one in part))
            shared = _common(unique) if self.shares and len(unique) > 1 else 0
            size = shared + sum(max(map(len, unique)) - shared for _ in unique)
            if part and size + len(part) * max(lengths[one] for one in part) <= budget:
                found[-1] = part
            else:
                found.append([place])
        return found


class _Batch:
    """Prompts that a model has read, to be gone on with token by token or many at a time.

    ``logits`` are those after the last token of each row.
    """

    def __init__(self, policy: HFPolicy, call: Callable[..., Any], prompts: Sequence[tuple[int, ...]]) -> None:
        import torch

        self._policy, self._call = policy, call
        device = policy.device
        unique = list(dict.fromkeys(prompts))
        shared = _common(unique) if policy.shares and len(unique) > 1 else 0
        shared = shared if shared >= SHARED else 0
        tokens, mask = _padded([prompt[shared:] for prompt in unique], policy.pad, left=True)
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
        positions = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, shared:]
        out = self._ask(given | {"attention_mask": self._mask, "position_ids": positions, "logits_to_keep": 1})
        self._cache, self.logits = out.past_key_values, out.logits[:, -1]
        self._next = self._mask.sum(-1)
        if unique != list(prompts):
            numbers = {prompt: number for number, prompt in enumerate(unique)}
            self.keep(torch.tensor([numbers[prompt] for prompt in prompts], device=device))

    def keep(self, rows: Any) -> None:
        """Go on with the rows at these places only, or with some several times."""
        self._cache.batch_select_indices(rows)
        self.logits, self._mask, self._next = self.logits[rows], self._mask[rows], self._next[rows]

    def feed(self, tokens: Any) -> Any:
        """The logits after each of some more tokens, as many a row."""
        import torch

        self._mask = torch.cat([self._mask, torch.ones_like(tokens)], dim=-1)
        positions = self._next[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        given = {"input_ids": tokens, "attention_mask": self._mask, "position_ids": positions, "use_cache": True}
        out = self._ask(given | {"past_key_values": self._cache})
        self._next = self._next + tokens.shape[1]
        self._cache, self.logits = out.past_key_values, out.logits[:, -1]
        return out.logits

    def _ask(self, given: dict[str, Any]) -> Any:
        return self._call(**{name: value for name, value in given.items() if name in self._policy.takes})


def _common(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all begin with; the last of a prompt is not counted."""
    low, high = min(prompts), max(prompts)
    most = min(map(len, prompts)) - 1
    return next((place for place in range(most) if low[place] != high[place]), most)


def _padded(rows: Sequence[Sequence[int]], pad: int, *, left: bool = False) -> tuple[Any, Any]:
    """Tokens as a tensor, filled up on one side, and a tensor that is 1 where they are."""
    import torch

    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    fill = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True, padding_side="left" if left else "right")
    return fill(tensors, padding_value=pad), fill([torch.ones_like(one) for one in tensors])


def device_of(name: str) -> str:
    """Return the device of that name; ``auto`` is a GPU if there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without it
        reason = str(error).partition("\n")[0]
        raise InputError(f"there is no device {name!r} here ({reason}); give cpu, cuda:0, or auto") from error
    return name


def _with_lora(base: Base, rank: int, seed: int) -> Any:
    """The model wrapped by peft, as it is saved; the matrices are put into the model itself."""
    import torch

    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError as error:
        raise ModelError(f"LoRA needs peft ({error}); pip install 'querywright[train]'") from error
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type=TaskType.CAUSAL_LM,
    )
    with torch.random.fork_rng(devices=[]), quietly_adapting():
        torch.manual_seed(seed % 2**63)
        try:
            return get_peft_model(base.model, config)
        except ValueError as error:
            raise InputError(f"LoRA cannot be put into the base model: {error}; give another --base") from error
