"""Embedding models in the BERT family on ONNX Runtime, run from their original files without an export or torch.

The module builds a graph of a few kilobytes in memory, in ONNX's protobuf format. The runtime memory-maps the weights
in ``model.safetensors``. The vectors match those from sentence-transformers to within 1e-6.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TOKENS = 512
"""Maximum number of tokens per call, including padding. Larger calls are not faster, and need more memory."""
_CALL = 8
"""Overhead of a call: about the time that this many tokens take.

If adding a longer text would pad the texts already in the call by more than this many tokens, a new call starts.
"""
_FLOAT, _INT32, _INT64 = 1, 6, 7  # ONNX element types
_MS = "com.microsoft"  # the domain for ONNX Runtime's operators
_MODES = {"cls": "cls", "mean": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


class OnnxBert:
    """Embeds texts on the CPU with a model from a folder. Each core embeds a few texts at a time in its own thread.

    Args:
        folder: Folder of a sentence-transformers model, which must be BERT with mean or first-token pooling.

    Raises:
        ValueError: The model is not of this kind.
        OSError: A file is missing.
        KeyError: A file does not have the expected structure.
        ImportError: ONNX Runtime is not installed.
    """

    def __init__(self, folder: Path) -> None:
        steps = _read(folder / "modules.json")
        kinds = [step["type"].rpartition(".")[2] for step in steps]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise ValueError(f"OnnxBert does not support the model's modules: {', '.join(kinds)}")
        pooling = _read(folder / steps[1]["path"] / "config.json")
        modes = [pooling["pooling_mode"]] if "pooling_mode" in pooling else [
            name for name, value in pooling.items() if name.startswith("pooling_mode") and value
        ]  # fmt: skip
        if len(modes) != 1 or modes[0] not in _MODES or not pooling.get("include_prompt", True):
            raise ValueError(f"OnnxBert does not support the model's pooling: {', '.join(map(str, modes))}")
        root = folder / steps[0]["path"]
        config, own, told = (_read(root / f"{name}.json") for name in _CONFIGS)
        kind = (config["model_type"], config["hidden_act"], config.get("position_embedding_type", "absolute"))
        if kind != ("bert", "gelu", "absolute"):
            raise ValueError(f"OnnxBert does not support the model's architecture: {' '.join(kind)}")

        words = (root / "tokenizer.json").read_text("utf-8")
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        # One thread per call, because more threads per call gain little, and cost a lot of time on a busy machine.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        weights = Path(os.path.realpath(root / "model.safetensors"))
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights.parent))
        try:
            self._session = onnxruntime.InferenceSession(
                _model(config, weights), options, providers=["CPUExecutionProvider"]
            )
            self._tokenizer = Tokenizer.from_str(words)
        except Exception as error:  # both libraries raise their own exception classes
            raise ValueError(str(error)) from error
        longest = own.get("max_seq_length") or min(told["model_max_length"], config["max_position_embeddings"])
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(longest)
        self.max_seq_length = int(longest)
        """Maximum number of tokens per text; the rest is truncated."""
        self.at_once = os.cpu_count() or 1
        """Maximum number of parallel calls: one per core, because each call uses one thread."""
        self._by_mean = _MODES[modes[0]] == "mean"
        self._dimension = config["hidden_size"]

    def encode(self, texts: Sequence[str], prompt: str = "", **_: Any) -> NDArray[np.float32]:
        """Return one row per text, not normalized. Other sentence-transformers options are ignored."""
        found = self._tokenizer.encode_batch([prompt + text for text in texts])
        order = sorted(range(len(found)), key=lambda place: len(found[place].ids))
        vectors = np.empty((len(found), self._dimension), dtype=np.float32)
        parts = [[order[place] for place in part] for part in _parts([len(found[place].ids) for place in order])]

        def embed(part: list[int]) -> None:
            vectors[part] = self._states([found[place].ids for place in part])

        if sum(len(one.ids) for one in found) <= _TOKENS:
            for part in parts:
                embed(part)
        else:
            with ThreadPoolExecutor(min(os.cpu_count() or 1, len(parts))) as pool:
                list(pool.map(embed, reversed(parts)))  # the longest first, so that all threads finish together
        return vectors

    encode_query = encode_document = encode

    def longer(self, texts: Sequence[str]) -> list[bool]:
        """Return, for each text, whether it has more tokens than the model reads."""
        return [bool(one.overflowing) for one in self._tokenizer.encode_batch(texts)]

    def _states(self, tokens: list[list[int]]) -> Any:
        ids = np.zeros((len(tokens), len(tokens[-1])), dtype=np.int32)
        mask = np.zeros_like(ids)
        for row, own in enumerate(tokens):
            ids[row, : len(own)], mask[row, : len(own)] = own, 1
        states: Any = self._session.run(None, {"ids": ids, "types": np.zeros_like(ids), "mask": mask})[0]
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True) if self._by_mean else states[:, 0]


def _parts(lengths: Sequence[int]) -> list[list[int]]:
    """Group texts to embed together, and return their positions. Each text is padded to the longest in its group.

    Args:
        lengths: Number of tokens in each text, in ascending order.
    """
    parts: list[list[int]] = []
    for place, length in enumerate(lengths):
        last = parts[-1] if parts else []
        if not last or (len(last) + 1) * length > _TOKENS or len(last) * (length - lengths[last[-1]]) > _CALL:
            parts.append([])
        parts[-1].append(place)
    return parts


_CONFIGS = ("config", "sentence_bert_config", "tokenizer_config")


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _model(config: dict[str, Any], weights: Path) -> bytes:
    """Return a BERT graph that reads its weights from a file.

    It computes the last hidden states from token ids, token types, and a mask, each of shape [batch, tokens].
    """
    with weights.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        tensors = json.loads(file.read(length))
    nodes, used, epsilon = list[bytes](), dict[str, None](), float(config["layer_norm_eps"])

    def add(kind: str, inputs: Sequence[str], output: str, *more: str, domain: str = "", **settings: float) -> str:
        attributes = [_attribute(name, value) for name, value in settings.items()]
        nodes.append(_message({1: list(inputs), 2: [output, *more], 4: kind, 5: attributes, 7: domain}))
        return output

    def own(*names: str) -> list[str]:
        used.update(dict.fromkeys(names))
        return list(names)

    def dense(state: str, name: str) -> str:
        return add("Gemm", [state, *own(f"{name}.weight", f"{name}.bias")], name, transB=1)

    def normed(state: str, before: str, name: str) -> str:
        weights = own(f"{name}.weight", f"{name}.bias")
        return add("SkipLayerNormalization", [state, before, *weights], name, domain=_MS, epsilon=epsilon)

    tables = own(*(f"embeddings.{name}.weight" for name in ("word_embeddings", "position_embeddings", _TYPES)))
    norm = own("embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias")
    add("EmbedLayerNormalization", ["ids", "types", *tables, *norm], "embedded", "length", domain=_MS, epsilon=epsilon)
    add("Shape", ["embedded"], "shape")
    state = add("Reshape", ["embedded", "flat"], "begin")
    for layer in (f"encoder.layer.{number}" for number in range(config["num_hidden_layers"])):
        three = [dense(state, f"{layer}.attention.self.{part}") for part in ("query", "key", "value")]
        three = [add("Reshape", [one, "shape"], f"{one}.3d") for one in three]
        heads = config["num_attention_heads"]
        seen = add("MultiHeadAttention", [*three, "", "mask"], f"{layer}.seen", domain=_MS, num_heads=heads)
        seen = dense(add("Reshape", [seen, "flat"], f"{layer}.flat"), f"{layer}.attention.output.dense")
        state = normed(seen, state, f"{layer}.attention.output.LayerNorm")
        wide = add("Gelu", [dense(state, f"{layer}.intermediate.dense")], f"{layer}.gelu", domain=_MS)
        state = normed(dense(wide, f"{layer}.output.dense"), state, f"{layer}.output.LayerNorm")
    add("Reshape", [state, "shape"], "states")

    size = config["hidden_size"]
    kept = [_message({1: [2], 2: _INT64, 8: "flat", 9: struct.pack("<qq", -1, size)})]
    for name in used:
        if (tensor := tensors[name])["dtype"] != "F32":
            raise ValueError(f"OnnxBert does not support the data type of the model's weights: {tensor['dtype']}")
        begin, end = tensor["data_offsets"]
        place = {"location": weights.name, "offset": str(8 + length + begin), "length": str(end - begin)}
        said = [_message({1: key, 2: value}) for key, value in place.items()]
        kept.append(_message({1: tensor["shape"], 2: _FLOAT, 8: name, 13: said, 14: 1}))
    inputs = [_value(name, _INT32, ["batch", "tokens"]) for name in ("ids", "types", "mask")]
    outputs = [_value("states", _FLOAT, ["batch", "tokens", "size"])]
    graph = _message({1: nodes, 2: "bert", 5: kept, 11: inputs, 12: outputs})
    return _message({1: 8, 7: graph, 8: [_message({1: "", 2: 17}), _message({1: _MS, 2: 1})]})


_TYPES = "token_type_embeddings"


def _attribute(name: str, value: float) -> bytes:
    whole = isinstance(value, int)
    return _message({1: name, 3 if whole else 2: value, 20: 2 if whole else 1})


def _value(name: str, kind: int, dimensions: Sequence[str]) -> bytes:
    shape = _message({1: [_message({2: one}) for one in dimensions]})
    return _message({1: name, 2: _message({1: _message({1: kind, 2: shape})})})


def _message(fields: dict[int, Any]) -> bytes:
    """Return a protobuf message from values keyed by field number; a list becomes a repeated field."""
    made = bytearray()
    for number, given in fields.items():
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, int):
                made += _varint(number << 3) + _varint(value)
            elif isinstance(value, float):
                made += _varint(number << 3 | 5) + struct.pack("<f", value)
            else:
                data = value.encode() if isinstance(value, str) else value
                made += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(made)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])
