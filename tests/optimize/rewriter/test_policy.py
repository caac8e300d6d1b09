"""A tiny random model writes, scores, learns from pairs and has a reference."""

from __future__ import annotations

import json
import math
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from querywright.errors import InputError
from querywright.models.hf import Base
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.policy import HFPolicy, TrainingError
from querywright.optimize.rewriter.settings import TrainSettings
from querywright.optimize.rewriter.warmup import WarmupReport, warm_up

torch: Any = pytest.importorskip("torch")
pytest.importorskip("peft")
TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
SYSTEM = "Rewrite the question as search queries that find the passage which decides it, in JSON with all its fields."
PROMPTS = [
    *((("system", SYSTEM), ("user", f"Which {'long and winding ' * n}question number {n} is this?")) for n in range(3)),
    (("user", "Another prompt, with nothing in common."),),
]
GROUPS = [prompt for prompt in PROMPTS for _ in range(3)]


def make(*, moved: bool = True, **given: Any) -> HFPolicy:
    model, tokenizer = TINY["tiny_causal"]()
    model.generation_config.eos_token_id = list(range(300, 330))  # so many that one is met soon
    policy = HFPolicy(Base(model, tokenizer), rank=4, device="cpu", **given)
    if moved:
        move(policy)
    return policy


def move(policy: HFPolicy, seed: int = 1, by: float = 0.05) -> None:
    generator = torch.Generator().manual_seed(seed)
    policy.set_parameters(
        {name: one + by * torch.randn(one.shape, generator=generator) for name, one in policy.parameters().items()}
    )


def broken() -> HFPolicy:
    policy = make()
    policy.set_parameters({name: torch.full_like(one, math.nan) for name, one in policy.parameters().items()})
    return policy


def apart(ones: Any, others: Any) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(ones, others, strict=True))


def plainly(policy: HFPolicy, completion: Any) -> Any:
    """Log-probabilities by one forward pass over everything, as the model's own documentation has it."""
    prompt, tokens = list(completion.prompt), list(completion.tokens)
    with torch.no_grad():
        logits = policy.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1)[range(len(tokens)), tokens]


def test_log_probs_and_gradients_of_a_batch_are_those_of_a_plain_pass_over_each() -> None:
    policy = make()
    written = policy.write(GROUPS, seed=1, room=24)
    assert len({one.tokens for one in written}) == len(GROUPS)
    assert {one.ended for one in written} == {True, False}
    scored = policy.log_probs(written)
    assert apart([plainly(policy, one) for one in written], scored) < 1e-4
    sum(one.sum() for one in scored).backward()
    together = {name: one.grad.clone() for name, one in policy.parameters().items()}
    policy.model.zero_grad()
    for one in written:
        policy.log_probs([one])[0].sum().backward()
    largest = max(float(one.abs().max()) for one in together.values())
    assert largest > 1
    assert apart(together.values(), [one.grad for one in policy.parameters().values()]) < 1e-4 * largest
    frozen = [one for one in policy.model.parameters() if not one.requires_grad]
    assert all(one.grad is None for one in frozen)
    assert frozen
    assert sorted(place for part in policy.parts(written) for place in part) == list(range(len(GROUPS)))


def test_what_is_drawn_depends_on_the_seed_and_lies_within_the_cuts() -> None:
    state = torch.get_rng_state()
    policy, same, other = (make(moved=False, seed=seed) for seed in (0, 0, 1))
    assert apart(policy.parameters().values(), same.parameters().values()) == 0
    assert apart(policy.parameters().values(), other.parameters().values()) > 0
    move(policy)
    first, again, third = (policy.write(PROMPTS, seed=seed, room=8) for seed in (1, 1, 2))
    assert first == again != third
    assert torch.equal(torch.get_rng_state(), state)
    for one in policy.write(PROMPTS[:1] * 8, seed=3, room=6, top_k=3):
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*one.prompt, *one.tokens]])).logits[0, len(one.prompt) - 1 : -1]
        ranks = (logits > logits.gather(1, torch.tensor(one.tokens)[:, None])).sum(-1)
        assert int(ranks.max()) < 3


def test_the_reference_stays_until_it_is_set() -> None:
    policy = make(moved=False)
    written = policy.write(PROMPTS, seed=1, room=10)
    with torch.no_grad():
        before = policy.log_probs(written)
    move(policy)
    now, reference = policy.log_probs(written), policy.log_probs(written, reference=True)
    assert not any(one.requires_grad for one in reference)
    assert apart(before, reference) < 1e-5
    assert apart(before, now) > 1e-2
    now[0].sum().backward()  # what went through the reference does not disturb it
    assert any(one.grad is not None for one in policy.parameters().values())
    policy.set_reference()
    assert apart(now, policy.log_probs(written, reference=True)) < 1e-5


