"""The warm-up: it learns, goes on after a kill to the same bytes, and says what is wrong."""

from __future__ import annotations

import json
import math
import os
import runpy
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from querywright.errors import InputError
from querywright.optimize.rewriter.checkpoints import load_tensors
from querywright.optimize.rewriter.gradient import TrainingError
from querywright.optimize.rewriter.lora import LoraSettings
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.optimize.rewriter.types import Pair
from querywright.optimize.rewriter.warmup import BEST, LOG, WarmupSettings, warm_up

TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
COLOURS = ("red", "blue", "green", "white")
SETTINGS = WarmupSettings(epochs=3, batch=5, lr=0.02, least=4, keep_each=2, rise=0.1)


def pair(number, text=None):
    colour = COLOURS[number % 4]
    messages = (("system", "Write the query."), ("user", f"What of {colour}, number {number}?"))
    text = json.dumps({"queries": [colour]}) if text is None else text
    return Pair(f"q{number}", "rrr", 0, messages, text, 1.0, "teacher")


TRAIN, DEV = [pair(n) for n in range(17)], [pair(n) for n in range(20, 24)]


def make(kind="causal", lora=True):
    return HFPolicy(*TINY[f"tiny_{kind}"](), lora=LoraSettings(8, 16) if lora else None, device="cpu")


def parameters(policy):
    return {name: one.detach().clone() for name, one in policy.parameters().items()}


def same(ones, others):
    return ones.keys() == others.keys() and all(torch.equal(one, others[name]) for name, one in ones.items())


def lines(folder, kind):
    found = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_it_learns_what_it_is_shown(tmp_path, kind, lora):
    policy = make(kind, lora)
    settings = replace(SETTINGS, epochs=8, lr=0.03 if lora else 0.01)
    report = warm_up(policy, TRAIN, DEV, settings, tmp_path)
    assert report.losses[-1] < 0.6 * report.before
    assert report.losses[report.best_epoch - 1] == min(report.losses)
    assert (report.steps, report.pairs, report.left_out, report.notes) == (32, 17, 0, ())
    assert all(one.text.startswith('{"queries": [') for one in policy.write([one.messages for one in DEV], room=24))
    assert same(parameters(policy), load_tensors(tmp_path / BEST))


def test_the_log_tells_loss_rate_and_dev(tmp_path):
    seen = []
    report = warm_up(make(), TRAIN, DEV, SETTINGS, tmp_path, lambda *told: seen.append(told))
    steps, looks = lines(tmp_path, "step"), lines(tmp_path, "dev")
    assert [line["step"] for line in steps] == list(range(1, 13))
    assert seen == [("warm-up", step, 12) for step in range(1, 13)]
    assert [line["loss"] for line in looks] == [report.before, *report.losses]
    assert [line["step"] for line in looks] == [0, 4, 8, 12]
    assert [line["lr"] for line in steps] == [SETTINGS.rate(step, 12) for step in range(12)]
    assert all(line["gradient"] > 0 and line["tokens"] > 0 for line in steps)
    assert sum(line["tokens"] for line in steps) % 3 == 0  # each pair once an epoch


def test_the_first_losses_are_the_mean_a_token(tmp_path):
    policy = make()
    taught = [policy.taught(one.messages, one.text) for one in DEV]
    with torch.no_grad():
        scores = torch.cat(policy.log_probs(taught))
    report = warm_up(policy, TRAIN, DEV, replace(SETTINGS, batch=17, epochs=1), tmp_path)
    assert report.before == pytest.approx(-float(scores.mean()), rel=1e-5)
    fresh = make()
    with torch.no_grad():
        scores = torch.cat(fresh.log_probs([fresh.taught(one.messages, one.text) for one in TRAIN]))
    assert lines(tmp_path, "step")[0]["loss"] == pytest.approx(-float(scores.mean()), rel=1e-5)


