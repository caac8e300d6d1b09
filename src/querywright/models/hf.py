"""A base model through transformers: the embedded one, a folder's or the hub's, and prompts in its tokens.

The embedded model is read from the very file that llama.cpp runs, and its prompts become the same tokens: the same
chat template, the same splitting, and control tokens inside a message are broken up. Weights are read from
safetensors and GGUF only, and no code of a model's own is run.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from querywright.errors import ModelError
from querywright.models.embedded import packaged_file
from querywright.models.openmp import limit_spinning
from querywright.models.requantize import read_header
from querywright.models.vocabulary import CONTROL, byte_pairs

Kind = Literal["causal", "seq2seq"]
"""How a model writes: on and on after its prompt, or from an encoded input."""

EMBEDDED = "embedded"
_KEYS = ("tokens", "token_type", "merges", "eos_token_id", "bos_token_id")
_TEMPLATE = "tokenizer.chat_template"
_LENGTHS = ("max_position_embeddings", "n_positions")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


class Base(NamedTuple):
    """A model that can be trained, with its tokenizer.

    Args:
        model: The transformers model, in evaluation mode.
        tokenizer: Its tokenizer; it has a padding token, and pads a causal model's prompts on the left.
        kind: How it writes.
    """

    model: Any
    tokenizer: Any
    kind: Kind


def load_base(name: str = EMBEDDED, *, dtype: str = "float32", revision: str | None = None) -> Base:
    """A base model.

    Args:
        name: ``embedded``, a folder with a transformers model in it, or a name on the Hugging Face hub.
        dtype: Of its weights, as torch names it.
        revision: Commit of a model of the hub; the name is then the hub's, also where a folder has it. Default None:
            a folder, or the newest of the hub.

    Raises:
        ModelError: It is missing, cannot be read, has no safetensors, or is a causal model without a chat template.
    """
    limit_spinning()
    import torch

    tokenizer = load_tokenizer(name, revision=revision)
    try:
        with _quietly():
            model, kind = _model(name, getattr(torch, dtype), revision)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unusable(name, error) from error
    if kind == "causal":
        _template(tokenizer)
    tokenizer.padding_side = "left" if kind == "causal" else "right"
    model.eval()
    return Base(model, tokenizer, kind)


def load_tokenizer(name: str = EMBEDDED, *, revision: str | None = None) -> Any:
    """The tokenizer of a base model; one that names no padding token pads with its end token.

    Args:
        name: As ``load_base`` takes it.
        revision: As ``load_base`` takes it.

    Raises:
        ModelError: It is missing or cannot be read.
    """
    limit_spinning()
    from transformers import AutoTokenizer

    if name == EMBEDDED:
        return _embedded_tokenizer()
    try:
        with _quietly():
            tokenizer = AutoTokenizer.from_pretrained(_place(name, revision), trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unusable(name, error) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def context_of(model: Any) -> int | None:
    """Tokens that a model can go through at most; None where it counts places from one another, as T5 does.

    Args:
        model: Of transformers.
    """
    if hasattr(model.config, "relative_attention_num_buckets"):
        return None
    lengths = [getattr(model.config, name, None) for name in _LENGTHS]
    return next((int(length) for length in lengths if length), None)


def encode(tokenizer: Any, kind: Kind, messages: Sequence[tuple[str, str]]) -> list[int]:
    """The tokens of a prompt.

    Args:
        tokenizer: Of ``load_base``.
        kind: How its model writes. For a causal model the chat template frames the messages, and a last message of
            the assistant's is continued; for a sequence-to-sequence model their texts are joined by blank lines.
        messages: Role and content of each: ``system``, ``user`` or ``assistant``.

    Raises:
        ModelError: The model is causal and has no chat template, or its template refuses the messages.
    """
    texts = [(role, broken_up(tokenizer, content)) for role, content in messages]
    if kind == "seq2seq":
        return list(tokenizer("\n\n".join(text for _, text in texts if text)).input_ids)
    begun = texts.pop()[1] if texts and texts[-1][0] == "assistant" else ""
    framed = [{"role": role, "content": text} for role, text in texts]
    from jinja2.exceptions import TemplateError

    try:
        text = _template(tokenizer).apply_chat_template(framed, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        roles = ", ".join(role for role, _ in texts)
        raise ModelError(
            f"the chat template of {_named(tokenizer)} refuses messages of these roles: {roles} ({error}); "
            "take a model whose template allows them"
        ) from error
    return list(tokenizer(text + begun, add_special_tokens=False).input_ids)


def encode_completion(tokenizer: Any, text: str) -> list[int]:
    """The tokens of what a model is to write, its end token last.

    Args:
        tokenizer: Of ``load_base``.
        text: The completion; control tokens in it are broken up.
    """
    tokens = list(tokenizer(broken_up(tokenizer, text), add_special_tokens=False).input_ids)
    return [*tokens, tokenizer.eos_token_id]


def end_tokens(base: Base) -> tuple[int, ...]:
    """The tokens that end a completion, the tokenizer's own first."""
    given = getattr(base.model.generation_config, "eos_token_id", None)
    given = given if isinstance(given, (list, tuple)) else [given]
    found = [base.tokenizer.eos_token_id, *given]
    return tuple(dict.fromkeys(int(token) for token in found if token is not None))


