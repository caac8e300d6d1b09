"""Some benchmarks run, at a tiny size and over random models, and tell what they are there to tell."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bench(tiny_models: None) -> Iterator[Callable[[str], Any]]:
    """Imports a benchmark."""
    yield importlib.import_module
    for name in {path.stem for path in BENCHMARKS.glob("*.py")}:
        sys.modules.pop(name, None)


@pytest.fixture
def studies(bench: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs parts of the benchmark of studies."""
    monkeypatch.setenv(bench("trials").KEY, "x")
    small = {
        "latency": 0.01, "threads": 2, "questions": 6, "trials": 6, "passages": 40, "data": tmp_path,
        "big-questions": 12, "big-trials": 3, "worker-trials": 5, "worker-questions": 3, "lm": "openai/bench",
        "objective": "accuracy", "dev": 6, "test": 6, "calls": 45, "most-trials": 8,
    }  # fmt: skip

    def run(*parts: str) -> Any:
        named = [text for part in parts for text in ("--part", part)]
        return bench("study").main([*named, *(text for name, one in small.items() for text in (f"--{name}", str(one)))])

    return run


def test_a_technique_runs_through_the_benchmark(bench: Callable[[str], Any], hashed: Any) -> None:
    techniques = bench("techniques")
    size = {"latency": 0.01, "questions": 4, "concurrency": 3, "passages": 12, "data": None}
    with techniques.bench(**size, embedder=hashed()) as ready:
        result = techniques.run_technique(ready, "multi_query", reader="short_answer")
        compared = techniques.run_comparison(ready)
    assert compared.startswith("4 arms x 4 questions, 3 threads: ")
    assert (result.stages, result.path) == (2, pytest.approx(2 * 4 / 3 * 0.01))
    for run in (result.cold, result.cached):
        assert (run.failures, run.calls, run.embedded, run.searched) == (0, 2, 4, 4)
    assert result.name in techniques.line(result, 4)