def test_small_portions_learn_the_same(tmp_path):
    whole, small = make(), make()
    warm_up(whole, TRAIN, DEV, replace(SETTINGS, epochs=1, lr=1e-3), tmp_path / "whole")
    warm_up(small, TRAIN, DEV, replace(SETTINGS, epochs=1, lr=1e-3, chunk=1), tmp_path / "small")
    first, second = (lines(tmp_path / name, "step") for name in ("whole", "small"))
    assert [one["loss"] for one in first] == pytest.approx([one["loss"] for one in second], rel=1e-3)
    assert [one["gradient"] for one in first] == pytest.approx([one["gradient"] for one in second], rel=1e-2)


class Stop(BaseException):
    pass


def stopped_at(number):
    def progress(what, done, of):
        if done == number:
            raise Stop

    return progress


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
def test_stopped_anywhere_it_ends_as_an_undisturbed_one(tmp_path, kind):
    settings = replace(SETTINGS, epochs=2, keep_each=3)
    whole = make(kind)
    report = warm_up(whole, TRAIN, DEV, settings, tmp_path / "whole")
    for stops in [(1,), (3, 4, 5), (1, 1, 7)]:
        folder = tmp_path / f"stopped {stops}"
        for stop in stops:
            with pytest.raises(Stop):
                warm_up(make(kind), TRAIN, DEV, settings, folder, stopped_at(stop))
        policy = make(kind)
        assert warm_up(policy, TRAIN, DEV, settings, folder) == report
        assert same(parameters(policy), parameters(whole))
        for name in (BEST, LOG):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


KILLED = """
import os, runpy, signal, sys
from pathlib import Path
test = runpy.run_path(sys.argv[1])
def progress(what, done, of):
    if done == 7:
        os.kill(os.getpid(), signal.SIGKILL)
test["warm_up"](test["make"](), test["TRAIN"], test["DEV"], test["SETTINGS"], Path(sys.argv[2]), progress)
"""


def test_killed_it_ends_as_an_undisturbed_one(tmp_path):
    whole, policy = make(), make()
    report = warm_up(whole, TRAIN, DEV, SETTINGS, tmp_path / "whole")
    folder = tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, __file__, str(folder)], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert lines(folder, "step")[-1]["step"] == 7
    with (folder / LOG).open("a") as file:
        file.write('{"kind": "ste')  # of a line that was being written
    assert warm_up(policy, TRAIN, DEV, SETTINGS, folder) == report
    assert same(parameters(policy), parameters(whole))
    assert (folder / BEST).read_bytes() == (tmp_path / "whole" / BEST).read_bytes()
    assert (folder / LOG).read_bytes() == (tmp_path / "whole" / LOG).read_bytes()


