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
    monkeypatch.setenv(bench("study").KEY, "x")
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


def test_trials_over_numbers_ask_once(
    bench: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = bench("study")
    monkeypatch.setenv(study.KEY, "x")
    small = {"latency": 0.01, "threads": 2, "questions": 6, "trials": 6, "passages": 40, "data": tmp_path}
    report = study.main([text for name, one in small.items() for text in (f"--{name}", str(one))])
    assert (report["calls"], report["known calls"]) == (6, 0)


def test_loading_is_set_beside_what_its_models_alone_need(bench: Callable[[str], Any]) -> None:
    result = bench("load").main(["--runs", "1", "--lm", "loopback", "--engine", "bm25"])
    assert min(result.dspy, result.floor, result.load, result.work) > 0
    assert result.ratio == pytest.approx(result.load / result.floor)


def test_no_two_folders_of_the_package_import_each_other(bench, capsys):
    bench("size").main(BENCHMARKS.parent)
    assert "import cycles between folders: none" in capsys.readouterr().out
