"""A whole training with a random model: what it leaves behind, and how it goes on after an end."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from querywright.cli.main import run
from querywright.data.splits import Splits, asked_of
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.files import locked
from querywright.models.rewriters import read_rewriter
from querywright.optimize.rewriter.checkpoints import read_lines
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.policy import TrainingError
from querywright.optimize.rewriter.settings import Given, TrainSettings
from querywright.optimize.rewriter.train import Trained, train

torch: Any = pytest.importorskip("torch")
pytest.importorskip("peft")
TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
SETTINGS = TrainSettings(
    "rrr", steps=2, batch=2, group=3, room=16, top_k=0, lr=0.01, metric="recall@5",
    candidates=2, epochs=1, warmup_batch=8, warmup_lr=0.01, least_pairs=4,
    look_each=2, rank=2, device="cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("small")


@pytest.fixture(scope="module")
def splits(make_world: Any) -> Splits:
    questions = make_world(size=24).questions
    return Splits(questions[:16], questions[16:20], questions[20:])


@pytest.fixture(scope="module")
def small(folder: Path, splits: Splits, make_world: Any, make_engine: Any, make_lm: Any) -> Any:
    """Trains in the folder, two steps of each stage with a random model of four layers; the same name goes on."""

    def write(asked: Any) -> str:  # a key word for three questions of four
        query = f"{'other' if asked.number % 4 == 3 else 'key'} of {asked.number}"
        return json.dumps({"thought": "look it up", "queries": [query]})

    def run(name: str = "run", progress: Any = None, **changes: Any) -> Trained:
        given: dict[str, Any] = {"splits": splits, "retriever": make_world(size=24), "collection": "small"}
        given |= {"teacher": make_lm(make_engine(write=write))}
        given |= {key: changes.pop(key) for key in list(changes) if key in Given.__slots__}
        settings, place = replace(SETTINGS, base=str(base), **changes), folder / name
        return train(settings, Given(**given), out=place / "out", work=place / "work", progress=progress)

    base = TINY["save_tiny"](folder / "tiny")
    return run


@pytest.fixture(scope="module")
def trained(small: Any) -> Any:
    return small()


def test_a_whole_training(folder: Path, trained: Any) -> None:
    made = read_rewriter(trained.folder)
    card, readme = made.card, (trained.folder / "README.md").read_text(encoding="utf-8")
    assert (made.techniques, made.base.name) == (("rrr",), "tiny")
    assert [arm["arm"] for arm in card["test"]["arms"]] == ["no rewriting", "untrained", "trained"]
    assert card["stages"]["collect"] == {"questions": 16, "teacher": "scripted/model", "collected": 12}
    assert (card["stages"]["warmup"]["steps"], card["stages"]["reinforce"]["steps"]) == (2, 2)
    assert card["standing"]["dev"]["verdict"] == "no gain shown"
    assert (card["data"]["train"]["n"], card["settings"]["lr"], made.recipe) == (16, 0.01, "reinforce")
    assert str(folder) not in json.dumps(card)
    lines = read_lines(folder / "run" / "work" / "reinforce" / "reinforce.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "step"] == [1, 2]
    assert len(read_lines(trained.folder / "curve.jsonl")) == 8
    assert "no gain over the question as it is written" in readme
    assert "--writer-lm path/to/out" in readme
    assert run(["rewriter", "show", str(trained.folder)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "done"),
    [
        ("collect", set()),
        ("warm-up", {"collect"}),
        ("reinforce", {"collect", "warm-up"}),
        ("measuring: trained", {"collect", "warm-up", "reinforce"}),
    ],
)
def test_a_training_that_was_ended_in_any_stage_goes_on(
    folder: Path, small: Any, trained: Any, what: str, done: set[str]
) -> None:
    name, said = f"ended-{what.split()[-1]}", list[str]()

    def progress(now: str, *of: int) -> None:
        said.append(now)
        if now == what and said.count(what) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(name, progress)
    assert not (folder / name / "out").exists()
    before = len(said)
    made = small(name, progress)
    assert not done & set(said[before:])
    assert made.card["stages"]["collect"] == trained.card["stages"]["collect"]
    assert made.card["stages"]["warmup"]["before"] == pytest.approx(trained.card["stages"]["warmup"]["before"])
    assert len(read_lines(made.folder / "curve.jsonl")) == 8


def test_a_training_that_is_done_costs_nothing_and_its_folder_is_its_own(
    folder: Path, small: Any, trained: Any
) -> None:
    said, adapter = list[str](), (trained.folder / "adapter.safetensors").read_bytes()
    again = small(progress=lambda what, done, total: said.append(what))
    assert again.card["stages"] == trained.card["stages"]
    assert not {"warm-up", "reinforce", "collect"} & set(said)
    assert (again.folder / "adapter.safetensors").read_bytes() == adapter
    with pytest.raises(InputError, match=r"another training \(lr differ\); .*--work"):
        small(lr=0.5)
    with locked(folder / "run" / "work" / "training.lock"), pytest.raises(InputError, match="another process trains"):
        small()


def test_what_ends_a_training_is_said(folder: Path, small: Any, splits: Splits) -> None:
    (folder / "taken" / "work").mkdir(parents=True)
    (folder / "taken" / "work" / "pairs.jsonl").write_text("")
    with pytest.raises(InputError, match="'work' holds files of something else"):
        small("taken")
    with pytest.raises(InputError, match=r"needs 40 train pairs or more, but there are 11: 29 more"):
        small("little", least_pairs=40)
    with pytest.raises(InputError, match="there is no dev question: 1 more is needed"):
        small("none", splits=splits._replace(dev=[]))
    assert not (folder / "none").exists()  # a folder is not taken by what can never be trained
    with pytest.raises(TrainingError, match=r"loss .* is nan.*--warmup-lr.*--work"):
        small("nan", warmup_lr=1e30)
    assert not any((folder / name / "out").exists() for name in ("little", "nan"))


def test_one_adapter_learns_several_techniques_of_several_collections(small: Any) -> None:
    def pairs(technique: str, data: str, numbers: range) -> list[Pair]:
        asked = [Question(f"q{n}", f"What of number {n} of {data}?") for n in numbers]
        return [
            Pair(one.id, technique, 0, (("system", f"Write for {technique}."), ("user", one.question)),
                json.dumps({"queries": [f"key of {one.id}"]}), 1.0, "me", data, asked_of(one))
            for one in asked
        ]  # fmt: skip

    given = [*pairs("rrr", "small", range(8)), *pairs("hcqr", "others", range(8, 24))]
    made = small("several", stages=("warmup",), pairs=given, teacher=None)
    assert read_rewriter(made.folder).techniques == ("hcqr", "rrr")
    assert made.card["stages"]["warmup"]["given"] == {"hcqr, others": 16, "rrr, small": 8}
    readme = (made.folder / "README.md").read_text(encoding="utf-8")
    assert "A rewriter for `hcqr`, `rrr` (chosen by `rrr`) on the base model" in readme
    made = small("given", stages=("reinforce",), steps=1, pairs=given[8:])
    assert made.card["techniques"] == ["rrr"], "pairs that no stage learns from teach nothing"
