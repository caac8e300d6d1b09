"""A random model of a few thousand numbers, with its own tokenizer and chat template.

Tests read this file with ``runpy.run_path``, as they do ``scripted_server.py``.
"""

from __future__ import annotations

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


def tiny_tokenizer() -> Any:
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
    made.chat_template = TEMPLATE
    made.padding_side = "left"
    return made


def tiny_base(seed: int = 0) -> tuple[Any, Any]:
    """A random llama, with as many heads as the embedded model, which its adapters are converted for; its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        hidden_size=288,
        intermediate_size=288,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=4096,
        initializer_range=0.2,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
    )
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval(), tokenizer
