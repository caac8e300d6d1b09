"""The benchmark of recipes: all three run from the weights of one rewriter, and go on where they were."""

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
def test_each_recipe_begins_with_the_rewriter_and_draws_as_many_samples(benchmark, small, capsys, tmp_path):
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

    again = benchmark.main([*small, "--recipes", "ours", "--steps", "2"])
    assert [line["step"] for line in again["ours"]["log"] if line["kind"] == "step"] == [1, 2]
    assert again["ours"]["log"][: len(found["ours"]["log"])] == found["ours"]["log"]
    with pytest.raises(SystemExit, match="work holds other curves \\(train was 2\\): give another --work"):
        benchmark.main([*small, "--train", "3"])
    (tmp_path / "work" / "recipes.json").unlink()
    with pytest.raises(SystemExit, match=r"train was another, .*: give another --work"):
        benchmark.main(small)
    with pytest.raises(SystemExit, match="there is no rewriter at nowhere"):
        benchmark.main([*small, "--rewriter", str(tmp_path / "nowhere")])
