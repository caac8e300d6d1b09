"""A rewriter as a DSPy engine: in llama.cpp where its base is the embedded model, else through transformers.

Both see the same prompts. Through transformers the model writes the whole JSON object without a grammar, and the answer
is read as leniently as any model's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dspy.lm15 import Request, Response

from querywright.errors import ArtifactError, InputError, ModelError
from querywright.models.constrained_decoding import Schema
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings
from querywright.models.engine_errors import LMModelError, LMPromptTooLongError
from querywright.models.hf import Base, context_of, encode, end_tokens, load_base, quietly_adapting
from querywright.models.local_engine import LEAST_ROOM, MAX_TOKENS, LocalEngine, messages_of
from querywright.models.response_parsing import text_response
from querywright.models.rewriters import ADAPTER, ADAPTER_CONFIG, Rewriter, find_base

_REVISION = 2  # raised when the same request may have another answer
_LORA = ("r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "task_type", "bias", "fan_in_fan_out")


def rewriter_engine(rewriter: Rewriter, settings: EmbeddedSettings | None = None) -> LocalEngine:
    """The engine that a rewriter runs in.

    Raises:
        ModelError: Its base is not here, or settings are given that transformers has no use for.
    """
    find_base(rewriter.base, rewriter.path)  # a missing base is reported now and not at the first question
    if rewriter.adapter_gguf is not None and rewriter.base.kind == "embedded":
        return EmbeddedEngine(None, settings or rewriter.settings, rewriter)
    if settings is not None:
        raise ModelError(f"the rewriter {rewriter.name!r} runs through transformers, which takes no EmbeddedSettings")
    return TransformersEngine(rewriter)


def load_rewriter(rewriter: Rewriter, *, dtype: str = "float32") -> Base:
    """The model of a rewriter, its adapter attached, in evaluation mode.

    Raises:
        ModelError: Its base is not here, or ``peft`` is not installed.
        ArtifactError: Its adapter is not for its base.
    """
    revision = rewriter.base.digest if rewriter.base.kind == "hub" else None
    base = load_base(find_base(rewriter.base, rewriter.path), dtype=dtype, revision=revision)
    return base._replace(model=_adapted(base, rewriter).eval())


class TransformersEngine(LocalEngine):
    """A rewriter through transformers, on a GPU where there is one."""

    def __init__(self, rewriter: Rewriter) -> None:
        super().__init__(rewriter.identity)
        self.rewriter = rewriter

    @property
    def answers_identity(self) -> str:
        """Names all that an answer depends on beside its request."""
        return f"{self.identity} revision={_REVISION} transformers dtype={self._precision()[1]}"

    def _precision(self) -> tuple[str, str]:
        """Where it runs, and in which numbers."""
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        half = device.startswith("cuda") and torch.cuda.is_bf16_supported()
        return device, "bfloat16" if half else "float32"

    def _load(self) -> Base:
        device, dtype = self._precision()
        try:
            base = load_rewriter(self.rewriter, dtype=dtype)
        except InputError as error:
            raise LMModelError(str(error)) from error
        return base._replace(model=base.model.to(device))

    def _answer(self, model: Base, request: Request, schema: Schema | None) -> Response:
        messages = [(message["role"], message["content"]) for message in messages_of(request)]
        prompt = encode(model.tokenizer, messages)
        room = _room_for(model, len(prompt), request.config.max_tokens or MAX_TOKENS)
        tokens = _generated(model, prompt, room, request)
        text, is_cut = _until(model.tokenizer.decode(tokens, skip_special_tokens=True), request.config.stop or ())
        finish = "stop" if is_cut or (tokens and tokens[-1] in end_tokens(model)) else "length"
        return text_response(text, finish, request.model, len(prompt), len(tokens))


def _generated(base: Base, prompt: list[int], room: int, request: Request) -> list[int]:
    """The tokens that are written, the end token last where there is one.

    Nothing is done but what is asked for: a model's own generation_config may penalise, cut or beam.
    """
    import torch
    from transformers import GenerationConfig

    config = request.config
    sampling: dict[str, Any] = {"do_sample": False}
    if config.temperature:
        sampling = {"do_sample": True, "temperature": config.temperature, "top_p": config.top_p or 1.0, "top_k": 0}
    generation = GenerationConfig(
        max_new_tokens=room,
        eos_token_id=list(end_tokens(base)),
        pad_token_id=base.tokenizer.pad_token_id,
        **sampling,
    )
    ids = torch.tensor([prompt], device=base.model.device)
    with torch.random.fork_rng(devices=[ids.device] if ids.is_cuda else []), torch.no_grad():
        torch.manual_seed(config.seed or 0)
        written = base.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=generation)
    tokens: list[int] = written[0].tolist()
    return tokens[len(prompt) :]


def _room_for(base: Base, prompt: int, room: int) -> int:
    """Tokens of an answer: as many as are asked for, or as the context has left."""
    context = context_of(base.model)
    if context is None:
        return room
    least = min(room, LEAST_ROOM)
    if context - prompt < least:
        raise LMPromptTooLongError(prompt, context, least)
    return min(room, context - prompt)


def _until(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first of these, and whether one was there."""
    places = [text.find(stop) for stop in stops if stop in text]
    return (text[: min(places)], True) if places else (text, False)


def _adapted(base: Base, rewriter: Rewriter) -> Any:
    import torch
    from safetensors.torch import load_file

    try:
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    except ImportError as error:
        raise ModelError("a rewriter's adapter needs peft; run: pip install 'querywright[train]'") from error
    content = json.loads((rewriter.path / ADAPTER_CONFIG).read_bytes())
    # What peft draws for an adapter is replaced at once; nobody else's draws may depend on it.
    with quietly_adapting(), torch.random.fork_rng():
        model = get_peft_model(base.model, LoraConfig(**{key: content[key] for key in _LORA if key in content}))
        result = set_peft_model_state_dict(model, load_file(rewriter.path / ADAPTER))
    strange = [key for key in result.missing_keys if "lora_" in key] + list(result.unexpected_keys)
    if strange:
        raise ArtifactError(
            f"the adapter of the rewriter {rewriter.name!r} is not for its base {rewriter.base.name!r}: {strange[0]}; "
            "train it again"
        )
    return model
