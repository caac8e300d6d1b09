"""A LoRA adapter of a llama model, as peft writes it, in the form that llama.cpp reads.

llama.cpp turns pairs of neighbours where transformers turns halves, so its files hold the rows of the query and key
weights in another order. What an adapter adds to those weights is put into that order too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from querywright.errors import InputError
from querywright.models.gguf_files import read_header, write_gguf

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


def write_lora_gguf(adapter: Path, target: Path, base: Path) -> None:
    """Write an adapter, the folder that ``save_weights`` wrote, for the llama model of a GGUF file, in half precision.

    Raises:
        InputError: It has weights for which llama.cpp has no place.
        OSError: It cannot be read or written.
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
    """The rows of a query or key weight in llama.cpp's order."""
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
            raise InputError(f"the adapter has {name!r}, for which llama.cpp has no place; train {known} alone")
        part = match.group(3).lower()
        if part == "b" and weight in heads:
            tensor = rows_for_llama(tensor, heads[weight])
        converted[f"blk.{match.group(1)}.{weight}.weight.lora_{part}"] = tensor.astype("float16").copy(order="C")
    return converted
