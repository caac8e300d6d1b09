"""Random models of a few thousand numbers, with a tokenizer and a chat template of their own.

Tests read this file with ``runpy.run_path``, as they do ``scripted_server.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = (
    '{"thought": "look for the treatment", "queries": ["first line treatment", "side effects of the drug"]}',
    "system\nuser\nassistant\nYour task: rewrite the question as search queries that find the deciding passage.",
    "What is the question? Which options are there? Answer with a JSON object that has these fields, in this order.",
    "the of and to in is for that with as are on by it from or be this which an was at have not their has but",
)


def tiny_tokenizer(template: str | None = TEMPLATE) -> Any:
    """Byte-level BPE, so that every text can be written; pad is its own token, the end is ``<|im_end|>``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", START, END]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    names = {"pad_token": "<pad>", "bos_token": START, "eos_token": END, "clean_up_tokenization_spaces": False}
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    made.chat_template = template
    return made


def tiny_causal(seed: int = 0, *, layers: int = 4, hidden: int = 32) -> tuple[Any, Any]:
    """A random llama and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
    )
    return _random(LlamaForCausalLM, config, seed), tokenizer


def _random(model: Any, config: Any, seed: int) -> Any:
    import torch

    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model(config).eval()


def save_tiny(folder: Path, seed: int = 0) -> Path:
    """A folder that ``from_pretrained`` reads."""
    model, tokenizer = tiny_causal(seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
