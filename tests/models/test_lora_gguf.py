"""An adapter in llama.cpp does what it does in transformers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dspy import lm15
from gguf import GGUFReader
from safetensors.torch import load_file, save_file

from querywright.errors import InputError
from querywright.models import lora_gguf
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings
from querywright.models.hf import Base, encode, load_base
from querywright.models.llama import Llama
from querywright.models.lora_gguf import rows_for_llama, write_lora_gguf
from querywright.models.rewriter_bases import describe_base, save_weights
from querywright.models.rewriters import write_rewriter

HERE = Path(__file__).parent
GGUF = runpy.run_path(str(HERE / "tiny_gguf.py"))
TINY = runpy.run_path(str(HERE.parent / "optimize" / "rewriter" / "tiny.py"))
PROMPTS = ["What is the question?", "find the treatment", "a", "Which drug has side effects on 12 of them?"]


def in_llama(base: Base, file: Path, adapter: Path | None, room: int = 12) -> list[list[tuple[int, float]]]:
    """The tokens that llama.cpp writes after each prompt, with their log-probabilities."""
    llama = Llama(file, context=512, threads=1, adapter=adapter)
    # It names no pieces of characters in its answers, so it may write none.
    banned = [[token, False] for token in range(len(base.tokenizer)) if "\ufffd" in base.tokenizer.decode([token])]
    options = {"n_predict": room, "temperature": 0.0, "logprobs": 1, "logit_bias": banned, "ignore_eos": True}
    found = []
    for prompt in PROMPTS:
        ids = encode(base.tokenizer, base.kind, [("user", prompt)])
        answer = llama.server.handle_completions({"prompt": ids, **options})
        written = answer["choices"][0]["logprobs"]["content"]
        found.append([(token["id"], token["logprob"]) for token in written])
        assert len(written) == room
    return found


def farthest(base: Base, written: list[list[tuple[int, float]]]) -> float:
    """By how much transformers finds a token more or less likely, at most."""
    differences = []
    for prompt, tokens in zip(PROMPTS, written, strict=True):
        ids = encode(base.tokenizer, base.kind, [("user", prompt)])
        with torch.no_grad():
            logits = base.model(torch.tensor([ids + [token for token, _ in tokens]])).logits[0]
        likely = logits[len(ids) - 1 : -1].log_softmax(-1)
        differences += [abs(float(likely[i, token]) - found) for i, (token, found) in enumerate(tokens)]
    return max(differences)


def adapted(base: Base, folder: Path, **config: Any) -> Base:
    made = base._replace(model=GGUF["random_adapter"](base.model, 0.5, **config))
    save_weights(made, folder)
    return made


ALONE = EmbeddedSettings(context=512, threads=1)
CLOSE = 0.1  # in log-probability: llama.cpp keeps what it has read in half precision


@pytest.fixture
def tiny():
    return Base(*TINY["tiny_causal"](hidden=64))


@pytest.fixture
def file(tiny, tmp_path):
    return GGUF["write_gguf"](tiny.model, tiny.tokenizer, tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    "config", [{}, {"r": 8, "lora_alpha": 4, "use_rslora": True}], ids=["plain", "rank-stabilised"]
)
def test_an_adapter_does_in_llama_what_it_does_in_transformers(tiny, file, tmp_path, config, monkeypatch):
    plain = in_llama(tiny, file, None)
    assert farthest(tiny, plain) < CLOSE
    trained = adapted(tiny, tmp_path / "weights", **config)
    write_lora_gguf(tmp_path / "weights", tmp_path / "adapter.gguf", file)
    written = in_llama(tiny, file, tmp_path / "adapter.gguf")
    assert farthest(trained, written) < CLOSE
    assert farthest(trained, plain) > 10 * CLOSE
    assert all(one != other for one, other in zip(written, plain, strict=True))
    monkeypatch.setattr(lora_gguf, "rows_for_llama", lambda weights, heads: weights)
    write_lora_gguf(tmp_path / "weights", tmp_path / "wrong.gguf", file)
    assert farthest(trained, in_llama(tiny, file, tmp_path / "wrong.gguf")) > 10 * CLOSE


def test_the_file_says_what_it_is_and_halves_are_pairs(tiny, file, tmp_path):
    adapted(tiny, tmp_path / "weights")
    write_lora_gguf(tmp_path / "weights", tmp_path / "adapter.gguf", file)
    reader = GGUFReader(tmp_path / "adapter.gguf")
    said = {key: reader.fields[key].contents() for key in ("general.type", "general.architecture", "adapter.type")}
    assert said == {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    assert reader.fields["adapter.lora.alpha"].contents() == 8.0
    names = {tensor.name for tensor in reader.tensors}
    assert len(names) == 4 * 7 * 2
    assert {"blk.0.attn_q.weight.lora_a", "blk.3.ffn_down.weight.lora_b"} <= names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter.gguf", "tiny.gguf", "weights"]
    rows = np.arange(16)
    expected = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert rows_for_llama(rows, 2).tolist() == expected == GGUF["permuted"](rows, 2).tolist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "lm_head"),
    ],
)
def test_an_adapter_without_a_form_in_llama_is_refused(tiny, file, tmp_path, change, said):
    adapted(tiny, tmp_path / "weights")
    config = tmp_path / "weights" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(InputError, match=said):
        write_lora_gguf(tmp_path / "weights", tmp_path / "adapter.gguf", file)
    assert not (tmp_path / "adapter.gguf").exists()


def test_tensors_that_have_no_place_or_no_partner_are_refused(tiny, file, tmp_path):
    adapted(tiny, tmp_path / "weights")
    weights = tmp_path / "weights" / "adapter.safetensors"
    tensors = load_file(weights)
    name = next(name for name in tensors if "lora_A" in name)
    save_file({**tensors, "base_model.model.lm_head.lora_A.weight": tensors[name].clone()}, weights)
    with pytest.raises(InputError, match=r"lm_head.lora_A.*train q_proj"):
        write_lora_gguf(tmp_path / "weights", tmp_path / "adapter.gguf", file)
    save_file({other: tensor for other, tensor in tensors.items() if other != name}, weights)
    with pytest.raises(InputError, match="not whole"):
        write_lora_gguf(tmp_path / "weights", tmp_path / "adapter.gguf", file)


@pytest.mark.slow
def test_the_embedded_model_writes_with_an_adapter_what_transformers_writes(tmp_path):
    """Its encodings differ, so near ties do: the adapter is strong, and the prompts have clear answers."""
    torch.set_num_threads(1)
    base = load_base()
    prompts = ["Name three fruits, separated by commas.", "What is 2 + 2?", "Write the alphabet."]
    trained = base._replace(model=GGUF["random_adapter"](base.model, 0.08))
    save_weights(trained, tmp_path / "weights")
    expected = [greedy(trained, prompt) for prompt in prompts]
    rewriter = write_rewriter(
        tmp_path / "mine", tmp_path / "weights", base=describe_base("embedded"), techniques=[], recipe="none",
        created="2026-01-01", card={}, readme="",
    )  # fmt: skip
    written, plain = (
        [answer(engine, prompt) for prompt in prompts]
        for engine in (EmbeddedEngine(None, ALONE, rewriter), EmbeddedEngine(None, ALONE))
    )
    assert written == expected
    assert all(one != other for one, other in zip(expected, plain, strict=True))


def greedy(base: Base, prompt: str) -> str:
    ids = torch.tensor([encode(base.tokenizer, base.kind, [("user", prompt)])])
    with torch.no_grad():
        written = base.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False
        )
    return str(base.tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True))


def answer(engine: EmbeddedEngine, prompt: str) -> str:
    asked = lm15.Request(model="m", messages=(lm15.Message.user(prompt),), config=lm15.Config(max_tokens=8))
    return str(engine.complete(asked).text)