def test_a_prompt_that_does_not_fit_is_said() -> None:
    policy = make()
    prompt = policy.prompt(PROMPTS[2])
    policy.model.config.max_position_embeddings = len(prompt) + 8
    assert len(policy.write(PROMPTS, room=8)) == len(PROMPTS)
    assert policy.refused(prompt, 8) is None
    assert "9 are kept for the answer" in str(policy.refused(prompt, 9))


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="no device 'abacus'"):
        HFPolicy(Base(*TINY["tiny_causal"]()), rank=4, device="abacus")


def taught(numbers: Sequence[int], text: str = '{"queries": ["key %d"]}') -> list[Pair]:
    return [
        Pair(f"q{n}", "rrr", 0, (("system", SYSTEM), ("user", f"What of {n}?")), text % n, 1.0, "me") for n in numbers
    ]


TRAIN, DEV = taught(range(12)), taught(range(12, 15))


def warmed(policy: HFPolicy, folder: Path, train: Any = TRAIN, dev: Any = DEV, **given: Any) -> WarmupReport:
    settings = TrainSettings("rrr", epochs=2, warmup_batch=4, warmup_lr=0.02, least_pairs=4)
    return warm_up(policy, train, dev, folder, settings, **given)


def test_a_model_learns_its_pairs_keeps_the_best_epoch_and_goes_on_after_an_end(tmp_path: Path) -> None:
    steps: list[int] = []

    def stopped(what: str, done: int, total: int) -> None:
        steps.append(done)
        if len(steps) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warmed(make(moved=False), tmp_path, progress=stopped)
    policy = make(moved=False)
    done = warmed(policy, tmp_path, progress=stopped)
    assert steps == [1, 2, 3, 4, 4, 5, 6]  # the checkpoint is the one at the end of the epoch
    assert (done.steps, done.pairs, done.left_out, len(done.losses)) == (6, 12, 0, 2)
    assert min(done.losses) < done.before - 0.2
    assert done.losses == pytest.approx(warmed(make(moved=False), tmp_path / "whole").losses, abs=1e-3)
    lines = [json.loads(line) for line in (tmp_path / "warmup.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["dev", *["step"] * 3, "dev", *["step"] * 3, "dev"]
    rates = [line["lr"] for line in lines if line["kind"] == "step"]
    assert rates[0] == 0.02 == max(rates)
    assert rates[-1] < 0.003
    with torch.no_grad():
        completions = [policy.taught(pair.messages, pair.text) for pair in DEV]
        scored = policy.log_probs(completions)
    loss = -sum(float(one.sum()) for one in scored) / sum(len(one.tokens) for one in completions)
    assert loss == pytest.approx(min(done.losses), abs=1e-4)
    assert warmed(policy, tmp_path, progress=stopped) == done
    assert len(steps) == 7
    (tmp_path / "checkpoint.pt").write_bytes(b"half")
    with pytest.raises(InputError, match=r"checkpoint.pt in .* is damaged .* delete that folder"):
        warmed(policy, tmp_path)


def test_where_nothing_gets_better_the_weights_are_those_of_the_start(tmp_path: Path) -> None:
    policy = make(moved=False)
    before = {name: one.detach().clone() for name, one in policy.parameters().items()}
    done = warmed(policy, tmp_path, taught(range(8)), taught(range(2), "ßßßß %d ÄÖÜ"))
    assert done.best_epoch == 0
    assert "no epoch was better on dev than the start" in done.notes[0]
    assert all(torch.equal(one, policy.parameters()[name]) for name, one in before.items())


def test_too_few_pairs_and_no_numbers_are_said(tmp_path: Path) -> None:
    policy = make()
    with pytest.raises(InputError, match=r"needs 4 train pairs or more, but there are 3: 1 more needed"):
        warmed(policy, tmp_path, TRAIN[:3])
    policy.model.config.max_position_embeddings = 8
    with pytest.raises(InputError, match=r"there are 0 \(15 do not fit the model's context\)"):
        warmed(policy, tmp_path)
    with pytest.raises(TrainingError, match=r"loss on dev is nan.*--warmup-lr.*--work"):
        warmed(broken(), tmp_path / "nan")
    for seed in (None, 1):
        with pytest.raises(TrainingError, match=r"logits are no numbers.*--lr"):
            broken().write(PROMPTS[:1], seed=seed, room=4)
