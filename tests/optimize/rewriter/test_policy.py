"""A tiny random model writes, scores and has a reference."""

from __future__ import annotations

import json
import runpy
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from querywright.errors import InputError, PromptTooLongError
from querywright.optimize.rewriter.batches import SHARED, portions
from querywright.optimize.rewriter.gradient import TrainingError
from querywright.optimize.rewriter.lora import LoraSettings
from querywright.optimize.rewriter.policy import HFPolicy

TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
LORA = LoraSettings(rank=4, alpha=8)
SYSTEM = "Rewrite the question as search queries that find the passage which decides it, in JSON with all its fields."
PROMPTS = [
    *((("system", SYSTEM), ("user", f"Which {'long and winding ' * n}question number {n} is this?")) for n in range(3)),
    (("user", "Another prompt, with nothing in common."),),
]
GROUPS = [prompt for prompt in PROMPTS for _ in range(3)]
SEEDS = list(range(100, 100 + len(GROUPS)))
CASES = pytest.mark.parametrize("kind", ["causal", "seq2seq"])
WAYS = pytest.mark.parametrize("lora", [LORA, None], ids=["lora", "full"])


def make(kind, lora=LORA, *, moved=True):
    model, tokenizer, kind = TINY[f"tiny_{kind}"]()
    model.generation_config.eos_token_id = list(range(300, 330))  # so many that one is met soon
    policy = HFPolicy(model, tokenizer, kind, lora=lora, device="cpu")
    if moved:
        move(policy)
    return policy


def move(policy, seed=1, by=0.05):
    generator = torch.Generator().manual_seed(seed)
    policy.set_parameters(
        {name: one + by * torch.randn(one.shape, generator=generator) for name, one in policy.parameters().items()}
    )


def apart(ones, others):
    return max(float((torch.as_tensor(a) - torch.as_tensor(b)).abs().max()) for a, b in zip(ones, others, strict=True))


def plainly(policy, completion):
    """Log-probabilities by one forward pass over everything, as the model's own documentation has it."""
    prompt, tokens = list(completion.prompt), list(completion.tokens)
    with torch.no_grad():
        if policy.kind == "causal":
            logits = policy.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        else:
            start = policy.model.config.decoder_start_token_id
            ids = torch.tensor([[start, *tokens[:-1]]])
            logits = policy.model(input_ids=torch.tensor([prompt]), decoder_input_ids=ids).logits[0]
    return torch.log_softmax(logits, -1)[range(len(tokens)), tokens]


@CASES
@WAYS
def test_a_batch_writes_what_each_prompt_alone_does(kind, lora):
    policy = make(kind, lora)
    together = policy.write(GROUPS, seeds=SEEDS, room=24)
    for prompt, seed, one in zip(GROUPS, SEEDS, together, strict=True):
        (alone,) = policy.write([prompt], seeds=[seed], room=24)
        assert alone.tokens == one.tokens
        assert alone.text == one.text
        assert alone.prompt == one.prompt
        assert alone.ended == one.ended
        assert apart([alone.log_probs], [one.log_probs]) < 1e-4
    assert len({one.tokens for one in together}) == len(GROUPS)
    assert {one.ended for one in together} == {True, False}
    assert len({len(one.tokens) for one in together}) > 2


@CASES
@WAYS
def test_log_probs_are_those_of_the_draw_and_of_a_plain_pass(kind, lora):
    policy = make(kind, lora)
    written = policy.write(GROUPS, seeds=SEEDS, room=24)
    with torch.no_grad():
        scored = policy.log_probs(written)
    assert apart([one.log_probs for one in written], scored) < 1e-4
    assert apart([plainly(policy, one) for one in written], scored) < 1e-4


def test_cuts_and_temperature_are_in_the_log_probs_of_the_draw_alone():
    policy = make("causal")
    (one,) = policy.write(PROMPTS[:1], seeds=[3], temperature=0.5, top_k=5, top_p=0.9, room=12)
    assert all(score > -3 for score in one.log_probs)  # one of five
    whole = policy.log_probs([one])[0].tolist()
    assert all(score > other for score, other in zip(one.log_probs, whole, strict=True))


@CASES
def test_greedy_is_what_the_model_itself_generates(kind):
    policy = make(kind, None)
    for one in policy.write(PROMPTS, room=16):
        ids = torch.tensor([one.prompt])
        out = policy.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16
        )
        words = out[0, len(one.prompt) :] if kind == "causal" else out[0, 1:]
        assert tuple(words.tolist()) == one.tokens


