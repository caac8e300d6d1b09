"""Studies of a few lines, and teleprompters that do nothing."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from querywright.errors import InputError
from querywright.optimize.study.reading import read_spec
from querywright.optimize.study.spec import StudySpec


@dataclass(frozen=True)
class FakeTeleprompter:
    late: bool
    arguments: Mapping[str, Any]

    def check(self, arguments: Mapping[str, Any]) -> None:
        if arguments.get("k", 1) < 1:
            raise InputError(f"k must be 1 or more, but got {arguments['k']}")

    def most_calls(self, n_train: int, n_predictors: int, arguments: Any = None, *, calls_per_run: int = 1) -> int:
        return n_train * calls_per_run


@pytest.fixture
def teleprompters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An early one, ``cheap``, and a late one, ``dear``, in the place of the real ones."""
    found = {"cheap": FakeTeleprompter(False, {"k": 4}), "dear": FakeTeleprompter(True, {"k": 4, "breadth": 3})}
    module = types.ModuleType("querywright.optimize.study.teleprompters")
    module.TELEPROMPTERS = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


@pytest.fixture(scope="session")
def study_of() -> Callable[..., StudySpec]:
    """A study of these techniques, on the sample."""

    def make(techniques: Any = None, **changes: Any) -> StudySpec:
        given = {"name": "s", "questions": "sample", "collection": "c", "techniques": techniques or {"hcqr": {}}}
        return read_spec({**given, **changes})

    return make
