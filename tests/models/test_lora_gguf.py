"""An adapter has the same effect in llama.cpp and in transformers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from dspy import lm15

from querywright.models import gguf_files
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings
from querywright.models.hf import encode, load_base, prompt_text
from querywright.models.rewriters import save_weights, write_rewriter

HERE = Path(__file__).parent
random_adapter = runpy.run_path(str(HERE / "tiny_gguf.py"))["random_adapter"]
PROMPTS = ["Name three fruits, separated by commas.", "Write the alphabet."]


@pytest.mark.slow
def test_the_embedded_model_writes_with_an_adapter_what_transformers_writes(tmp_path, monkeypatch):
    """Encodings of weights differ, so near ties may differ: the adapter is strong, and the answers are clear."""
    torch.set_num_threads(1)
    base = load_base()
    assert "quantization_config" not in base.model.config.to_dict(), "it can be saved"
    trained = base._replace(model=random_adapter(base.model, 0.08))
    save_weights(trained.model, tmp_path / "weights")

    def written(name):
        rewriter = write_rewriter(
            tmp_path / name, tmp_path / "weights", techniques=[], recipe="none",
            created="2026-01-01", card={}, readme="",
        )  # fmt: skip
        engine = EmbeddedEngine(None, EmbeddedSettings(context=512, threads=1), rewriter)
        return [engine.complete(asked(prompt)).text for prompt in PROMPTS]

    expected = [greedy(trained, prompt) for prompt in PROMPTS]
    assert written("mine") == expected
    monkeypatch.setattr(gguf_files, "rows_for_llama", lambda weights, heads: weights)
    assert written("wrong") != expected


def greedy(base, prompt):
    ids = torch.tensor([encode(base.tokenizer, prompt_text(base.tokenizer, [("user", prompt)]))])
    with torch.no_grad():
        out = base.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    return base.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def asked(prompt):
    return lm15.Request(model="m", messages=(lm15.Message.user(prompt),), config=lm15.Config(max_tokens=8))