@CASES
@WAYS
def test_gradients_of_a_batch_are_those_of_each_alone(kind, lora):
    policy = make(kind, lora)
    written = policy.write(GROUPS, seeds=SEEDS, room=12)
    sum(one.sum() for one in policy.log_probs(written)).backward()
    together = {name: one.grad.clone() for name, one in policy.parameters().items()}
    policy.model.zero_grad()
    for one in written:
        policy.log_probs([one])[0].sum().backward()
    largest = max(float(one.abs().max()) for one in together.values())
    assert largest > 1
    assert apart(together.values(), [one.grad for one in policy.parameters().values()]) < 1e-4 * largest
    frozen = [one for one in policy.model.parameters() if not one.requires_grad]
    assert all(one.grad is None for one in frozen)
    assert bool(frozen) == (lora is not None)


@CASES
@WAYS
def test_the_reference_stays_until_it_is_set(kind, lora):
    policy = make(kind, lora, moved=False)
    written = policy.write(PROMPTS, seeds=[1, 2, 3, 4], room=10)
    with torch.no_grad():
        before = policy.log_probs(written)
    move(policy)
    reference = policy.log_probs(written, reference=True)
    assert not any(one.requires_grad for one in reference)
    assert apart(before, reference) < 1e-5
    now = policy.log_probs(written)
    assert all(one.requires_grad for one in now)
    assert apart(before, [one.detach() for one in now]) > 1e-2
    policy.set_reference()
    assert apart([one.detach() for one in now], policy.log_probs(written, reference=True)) < 1e-5


def test_the_reference_does_not_disturb_a_gradient_that_is_to_come():
    policy = make("causal")
    written = policy.write(PROMPTS[:1], seeds=[1], room=10)
    (now,) = policy.log_probs(written)
    policy.log_probs(written, reference=True)
    now.sum().backward()
    assert all(one.grad is not None for one in policy.parameters().values())


def test_seeds_decide_and_nothing_else():
    policy, other = make("causal"), make("causal")
    torch.manual_seed(1)
    first = policy.write(PROMPTS, seeds=[1, 2, 3, 4], room=8)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert other.write(PROMPTS, seeds=[1, 2, 3, 4], room=8) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.write(PROMPTS, seeds=[5, 6, 7, 8], room=8) != first


def test_making_one_leaves_the_random_numbers_of_others_alone():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = (make("causal", moved=False).parameters() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, second[name]) for name, one in first.items())
    model, tokenizer, kind = TINY["tiny_causal"]()
    third = HFPolicy(model, tokenizer, kind, lora=LORA, device="cpu", seed=1).parameters()
    assert any(not torch.equal(one, third[name]) for name, one in first.items())


def test_a_text_of_someone_else_ends_with_the_end_token():
    policy = make("causal")
    text = '{"queries": ["Blutgruppe 日本"]}'
    taught = policy.taught(PROMPTS[0], text)
    assert taught.prompt == policy.prompt(PROMPTS[0])
    assert taught.tokens[-1] == policy.tokenizer.eos_token_id
    assert policy.tokenizer.decode(taught.tokens[:-1]) == text
    assert len(policy.log_probs([taught])[0]) == len(taught.tokens)


def test_nothing_written_has_no_log_probs():
    policy = make("causal")
    one = policy.taught(PROMPTS[0], "word")
    empty, full = policy.log_probs([replace(one, tokens=()), one])
    assert (len(empty), len(full)) == (0, len(one.tokens))
    assert policy.write([]) == []
    assert policy.log_probs([]) == []


def test_a_prompt_that_does_not_fit_is_said():
    policy = make("causal")
    policy.model.config.max_position_embeddings = len(policy.prompt(PROMPTS[2])) + 8
    assert len(policy.write(PROMPTS, room=8)) == len(PROMPTS)
    with pytest.raises(PromptTooLongError, match="9 are kept for the answer"):
        policy.write(PROMPTS, room=9)
    one = policy.taught(PROMPTS[2], "word")
    assert policy.fits(replace(one, tokens=one.tokens[:1] * 8))
    assert not policy.fits(replace(one, tokens=one.tokens[:1] * 9))


def test_an_encoder_with_places_of_its_own_has_so_many():
    from transformers import BartConfig, BartForConditionalGeneration

    _, tokenizer, kind = TINY["tiny_seq2seq"]()
    config = BartConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.pad_token_id, forced_eos_token_id=None,
    )  # fmt: skip
    policy = HFPolicy(BartForConditionalGeneration(config).eval(), tokenizer, kind, lora=None, device="cpu")
    short, long = (("user", "Why?"),), (("user", "Why " * 80),)
    assert len(policy.write([short], room=64)) == 1
    assert policy.refused(short, 65) is not None
    assert policy.refused(long, 8) is not None
    with pytest.raises(PromptTooLongError):
        policy.write([short, long], room=8)
    assert make("seq2seq").refused(long * 40, 500) is None  # T5 counts from one another


