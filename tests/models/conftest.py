from __future__ import annotations

import pytest


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request, tmp_path):
    """Where a store is: a file, or a database of a PostgreSQL server."""
    if request.param == "file":
        return str(tmp_path / "store.sqlite")
    return request.getfixturevalue("postgres").new_database()
