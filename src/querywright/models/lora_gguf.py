"""A LoRA adapter of a llama model, as peft writes it, in the form that llama.cpp reads.

llama.cpp turns pairs of neighbours where transformers turns halves, so its files hold the rows of the query and key
weights in another order. What an adapter adds to those weights is put into that order too.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
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
_HEADS = ("attention.head_count", "attention.head_count_kv")


def write_lora_gguf(adapter: Path, target: Path, base: Path) -> None:
    """Write an adapter for llama.cpp, in half precision; the file is whole whenever it exists.

    Args:
        adapter: The folder with peft's ``adapter_config.json`` and its tensors, in ``adapter_model.safetensors``
            or ``adapter.safetensors``.
        target: The ``.gguf`` file to write.
        base: The GGUF file of the model that the adapter is for.

    Raises:
        InputError: The adapter is of a kind that llama.cpp has no form for, or is not for that model.
        OSError: It cannot be read or written.
    """
    architecture, heads = _base(base)
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    _check_config(config)
    tensors = _converted(_read(adapter), heads)
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
    os.close(handle)
    try:
        _write(Path(name), architecture, _alpha(config), tensors)
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


def rows_for_llama(weights: Any, heads: int) -> Any:
    """The rows of a query or key weight in llama.cpp's order.

    Args:
        weights: As transformers has them, one row an output.
        heads: How many heads the rows are of.
    """
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def _base(path: Path) -> tuple[str, dict[str, int]]:
    """The architecture of a GGUF file, and how many heads the weights have whose rows are put in order."""
    architecture = read_header(path, {"general.architecture"})["general.architecture"].decode()
    if architecture != "llama":
        raise InputError(
            f"an adapter for llama.cpp can be made for a llama model, but {path.name!r} is of the architecture "
            f"{architecture!r}; use the adapter through transformers"
        )
    found = read_header(path, {f"llama.{key}" for key in _HEADS})
    queries = int(found["llama.attention.head_count"])
    return architecture, {"attn_q": queries, "attn_k": int(found.get("llama.attention.head_count_kv", queries))}


def _check_config(config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise InputError(f"the adapter is of the kind {kind!r}; llama.cpp has a form for LORA alone")
    for key in _UNKNOWN_HERE:
        if config.get(key):
            raise InputError(f"the adapter has {key} = {config[key]!r}, for which llama.cpp has no form; train without")
    if config.get("bias", "none") != "none":
        raise InputError(f"the adapter trains biases (bias = {config['bias']!r}); train with bias = 'none'")


def _alpha(config: Mapping[str, Any]) -> float:
    """llama.cpp scales by alpha / rank; with rank-stabilised LoRA peft does by alpha / sqrt(rank)."""
    alpha = float(config["lora_alpha"])
    return alpha * math.sqrt(config["r"]) if config.get("use_rslora") else alpha


def _read(adapter: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    names = ("adapter_model.safetensors", "adapter.safetensors")
    file = next((adapter / name for name in names if (adapter / name).is_file()), None)
    if file is None:
        raise InputError(
            f"there is no {names[0]} in {adapter.name!r}; give the folder that peft's save_pretrained wrote"
        )
    return {name: tensor.float().numpy() for name, tensor in load_file(file).items()}


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


def _write(target: Path, architecture: str, alpha: float, tensors: Mapping[str, Any]) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(target, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name in sorted(tensors):
        writer.add_tensor(name, np.ascontiguousarray(tensors[name]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
