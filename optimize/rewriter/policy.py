"""A transformers model in training: it writes, says how likely its words were, and learns.

LoRA by default: small matrices beside the frozen weights. The model runs without dropout when it learns as well, so
that nothing is drawn but tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from querywright.errors import InputError, ModelError, PromptTooLongError, QuerywrightError
from querywright.models.hf import Base, context_of, encode, encode_completion, end_tokens, quietly_adapting
from querywright.models.rewriter_bases import save_weights
from querywright.optimize.rewriter.batches import Batch, padded, portions
from querywright.optimize.rewriter.types import Completion, Messages

DTYPES = ("auto", "float32", "bfloat16")
SMALLER = (
    "begin again with a smaller learning rate ({}) or 32 bits (--dtype float32), in another working folder (--work)"
)
"""What to do about numbers that are none, with the name of the option."""
_WRITTEN = 32_768  # tokens whose keys and values are in memory when writing
_READ = 4_096  # tokens that are gone through at a time when learning


class TrainingError(QuerywrightError):
    """A training that cannot go on; its last checkpoint is whole."""


def check_dtype(name: str) -> None:
    """Raise where there is no such dtype.

    Raises:
        InputError: It is none of ``DTYPES``.
    """
    if name not in DTYPES:
        raise InputError(f"there is no dtype {name!r}; give one of {', '.join(DTYPES)}")


class HFPolicy:
    """A causal or sequence-to-sequence model of transformers as the policy in training.

    What it is when it is made is its reference, until ``set_reference`` is called. ``pad`` fills short rows, ``start``
    begins a sequence-to-sequence model's output, ``takes`` names the arguments that the model takes, and ``shares``
    says whether what all prompts of a batch begin with is gone through once.

    Args:
        base: From ``load_base``; LoRA is put into its model, whose weights are kept in 32 bits.
        rank: Inner size of LoRA's matrices, which count twice; None trains all weights.
        device: Such as ``cpu`` or ``cuda:0``; ``auto`` takes a GPU where there is one.
        dtype: What is computed in: ``float32``, ``bfloat16``, or ``auto`` for bfloat16 on a GPU that has it.
        seed: Of the first values of LoRA.

    Raises:
        InputError: There is no such dtype or device, or LoRA cannot be put into the model.
        ModelError: The tokenizer has no end token, or the extra ``train`` is missing.
    """

    def __init__(
        self, base: Base, *, rank: int | None = 16, device: str = "auto", dtype: str = "auto", seed: int = 0
    ) -> None:
        import torch

        check_dtype(dtype)
        model, tokenizer, kind = base
        if tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer of the base model has no end token; take a model whose tokenizer has one")
        self.device, self.tokenizer, self.kind = device_of(device), tokenizer, kind
        self._ends = end_tokens(base)
        self.pad = self._ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.start = _start(model) if kind == "seq2seq" else 0
        self.takes = frozenset(inspect.signature(model.forward).parameters)
        # A window counts places and not positions, so there must be no gap between prompt and completion.
        self.shares = kind == "causal" and not getattr(model.config, "sliding_window", None)
        model.to(torch.float32)  # float() is refused for a model that was read from a GGUF file
        self._saved = base._replace(model=model.requires_grad_(True) if rank is None else _with_lora(base, rank, seed))
        self.model = model.to(self.device).eval()
        gpu = self.device.startswith("cuda")
        half = dtype == "bfloat16" or (dtype == "auto" and gpu and torch.cuda.is_bf16_supported())
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
                "base and rank, or another folder"
            )
        with torch.no_grad():
            for name, one in mine.items():
                one.copy_(tensors[name])

    def prompt(self, messages: Messages) -> tuple[int, ...]:
        """Tokens of a prompt."""
        kind: Any = self.kind
        return tuple(encode(self.tokenizer, kind, messages))

    def taught(self, messages: Messages, text: str) -> Completion:
        """A text of someone else as a completion, with the end token."""
        tokens = tuple(encode_completion(self.tokenizer, text))
        return Completion(text, self.prompt(messages), tokens, ended=True)

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
        room: int,
        seed: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
    ) -> list[Completion]:
        """A completion a prompt, in order.

        Args:
            prompts: What is asked; none that is ``refused``.
            room: Tokens of a completion at most.
            seed: Of the draws. None writes the likeliest token each time.
            temperature: More than 0.
            top_k: The likeliest tokens that are drawn from; 0 for all.

        Raises:
            TrainingError: The model gives numbers that are none.
        """
        import torch

        made = [self.prompt(messages) for messages in prompts]
        choose: Callable[[Any], Any] = partial(torch.argmax, dim=-1)
        if seed is not None:
            generator = torch.Generator(self.device).manual_seed(seed)
            choose = partial(_draw, generator=generator, temperature=temperature, top_k=top_k)
        found: dict[int, Completion] = {}
        sizes = [len(prompt) + room for prompt in made]
        with torch.inference_mode(), self._autocast():
            for places in portions(made, sizes, _WRITTEN, shares=self.shares):
                found.update(zip(places, self._written([made[place] for place in places], choose, room), strict=True))
        return [found[place] for place in range(len(made))]

    def parts(self, completions: Sequence[Completion]) -> list[list[int]]:
        """Places of completions in portions that ``log_probs`` can go through with gradients at a time."""
        prompts, lengths = [one.prompt for one in completions], [len(one.tokens) for one in completions]
        return portions(prompts, lengths, _READ, shares=self.shares)

    def log_probs(self, completions: Sequence[Completion], *, reference: bool = False) -> list[Any]:
        """A tensor a completion: the log-probability of each of its tokens, at temperature 1 and without cuts.

        All that one call goes through stays in memory until the gradient was taken; see ``parts``. A prompt that
        several of them share is gone through once.

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
        tokens, _ = padded([one.tokens for one in completions], self.pad)
        tokens = tokens.to(self.device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reference), self._autocast():
            this: Any = self
            batch = Batch(this, call, [one.prompt for one in completions])
            logits = batch.logits[:, None]
            if tokens.shape[1] > 1:
                logits = torch.cat([logits, batch.feed(tokens[:, :-1])], dim=1)
            losses = torch.nn.functional.cross_entropy(
                logits.float().flatten(0, 1), tokens.flatten(), reduction="none"
            ).view_as(tokens)
        return [-losses[number, : len(one.tokens)] for number, one in enumerate(completions)]

    def save(self, folder: Path) -> None:
        """Write what was trained, and the tokenizer, as ``write_rewriter`` takes them.

        Args:
            folder: Made when it is missing.
        """
        save_weights(self._saved, folder)

    def _written(self, prompts: Sequence[tuple[int, ...]], choose: Callable[[Any], Any], room: int) -> list[Completion]:
        import torch

        this: Any = self
        batch = Batch(this, self.model, prompts)
        tokens: list[list[int]] = [[] for _ in prompts]
        rows = list(range(len(prompts)))
        for step in range(room):
            if not bool(torch.isfinite(batch.logits.amax(-1)).all()):
                raise TrainingError(
                    f"the logits are no numbers at token {step + 1} of a completion: the training cannot go on; "
                    f"{SMALLER.format('--warmup-lr or --lr')}"
                )
            chosen = choose(batch.logits)
            for row, token in zip(rows, chosen.tolist(), strict=True):
                tokens[row].append(token)
            going = [number for number, row in enumerate(rows) if tokens[row][-1] not in self._ends]
            if not going or step + 1 == room:
                break
            if len(going) < len(rows):
                left = torch.tensor(going, device=chosen.device)
                batch.keep(left)
                chosen, rows = chosen[left], [rows[number] for number in going]
            batch.feed(chosen[:, None])
        return [self._completion(*one) for one in zip(prompts, tokens, strict=True)]

    def _completion(self, prompt: tuple[int, ...], tokens: list[int]) -> Completion:
        ended = tokens[-1] in self._ends
        words = tokens[:-1] if ended else tokens
        text = self.tokenizer.decode(words, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return Completion(text, prompt, tuple(tokens), ended)

    def _too_long(self, prompt: int, room: int) -> PromptTooLongError | None:
        context = context_of(self.model)
        taken = prompt + room if self.kind == "causal" else max(prompt, room)  # an encoder has places of its own
        return None if context is None or taken <= context else PromptTooLongError(prompt, context, room)


def _draw(logits: Any, *, generator: Any, temperature: float, top_k: int) -> Any:
    """A token a row."""
    import torch

    most = logits.shape[-1]
    scores, names = (logits.float() / temperature).topk(min(top_k or most, most), dim=-1)
    drawn = torch.multinomial(torch.softmax(scores, dim=-1), 1, generator=generator)
    return names.gather(-1, drawn)[:, 0]


def device_of(name: str) -> str:
    """The device of that name; ``auto`` is a GPU where there is one.

    Raises:
        InputError: There is no such device.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        here = torch.get_device_module(device.type)
    except RuntimeError:
        raise InputError(f"there is no device {name!r}; give cpu, cuda:0, or auto") from None
    if not here.is_available():
        raise InputError(f"there is no GPU for the device {name!r}; give cpu, or install torch for the GPU")
    if (device.index or 0) >= here.device_count():
        raise InputError(f"there is no device {name!r}: those of its kind are numbered 0 to {here.device_count() - 1}")
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
        task_type=TaskType.CAUSAL_LM if base.kind == "causal" else TaskType.SEQ_2_SEQ_LM,
    )
    with torch.random.fork_rng(devices=[]), quietly_adapting():
        torch.manual_seed(seed % 2**63)
        try:
            return get_peft_model(base.model, config)
        except ValueError as error:
            raise InputError(f"LoRA cannot be put into the base model: {error}; give --full") from error


def _start(model: Any) -> int:
    for config in (model.generation_config, model.config):
        if getattr(config, "decoder_start_token_id", None) is not None:
            return int(config.decoder_start_token_id)
    raise ModelError("the base model's configuration has no decoder_start_token_id; add it to its config.json")