def broken_up(tokenizer: Any, text: str) -> str:
    """The text with a space inside each control token: the same to a reader, plain text to the model."""
    added = tokenizer.added_tokens_decoder.values()
    special = {str(token) for token in added if token.special} | set(tokenizer.all_special_tokens)
    found = sorted((token for token in special if token in text), key=len, reverse=True)
    if not found:
        return text
    pattern = "|".join(map(re.escape, found))
    return re.sub(pattern, lambda match: f"{match.group()[0]} {match.group()[1:]}", text)


def _model(name: str, dtype: Any, revision: str | None) -> tuple[Any, Kind]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    if name == EMBEDDED:
        file = packaged_file()
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)
        if quantizer := getattr(model, "hf_quantizer", None):
            quantizer.remove_quantization_config(model)  # its weights are plain numbers now, and can be saved
        return model, "causal"
    place = _place(name, revision)
    config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    kind: Kind = "seq2seq" if config.is_encoder_decoder else "causal"
    loader = AutoModelForSeq2SeqLM if kind == "seq2seq" else AutoModelForCausalLM
    return loader.from_pretrained(
        place, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False
    ), kind


def _embedded_tokenizer() -> Any:
    """As the file has it; transformers' own reading of a GGUF file leaves out that digits stand alone."""
    from transformers import PreTrainedTokenizerFast

    header = read_header(packaged_file(), {*(f"tokenizer.ggml.{key}" for key in _KEYS), _TEMPLATE})
    tokens, kinds, merges, eos, bos = (header[f"tokenizer.ggml.{key}"] for key in _KEYS)
    texts = [token.decode(errors="replace") for token in tokens]
    control = [text for text, kind in zip(texts, kinds, strict=True) if kind == CONTROL]
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs(texts, merges),
        eos_token=texts[eos],
        bos_token=texts[bos],
        pad_token=texts[eos],
        extra_special_tokens=control,
        chat_template=header[_TEMPLATE].decode(),
        clean_up_tokenization_spaces=False,
        padding_side="left",
        name_or_path=EMBEDDED,
    )


def _template(tokenizer: Any) -> Any:
    """The tokenizer, when it can frame a chat."""
    if not tokenizer.chat_template:
        raise ModelError(
            f"{_named(tokenizer)} has no chat template, so no prompt can be framed for it; take the version of the "
            "model that was tuned to follow instructions, or put a chat_template.jinja into its folder"
        )
    return tokenizer


def _named(tokenizer: Any) -> str:
    return f"the model {Path(tokenizer.name_or_path).name!r}" if tokenizer.name_or_path else "the model"


def _place(name: str, revision: str | None = None) -> str:
    """The folder of that name, or else the name on the hub; the folder of the hub's cache where a commit is given."""
    if revision is not None:
        return _hub_folder(name, revision)
    folder = Path(name).expanduser()
    return str(folder) if folder.is_dir() else name


def _hub_folder(name: str, revision: str) -> str:
    """The folder of the hub's cache; what is not in it is downloaded."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted: dict[str, Any] = {"revision": revision, "allow_patterns": _HUB_FILES, "ignore_patterns": ["*/*"]}
    with contextlib.suppress(LocalEntryNotFoundError):
        found = Path(snapshot_download(name, local_files_only=True, **wanted))
        if (found / "config.json").is_file() and any(found.glob("*.safetensors")):
            return str(found)
    try:
        return str(snapshot_download(name, **wanted))
    except httpx.HTTPError as error:
        raise OSError(str(error) or type(error).__name__) from error


def _unusable(name: str, error: Exception) -> ModelError:
    if Path(_place(name)).is_dir():
        remedy = "give a folder that save_pretrained wrote: config.json, safetensors, and the tokenizer's files"
    else:
        remedy = (
            "give embedded, a folder, or the name of a model on the Hugging Face hub that has safetensors; "
            "without a network it must be in the hub's cache"
        )
    reason = str(error).strip().partition("\n")[0]
    return ModelError(f"the base model {name!r} cannot be used ({reason}); {remedy}")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without transformers' bars and remarks."""
    from transformers.utils import logging

    reading: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    level, bars, bar = logging.get_verbosity(), logging.is_progress_bar_enabled(), reading.tqdm
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    reading.tqdm = functools.partial(bar, disable=True)  # this one listens to no setting
    try:
        yield
    finally:
        reading.tqdm = bar
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def quietly_adapting() -> Iterator[None]:
    """Without what peft causes transformers to deprecate."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*is_gradient_checkpointing", FutureWarning)
        yield
