"""LoRA: small matrices beside the frozen weights of a model are what is trained."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from querywright.errors import InputError, ModelError
from querywright.optimize.rewriter.batches import Kind


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The small matrices that are trained.

    Args:
        rank: Their inner size. Default 16.
        alpha: They count alpha / rank. Default 32.
        targets: Names of the layers beside which they stand; none for all linear ones but the output.

    Raises:
        InputError: A value is out of range.
    """

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"the rank of LoRA must be 1 or more, but got {self.rank}")
        if self.alpha < 1:
            raise InputError(f"alpha of LoRA must be 1 or more, but got {self.alpha}")


def with_lora(model: Any, lora: LoraSettings, kind: Kind, seed: int) -> Any:
    """The model wrapped by peft; the matrices are put into the model itself.

    Args:
        model: Of transformers.
        lora: The matrices.
        kind: How the model writes.
        seed: Of their first values.

    Raises:
        InputError: The targets are not in the model.
        ModelError: peft is missing.
    """
    import torch

    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError as error:
        raise ModelError(f"LoRA needs peft ({error}); pip install 'querywright[train]'") from error
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules=list(lora.targets) or "all-linear",
        task_type=TaskType.CAUSAL_LM if kind == "causal" else TaskType.SEQ_2_SEQ_LM,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*", FutureWarning)
        torch.manual_seed(seed % 2**63)
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise InputError(f"LoRA cannot be put into the base model: {error}; give other targets, or none") from error


def lora_files(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What peft writes of a model: its configuration and its tensors, without the place of the base model.

    The tensors are in half precision, as llama.cpp's are: one adapter in either form, and half the size.

    Args:
        model: Of ``with_lora``.
    """
    from peft import get_peft_model_state_dict

    config = {name: _plain(value) for name, value in model.peft_config["default"].to_dict().items()}
    taught = get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {name: one.detach().cpu().half().contiguous() for name, one in taught.items()}
    return config | {"base_model_name_or_path": None, "inference_mode": True}, tensors


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return getattr(value, "value", value)
