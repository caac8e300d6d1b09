"""A base model through transformers: the embedded one, a folder's or the hub's, and prompts in its tokens.

The embedded model is read from the very file that llama.cpp runs, and its prompts become the same tokens: the same
chat template, the same splitting, and control tokens inside a message are broken up. Weights are read from
safetensors and GGUF only, and no code of a model's own is run.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from querywright.errors import ModelError
from querywright.models import gguf_files

EMBEDDED = "embedded"
_TEMPLATE = "tokenizer.chat_template"


class Base(NamedTuple):
    """A causal model in evaluation mode, and its tokenizer, which has a padding token."""

    model: Any
    tokenizer: Any


def load_base(name: str = EMBEDDED, *, dtype: str = "float32", revision: str | None = None) -> Base:
    """Load a base model.

    Args:
        name: ``embedded``, a folder with a causal transformers model, or the name of such a model on the Hugging Face
            hub.
        dtype: Of its weights, as torch names it.
        revision: Commit of a model of the hub. Default None: the newest.

    Raises:
        ModelError: The model is missing, cannot be read, is not causal, or has no safetensors or no chat template.
    """
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(name, revision=revision)
    numbers = getattr(torch, dtype)
    with _loading(name):
        if name == EMBEDDED:
            file = gguf_files.packaged_file()
            model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=numbers)
            if quantizer := getattr(model, "hf_quantizer", None):
                quantizer.remove_quantization_config(model)  # its weights are plain numbers now, and can be saved
        else:
            place = _place(name, revision)
            model = AutoModelForCausalLM.from_pretrained(**place, use_safetensors=True, dtype=numbers)
    _check_template(tokenizer)
    tokenizer.padding_side = "left"
    return Base(model.eval(), tokenizer)


def load_tokenizer(name: str = EMBEDDED, *, revision: str | None = None) -> Any:
    """The tokenizer of a model that ``load_base`` takes; one that names no padding token pads with its end token."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if name != EMBEDDED:
        with _loading(name):
            tokenizer = AutoTokenizer.from_pretrained(**_place(name, revision))
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer
    # As the file has it; transformers' own reading of a GGUF file leaves out that digits stand alone.
    file = gguf_files.packaged_file()
    vocabulary = gguf_files.read_vocabulary(file)
    eos, bos = (None if one is None else vocabulary.tokens[one] for one in (vocabulary.eos, vocabulary.bos))
    return PreTrainedTokenizerFast(
        tokenizer_object=vocabulary.tokenizer(),
        eos_token=eos,
        bos_token=bos,
        pad_token=eos,
        extra_special_tokens=list(vocabulary.control),
        chat_template=gguf_files.read_header(file, {_TEMPLATE})[_TEMPLATE].decode(),
        clean_up_tokenization_spaces=False,
        padding_side="left",
        name_or_path=EMBEDDED,
    )


def context_of(model: Any) -> int | None:
    """Return the tokens that a model can go through at most; None if its configuration does not say."""
    lengths = (getattr(model.config, name, None) for name in ("max_position_embeddings", "n_positions"))
    return next((int(length) for length in lengths if length), None)


def encode(tokenizer: Any, messages: Sequence[tuple[str, str]]) -> list[int]:
    """Return the tokens of a prompt, framed by the chat template.

    Args:
        tokenizer: Of ``load_base``.
        messages: Role and content of each: ``system``, ``user`` or ``assistant``. If the assistant's message is the
            last one, the model continues it.
    """
    texts = [(role, broken_up(tokenizer, content)) for role, content in messages]
    begun = texts.pop()[1] if texts and texts[-1][0] == "assistant" else ""
    framed = [{"role": role, "content": text} for role, text in texts]
    from jinja2.exceptions import TemplateError

    _check_template(tokenizer)
    try:
        text = tokenizer.apply_chat_template(framed, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        roles = ", ".join(role for role, _ in texts)
        raise ModelError(
            f"the chat template of the model {_named(tokenizer)} refuses messages of these roles: {roles} ({error}); "
            "take a model whose template allows them"
        ) from error
    return list(tokenizer(text + begun, add_special_tokens=False).input_ids)


def encode_completion(tokenizer: Any, text: str) -> list[int]:
    """The tokens of what a model is to write, its end token last; control tokens in it are broken up."""
    tokens = list(tokenizer(broken_up(tokenizer, text), add_special_tokens=False).input_ids)
    return [*tokens, tokenizer.eos_token_id]


def end_tokens(base: Base) -> tuple[int, ...]:
    """The tokens that end a completion, the tokenizer's own first."""
    given = getattr(base.model.generation_config, "eos_token_id", None)
    found = [base.tokenizer.eos_token_id, *(given if isinstance(given, (list, tuple)) else [given])]
    return tuple(dict.fromkeys(int(token) for token in found if token is not None))


def broken_up(tokenizer: Any, text: str) -> str:
    """The text with a space inside each control token: the same to a reader, plain text to the model."""
    special = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return gguf_files.broken_up(text, {*special, *tokenizer.all_special_tokens})


def _check_template(tokenizer: Any) -> None:
    if not tokenizer.chat_template:
        raise ModelError(
            f"the model {_named(tokenizer)} has no chat template, so no prompt can be framed for it; take the version "
            "of the model that was tuned to follow instructions, or put a chat_template.jinja into its folder"
        )


def _named(tokenizer: Any) -> str:
    return repr(Path(tokenizer.name_or_path or "").name)


def _place(name: str, revision: str | None) -> dict[str, Any]:
    """Where a model is: the folder of that name, or else the name on the hub."""
    folder = Path(name).expanduser()
    place = str(folder) if os.path.isdir(folder) else name
    return {"pretrained_model_name_or_path": place, "revision": revision or "main", "trust_remote_code": False}


@contextlib.contextmanager
def _loading(name: str) -> Iterator[None]:
    """Without transformers' bars and remarks, and with one kind of error."""
    import httpx

    try:
        with quietly():
            yield
    except (OSError, ValueError, KeyError, ImportError, httpx.HTTPError) as error:
        if os.path.isdir(os.path.expanduser(name)):
            remedy = "give a folder that save_pretrained wrote: config.json, safetensors, and the tokenizer's files"
        else:
            remedy = (
                "give embedded, a folder, or the name of a model on the Hugging Face hub that has safetensors; "
                "without a network it must be in the hub's cache"
            )
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelError(f"the base model {name!r} cannot be used ({reason}); {remedy}") from error


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Inside the ``with`` block transformers draws no bars and makes no remarks while it loads."""
    from transformers.utils import logging

    said: Any = logging  # its functions carry no types
    reading: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    level, bars, bar = said.get_verbosity(), said.is_progress_bar_enabled(), reading.tqdm
    said.set_verbosity_error()
    said.disable_progress_bar()
    reading.tqdm = functools.partial(bar, disable=True)  # this one listens to no setting
    try:
        yield
    finally:
        reading.tqdm = bar
        said.set_verbosity(level)
        if bars:
            said.enable_progress_bar()


@contextlib.contextmanager
def quietly_adapting() -> Iterator[None]:
    """Without what peft causes transformers to deprecate."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*is_gradient_checkpointing", FutureWarning)
        yield