def test_a_damaged_checkpoint_costs_its_steps_and_is_told(tmp_path):
    settings = replace(SETTINGS, epochs=1)
    whole = make()
    report = warm_up(whole, TRAIN, DEV, settings, tmp_path / "whole")
    with pytest.raises(Stop):
        warm_up(make(), TRAIN, DEV, settings, tmp_path / "other", stopped_at(3))
    newest = max((tmp_path / "other").glob("step-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-100])
    policy = make()
    again = warm_up(policy, TRAIN, DEV, settings, tmp_path / "other")
    assert "step 2 is damaged" in again.notes[0]
    assert replace(again, notes=()) == report
    assert same(parameters(policy), parameters(whole))


def test_what_is_done_is_not_done_again(tmp_path):
    first = make()
    report = warm_up(first, TRAIN, DEV, SETTINGS, tmp_path)
    second = make()
    assert warm_up(second, TRAIN, DEV, SETTINGS, tmp_path, stopped_at(12)) == report
    assert same(parameters(first), parameters(second))


def test_pairs_of_several_sources_are_mixed_by_the_seed(tmp_path):
    train = [replace(pair(n), technique="hcqr" if n < 8 else "rrr") for n in range(16)]

    def order(seed, folder):
        policy, learnt = make(), []
        log_probs = policy.log_probs
        numbers = {policy.taught(one.messages, one.text).prompt: n for n, one in enumerate(train)}

        def watched(batch, **named):
            if torch.is_grad_enabled():
                learnt.extend(numbers[one.prompt] for one in batch)
            return log_probs(batch, **named)

        policy.log_probs = watched
        warm_up(policy, train, DEV, replace(SETTINGS, epochs=1, batch=8, seed=seed), tmp_path / folder)
        return [set(learnt[place : place + 8]) for place in (0, 8)]

    first = order(0, "a")
    assert set.union(*first) == set(range(16))
    assert all({n < 8 for n in part} == {True, False} for part in first)
    assert order(0, "b") == first
    assert order(1, "c") != first


def test_another_warm_ups_folder_is_refused(tmp_path):
    warm_up(make(), TRAIN, DEV, replace(SETTINGS, epochs=1), tmp_path)
    for policy, train, settings in [
        (make(), TRAIN, SETTINGS),
        (make(), TRAIN[1:], replace(SETTINGS, epochs=1)),
        (make(lora=False), TRAIN, replace(SETTINGS, epochs=1)),
    ]:
        before = parameters(policy)
        with pytest.raises(InputError, match="other pairs, settings or weights"):
            warm_up(policy, train, DEV, settings, tmp_path)
        assert same(before, parameters(policy))


def test_weights_that_got_worse_are_not_kept(tmp_path):
    policy = make()
    before = parameters(policy)
    wrong = [pair(n, "\x00\x01\x02" * 9) for n in range(17)]
    report = warm_up(policy, wrong, DEV, replace(SETTINGS, lr=0.5), tmp_path)
    assert report.best_epoch == 0
    assert min(report.losses) > report.before
    assert "no epoch was better" in report.notes[0]
    assert same(before, parameters(policy))


def test_a_loss_that_is_no_number_ends_it_and_spoils_nothing(tmp_path):
    policy = make()
    with pytest.raises(Stop):
        warm_up(policy, TRAIN, DEV, SETTINGS, tmp_path, stopped_at(5))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    broken = make()
    broken.model.model.norm.weight.data.fill_(math.nan)
    with pytest.raises(TrainingError, match=r"loss of step 5.* nan.*--warmup-lr.*last checkpoint is whole"):
        warm_up(broken, TRAIN, DEV, SETTINGS, tmp_path)
    assert all((tmp_path / name).read_bytes() == data for name, data in before.items() if name != LOG)
    again, whole = make(), make()
    assert warm_up(again, TRAIN, DEV, SETTINGS, tmp_path) == warm_up(whole, TRAIN, DEV, SETTINGS, tmp_path / "whole")
    assert same(parameters(again), parameters(whole))


def test_too_few_pairs_names_what_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"needs 16 train pairs or more, but there are 13: 3 more"):
        warm_up(make(), TRAIN[:13], DEV, WarmupSettings(), tmp_path / "none")
    with pytest.raises(InputError, match=r"needs 1 dev pairs or more, but there are 0: 1 more"):
        warm_up(make(), TRAIN, [], SETTINGS, tmp_path / "none")
    policy = make()
    policy.model.config.max_position_embeddings = 60
    long = [pair(n, "word " * 50) for n in range(5)]
    with pytest.raises(InputError, match=r"there are 3 \(5 do not fit the model's context\): 1 more"):
        warm_up(policy, [*long, *TRAIN[:3]], DEV, SETTINGS, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert warm_up(policy, [*long, *TRAIN], DEV, replace(SETTINGS, epochs=1), tmp_path / "some").left_out == 5


def test_the_rate_rises_and_falls():
    settings = WarmupSettings(lr=1.0, rise=0.2)
    rates = [settings.rate(step, 10) for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[6] == pytest.approx(0.5)
    assert rates[9] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert sorted(rates[2:], reverse=True) == rates[2:]
    constant = replace(settings, schedule="constant")
    assert [constant.rate(step, 10) for step in range(10)] == [0.5] + [1.0] * 9


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"epochs": 0}, "epochs of the warm-up must be 1"),
        ({"batch": 0}, "batch"),
        ({"lr": 0.0}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"rise": 1.0}, "rise"),
        ({"schedule": "linear"}, "no schedule 'linear'"),
    ],
)
def test_settings_out_of_range(given, told):
    with pytest.raises(InputError, match=told):
        WarmupSettings(**given)
