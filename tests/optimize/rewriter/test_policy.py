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
from querywright.models.response_parsing import as_json, plain_text
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
CASES = pytest.mark.parametrize("kind", ["causal", "seq2seq"])
WAYS = pytest.mark.parametrize("rank", [4, None], ids=["lora", "full"])


def make(kind: str = "causal", rank: int | None = 4, *, moved: bool = True, **given: Any) -> HFPolicy:
    model, tokenizer, kind = TINY[f"tiny_{kind}"]()
    model.generation_config.eos_token_id = list(range(300, 330))  # so many that one is met soon
    policy = HFPolicy(Base(model, tokenizer, kind), rank=rank, device="cpu", **given)  # type: ignore[arg-type]
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
        if policy.kind == "causal":
            logits = policy.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        else:
            ids = torch.tensor([[policy.model.config.decoder_start_token_id, *tokens[:-1]]])
            logits = policy.model(input_ids=torch.tensor([prompt]), decoder_input_ids=ids).logits[0]
    return torch.log_softmax(logits, -1)[range(len(tokens)), tokens]


@CASES
@WAYS
def test_log_probs_and_gradients_of_a_batch_are_those_of_a_plain_pass_over_each(kind: str, rank: int | None) -> None:
    policy = make(kind, rank)
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
    assert bool(frozen) == (rank is not None)
    assert sorted(place for part in policy.parts(written) for place in part) == list(range(len(GROUPS)))


@CASES
def test_the_reference_stays_until_it_is_set(kind: str) -> None:
    policy = make(kind, moved=False)
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


def test_wrong_settings_are_refused_and_less_precise_numbers_are_much_like_the_others() -> None:
    for given, told in (({"dtype": "int8"}, "no dtype 'int8'"), ({"device": "abacus"}, "no device 'abacus'")):
        with pytest.raises(InputError, match=told):
            HFPolicy(Base(*TINY["tiny_causal"]()), rank=4, **{"device": "cpu"} | given)
    half, full = (make(moved=False, dtype=dtype) for dtype in ("bfloat16", "float32"))
    written = full.write(PROMPTS, seed=1, room=8)
    with torch.no_grad():
        assert 1e-6 < apart(half.log_probs(written), full.log_probs(written)) < 0.5
    assert all(one.dtype == torch.float32 for one in half.parameters().values())


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
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match=r"checkpoint.safetensors in .* is damaged .* delete that folder"):
        warmed(policy, tmp_path)


def test_too_few_pairs_and_no_numbers_are_said(tmp_path: Path) -> None:
    policy = make()
    with pytest.raises(InputError, match=r"needs 4 train pairs or more, but there are 3: 1 more needed"):
        warmed(policy, tmp_path, TRAIN[:3])
    policy.model.config.max_position_embeddings = 8
    with pytest.raises(InputError, match=r"there are 0 \(15 do not fit the model's context or vocabulary\)"):
        warmed(policy, tmp_path)
    with pytest.raises(TrainingError, match=r"loss on dev is nan.*--warmup-lr.*--work"):
        warmed(broken(), tmp_path / "nan")
    for seed in (None, 1):
        with pytest.raises(TrainingError, match=r"logits are no numbers.*--lr"):
            broken().write(PROMPTS[:1], seed=seed, room=4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"queries": ["a; b", "c|d"]}, "a, b; c,d"),
        ({"best": "x: y", "sure": True, "ranks": [3, 1]}, "best: x: y | sure: true | ranks: 3; 1"),
        ({"passage": "Its mass: 5\nkg"}, "Its mass: 5 kg"),
    ],
)
def test_fields_in_plain_words_are_read_back(values: dict[str, Any], said: str) -> None:
    kinds = {str: {"type": "string"}, bool: {"type": "boolean"}, list: {"type": "array", "items": {"type": "string"}}}
    fields = {name: kinds[type(one)] for name, one in values.items()}
    if "ranks" in fields:
        fields["ranks"] = {"type": "array", "items": {"type": "integer"}}
    assert plain_text(values) == said
    again = json.loads(as_json(said, {"properties": fields}))
    assert plain_text(again) == said
    assert {name: type(one) for name, one in again.items()} == {name: type(one) for name, one in values.items()}
    assert as_json('{"a": 1}', {"properties": fields}) == '{"a": 1}'
    assert as_json(said, None) == said