def test_what_peft_would_write():
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    policy = make("causal")
    config, tensors = policy.adapter()
    assert json.loads(json.dumps(config))["target_modules"] == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip
    assert config["base_model_name_or_path"] is None
    base = make("causal", None, moved=False).model
    given = LoraConfig(**{name: config[name] for name in ("r", "lora_alpha", "target_modules")})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*", FutureWarning)
        taken = get_peft_model(base, given)
    loaded = set_peft_model_state_dict(taken, tensors)
    assert not loaded.unexpected_keys
    ids = torch.tensor([policy.prompt(PROMPTS[0])])
    with torch.no_grad():
        taught, untaught = policy.model(ids).logits, make("causal", None, moved=False).model(ids).logits
        assert apart(taken(ids).logits, taught) < apart(untaught, taught) / 500
    assert {str(one.dtype) for one in tensors.values()} == {"torch.float16"}
    with pytest.raises(InputError, match="no adapter"):
        make("causal", None).adapter()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"dtype": "int8"}, "no dtype 'int8'"),
        ({"device": "cuda:0"}, "no GPU"),
        ({"lora": LoraSettings(targets=("nowhere",))}, "nowhere"),
    ],
)
def test_wrong_settings_are_refused(given, told):
    if given.get("device") and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    model, tokenizer, kind = TINY["tiny_causal"]()
    with pytest.raises(InputError, match=told):
        HFPolicy(model, tokenizer, kind, **{"lora": LORA, "device": "cpu"} | given)


@pytest.mark.parametrize(("given", "told"), [({"rank": 0}, "rank"), ({"alpha": 0}, "alpha")])
def test_lora_settings_out_of_range(given, told):
    with pytest.raises(InputError, match=told):
        LoraSettings(**given)


def test_tensors_of_another_training_are_refused():
    policy = make("causal")
    with pytest.raises(InputError, match="another base model"):
        policy.set_parameters(make("causal", LoraSettings(rank=2)).parameters())


def test_less_precise_numbers_are_much_like_the_others():
    model, tokenizer, kind = TINY["tiny_causal"]()
    half = HFPolicy(model, tokenizer, kind, lora=LORA, device="cpu", dtype="bfloat16")
    full = HFPolicy(*TINY["tiny_causal"](), lora=LORA, device="cpu")
    written = full.write(PROMPTS, seeds=[1, 2, 3, 4], room=8)
    with torch.no_grad():
        difference = apart(half.log_probs(written), full.log_probs(written))
    assert 1e-6 < difference < 0.5
    assert all(one.dtype == torch.float32 for one in half.parameters().values())


def test_a_model_that_was_read_from_a_gguf_file_can_be_trained():
    model, tokenizer, kind = TINY["tiny_causal"]()
    model.is_quantized = True  # as transformers marks it, though its weights are plain numbers again
    policy = HFPolicy(model.to(torch.bfloat16), tokenizer, kind, lora=LORA, device="cpu")
    assert {one.dtype for one in policy.model.parameters()} == {torch.float32}
    policy.log_probs(policy.write(PROMPTS[:1], room=4))[0].sum().backward()


def test_portions_hold_each_place_once_and_keep_like_with_like():
    begun = tuple(range(SHARED))
    prompts = [(*begun, 1), (7,) * 9, (*begun, 2, 3), (*begun, 1), (8,) * 5, (*begun, 1)]
    parts = portions(prompts, [4] * 6, 10_000)
    assert sorted(place for part in parts for place in part) == list(range(6))
    assert sorted(map(sorted, parts)) == [[0, 2, 3, 5], [1, 4]]
    assert portions(prompts, [4] * 6, 1) == [[place] for part in parts for place in part]
    assert portions(prompts, [4] * 6, 10_000, share=False)[0][0] == 2
    assert len(portions(prompts, [4] * 6, 10_000, share=False)) == 1
    assert portions([], [], 10) == []
    for budget in range(40, 90):
        for part in portions(prompts, [4] * 6, budget):
            unique = {prompts[place] for place in part}
            assert len(part) == 1 or sum(len(one) - SHARED for one in unique) + 4 * len(part) <= budget


def test_logits_that_are_no_numbers_end_the_training():
    policy = make("causal")
    policy.set_parameters({name: torch.full_like(one, torch.nan) for name, one in policy.parameters().items()})
    for seeds in (None, [1]):
        with pytest.raises(TrainingError, match=r"logits are no numbers at token 1 .*--lr"):
            policy.write(PROMPTS[:1], seeds=seeds, room=4)
