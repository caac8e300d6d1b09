"""Checkpoints: whole or not there, and told from damaged ones."""

from __future__ import annotations

import json
import re
import resource
import signal

import pytest
import torch

from querywright.errors import InputError
from querywright.optimize.rewriter.checkpoints import load_checkpoint, load_tensors, save_checkpoint, save_tensors
from querywright.optimize.rewriter.gradient import make_optimizer


def training(kind="adamw", seed=0):
    generator = torch.Generator().manual_seed(seed)
    parameters = {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in {"b.weight": (6, 5), "a.weight": (3,), "never.met": (2, 2)}.items()
    }
    return parameters, make_optimizer(kind, list(parameters.values()), 0.1)


def step(parameters, optimizer, number):
    optimizer.zero_grad()
    sum((parameters[name] * (number + 1)).sin().sum() for name in ("b.weight", "a.weight")).backward()
    optimizer.step()


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["adamw", "adafactor"])
def test_a_training_goes_on_to_the_same_bytes(tmp_path, kind):
    parameters, optimizer = training(kind)
    for number in range(6):
        if number == 3:
            save_checkpoint(tmp_path, 3, parameters, optimizer, {"losses": [0.1 + 0.2, 1e-17], "name": "ü"})
        step(parameters, optimizer, number)
    others, fresh = training(kind, seed=1)
    found = load_checkpoint(tmp_path)
    assert found.step == 3
    assert found.state == {"losses": [0.1 + 0.2, 1e-17], "name": "ü"}
    assert found.notes == ()
    with torch.no_grad():
        for name, one in others.items():
            one.copy_(found.parameters[name])
    found.restore(others, fresh)
    for number in range(3, 6):
        step(others, fresh, number)
    assert all(torch.equal(one, others[name]) for name, one in parameters.items())


def test_an_optimizers_plain_numbers_are_kept(tmp_path):
    (parameters, _), (others, _) = training(), training()
    optimizer, fresh = (torch.optim.SGD(list(one.values()), lr=0.1) for one in (parameters, others))
    optimizer.state[parameters["a.weight"]] = {"count": 7, "mean": torch.ones(3)}
    save_checkpoint(tmp_path, 1, parameters, optimizer)
    load_checkpoint(tmp_path).restore(others, fresh)
    state = fresh.state[others["a.weight"]]
    assert state["count"] == 7
    assert torch.equal(state["mean"], torch.ones(3))


def test_the_last_two_stay(tmp_path):
    parameters, optimizer = training()
    assert load_checkpoint(tmp_path / "none yet") is None
    for number in (1, 2, 30):
        save_checkpoint(tmp_path, number, parameters, optimizer)
    assert files(tmp_path) == [f"step-000000{n}.{end}" for n in ("02", "30") for end in ("json", "safetensors")]
    assert load_checkpoint(tmp_path).step == 30


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))


def other_step(path):
    path.write_bytes(path.with_name("step-00000001.safetensors").read_bytes())


@pytest.mark.parametrize(
    ("damage", "name", "told"),
    [
        (cut, "step-00000002.safetensors", "damaged"),
        (flip, "step-00000002.safetensors", "checksum is another"),
        (other_step, "step-00000002.safetensors", "another step's"),
        (lambda path: path.unlink(), "step-00000002.safetensors", "No such file"),
        (lambda path: path.write_bytes(b""), "step-00000002.safetensors", "damaged"),
        (cut, "step-00000002.json", "damaged"),
        (lambda path: path.write_text("[]"), "step-00000002.json", "damaged"),
        (lambda path: path.write_text('{"format": 2, "step": 2}'), "step-00000002.json", "format 2"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "step-00000002.json", "damaged"),
    ],
)
def test_a_damaged_one_falls_back_and_says_so(tmp_path, damage, name, told):
    parameters, optimizer = training()
    for number in (1, 2):
        save_checkpoint(tmp_path, number, parameters, optimizer, {"number": number})
        step(parameters, optimizer, number)
    damage(tmp_path / name)
    found = load_checkpoint(tmp_path)
    assert (found.step, found.state) == (1, {"number": 1})
    assert len(found.notes) == 1
    assert re.search(f"step 2 is damaged.*{told}|step 2 is {told}", found.notes[0])
    damage(tmp_path / name.replace("2", "1")) if damage is not other_step else flip(
        tmp_path / "step-00000001.safetensors"
    )
    with pytest.raises(InputError, match=r"step 2 is damaged.*step 1 is damaged.*delete the folder"):
        load_checkpoint(tmp_path)


def test_tensors_without_their_record_are_no_checkpoint(tmp_path):
    parameters, optimizer = training()
    save_checkpoint(tmp_path, 1, parameters, optimizer)
    save_checkpoint(tmp_path, 2, parameters, optimizer)
    (tmp_path / "step-00000002.json").unlink()  # killed between the two
    (tmp_path / ".step-00000002.json.new").write_text("{")
    found = load_checkpoint(tmp_path)
    assert (found.step, found.notes) == (1, ())
    save_checkpoint(tmp_path, 3, parameters, optimizer)
    assert not any(name.startswith(".") for name in files(tmp_path))
    assert load_checkpoint(tmp_path).step == 3


@pytest.fixture
def small_files():
    before, limit = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)


def test_no_room_leaves_the_one_before(tmp_path, small_files):
    parameters, optimizer = training()
    save_checkpoint(tmp_path, 1, parameters, optimizer)
    save_tensors(tmp_path / "best.safetensors", parameters)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    step(parameters, optimizer, 1)
    small_files(300)
    with pytest.raises(InputError, match=r"step 2 cannot be written.*make room.*goes on from the last checkpoint"):
        save_checkpoint(tmp_path, 2, parameters, optimizer)
    with pytest.raises(InputError, match=r"best.safetensors cannot be written.*make room"):
        save_tensors(tmp_path / "best.safetensors", parameters)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_a_number_that_is_none_is_not_written(tmp_path):
    parameters, optimizer = training()
    with pytest.raises(ValueError, match="Out of range"):
        save_checkpoint(tmp_path, 1, parameters, optimizer, {"loss": float("nan")})
    assert load_checkpoint(tmp_path) is None


def test_tensors_alone(tmp_path):
    path = tmp_path / "new" / "best.safetensors"
    tensors = {"half": torch.ones(2, 3, dtype=torch.bfloat16), "one": torch.tensor(4.0), "none": torch.zeros(0)}
    save_tensors(path, tensors)
    found = load_tensors(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(one, found[name]) and one.dtype == found[name].dtype for name, one in tensors.items())
    assert files(path.parent) == ["best.safetensors"]
    flip(path)
    with pytest.raises(InputError, match=r"best.safetensors.*checksum.*delete that folder"):
        load_tensors(path)
    with pytest.raises(InputError, match="No such file"):
        load_tensors(tmp_path / "gone.safetensors")


def test_the_record_is_plain_json(tmp_path):
    parameters, optimizer = training()
    save_checkpoint(tmp_path, 12, parameters, optimizer, {"a": [1]})
    record = json.loads((tmp_path / "step-00000012.json").read_text())
    assert record.keys() == {"format", "step", "sha256", "numbers", "state"}
