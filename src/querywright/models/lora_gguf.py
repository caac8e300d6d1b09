"""A LoRA adapter of a llama model, as peft writes it, in the form that llama.cpp reads.

llama.cpp turns pairs of neighbours where transformers turns halves, so its files hold the rows of the query and key
weights in another order. What an adapter adds to those weights is put into that order too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from querywright.errors import InputError
from querywright.models.requantize import read_header

LORA_MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""The weights of a llama layer that an adapter can be for, by transformers' name, with llama.cpp's."""

_TENSOR = re.compile(r"(?:base_model\.model\.)?model\.layers\.(\d+)\.(.+)\.lora_([AB])(?:\.\w+)?\.weight")
_UNKNOWN_HERE = ("use_dora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication")
_ARCHITECTURE = "llama"
_HEADS = ("attention.head_count", "attention.head_count_kv")


def write_lora_gguf(adapter: Path, target: Path, base: Path) -> None:
    """Write an adapter for llama.cpp, in half precision.

    Args:
        adapter: The folder with peft's ``adapter_config.json`` and its tensors in ``adapter.safetensors``.
        target: The ``.gguf`` file to write.
        base: The GGUF file of the model that the adapter is for.

    Raises:
        InputError: The adapter is of a kind that llama.cpp has no form for, or is not for that model.
        OSError: It cannot be read or written.
    """
    from gguf import GGUFWriter
    from safetensors.numpy import load_file

    heads = _heads(base)
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    _check_config(config)
    tensors = _converted(load_file(adapter / "adapter.safetensors"), heads)
    writer = GGUFWriter(target, _ARCHITECTURE)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    # llama.cpp scales by alpha / rank; with rank-stabilised LoRA peft does by alpha / sqrt(rank).
    stretch = math.sqrt(config["r"]) if config.get("use_rslora") else 1.0
    writer.add_float32("adapter.lora.alpha", float(config["lora_alpha"]) * stretch)
    for name in sorted(tensors):
        writer.add_tensor(name, np.ascontiguousarray(tensors[name]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rows_for_llama(weights: Any, heads: int) -> Any:
    """The rows of a query or key weight in llama.cpp's order.

    Args:
        weights: As transformers has them, one row an output.
        heads: How many heads the rows are of.
    """
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def _heads(path: Path) -> dict[str, int]:
    """How many heads the weights of a GGUF file have whose rows are put in order."""
    architecture = read_header(path, {"general.architecture"})["general.architecture"].decode()
    if architecture != _ARCHITECTURE:
        raise InputError(
            f"an adapter for llama.cpp can be made for a llama model, but {path.name!r} is of the architecture "
            f"{architecture!r}; use the adapter through transformers"
        )
    found = read_header(path, {f"llama.{key}" for key in _HEADS})
    queries = int(found["llama.attention.head_count"])
    return {"attn_q": queries, "attn_k": int(found.get("llama.attention.head_count_kv", queries))}


def _check_config(config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise InputError(f"the adapter is of the kind {kind!r}; llama.cpp has a form for LORA alone")
    for key in _UNKNOWN_HERE:
        if config.get(key):
            raise InputError(f"the adapter has {key} = {config[key]!r}, for which llama.cpp has no form; train without")
    if config.get("bias", "none") != "none":
        raise InputError(f"the adapter trains biases (bias = {config['bias']!r}); train with bias = 'none'")


def _converted(tensors: Mapping[str, Any], heads: Mapping[str, int]) -> dict[str, Any]:
    converted = {}
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        weight = LORA_MODULES.get(match.group(2)) if match else None
        if match is None or weight is None:
            known = ", ".join(module.rpartition(".")[2] for module in LORA_MODULES)
            raise InputError(f"the adapter has {name!r}, for which llama.cpp has no place; train {known} alone")
        part = match.group(3).lower()
        if part == "b" and weight in heads:
            tensor = rows_for_llama(tensor, heads[weight])
        converted[f"blk.{match.group(1)}.{weight}.weight.lora_{part}"] = tensor.astype(np.float16)
    for name in converted:
        other = name[:-1] + ("b" if name.endswith("a") else "a")
        if other not in converted:
            raise InputError(f"the adapter has {name!r} without {other!r}; it is not whole")
    if not converted:
        raise InputError("the adapter has no tensors; it is not whole")
    return converted
