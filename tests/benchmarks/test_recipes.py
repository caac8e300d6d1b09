"""The benchmark of recipes: all three run from the weights of one rewriter."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def benchmark(tiny_models: None) -> Iterator[ModuleType]:
    import recipes

    yield recipes
    sys.modules.pop("recipes", None)


@pytest.fixture
def small(tiny_models: None, tmp_path: Path) -> Iterator[list[str]]:
    import rewriter

    rewriter.random_rewriter(tmp_path / "random", "rrr")
    sizes = ["--train", "2", "--dev", "1", "--steps", "1", "--samples", "4", "--room", "8"]
    yield ["--rewriter", str(tmp_path / "random"), *sizes, "--work", str(tmp_path / "work")]
    sys.modules.pop("rewriter", None)


@pytest.mark.slow
def test_each_recipe_begins_with_the_rewriter_and_draws_as_many_samples(benchmark, small, capsys):
    found = benchmark.main([*small, "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads(json.dumps(found))
    assert list(found) == ["ours", "seed", "paper"]
    for name, one in found.items():
        assert one["recipe"]["name"] == name
        assert one["recipe"]["batch"] * one["recipe"]["group"] == 4
        assert [line["step"] for line in one["log"] if line["kind"] == "step"] == [1]
        assert len(one["dev"]) == 2
        assert f"{name}: step 1 of 1" in err
    table = "\n".join(benchmark.lines(found))
    assert all(f"{name} " in table and f"{one['reward'][1]:.3f}" in table for name, one in found.items())
