"""A rewriter's folder for tests: an adapter of the embedded model that teaches it nothing, made without torch."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from querywright.models.rewriters import Rewriter, write_rewriter

WIDTH, RANK = 576, 1
"""Of the embedded model's layers, and of the adapter."""

CONFIG = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 1, "target_modules": ["o_proj"]}


def small_rewriter(path: Path, seed: int = 0) -> Rewriter:
    """Write a rewriter; another seed is another one."""
    place = "base_model.model.model.layers.0.self_attn.o_proj"
    drawn = np.random.default_rng(seed).normal(size=(RANK, WIDTH)).astype(np.float32) / 1000
    tensors = {f"{place}.lora_A.weight": drawn, f"{place}.lora_B.weight": np.full((WIDTH, RANK), 1e-6, np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, Path(folder) / "adapter.safetensors")
        (Path(folder) / "adapter_config.json").write_text(json.dumps(CONFIG))
        return write_rewriter(
            path,
            Path(folder),
            techniques=["rrr"],
            recipe="none",
            created="2026-01-02",
            card={"made": "by a test"},
            readme="# A rewriter\n",
        )
