"""The benchmark of a taught judge: a run of a step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft")


@pytest.fixture
def benchmark(tiny_models: None) -> Iterator[Any]:
    import taught_judge

    yield taught_judge
    sys.modules.pop("taught_judge", None)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twenty articles of a passage each, with a question that it answers and one that it does not."""
    passages, cases = [], []
    for number in range(20):
        id = f"A_{number}_0"
        passages.append({"id": id, "title": f"Bridge {number}", "text": f"Bridge {number} has {number + 2} arches."})
        asked = {"passage": id, "answerable": True, "answers": [f"{number + 2} arches"]}
        cases.append(asked | {"question": f"How many arches has bridge {number}?"})
        cases.append({"question": f"Who built bridge {number}?", "passage": id, "answerable": False, "answers": []})
    for name, rows in (("corpus", passages), ("questions", cases)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_both_are_held_against_the_labels(benchmark: Any, data: Path, tmp_path: Path) -> None:
    sizes = ["--train", "16", "--dev", "2", "--test", "4", "--epochs", "1", "--device", "cpu"]
    found = benchmark.main([str(data), *sizes, "--work", str(tmp_path / "work"), "--json"])
    assert len(found["training"]["loss by epoch"]) == 1
    assert found["training"]["loss by epoch"][0] < found["training"]["loss before"]
    for name in ("as it comes", "taught"):
        assert found[name]["n"] == 4
    assert "rewriter:" in found["taught"]["lm"]
