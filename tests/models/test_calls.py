"""A limit of LM calls over processes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from querywright.models.calls import SharedCalls, counted_calls
from querywright.models.engine_errors import LMBudgetError, LMStoreError

WORKER = """
import sys
from pathlib import Path
from querywright.models.calls import SharedCalls
from querywright.models.engine_errors import LMBudgetError

calls, sent = SharedCalls(Path(sys.argv[1]), "writer", 50), 0
try:
    while True:
        calls.reserve()
        sent += 1
except LMBudgetError:
    print(sent)
"""


def reserved(calls: SharedCalls, attempts: int) -> int:
    """How many of some attempts are let through."""
    count = 0
    for _ in range(attempts):
        try:
            calls.reserve()
        except LMBudgetError:
            continue
        count += 1
    return count


def test_processes_together_make_exactly_as_many_calls_as_are_allowed(tmp_path: Path) -> None:
    with counted_calls(tmp_path) as path:
        command = [sys.executable, "-c", WORKER, str(path)]
        workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        assert sum(int(worker.communicate(timeout=120)[0]) for worker in workers) == 50


def test_threads_too_and_each_lm_has_a_count_of_its_own(tmp_path: Path) -> None:
    with counted_calls(tmp_path) as path, ThreadPoolExecutor(4) as pool:
        for name, limit in (("writer", 10), ("judge", 3), ("none", 0)):
            assert sum(pool.map(reserved, [SharedCalls(path, name, limit)] * 4, [6] * 4)) == limit
        with pytest.raises(LMBudgetError, match=r"the limit of 3 LM calls is reached; answers .* Raise --max-calls"):
            SharedCalls(path, "judge", 3).reserve()
        SharedCalls(path, "judge", 4).reserve()


def test_the_next_command_counts_from_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        with counted_calls(tmp_path) as path:
            assert reserved(SharedCalls(path, "writer", 2), 3) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_count_that_is_gone_stops_the_calls_and_is_not_begun_anew(tmp_path: Path) -> None:
    with counted_calls(tmp_path) as path:
        path.unlink()
        with pytest.raises(LMStoreError, match="the count of LM calls cannot be kept"):
            SharedCalls(path, "writer", 2).reserve()
    assert list(tmp_path.iterdir()) == []
