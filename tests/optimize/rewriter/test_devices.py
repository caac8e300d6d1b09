"""Copies of a model share a batch, and what comes of it is what comes of one."""

from __future__ import annotations

import json
import runpy
import threading
from pathlib import Path

import pytest
import torch

from querywright.errors import InputError
from querywright.optimize.rewriter.devices import Copies, devices_of, shares_of
from querywright.optimize.rewriter.gradient import Update, learn, make_optimizer
from querywright.optimize.rewriter.lora import LoraSettings
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.optimize.rewriter.types import Pair
from querywright.optimize.rewriter.warmup import LOG, WarmupSettings, warm_up

TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
LORA = LoraSettings(rank=4, alpha=8)
SYSTEM = "Rewrite the question as search queries that find the passage which decides it, in JSON with all its fields."
PROMPTS = [(("system", SYSTEM), ("user", f"Which {'long ' * n}question number {n} is this?")) for n in range(5)]
GROUPS = [prompt for prompt in PROMPTS for _ in range(2)]
SEEDS = list(range(100, 100 + len(GROUPS)))
CASES = pytest.mark.parametrize("kind", ["causal", "seq2seq"])
WAYS = pytest.mark.parametrize("lora", [LORA, None], ids=["lora", "full"])


def make(kind, lora, device):
    model, tokenizer, kind = TINY[f"tiny_{kind}"]()
    model.generation_config.eos_token_id = list(range(300, 330))  # so many that one is met soon
    policy = HFPolicy(model, tokenizer, kind, lora=lora, device=device)
    generator = torch.Generator().manual_seed(1)
    policy.set_parameters(
        {name: one + 0.05 * torch.randn(one.shape, generator=generator) for name, one in policy.parameters().items()}
    )
    return policy


def apart(ones, others):
    return max(float((torch.as_tensor(a) - torch.as_tensor(b)).abs().max()) for a, b in zip(ones, others, strict=True))


@pytest.fixture
def threads(monkeypatch):
    """The threads in which models were called."""
    seen = set()
    model = Copies.model

    def watched(self, place, tensors):
        seen.add(threading.get_ident())
        return model(self, place, tensors)

    monkeypatch.setattr(Copies, "model", watched)
    return seen


@CASES
@WAYS
def test_copies_write_and_score_what_one_does(kind, lora, threads):
    one, many = make(kind, lora, "cpu"), make(kind, lora, "cpu, cpu,cpu")
    assert (one.width, many.width) == (1, 3)
    written = one.write(GROUPS, seeds=SEEDS, room=12)
    assert threads == {threading.get_ident()}
    shared = many.write(GROUPS, seeds=SEEDS, room=12)
    assert len(threads) > 1
    assert [each.tokens for each in shared] == [each.tokens for each in written]
    assert len({each.tokens for each in written}) > 5
    assert apart([each.log_probs for each in shared], [each.log_probs for each in written]) < 1e-4
    threads.clear()
    for reference in (False, True):
        scored = [policy.log_probs(written, reference=reference) for policy in (one, many)]
        assert all(each.requires_grad != reference for scores in scored for each in scores)
        assert apart(*([each.detach() for each in scores] for scores in scored)) < 1e-5
    assert len(threads) > 2


@CASES
@WAYS
def test_gradients_of_copies_meet_in_the_weights_of_the_first(kind, lora):
    one, many = make(kind, lora, "cpu"), make(kind, lora, "cpu,cpu")
    written = one.write(GROUPS, seeds=SEEDS, room=8)
    for policy in (one, many):
        sum(each.sum() for each in policy.log_probs(written)).backward()
    grads = [[each.grad for each in policy.parameters().values()] for policy in (one, many)]
    largest = max(float(each.abs().max()) for each in grads[0])
    assert largest > 1
    assert apart(*grads) < 1e-4 * largest
    assert many.parameters().keys() == one.parameters().keys()


def test_copies_learn_from_rewards_what_one_does():
    found = []
    for device in ("cpu", "cpu,cpu", "cpu,cpu,cpu"):
        policy = make("causal", LORA, device)
        optimizer = make_optimizer("adamw", list(policy.parameters().values()), 1e-3)
        for step in range(2):
            written = policy.write(GROUPS, seeds=[step * 100 + seed for seed in SEEDS], room=6)
            rewards = [float(len(each.tokens) % 3) - 1 for each in written]
            learnt = learn(policy, optimizer, written, rewards, Update(beta=0.1, chunk=2), step=step)
        found.append((learnt.loss, learnt.kl, [each.detach() for each in policy.parameters().values()]))
    (loss, kl, weights), *others = found
    assert abs(kl) > 1e-6
    for other_loss, other_kl, other_weights in others:
        assert (other_loss, other_kl) == pytest.approx((loss, kl), abs=1e-5)
        assert apart(other_weights, weights) < 2e-4


def test_copies_are_warmed_up_as_one_is(tmp_path):
    pairs = [
        Pair(f"q{n}", "rrr", 0, PROMPTS[n % 5], json.dumps({"queries": [f"number {n}"]}), 1.0, "teacher")
        for n in range(14)
    ]
    settings = WarmupSettings(epochs=2, batch=4, lr=0.01, least=4)
    logs = []
    for device in ("cpu", "cpu,cpu"):
        folder = tmp_path / device
        warm_up(make("causal", LORA, device), pairs[:10], pairs[10:], settings, folder)
        logs.append([json.loads(line)["loss"] for line in (folder / LOG).read_text().splitlines()])
    assert logs[0][-1] < logs[0][0]
    assert logs[1] == pytest.approx(logs[0], rel=1e-4)


def test_a_fault_on_one_device_is_said():
    policy = make("causal", LORA, "cpu,cpu")
    written = policy.write(GROUPS, seeds=SEEDS, room=4)
    policy._copies._models[1].forward = None
    with pytest.raises(TypeError):
        policy.log_probs(written)


def test_shares_are_even_and_hold_each_place_once():
    prompts = [(3,), (1,), (2,), (1,), (3,), (1,), (2,)]
    assert shares_of(prompts, 1) == [list(range(7))]
    assert shares_of(prompts, 2) == [[1, 3, 5], [0, 2, 4, 6]]
    assert sorted(place for share in shares_of(prompts, 3) for place in share) == list(range(7))
    assert [len(share) for share in shares_of(prompts, 9)] == [1] * 7
    assert shares_of([], 2) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere", "no device 'nowhere'"),
        ("", "no device ''"),
        ("cpu,", "no device ''"),
        ("meta", "no device 'meta'"),
        ("cpu:1", "no device 'cpu:1': those of its kind are numbered 0 to 0"),
        ("xpu", "no GPU for the device 'xpu'"),
    ],
)
def test_devices_that_there_are_not(name, told):
    with pytest.raises(InputError, match=told):
        devices_of(name)


def test_gpus_that_there_are_not(monkeypatch):
    with pytest.raises(InputError, match="no GPU for the device 'cuda:1'"):
        devices_of("cpu,cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices_of("auto") == ("cuda",)
    assert devices_of("cuda:0, cuda:1") == ("cuda:0", "cuda:1")
    with pytest.raises(InputError, match="no device 'cuda:2': those of its kind are numbered 0 to 1"):
        devices_of("cuda:0,cuda:2")
    with pytest.raises(InputError, match="'cuda,cuda:0' name one twice"):
        devices_of("cuda,cuda:0")
    with pytest.raises(InputError, match="of several kinds"):
        devices_of("cuda:0,cpu")
