"""Attacks: test each guarantee with damaged, truncated, killed, or hostile input, and count the attempts.

``make attack SCALE=10`` makes ten times as many attempts as the slow tests do. At the end, a table shows how often each
guarantee was tested, held, and broken. A test fails if its guarantee was broken. Modules here are marked ``slow``.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

SCALE = float(os.environ.get("ATTACK_SCALE") or 1)
_KEY = "attack"
_TOTAL: Counter[tuple[str, bool]] = Counter()


class Attack:
    """Counts the attempts of one test."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, bool]] = Counter()
        self.broken: list[str] = []

    def tried(self, promise: str, held: bool, case: object = "") -> None:
        """Count one attempt to break a guarantee; if it did not hold, the case is reported."""
        self.counts[promise, held] += 1
        if not held:
            self.broken.append(f"{promise}: {case}")


@pytest.fixture
def attack(request: pytest.FixtureRequest) -> Attack:
    """Records attempts: ``attack.tried(promise, held)``."""
    request.node.attack = Attack()
    return request.node.attack


@pytest.fixture
def served() -> Iterator[Callable[[Any], Any]]:
    """Return a function that runs a server in a thread until the test ends, and returns the server."""
    with ExitStack() as closing:

        def start(server: Any) -> Any:
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            for end in (thread.join, server.server_close, server.shutdown):  # the last one first
                closing.callback(end)
            thread.start()
            return server

        yield start


@pytest.fixture(scope="session")
def times() -> Callable[[int], int]:
    """Return a function that scales a number of attempts to the current ``SCALE``."""
    return lambda count: max(1, round(count * SCALE))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Generator[None]:
    try:
        yield
    finally:
        made = getattr(item, "attack", Attack())
        # Properties travel from the workers of xdist to the process that prints the table.
        item.user_properties.append((_KEY, [[*key, count] for key, count in made.counts.items()]))
    if made.broken:
        pytest.fail("\n".join([f"{len(made.broken)} times broken, such as", *made.broken[:20]]), pytrace=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, counts in report.user_properties if report.when == "call" else ():
        if name == _KEY:
            _TOTAL.update({(promise, held): count for promise, held, count in counts})


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _TOTAL:
        terminalreporter.section(f"attack, scale {SCALE:g}")
        terminalreporter.line("  tried    held  broken  promise")
        for promise in sorted({promise for promise, _ in _TOTAL}):
            held, broken = _TOTAL[promise, True], _TOTAL[promise, False]
            terminalreporter.line(f"{held + broken:7} {held:7} {broken:7}  {promise}")
