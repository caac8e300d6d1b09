from __future__ import annotations

import errno
import json
import os
import runpy
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from querywright.cli.main import run
from querywright.data.splits import asked_of
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.embedded import EmbeddedSettings
from querywright.models.rewriter_bases import describe_base
from querywright.models.rewriters import read_rewriter
from querywright.optimize.rewriter import train as training
from querywright.optimize.rewriter.given import split_pairs
from querywright.optimize.rewriter.gradient import TrainingError
from querywright.optimize.rewriter.keeping import read_lines
from querywright.optimize.rewriter.recipes import SEED
from querywright.optimize.rewriter.settings import STAGES, check_training
from querywright.optimize.rewriter.types import Pair

torch: Any = pytest.importorskip("torch")
pytest.importorskip("peft")
HERE = Path(__file__).parent
SMALL = runpy.run_path(str(HERE / "small_training.py"))
KILLS = ("collect:16", "measuring: untrained:2", "warm-up:1", "reinforce:1", "measuring: trained:1")


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
    assert json.loads((work / "collect.json").read_text(encoding="utf-8"))["collected"] == 12
    assert str(folder) not in json.dumps(card)
    steps = [line for line in read_lines(work / "reinforce" / "reinforce.jsonl") if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [1, 2]
    assert any(line["deviation"] > 0 for line in steps)
    assert all(line["guards"]["unreadable"] == 1 for line in steps)
    assert len((trained.folder / "curve.jsonl").read_text(encoding="utf-8").splitlines()) == 8
    assert "no gain over the question as it is written" in (trained.folder / "README.md").read_text(encoding="utf-8")
    assert run(["rewriter", "show", str(trained.folder)]) == 0
    page = trained.report.read_text(encoding="utf-8")
    for part in ("On test", "On dev", "Curves", "Guards", "How it was made", "figure-reward", "figure-warmup"):
        assert part in page


def test_killed_in_every_stage_it_ends_as_undisturbed(folder: Path, trained: Any) -> None:
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src"), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, str(HERE / "small_training.py"), str(folder), *KILLS], check=True, env=env)
    whole, killed = trained.folder, folder / "killed" / "out"
    names = {file.name for file in whole.iterdir()}
    assert names == {file.name for file in killed.iterdir()}
    for name in names - {"rewriter.json", "card.json"}:
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    assert not any('"seconds"' in (whole / name).read_text(encoding="utf-8") for name in ("curve.jsonl", "card.json"))
    cards = [_timeless(json.loads((one / "card.json").read_text(encoding="utf-8"))) for one in (whole, killed)]
    assert cards[0] == cards[1]


def _timeless(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _timeless(value) for key, value in data.items() if key not in {"seconds", "latency", "cost"}}
    return [_timeless(one) for one in data] if isinstance(data, list) else data


def test_a_training_that_is_done_costs_nothing(folder: Path, trained: Any) -> None:
    said: list[str] = []
    again = SMALL["small"](folder, progress=lambda what, done, total: said.append(what))
    assert _timeless(again.card) == _timeless(trained.card)
    assert not {"warm-up", "reinforce", "collect"} & set(said)


def test_another_training_is_refused_and_the_difference_named(folder: Path, trained: Any) -> None:
    recipe = replace(SMALL["RECIPE"], lr=0.5)
    with pytest.raises(
        InputError, match=r"another training: settings\.recipe\.lr is 0\.01 there and 0\.5 here.*--work"
    ):
        SMALL["small"](folder, recipe=recipe)
    (folder / "full" / "work").mkdir(parents=True)
    (folder / "full" / "work" / "letter.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"holds 'letter\.txt' and no training"):
        SMALL["small"](folder, "full")


def test_too_little_data_is_said_with_what_is_missing(folder: Path) -> None:
    warmup = replace(SMALL["SETTINGS"].warmup, least=40)
    with pytest.raises(InputError, match=r"needs 40 train pairs or more, but there are 11: 29 more"):
        SMALL["small"](folder, "little", warmup=warmup)
    assert not (folder / "little" / "out").exists()
    with pytest.raises(InputError, match="there is no dev question: 1 more is needed"):
        SMALL["small"](folder, "none", splits=SMALL["SPLITS"]._replace(dev=[]))


def test_a_loss_that_is_no_number_and_a_constant_reward_end_it(folder: Path) -> None:
    recipe = replace(SMALL["RECIPE"], length_penalty=0.0)
    settings = replace(SMALL["SETTINGS"].reinforce, constant=2)
    with pytest.raises(TrainingError, match=r"last 2 steps the reward of all 12 episodes was .* each time"):
        SMALL["small"](folder, "constant", recipe=recipe, reinforce=settings, stages=("reinforce",))
    assert not (folder / "constant" / "out").exists()
    with pytest.raises(TrainingError, match=r"loss .* is nan.*--warmup-lr.*--work"):
        SMALL["small"](folder, "nan", warmup=replace(SMALL["SETTINGS"].warmup, lr=1e30))
    assert not (folder / "nan" / "out").exists()


@pytest.mark.parametrize("after", [0, 8])
def test_a_full_disk_leaves_nothing_half_written(
    folder: Path, trained: Any, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
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
    assert not list((folder / name / "work").rglob(".*.new"))
    made = SMALL["small"](folder, name)
    assert (made.folder / "adapter.safetensors").read_bytes() == (trained.folder / "adapter.safetensors").read_bytes()


def test_pairs_of_dev_and_test_questions_are_refused() -> None:
    settings = replace(SMALL["SETTINGS"], stages=("warmup",))
    pairs = [Pair(f"q{n}", "rrr", 0, (("user", "What?"),), "{}", 1.0, "me") for n in (0, 1, 17, 21)]
    check_training(settings, SMALL["SPLITS"], pairs=pairs[:2], writes=False, reader=False)
    with pytest.raises(InputError, match=r"2 of the 4 pairs of --pairs .* give the --seed and --sizes"):
        check_training(settings, SMALL["SPLITS"], pairs=pairs, writes=False, reader=False)


@pytest.mark.parametrize(
    ("data", "id", "text", "leaks"),
    [
        ("small", "q0", "What of number 0?", False),
        ("small", "q17", "What of number 17?", True),
        ("small", "q17", "What else?", True),
        ("", "q17", "", True),
        ("others", "q17", "What else?", False),
        ("others", "q17", "", False),
        ("others", "o1", "What of  NUMBER 21?", True),
        ("", "o1", "What of number 21?", True),
        ("others", "q17", "What of number 0?", False),
    ],
)
def test_questions_are_told_apart_by_id_in_a_collection_and_by_text_across_them(
    data: str, id: str, text: str, leaks: bool
) -> None:
    asked = asked_of(Question(id, text)) if text else ""
    pair = Pair(id, "rrr", 0, (("user", "What?"),), "{}", 1.0, "me", data, asked)
    settings = replace(SMALL["SETTINGS"], stages=("warmup",))
    given: dict[str, Any] = {"pairs": [pair], "writes": False, "reader": False, "collection": "small"}
    with pytest.raises(InputError, match="1 of the 1 pairs") if leaks else nullcontext():
        check_training(settings, SMALL["SPLITS"], **given)
    if leaks and id == "o1":  # what is asked in train as well is learnt from anyway
        both = [*SMALL["SPLITS"].train, Question("again", text)]
        check_training(settings, SMALL["SPLITS"]._replace(train=both), **given)


def test_too_few_pairs_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    pairs = [Pair(f"q{n}", "rrr", 0, (("user", "What?"),), "{}", 1.0, "me") for n in range(4)]
    told: list[str] = []
    with pytest.raises(InputError, match="needs 5 pairs or more, but --pairs has 4: 1 more needed"):
        SMALL["small"](
            tmp_path, stages=("warmup",), pairs=pairs, teacher=None, progress=lambda what, *_: told.append(what)
        )
    assert not told
    assert not (tmp_path / "run").exists()


def test_pairs_of_what_is_no_technique_are_refused() -> None:
    settings = replace(SMALL["SETTINGS"], stages=("warmup",))
    pairs = [Pair("q0", one, 0, (("user", "What?"),), "{}", 1.0, "me") for one in ("rrr", "mine")]
    with pytest.raises(InputError, match="pairs of 'mine' in --pairs, which is no technique; the techniques are: "):
        check_training(settings, SMALL["SPLITS"], pairs=pairs, writes=False, reader=False)


def test_pairs_to_choose_by_are_of_other_questions_in_any_data() -> None:
    pairs = [
        Pair(f"q{n % 10}", technique, 0, (("user", "What?"),), "{}", 1.0, "me", data)
        for n in range(20)
        for technique in ("rrr", "hcqr")
        for data in ("small", "others")
    ]
    learnt, chosen = split_pairs(pairs, 0)
    assert len(learnt) + len(chosen) == len(pairs)
    questions = {(one.question, one.data) for one in chosen}
    assert len(questions) == 2  # a tenth of 20 questions
    assert not questions & {(one.question, one.data) for one in learnt}
    assert split_pairs(list(reversed(pairs)), 0) == (learnt[::-1], chosen[::-1])


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


def test_a_rewriter_is_used_within_the_limits_that_it_was_trained_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one: Any = object.__new__(training._Training)
    one.settings = replace(SMALL["SETTINGS"], base=str(SMALL["base"](folder)))
    one.work, one.limits, given = folder, EmbeddedSettings(max_chars=99, max_items=3), {}
    one.techniques, one.described = ["rrr"], describe_base(one.settings.base)
    monkeypatch.setattr(training, "write_rewriter", lambda *_, **named: given.update(named))
    one._write(folder / "used", folder, {}, "")
    assert (given["max_chars"], given["max_items"]) == (99, 3)


def test_what_the_rewards_need_is_asked_for_when_rewrites_are_collected() -> None:
    settings, splits = replace(SMALL["SETTINGS"], stages=("collect", "warmup")), SMALL["SPLITS"]
    check_training(settings, splits, pairs=(), writes=True, reader=False)
    with pytest.raises(InputError, match="seed rewards answers and needs a reader"):
        check_training(replace(settings, recipe=SEED), splits, pairs=(), writes=True, reader=False)
    bare = splits._replace(train=[replace(one, evidence={}) for one in splits.train])
    with pytest.raises(InputError, match="none of the 16 train questions has any"):
        check_training(settings, bare, pairs=(), writes=True, reader=False)
    pair = Pair("q0", "rrr", 0, (("user", "What?"),), "{}", 1.0, "me")
    unanswered = splits._replace(train=[replace(one, answer=None) for one in splits.train])
    for given, told in (({"recipe": SEED}, "seed rewards answers"), ({"metric": "hit"}, "hit needs right answers")):
        asked = replace(settings, **given)
        with pytest.raises(InputError, match=f"{told}, but none of the 16 train questions has"):
            check_training(asked, unanswered, pairs=(), writes=True, reader=True)
        check_training(replace(asked, stages=("warmup",)), unanswered, pairs=[pair], writes=False, reader=True)
    late = splits._replace(dev=[replace(one, answer=None) for one in splits.dev])
    check_training(replace(settings, recipe=SEED), late, pairs=(), writes=True, reader=True)
    with pytest.raises(InputError, match="seed rewards answers, but none of the 4 dev questions has"):
        check_training(replace(settings, recipe=SEED, stages=STAGES), late, pairs=(), writes=True, reader=True)


def test_a_folder_is_not_claimed_by_what_can_never_be_trained(folder: Path) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"dtype": "bf16"}, "no dtype 'bf16'"),
        ({"technique": "step_back", "teacher": "evidence"}, "but not step_back"),
    ]
    for given, told in changes:
        with pytest.raises(InputError, match=told):
            SMALL["small"](folder, "unclaimed", **given)
    assert not (folder / "unclaimed").exists()


