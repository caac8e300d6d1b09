"""Studies of a few lines, LMs that answer from a script, and a PostgreSQL server of the tests' own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from querywright.optimize.optimizers import OPTIMIZERS, Bound, Optimizer
from querywright.optimize.study.reading import read_spec
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.storage import StudyStorage, open_storage
from querywright.programs.hyperparameters import Knob


@pytest.fixture
def optimizers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An early one, ``cheap``, and a late one, ``dear``, beside the real ones."""
    k = Knob("k", 4, "how many", low=1, high=10_000)

    def cheap(work: Any) -> Any:
        return work.program

    def dear(work: Any) -> Any:
        return work.program

    found = {
        one.__name__: Optimizer(one, lambda n, predictors, given: Bound(n), (k,), late=one is dear)
        for one in (cheap, dear)
    }
    for name, one in found.items():
        monkeypatch.setitem(OPTIMIZERS, name, one)  # type: ignore[arg-type]
    return found


@pytest.fixture(scope="session")
def study_of() -> Callable[..., StudySpec]:
    """A study of these techniques, on the sample."""

    def make(techniques: Any = None, **changes: Any) -> StudySpec:
        given = {"name": "s", "questions": "sample", "collection": "c", "techniques": techniques or {"hcqr": {}}}
        return read_spec({**given, **changes})

    return make


MAGIC = "Name the key."
"""Instructions with these words make every query find what decides."""

WRITTEN = {
    "proposed_instruction": MAGIC,
    "proposed_prefix_for_output_field": "Answer:",
    "new_instruction": MAGIC,
    "observations": "They ask for numbers.",
    "summary": "Numbers.",
    "program_description": "It searches.",
    "module_description": "It writes queries.",
}


def written(asked: Any, script: Callable[[Any], str]) -> str:
    """Instructions, and queries that find for even numbers, and for others after them or a lucky sample."""
    names, n = set(asked.properties), asked.number
    if "module_advice" in asked.prompt and not names:
        return json.dumps({"discussion": "d", "module_advice": {"technique.write_queries": MAGIC}})
    if asked.proposes:
        return json.dumps({name: f"{text} ({asked.seed})" for name, text in WRITTEN.items() if name in names})
    if "support" in names:
        told = MAGIC in asked.messages[0][1] or any(role == "assistant" for role, _ in asked.messages)
        lucky = bool(asked.temperature) and (asked.seed or 0) % 2 == 1
        word = "key" if n % 2 == 0 or told or lucky else "other"
        return json.dumps({"support": f"{word} of {n}", "distinguish": f"x of {n}", "verify": f"y of {n}"})
    return script(asked)


@pytest.fixture
def writing(make_engine: Any, scripted: Callable[[Any], str]) -> Callable[..., Any]:
    """Engines for which even questions are easy; the others need a demonstration, the magic words or luck."""
    return lambda **given: make_engine(**{"write": lambda asked: written(asked, scripted), **given})


@pytest.fixture
def asked_of() -> Callable[[Any], Sequence[Any]]:
    """What an LM over a scripted engine was asked."""
    return lambda lm: list(lm.engine.inner.asked)


@pytest.fixture(params=["journal", "postgresql"])
def storage_text(request: pytest.FixtureRequest) -> str:
    """The text of a storage that several processes share, each kind in turn."""
    return "journal" if request.param == "journal" else request.getfixturevalue("postgres").new_database()


@pytest.fixture
def open_study(storage_text: str, tmp_path: Path) -> Iterator[Callable[..., StudyStorage]]:
    """Opens the storage of one and the same study, any number of times."""
    with ExitStack() as opened:
        yield lambda name="s": opened.enter_context(open_storage(storage_text, tmp_path / "study", name))
