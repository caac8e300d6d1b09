"""Load the embedded model in transformers, and tokenize prompts for it.

The model is loaded from the same file that llama.cpp uses, and prompts are tokenized identically: same chat template,
same tokenizer, and control tokens in a message are treated as plain text.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from querywright.models import gguf_files

_TEMPLATE = "tokenizer.chat_template"


class Base(NamedTuple):
    """A causal model in evaluation mode, and its tokenizer, which has a padding token."""

    model: Any
    tokenizer: Any


def load_base() -> Base:
    """Load the embedded model with 32-bit weights.

    Raises:
        ModelError: The model's package is missing.
    """
    import torch
    from transformers import AutoModelForCausalLM

    file = gguf_files.packaged_file()
    with quietly():
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    if quantizer := getattr(model, "hf_quantizer", None):
        quantizer.remove_quantization_config(model)  # the weights are no longer quantized, so they can be saved
    return Base(model.eval(), load_tokenizer())


def load_tokenizer() -> Any:
    """Load the embedded model's tokenizer."""
    from transformers import PreTrainedTokenizerFast

    # transformers can read a tokenizer from a GGUF file, but that tokenizer does not split numbers into digits.
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
    )


def prompt_text(tokenizer: Any, messages: Sequence[tuple[str, str]]) -> str:
    """Return the prompt that the model reads, formatted with the chat template.

    Args:
        tokenizer: Tokenizer from ``load_base``.
        messages: Role and content of each message; the role is ``system``, ``user``, or ``assistant``.
    """
    framed = [{"role": role, "content": broken_up(tokenizer, content)} for role, content in messages]
    return str(tokenizer.apply_chat_template(framed, tokenize=False, add_generation_prompt=True))


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return a text's tokens; control tokens in the text keep their meaning."""
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def encode_completion(tokenizer: Any, text: str) -> list[int]:
    """Return a completion's tokens, followed by the end token; control tokens in the text are broken up."""
    return [*encode(tokenizer, broken_up(tokenizer, text)), tokenizer.eos_token_id]


def broken_up(tokenizer: Any, text: str) -> str:
    """Return the text with a space inside each control token, so that the model treats it as plain text."""
    special = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return gguf_files.broken_up(text, {*special, *tokenizer.all_special_tokens})


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Turn off progress bars and messages from transformers inside the ``with`` block."""
    from transformers.utils import logging

    said: Any = logging  # its functions have no type annotations
    reading: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    level, bars, bar = said.get_verbosity(), said.is_progress_bar_enabled(), reading.tqdm
    said.set_verbosity_error()
    said.disable_progress_bar()
    reading.tqdm = functools.partial(bar, disable=True)  # this progress bar ignores the settings
    try:
        yield
    finally:
        reading.tqdm = bar
        said.set_verbosity(level)
        if bars:
            said.enable_progress_bar()


@contextlib.contextmanager
def quietly_training() -> Iterator[None]:
    """Turn off transformers' progress bars and messages, and irrelevant warnings, inside the ``with`` block."""
    with quietly(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*gradient_checkpointing` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "Could not find a config file in", UserWarning)
        yield
