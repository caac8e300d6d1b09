from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = (
    "by_hand", "contest", "load", "loopback", "measured", "peers", "questions", "study",
    "techniques", "trials",
)  # fmt: skip


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import load
    import questions
    import study
    import techniques
    import trials

    yield SimpleNamespace(
        load=load, questions=questions, study=study, techniques=techniques, trials=trials,
    )  # fmt: skip
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def studies(
    benchmarks: SimpleNamespace, hashed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Any]:
    """Runs parts of the benchmark of studies at a tiny size, with an embedder that has no model."""
    monkeypatch.setattr("querywright.models.embedder._loader", lambda *_: hashed)
    monkeypatch.setenv(benchmarks.trials.KEY, "x")
    small = {
        "latency": 0.01, "threads": 2, "questions": 6, "trials": 6, "passages": 40, "data": tmp_path,
        "big-questions": 12, "big-trials": 3, "worker-trials": 5, "worker-questions": 3, "lm": "openai/bench",
        "objective": "accuracy", "dev": 6, "test": 6, "calls": 45, "most-trials": 8,
    }  # fmt: skip

    def run(*parts: str) -> Any:
        named = [text for part in parts for text in ("--part", part)]
        given = [text for name, value in small.items() for text in (f"--{name}", str(value))]
        return benchmarks.study.main([*named, *given])

    return run


def test_a_technique_runs_through_the_benchmark(benchmarks: SimpleNamespace, hashed: Any) -> None:
    with benchmarks.techniques.bench(
        latency=0.01, questions=4, concurrency=3, passages=12, data=None, embedder=hashed()
    ) as ready:
        result = benchmarks.techniques.run_technique(ready, "multi_query", reader="short_answer")
    assert (result.stages, result.path) == (2, pytest.approx(2 * 4 / 3 * 0.01))
    assert result.floor == pytest.approx(1.5)  # two rounds of three questions at a time
    for run in (result.cold, result.cached):
        assert (run.failures, run.calls, run.embedded, run.searched) == (0, 2, 4, 4)
    assert result.name in benchmarks.techniques.line(result, 4)


def test_stored_questions_lead_to_the_passage_of_a_question(benchmarks: SimpleNamespace, tmp_path: Path) -> None:
    bench = benchmarks.questions.build(tmp_path, 42, 4)
    assert (bench.plain.count, bench.index.count) == (42, 11)  # ten passages of four questions, one of two
    for retriever in (bench.plain, bench.index):
        assert retriever.search(["7.asked"], 1)[0][0].passage.id == "0000007"
    assert len({hit.passage.id for hit in bench.index.search(["7.asked"], 5)[0]}) == 5
    assert all(value > 0 for value in benchmarks.questions.compare(bench, 3).values())


def test_trials_over_numbers_ask_once_and_loops_by_hand_as_often_as_their_cache_lets_them(
    studies: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    report = studies("replay", "big")
    found = report["replay"]
    calls = [one["calls"] for one in found["by hand"]]
    assert (found["ours"]["calls"], calls[0], calls[2], report["big"]["questions"]) == (6, 36, 6, 12)
    assert 6 < calls[1] <= 24
    assert "always four queries" in capsys.readouterr().out


def test_searches_are_compared_at_equal_calls(studies: Callable[..., Any]) -> None:
    found = studies("equal-calls")["equal-calls"]
    assert [one["name"].split()[0] for one in found["searches"]] == ["study", "random", "one", "MIPROv2"]
    assert all(one["calls"] <= 45 for one in found["searches"])
    ours, *others = found["searches"]
    assert (ours["paired"], *(one["paired"]["accuracy"]["n"] for one in others)) == ({"accuracy": None}, 6, 6, 6)


def test_loading_is_set_beside_what_its_models_alone_need(
    benchmarks: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    result = benchmarks.load.main(["--runs", "1", "--lm", "loopback", "--engine", "bm25"])
    assert min(result.dspy, result.floor, result.load) > 0
    assert f"load to first answer: {result.ratio:.2f} times" in capsys.readouterr().out
