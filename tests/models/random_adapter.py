"""Random adapters for a small llama of transformers.

Tests read this file with ``runpy.run_path``.
"""

from __future__ import annotations

from typing import Any

from querywright.models.lora_gguf import LORA_MODULES


def random_adapter(model: Any, scale: float, *, seed: int = 0, **config: Any) -> Any:
    """The model with an adapter of random numbers for all weights of its layers."""
    import torch
    from peft import LoraConfig, get_peft_model

    from querywright.models.hf import quietly_adapting

    modules = [module.rpartition(".")[2] for module in LORA_MODULES]
    with quietly_adapting():
        adapted = get_peft_model(model, LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": modules, **config}))
    drawn = torch.Generator().manual_seed(seed)
    for name, tensor in adapted.named_parameters():
        if "lora_" in name:
            size = scale if "lora_B" in name else tensor.shape[1] ** -0.5
            tensor.data.copy_(torch.randn(tensor.shape, generator=drawn) * size)
    return adapted.eval()
