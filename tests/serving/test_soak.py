"""What the server's benchmark makes of what it found."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GOOD = {"lost": [], "wrong": [], "undocumented": []}
SWAPPED = {"statuses": {200: 9}, "swaps": [(200, 0.1, True)]}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("bench_of_the_server", folder / "serve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("faulty", "loopback"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("soak", "reload", "named"),
    [
        ({"lost": ["7: TimeoutError"]}, {}, "1 lost"),
        ({"wrong": [[7, "answer", []]] * 2}, {}, "2 wrong"),
        ({"undocumented": [418]}, {}, "1 undocumented"),
        ({}, {"statuses": {200: 9, 500: 3}}, "3 failed"),
        ({}, {"swaps": [(409, 0.1, False)]}, "1 programs not replaced"),
    ],
)
def test_what_may_not_be_is_an_exit_status(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, soak: dict[str, Any], reload: dict[str, Any], named: str
) -> None:
    parts = ["--part", "soak", "--part", "reload"]
    monkeypatch.setattr(bench, "soak", lambda given: GOOD)
    monkeypatch.setattr(bench, "reload", lambda given: SWAPPED)
    assert set(bench.main(parts)) == {"soak", "reload"}
    monkeypatch.setattr(bench, "soak", lambda given: GOOD | soak)
    monkeypatch.setattr(bench, "reload", lambda given: SWAPPED | reload)
    with pytest.raises(SystemExit, match=named) as ended:
        bench.main(parts)
    assert ended.value.code
