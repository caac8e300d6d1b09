from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from querywright.cli.main import run
from querywright.cli.options import SearchOptions
from querywright.cli.rewriter import RewriteOptions
from querywright.optimize.rewriter.checkpoints import write_json, write_lines

SAMPLE = ["rewriter", "train", "sample", "--collection", "mine"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--stages", "collect,dream"], "unknown stage 'dream'; the stages are: collect, warmup, reinforce"),
        (["--stages", "warmup,reinforce"], "the warm-up learns from collected rewrites"),
        (["--device", "abacus"], "there is no device 'abacus'"),
        (["--technique", "plain"], "plain writes nothing with an LM"),
        (["--recipe", "theirs"], "unknown recipe 'theirs'"),
        (["--metric", "accuracy"], "accuracy needs a reader"),
        (["--base", "nowhere/model", "--stages", "collect,warmup"], "nothing to collect rewrites from"),
        (["--recipe", "seed", "--reader", "none"], "needs a reader; give --reader and --lm"),
        (["--group", "1"], "a baseline of the group needs 2 or more samples"),
        (["--sizes", "9,9"], "--sizes takes three whole numbers"),
        (["--sizes", "20,0,10"], "--sizes takes numbers of 1 or more"),
        (["--pairs", "missing.jsonl"], "'missing.jsonl' cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_said_at_once(
    options: list[str], said: str, cli: Any, collection: str, questions: Path, server: Any
) -> None:
    found = cli("rewriter", "train", questions, "--collection", collection, "--out", "r", *options)
    assert found.status == 2
    assert said in " ".join(found.err.split())
    assert server.requests == []
    assert not Path("r").exists()


def work_folder(folder: Path) -> Path:
    (folder / "reinforce").mkdir(parents=True)
    recipe = {"name": "ours", "steps": 4}
    settings = {"technique": "rrr", "recipe": recipe, "metric": "hit", "stages": ["warmup", "reinforce"]}
    write_json(folder / "run.json", {**settings, "base": {"name": "tiny"}})
    write_json(folder / "warmup.json", {})
    steps = [{"kind": "step", "step": 1, "reward": reward, "kl": 0.125} for reward in (0.0, 0.5, 1.0)]
    look = {"kind": "dev", "step": 0, "value": 0.25, "plain": 0.5}
    write_lines(folder / "reinforce" / "reinforce.jsonl", [look, *steps])
    return folder


def test_a_training_under_way_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rewriter", "show", str(work_folder(tmp_path / "work")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "technique": "rrr", "metric": "hit", "base": "tiny", "recipe": "ours", "warmup": "done", "reinforce": "begun",
        "last dev": {"kind": "dev", "step": 0, "value": 0.25, "plain": 0.5},
        "last step": {"kind": "step", "step": 1, "reward": 1.0, "kl": 0.125},
    }  # fmt: skip


def test_what_is_no_rewriter_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rewriter", "show", str(tmp_path)]) == 2
    assert "there is no rewriter at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("metric", "knobs", "passages"),
    [
        ("recall@5", {}, 10),
        ("hit", {}, 10),
        ("ndcg@10", {}, 10),
        ("recall@20", {}, 20),
        ("ndcg@10", {"max_passages": 3}, 3),
    ],
)
def test_as_many_passages_are_found_as_the_card_looks_at(metric: str, knobs: dict[str, int], passages: int) -> None:
    search = SearchOptions(knob=tuple(f"{name}={value}" for name, value in knobs.items()))
    settings = RewriteOptions("mine", metric=metric).settings(search, 4)
    assert settings.knobs["max_passages"] == passages
