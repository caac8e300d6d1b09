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
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token=START,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template
    return made


def tiny_causal(seed: int = 0, *, layers: int = 4, hidden: int = 32) -> tuple[Any, Any, str]:
    """A random llama: (model, tokenizer, "causal")."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.eval(), tokenizer, "causal"


def tiny_seq2seq(seed: int = 0, *, layers: int = 2, hidden: int = 32) -> tuple[Any, Any, str]:
    """A random T5 without a chat template: (model, tokenizer, "seq2seq")."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer(None)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=hidden,
        d_kv=hidden // 4,
        d_ff=2 * hidden,
        num_layers=layers,
        num_heads=4,
        dropout_rate=0.1,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=True,
        initializer_factor=1.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config)
    return model.eval(), tokenizer, "seq2seq"


def save_tiny(folder: Path, kind: str = "causal", seed: int = 0) -> Path:
    """A folder that ``from_pretrained`` reads."""
    model, tokenizer, _ = tiny_causal(seed) if kind == "causal" else tiny_seq2seq(seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
