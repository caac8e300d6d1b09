"""The benchmark of rewriters runs with a random one and prints its table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def benchmark(package: Path, tiny_models: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    import rewriter

    monkeypatch.setattr(rewriter, "ARTIFACT", package / "none")
    yield rewriter
    sys.modules.pop("rewriter", None)


@pytest.mark.slow
def test_every_way_is_measured_beside_the_search_and_the_frozen_lm(benchmark, capsys):
    made = benchmark.main(["--questions", "2", "--rounds", "2", "--room", "16", "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads(json.dumps(made))
    assert "a LoRA of random values" in err
    assert f"load {made['machine']['load']:.1f} before the run" in err
    ways = made["latency"]
    assert list(ways) == ["plain", "frozen", "llama.cpp", "transformers"]
    assert {one["measured"] for one in ways.values()} == {4}
    assert ways["plain"]["calls"] == ways["plain"]["tokens"] == 0
    for name in ("frozen", "llama.cpp", "transformers"):
        assert ways[name]["calls"] >= 1
        assert ways[name]["tokens"] > 0
        assert ways["plain"]["median"] < ways[name]["median"] <= ways[name]["p95"]
    for what in ("median", "p95"):
        assert ways["llama.cpp"]["over_frozen"][what] == ways["llama.cpp"][what] / ways["frozen"][what]
    assert list(made["batches"]) == ["1", "8", "32"]
    assert all(one["prompts"] == 32 and 1 < one["tokens"] <= 16 for one in made["batches"].values())
    assert made["batch_ratio"] == made["batches"]["32"]["rewrites"] / made["batches"]["1"]["rewrites"]
    table = "\n".join(benchmark.lines(made, benchmark.parser().parse_args([])))
    assert f"{ways['llama.cpp']['over_frozen']['median']:10.2f}" in table
    assert f"32 at a time write {made['batch_ratio']:.2f} times as fast as 1" in table
