"""Storages of a study, and a PostgreSQL server of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from querywright.optimize.study.storage import StudyStorage, open_storage


@pytest.fixture(params=["journal", "postgresql"])
def storage_text(request: pytest.FixtureRequest) -> str:
    """The text of a storage that several processes share, each kind in turn."""
    return "journal" if request.param == "journal" else request.getfixturevalue("postgres").new_database()


@pytest.fixture
def open_study(storage_text: str, tmp_path: Path) -> Iterator[Callable[..., StudyStorage]]:
    """Opens the storage of one and the same study, any number of times."""
    with ExitStack() as opened:
        yield lambda name="s": opened.enter_context(open_storage(storage_text, tmp_path / "study", name))