def test_what_is_measured_at_a_large_size_is_what_a_small_one_does(
    bench: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = bench("large")
    monkeypatch.setenv(bench("trials").KEY, "x")
    monkeypatch.setattr(large, "PASSAGES", 60)
    monkeypatch.setattr(large, "DEV", 6)
    (tmp_path / "data" / "set").mkdir(parents=True)
    sentences = [f"Sentence {n} says that {'a thing ' * (5 + n % 9)}is {n * n} of some kind." for n in range(60)]
    for name, column in (("corpus", "text"), ("questions", "question")):
        rows = [json.dumps({column: f"{one} {one}" if column == "text" else one[:50]}) for one in sentences]
        (tmp_path / "data" / "set" / f"{name}.jsonl").write_text("\n".join(rows))
    site = large.Site(tmp_path / "home", tmp_path / "data", 42, 12, 6)
    found = {step.__name__: step(site) for part in large.PARTS.values() for step in part}
    counted = {name: found[name].get("passages") for name in ("index", "words_built", "asked", "chroma")}
    assert counted == {"index": 42, "words_built": 42, "asked": 6, "chroma": 42}
    assert (found["again"]["rebuilt"], found["publish"]["questions"], found["study"]["trials"]) == (False, 42, 6)
    assert all(min(found[name].values()) > 0 for name in ("dense", "words", "hybrid", "match", "compare"))
    record = next(site.texts.records(42))
    index = large.QuestionIndex("asked", embedder=site.embedder, home=site.home)
    assert index.search([record.questions[0].text], 1)[0][0].passage.id == record.passage


def test_trials_over_numbers_ask_once_and_loops_by_hand_as_often_as_their_cache_lets_them(
    studies: Callable[..., Any],
) -> None:
    report = studies("replay", "big")
    calls = [one["calls"] for one in report["replay"]["by hand"]]
    assert (report["replay"]["ours"]["calls"], calls[0], calls[2]) == (6, 36, 6)
    assert 6 < calls[1] <= 24
    assert report["big"]["questions"] == 12


def test_searches_are_compared_at_equal_calls(studies: Callable[..., Any]) -> None:
    ours, *others = studies("equal-calls")["equal-calls"]["searches"]
    assert [one["name"].split()[0] for one in (ours, *others)] == ["study", "random", "one", "MIPROv2"]
    assert all(one["calls"] <= 45 for one in (ours, *others))
    for one in others:
        paired = one["paired"]["accuracy"]
        assert paired["difference"] == pytest.approx(ours["test"]["accuracy"] - one["test"]["accuracy"])


def test_loading_is_set_beside_what_its_models_alone_need(bench: Callable[[str], Any]) -> None:
    result = bench("load").main(["--runs", "1", "--lm", "loopback", "--engine", "bm25"])
    assert min(result.dspy, result.floor, result.load, result.work) > 0
    assert result.ratio == pytest.approx(result.load / result.floor)


def test_every_way_of_rewriting_is_measured_beside_the_search_and_the_frozen_lm(
    bench: Callable[[str], Any], package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewriter = bench("rewriter")
    monkeypatch.setattr(rewriter, "ARTIFACT", package / "none")
    made = rewriter.main(["--questions", "2", "--rounds", "2", "--room", "16", "--json"])
    ways = made["latency"]
    assert list(ways) == ["plain", "frozen", "llama.cpp", "transformers"]
    assert [one["measured"] for one in ways.values()] == [4] * 4
    assert ways["plain"]["calls"] == 0 < min(ways[name]["tokens"] for name in ("frozen", "llama.cpp", "transformers"))
    assert all(one["prompts"] == 32 and 1 < one["tokens"] <= 16 for one in made["batches"].values())
    assert "32 at a time write" in "\n".join(rewriter.lines(made, rewriter.parser().parse_args([])))


def test_a_taught_judge_and_the_one_as_it_comes_are_held_against_the_labels(
    bench: Callable[[str], Any], tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    passages, cases = [], []
    for number in range(20):  # an article of a passage each, with a question that it answers and one that it does not
        id = f"A_{number}_0"
        passages.append({"id": id, "title": f"Bridge {number}", "text": f"Bridge {number} has {number + 2} arches."})
        asked = {"passage": id, "answerable": True, "answers": [f"{number + 2} arches"]}
        cases.append(asked | {"question": f"How many arches has bridge {number}?"})
        cases.append({"question": f"Who built bridge {number}?", "passage": id, "answerable": False, "answers": []})
    for name, rows in (("corpus", passages), ("questions", cases)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = ["--train", "16", "--dev", "2", "--test", "4", "--epochs", "1", "--device", "cpu"]
    found = bench("taught_judge").main([str(tmp_path), *sizes, "--work", str(tmp_path / "work"), "--json"])
    assert found["training"]["loss by epoch"][0] < found["training"]["loss before"]
    assert (found["as it comes"]["n"], found["taught"]["n"]) == (4, 4)
    assert "rewriter:" in found["taught"]["lm"]


def test_the_recipe_at_length_ends_with_the_time_goes_on_and_keeps_two_rewriters(
    bench: Callable[[str], Any], tmp_path: Path
) -> None:
    bench("rewriter").random_rewriter(tmp_path / "random", "rrr")
    (tmp_path / "hotpotqa").mkdir()
    rows = [{"id": f"{n}", "title": f"Bridge {n}", "text": f"Bridge {n} has {n} arches."} for n in range(80)]
    asked = [
        {"id": f"q{n}", "question": f"How many arches has bridge {n}?", "answers": [f"{n}"], "evidence": [f"{n}"]}
        for n in range(80)
    ]
    for name, lines in (("corpus", rows), ("questions", asked)):
        (tmp_path / "hotpotqa" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    work = tmp_path / "work"
    sizes = ["--train", "3", "--dev", "2", "--batch", "2", "--steps", "6", "--look-each", "3", "--device", "cpu"]
    given = ["--rewriter", str(tmp_path / "random"), "--data", str(tmp_path), "--work", str(work), *sizes]
    seed_recipe = bench("seed_recipe")
    seed_recipe.main([*given, "--minutes", "0"])
    seed_recipe.main(given)
    log = [json.loads(line) for line in (work / "curve" / "reinforce.jsonl").read_text().splitlines()]
    looks = [json.loads(line) for line in (work / "looks.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if line["kind"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert [line["after"] for line in looks] == [line["step"] for line in log if line["kind"] == "dev"] == [0, 3, 6]
    assert all(len(line["ndcg@10"]) == len(line["token_f1"]) == 2 for line in looks)
    for name in ("best", "last"):
        assert json.loads((work / name / "rewriter.json").read_text())["recipe"] == "seed"


def test_no_two_folders_of_the_package_import_each_other(bench, capsys):
    bench("size").main(BENCHMARKS.parent)
    assert "circles between folders: none" in capsys.readouterr().out
