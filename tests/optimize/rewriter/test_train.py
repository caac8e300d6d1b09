"""A whole training with a random model: what it leaves behind, and how it goes on after an end."""

from __future__ import annotations

import errno
import json
import os
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from querywright.cli.main import run
from querywright.data.splits import asked_of
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.files import locked
from querywright.models.rewriters import read_rewriter
from querywright.optimize.rewriter.checkpoints import read_lines
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.policy import TrainingError

torch: Any = pytest.importorskip("torch")
pytest.importorskip("peft")
SMALL = runpy.run_path(str(Path(__file__).with_name("small_training.py")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("small")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Any:
    return SMALL["small"](folder)


def test_a_whole_training(folder: Path, trained: Any) -> None:
    made = read_rewriter(trained.folder)
    card, work = made.card, folder / "run" / "work"
    assert made.techniques == ("rrr",)
    assert made.base.name == "tiny"
    assert [arm["arm"] for arm in card["test"]["arms"]] == [
        "no rewriting", "teacher", "untrained", "warmed up", "trained"
    ]  # fmt: skip
    assert card["test"]["arms"][1]["metrics"]["recall@5"]["value"] == 0.75
    assert card["stages"]["collect"] == {"questions": 16, "teacher": "scripted/teacher", "collected": 12}
    assert card["stages"]["warmup"]["steps"] == 2
    assert card["stages"]["reinforce"]["steps"] == 2
    assert card["standing"]["dev"]["verdict"] == "no difference shown"
    assert card["data"]["train"]["n"] == 16
    assert card["recipe"]["length_penalty"] == 0.01
    assert str(folder) not in json.dumps(card)
    steps = [line for line in read_lines(work / "reinforce" / "reinforce.jsonl") if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [1, 2]
    assert any(line["deviation"] > 0 for line in steps)
    assert len((trained.folder / "curve.jsonl").read_text(encoding="utf-8").splitlines()) == 8
    assert "no gain over the question as it is written" in (trained.folder / "README.md").read_text(encoding="utf-8")
    assert run(["rewriter", "show", str(trained.folder)]) == 0
    page = trained.report.read_text(encoding="utf-8")
    for part in ("On test", "On dev", "Curves", "Guards", "How it was made", "figure-reward", "figure-warmup"):
        assert part in page


@pytest.mark.parametrize(
    "what",
    [
        "reinforce",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("collect", "warm-up", "measuring: trained")),
    ],
)
def test_a_training_that_was_ended_in_any_stage_goes_on(folder: Path, trained: Any, what: str) -> None:
    name, said = f"ended-{what.split()[-1]}", list[str]()

    def progress(now: str, done: int, total: int) -> None:
        said.append(now)
        if now == what and said.count(what) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SMALL["small"](folder, name, progress)
    assert not (folder / name / "out").exists()
    before = len(said)
    made = SMALL["small"](folder, name, progress)
    done = {"collect": set(), "warm-up": {"collect"}, "reinforce": {"collect", "warm-up"}}
    over = done.get(what, {"collect", "warm-up", "reinforce"} if what == "measuring: trained" else set())
    assert not over & set(said[before:])
    assert made.card["stages"]["collect"] == trained.card["stages"]["collect"]
    assert made.card["stages"]["warmup"]["before"] == pytest.approx(trained.card["stages"]["warmup"]["before"])
    weights = [(one.folder / "adapter.safetensors").stat().st_size for one in (made, trained)]
    assert weights[0] == weights[1]
    assert len((made.folder / "curve.jsonl").read_text(encoding="utf-8").splitlines()) == 8


def test_a_training_that_is_done_costs_nothing(folder: Path, trained: Any) -> None:
    said: list[str] = []
    again = SMALL["small"](folder, progress=lambda what, done, total: said.append(what))
    assert again.card["stages"] == trained.card["stages"]
    assert not {"warm-up", "reinforce", "collect"} & set(said)
    assert (again.folder / "adapter.safetensors").read_bytes() == (trained.folder / "adapter.safetensors").read_bytes()


def test_another_training_is_refused_and_the_difference_named(folder: Path, trained: Any) -> None:
    recipe = replace(SMALL["RECIPE"], lr=0.5)
    with pytest.raises(InputError, match=r"another training \(recipe differ\); .*--work"):
        SMALL["small"](folder, recipe=recipe)
    (folder / "full" / "work").mkdir(parents=True)
    (folder / "full" / "work" / "letter.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"holds 'letter\.txt' and no training"):
        SMALL["small"](folder, "full")


def test_only_one_process_trains_in_a_folder(folder: Path, trained: Any) -> None:
    with locked(folder / "run" / "work" / "training.lock"), pytest.raises(InputError, match="another process trains"):
        SMALL["small"](folder)


def test_too_little_data_is_said_with_what_is_missing(folder: Path) -> None:
    with pytest.raises(InputError, match=r"needs 40 train pairs or more, but there are 11: 29 more"):
        SMALL["small"](folder, "little", least_pairs=40)
    assert not (folder / "little" / "out").exists()
    with pytest.raises(InputError, match="there is no dev question: 1 more is needed"):
        SMALL["small"](folder, "none", splits=SMALL["SPLITS"]._replace(dev=[]))
    assert not (folder / "none").exists()  # a folder is not claimed by what can never be trained


def test_a_constant_reward_and_a_loss_that_is_no_number_end_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("querywright.optimize.rewriter.reinforce.FLAT_STEPS", 2)
    recipe = replace(SMALL["RECIPE"], length_penalty=0.0)
    with pytest.raises(TrainingError, match=r"last 2 steps the reward of all 12 episodes was .* each time"):
        SMALL["small"](folder, "constant", recipe=recipe, stages=("reinforce",))
    with pytest.raises(TrainingError, match=r"loss .* is nan.*--warmup-lr.*--work"):
        SMALL["small"](folder, "nan", warmup_lr=1e30)
    assert not (folder / "nan" / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 8])
def test_a_full_disk_leaves_nothing_half_written(folder: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    name, left, sync = f"disk-{after}", after, os.fsync

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((OSError, InputError), match="No space left"):
        SMALL["small"](folder, name)
    monkeypatch.undo()
    assert not (folder / name / "out").exists()
    assert not list((folder / name / "work").rglob("*.tmp"))
    assert SMALL["small"](folder, name).card["stages"]["warmup"]["steps"] == 2


def test_one_adapter_learns_several_techniques_of_several_collections(folder: Path) -> None:
    def pairs(technique: str, data: str, numbers: range) -> list[Pair]:
        return [
            Pair(
                question=f"q{n}",
                technique=technique,
                number=0,
                messages=(("system", f"Write for {technique}."), ("user", f"What of number {n} of {data}?")),
                text=json.dumps({"queries": [f"key of {n}"]}),
                reward=1.0,
                source="me",
                data=data,
                asked=asked_of(Question(f"q{n}", f"What of number {n} of {data}?")),
            )
            for n in numbers
        ]

    given = [*pairs("rrr", "small", range(8)), *pairs("hcqr", "others", range(8, 24))]
    made = SMALL["small"](folder, "several", stages=("warmup",), pairs=given, teacher=None)
    assert read_rewriter(made.folder).techniques == ("hcqr", "rrr")
    assert (made.card["technique"], made.card["techniques"]) == ("rrr", ["hcqr", "rrr"])
    assert made.card["stages"]["warmup"]["given"] == {"hcqr, others": 16, "rrr, small": 8}
    readme = (made.folder / "README.md").read_text(encoding="utf-8")
    assert "A rewriter for `hcqr`, `rrr` (chosen by `rrr`) on the base model" in readme
    assert "hcqr, rrr" in made.report.read_text(encoding="utf-8")


def test_what_is_only_given_is_not_learnt_and_aims_at_no_length(folder: Path) -> None:
    pairs = [Pair(f"q{n}", "hcqr", 0, (("user", "What?"),), "{}" * 9, 1.0, "me") for n in range(8)]
    recipe = replace(SMALL["RECIPE"], steps=1)
    made = SMALL["small"](folder, "given", stages=("reinforce",), recipe=recipe, pairs=pairs)
    assert made.card["techniques"] == ["rrr"]
    assert made.card["recipe"]["length_penalty"] == 0
    assert (
        "there were no pairs of rrr, so the length penalty had no target and was left out"
        in made.card["guards"]["warnings"]
    )
