"""A whole training with a random model: what it writes, how it resumes, and what ends it."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from querywright.cli.main import run
from querywright.data.splits import Splits
from querywright.models.hf import Base
from querywright.models.rewriters import Rewriter
from querywright.optimize.rewriter import train as training
from querywright.optimize.rewriter.collect import collect
from querywright.optimize.rewriter.settings import TrainingInputs, TrainSettings
from querywright.optimize.rewriter.stages import TrainingError
from querywright.optimize.rewriter.train import train

pytest.importorskip("trl")
TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
SETTINGS = TrainSettings("rrr", steps=2, batch=2, group=2, lr=0.01, metric="recall@5", epochs=2, warmup_lr=0.01, rank=2)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, make_world: Any, make_engine: Any, make_lm: Any) -> Any:
    """Trains a random model of two layers, a few steps of each stage; the same name resumes."""
    world, folder = make_world(size=30), tmp_path_factory.mktemp("small")
    inputs = TrainingInputs(Splits(world.questions[:22], world.questions[22:26], world.questions[26:]), world, "small")
    pairs = collect(SETTINGS, inputs).pairs

    def write(asked: Any) -> str:
        return json.dumps({"thought": "look it up", "queries": [f"key of {asked.number}"]})

    def run(name: str = "run", progress: Any = None, **changes: Any) -> Rewriter:
        given = replace(inputs, pairs=pairs, open_lm=lambda name: make_lm(make_engine(write=write)))
        place = folder / name
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "load_base", lambda: Base(*TINY["tiny_base"]()))
            out, work = place / "out", place / "work"
            return train(replace(SETTINGS, **changes), given, out=out, work=work, progress=progress)

    return run


@pytest.fixture(scope="module")
def trained(small: Any) -> Any:
    return small()


def test_a_whole_training(trained: Any) -> None:
    made, card = trained, trained.card
    readme = (trained.path / "README.md").read_text(encoding="utf-8")
    assert (made.techniques, made.base.name, made.recipe) == (("rrr",), "embedded", "reinforce")
    assert [arm["arm"] for arm in card["test"]["arms"]] == ["baseline", "untrained", "trained"]
    warmup, reinforced = card["stages"]["warmup"], card["stages"]["reinforce"]
    assert (warmup["steps"], warmup["pairs"], warmup["given"]) == (4, 20, {"rrr, small": 22})
    assert warmup["losses"][1] < warmup["losses"][0]
    assert warmup["best_epoch"] == 2
    assert (reinforced["steps"], reinforced["best_step"], reinforced["flat"]) == (2, 0, 2)  # it writes no JSON yet
    assert card["standing"]["dev"]["verdict"] == "no gain shown"
    assert (card["data"]["train"]["n"], card["settings"]["lr"]) == (22, 0.01)
    assert str(trained.path.parent) not in json.dumps(card)
    curve = [json.loads(line) for line in (trained.path / "curve.jsonl").read_text().splitlines()]
    assert [line["step"] for line in curve if line["stage"] == "reinforce" and "reward" in line] == [1, 2]
    assert "2 of 2 reinforcement learning steps had no effect" in readme
    assert "--writer-lm path/to/out" in readme
    assert not list((trained.path.parent / "work").iterdir()), "checkpoints are deleted at the end"
    assert run(["rewriter", "show", str(trained.path)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "step"), [("warmup", 3), ("reinforce", 2)])
def test_an_interrupted_training_resumes(small: Any, trained: Any, stage: str, step: int) -> None:
    seen = list[tuple[str, int]]()

    def progress(now: str, done: int, total: int) -> None:
        seen.append((now, done))
        if (now, done) == (stage, step) and seen.count((now, done)) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(f"ended-{stage}", progress)
    before = len(seen)
    made = small(f"ended-{stage}", progress)
    assert ("warmup", 1) not in seen[before:], "the first epoch is not repeated"
    assert made.card["stages"]["warmup"] == trained.card["stages"]["warmup"]
    weights = (one.path / "adapter.safetensors" for one in (made, trained))
    assert next(weights).read_bytes() == next(weights).read_bytes()


def test_a_loss_that_is_not_finite_ends_a_training(small: Any) -> None:
    with pytest.raises(TrainingError, match=r"of the warmup stage is (nan|inf); retrain with a lower learning rate"):
        small("infinite", warmup_lr=1e30)
