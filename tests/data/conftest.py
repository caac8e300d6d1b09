from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from querywright.data import read_questions
from querywright.errors import DataError


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes JSON lines into a file of that name."""

    def call(name: str, *rows: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return call


@pytest.fixture
def problems() -> Callable[..., tuple[str, ...]]:
    """What is wrong with a source, a line each."""

    def call(source: Any, read: Callable[..., Any] = read_questions, **options: Any) -> tuple[str, ...]:
        with pytest.raises(DataError) as caught:
            read(source, **options)
        return caught.value.problems

    return call
