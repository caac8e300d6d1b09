"""A PostgreSQL server for the session, and a storage of each kind for a test."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from querywright.optimize.study.storage import StudyStorage, open_storage


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A private server: see ``postgres.py``."""
    module = runpy.run_path(str(Path(__file__).with_name("postgres.py")))
    reason = module["missing"]()
    if reason:
        pytest.skip(reason)
    server = module["PostgresServer"]()
    yield server
    server.close()


@pytest.fixture(params=["journal", "postgresql"])
def storage_text(request: pytest.FixtureRequest) -> str:
    """The text of a storage that several processes share, each kind in turn."""
    return "journal" if request.param == "journal" else request.getfixturevalue("postgres").new_database()


@pytest.fixture
def open_study(storage_text: str, tmp_path: Path) -> Iterator[Callable[..., StudyStorage]]:
    """Opens the storage of one and the same study, any number of times."""
    opened: list[StudyStorage] = []

    def open_one(name: str = "s") -> StudyStorage:
        opened.append(open_storage(storage_text, tmp_path / "study", name))
        return opened[-1]

    yield open_one
    for storage in opened:
        storage.close()
