"""A transformers model in training: it writes, says how likely its words were, and learns.

LoRA by default: small matrices beside the frozen weights. The model runs without dropout when it learns as well, so
that nothing is drawn but tokens, and these from seeds that are given; a training that is taken up again then ends as
one that was never interrupted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from querywright.errors import InputError, ModelError, PromptTooLongError
from querywright.models.hf import Base, context_of, encode, encode_completion, end_tokens
from querywright.optimize.rewriter.batches import Batch, Kind, portions, token_log_probs
from querywright.optimize.rewriter.devices import Copies, devices_of
from querywright.optimize.rewriter.drawing import check_drawing, draw, likeliest, numbers_of
from querywright.optimize.rewriter.gradient import SMALLER, TrainingError
from querywright.optimize.rewriter.lora import LoraSettings, lora_files, with_lora
from querywright.optimize.rewriter.types import Completion, Messages

DTYPES = ("auto", "float32", "bfloat16")
_ROOMY = 8  # times as many tokens at a time on a GPU
_WRITTEN = 32_768  # tokens whose keys and values are in memory when writing
_READ = 4_096  # tokens that are gone through at a time when learning


def check_dtype(name: str) -> None:
    """Raise where there is no such dtype.

    Args:
        name: One of ``DTYPES``.

    Raises:
        InputError: It is none of them.
    """
    if name not in DTYPES:
        raise InputError(f"there is no dtype {name!r}; give one of {', '.join(DTYPES)}")


class HFPolicy:
    """A causal or sequence-to-sequence model of transformers as the policy in training.

    What it is when it is made is its reference, until ``set_reference`` is called.

    Args:
        model: From ``load_base``; LoRA is put into it, and its weights are kept in 32 bits.
        tokenizer: Its tokenizer.
        kind: How it writes.
        lora: The matrices to train; None trains all weights.
        device: Such as ``cpu``, ``cuda:0`` or ``cuda:0,cuda:1``, which share a batch; ``auto`` takes a GPU where there
            is one.
        dtype: What is computed in: ``float32``, ``bfloat16``, or ``auto`` for bfloat16 on a GPU that has it.
        seed: Of the first values of LoRA.

    Raises:
        InputError: There is no such dtype or device, or LoRA's targets are not in the model.
        ModelError: The tokenizer has no end token, or the extra ``train`` is missing.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        kind: Kind,
        *,
        lora: LoraSettings | None,
        device: str = "auto",
        dtype: str = "auto",
        seed: int = 0,
    ) -> None:
        import torch

        check_dtype(dtype)
        devices = devices_of(device)
        self.device, self.width = devices[0], len(devices)
        self.kind: Kind = kind
        self.tokenizer, self.lora = tokenizer, lora
        self._ends = end_tokens(Base(model, tokenizer, kind))
        if tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer of the base model has no end token; take a model whose tokenizer has one")
        self._pad = self._ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._start = _start(model) if kind == "seq2seq" else 0
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        # A window counts places and not positions, so there must be no gap between prompt and completion.
        self.shares_prompts = kind == "causal" and not getattr(model.config, "sliding_window", None)
        model.to(torch.float32)  # float() is refused for a model that was read from a GGUF file
        self._peft = None if lora is None else with_lora(model, lora, kind, seed)
        if lora is None:
            model.requires_grad_(True)
        self.model, self._copies = model, Copies(model, devices)
        gpu = self.device.startswith("cuda")
        half = dtype == "bfloat16" or (dtype == "auto" and gpu and torch.cuda.is_bf16_supported())
        self._autocast = partial(torch.autocast, self.device.partition(":")[0], torch.bfloat16, enabled=half)
        self._budgets = (_WRITTEN * _ROOMY, _READ * _ROOMY) if gpu else (_WRITTEN, _READ)
        self._reference: dict[str, Any] = {}
        self.set_reference()

    def parameters(self) -> Mapping[str, Any]:
        """The tensors in training, by name."""
        return {name: one for name, one in self.model.named_parameters() if one.requires_grad}

    def set_reference(self) -> None:
        """What the policy is now becomes the reference."""
        self._reference = {name: one.detach().clone() for name, one in self.parameters().items()}

    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        """Take values for all tensors in training.

        Args:
            tensors: By name, as of ``parameters``.

        Raises:
            InputError: The names or shapes are those of another training.
        """
        import torch

        mine = self.parameters()
        if {name: one.shape for name, one in mine.items()} != {name: one.shape for name, one in tensors.items()}:
            raise InputError(
                "the tensors are of another base model or of other LoRA settings than the training; give the same "
                "base, rank and targets, or another folder"
            )
        with torch.no_grad():
            for name, one in mine.items():
                one.copy_(tensors[name])

    def prompt(self, messages: Messages) -> tuple[int, ...]:
        """Tokens of a prompt.

        Args:
            messages: The prompt.
        """
        return tuple(encode(self.tokenizer, self.kind, messages))

    def taught(self, messages: Messages, text: str) -> Completion:
        """A text of someone else as a completion, with the end token and no log-probabilities.

        Args:
            messages: The prompt.
            text: The completion.
        """
        tokens = tuple(encode_completion(self.tokenizer, text))
        return Completion(text, self.prompt(messages), tokens, (), ended=True)

    def refused(self, messages: Messages, room: int) -> PromptTooLongError | None:
        """Why a prompt cannot be answered: it and the room after it do not fit the model's context.

        Args:
            messages: The prompt.
            room: Tokens of a completion at most.
        """
        return self._too_long(len(self.prompt(messages)), room)

    def fits(self, completion: Completion) -> bool:
        """Whether prompt and completion fit the model's context."""
        return self._too_long(len(completion.prompt), len(completion.tokens)) is None

    def write(
        self,
        prompts: Sequence[Messages],
        *,
        seeds: Sequence[int] | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        room: int = 64,
    ) -> list[Completion]:
        """A completion a prompt, in order.

        Args:
            prompts: What is asked.
            seeds: One a prompt, for drawing. None writes the likeliest token each time; its log-probability is then
                that among all tokens at temperature 1.
            temperature: More than 0.
            top_k: The likeliest tokens that are drawn from; 0 for all.
            top_p: Tokens are drawn from the likeliest whose probabilities sum up to this.
            room: Tokens of a completion at most.

        Raises:
            InputError: A value is out of range, or there are more or fewer seeds than prompts.
            PromptTooLongError: A prompt and the room after it do not fit the model's context.
            TrainingError: The model gives numbers that are none.
        """
        import torch

        check_drawing(len(prompts), seeds, temperature, top_k, top_p, room)
        made = [self.prompt(messages) for messages in prompts]
        for prompt in made:
            if error := self._too_long(len(prompt), room):
                raise error
        choose = partial(draw, temperature=temperature, top_k=top_k, top_p=top_p)

        def write(places: Sequence[int], batch: Batch) -> list[Completion]:
            numbers = None if seeds is None else numbers_of([seeds[place] for place in places], room)
            return self._written([made[place] for place in places], batch, numbers, choose, room)

        lengths = [len(prompt) + room for prompt in made]
        return self._on_devices(made, lengths, self._budgets[0], torch.inference_mode, write)

    def log_probs(self, completions: Sequence[Completion], *, reference: bool = False) -> list[Any]:
        """A tensor a completion: the log-probability of each of its tokens, at temperature 1 and without cuts.

        All that one call goes through stays in memory until the gradient was taken, so call it with few completions
        at a time, those of one prompt together: a prompt that several of them share is gone through once.

        Args:
            completions: What ``write`` gave, or tokens of someone else.
            reference: Under the reference, without gradients, instead of the policy in training.
        """
        import torch

        kept = [one for one in completions if one.tokens]

        def score(places: Sequence[int], batch: Batch) -> list[Any]:
            scored = token_log_probs(batch, [kept[place].tokens for place in places], self._pad, batch.device)
            return [one.to(self.device) for one in scored]

        mode = partial(torch.set_grad_enabled, torch.is_grad_enabled() and not reference)
        prompts, lengths = [one.prompt for one in kept], [len(one.tokens) for one in kept]
        scored = iter(self._on_devices(prompts, lengths, self._budgets[1], mode, score, reference=reference))
        return [next(scored) if one.tokens else torch.zeros(0, device=self.device) for one in completions]

    def adapter(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """LoRA as peft writes it: its configuration and its tensors.

        Raises:
            InputError: All weights are trained.
        """
        if self._peft is None:
            raise InputError("all weights are trained, so there is no adapter; save the model itself")
        return lora_files(self._peft)

    def _on_devices(
        self,
        prompts: Sequence[tuple[int, ...]],
        lengths: Sequence[int],
        budget: int,
        mode: Callable[[], Any],
        work: Callable[[Sequence[int], Batch], list[Any]],
        *,
        reference: bool = False,
    ) -> list[Any]:
        """What comes of each prompt: all devices do their share, a portion at a time, in a torch mode."""

        def share(device: int, mine: list[int]) -> list[Any]:
            found: dict[int, Any] = {}
            with mode(), self._autocast():
                # The first device has the weights that are trained.
                tensors = self._reference if reference else self.parameters() if device else None
                call = self._copies.model(device, tensors)
                asked, sizes = [prompts[place] for place in mine], [lengths[place] for place in mine]
                for part in portions(asked, sizes, budget, share=self.shares_prompts):
                    places = [mine[number] for number in part]
                    batch = Batch(
                        call,
                        self.kind,
                        [prompts[place] for place in places],
                        pad=self._pad,
                        start=self._start,
                        device=self._copies.devices[device],
                        takes=self._takes,
                        share=self.shares_prompts,
                    )
                    found.update(zip(places, work(places, batch), strict=True))
            return [found[place] for place in mine]

        return self._copies.share_out(prompts, share)

    def _written(
        self, prompts: Sequence[tuple[int, ...]], batch: Batch, numbers: Any, choose: Any, room: int
    ) -> list[Completion]:
        import torch

        tokens: list[list[int]] = [[] for _ in prompts]
        log_probs: list[list[float]] = [[] for _ in prompts]
        rows = list(range(len(prompts)))
        for step in range(room):
            if not bool(torch.isfinite(batch.logits.amax(-1)).all()):
                raise TrainingError(
                    f"the logits are no numbers at token {step + 1} of a completion: the training cannot go on; "
                    f"{SMALLER.format('--warmup-lr or --lr')}"
                )
            chosen, scores = likeliest(batch.logits) if numbers is None else choose(batch.logits, numbers[rows, step])
            for row, token, score in zip(rows, chosen.tolist(), scores.tolist(), strict=True):
                tokens[row].append(token)
                log_probs[row].append(score)
            going = [number for number, row in enumerate(rows) if tokens[row][-1] not in self._ends]
            if not going or step + 1 == room:
                break
            if len(going) < len(rows):
                left = torch.tensor(going, device=chosen.device)
                batch.keep(left)
                chosen, rows = chosen[left], [rows[number] for number in going]
            batch.feed(chosen[:, None])
        return [self._completion(*one) for one in zip(prompts, tokens, log_probs, strict=True)]

    def _completion(self, prompt: tuple[int, ...], tokens: list[int], log_probs: list[float]) -> Completion:
        ended = tokens[-1] in self._ends
        words = tokens[:-1] if ended else tokens
        text = self.tokenizer.decode(words, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return Completion(text, prompt, tuple(tokens), tuple(log_probs), ended)

    def _too_long(self, prompt: int, room: int) -> PromptTooLongError | None:
        context = context_of(self.model)
        taken = prompt + room if self.kind == "causal" else max(prompt, room)  # an encoder has places of its own
        return None if context is None or taken <= context else PromptTooLongError(prompt, context, room)


def _start(model: Any) -> int:
    for config in (model.generation_config, model.config):
        if getattr(config, "decoder_start_token_id", None) is not None:
            return int(config.decoder_start_token_id)
    raise ModelError("the base model's configuration has no decoder_start_token_id; add it to its config.json")