def test_the_day_is_kept_when_it_begins_and_the_threads_are_those_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, int] = {}

    def watched(name: str) -> Any:
        real = getattr(training, name)

        def call(*given: Any, **named: Any) -> Any:
            seen[name] = named["threads"]
            return real(*given, **named)

        return call

    def stop(what: str, *_: Any) -> None:
        if what.startswith("collect"):
            raise KeyboardInterrupt

    for name in ("run_episodes", "make_reward", "evaluate"):
        monkeypatch.setattr(training, name, watched(name))
    collect = replace(SMALL["SETTINGS"].collect, threads=3)
    with pytest.raises(KeyboardInterrupt):
        SMALL["small"](folder, "day", progress=stop, collect=collect)
    assert (folder / "day" / "work" / "begun.json").is_file()
    assert seen == {"run_episodes": 3, "make_reward": 3, "evaluate": 3}


def test_a_teacher_that_is_the_base_itself_is_no_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    one, met = object.__new__(training._Training), []
    monkeypatch.setattr(training._Training, "_meet", lambda _, arm, lm: met.append(arm))
    one.settings = replace(SMALL["SETTINGS"], base="embedded")
    lm = SMALL["teacher"]()
    given = training.Given(SMALL["SPLITS"], None, "small", teacher=lm, open_lm=lambda name: lm)
    for one.given in (given, replace(given, open_lm=None)):
        one._teacher()
    assert met == ["teacher"]


def test_a_length_penalty_without_pairs_is_left_out_and_said(folder: Path) -> None:
    made = SMALL["small"](folder, "unpaired", stages=("reinforce",), recipe=replace(SMALL["RECIPE"], steps=1))
    assert made.card["recipe"]["length_penalty"] == 0
    assert (
        "there were no pairs of rrr, so the length penalty had no target and was left out"
        in made.card["guards"]["warnings"]
    )
