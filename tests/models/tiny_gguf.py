"""Write a small llama model of transformers to a GGUF file, in full precision, and make random adapters for it.

Tests read this file with ``runpy.run_path``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from querywright.models.gguf_files import LORA_MODULES, rows_for_llama

LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", **LORA_MODULES}
OTHERS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
CONTROL, NORMAL = 3, 1


def write_gguf(model: Any, tokenizer: Any, path: Path) -> Path:
    from gguf import GGUFWriter

    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    _add_tokenizer(writer, tokenizer)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        weight = tensor.float().numpy()
        if name in OTHERS:
            writer.add_tensor(OTHERS[name], weight)
            continue
        _, _, number, rest = name.split(".", 3)
        module = LAYER[rest.removesuffix(".weight")]
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(module)
        writer.add_tensor(f"blk.{number}.{module}.weight", rows_for_llama(weight, heads) if heads else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any, tokenizer: Any) -> None:
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    special = {token.content for token in tokenizer.added_tokens_decoder.values()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)


def random_adapter(model: Any, scale: float, *, seed: int = 0, **config: Any) -> Any:
    """Return the model with an adapter of random numbers for all weights of its layers."""
    import torch
    from peft import LoraConfig, get_peft_model

    from querywright.models.hf import quietly_training

    modules = [module.rpartition(".")[2] for module in LAYER if module.endswith("_proj")]
    with quietly_training():
        adapted = get_peft_model(model, LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": modules, **config}))
    drawn = torch.Generator().manual_seed(seed)
    for name, tensor in adapted.named_parameters():
        if "lora_" in name:
            size = scale if "lora_B" in name else tensor.shape[1] ** -0.5
            tensor.data.copy_(torch.randn(tensor.shape, generator=drawn) * size)
    return adapted.eval()
