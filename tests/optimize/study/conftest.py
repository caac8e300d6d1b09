"""Studies of a few lines, LMs that answer from a script, and a PostgreSQL server of the tests' own."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15

from querywright.models.engine import LMEngine
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


@dataclass(frozen=True)
class Asked:
    """One request: all of its messages, and the fields that are asked for."""

    messages: tuple[tuple[str, str], ...]
    properties: Mapping[str, Any]
    seed: int | None
    temperature: float

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.messages)

    @property
    def proposes(self) -> bool:
        """Whether it asks for a prompt, or for what one rests on."""
        return bool(set(self.properties) & set(WRITTEN)) or not self.properties


WRITTEN = {
    "proposed_instruction": MAGIC,
    "proposed_prefix_for_output_field": "Answer:",
    "new_instruction": MAGIC,
    "observations": "They ask for numbers.",
    "summary": "Numbers.",
    "program_description": "It searches.",
    "module_description": "It writes queries.",
}


@dataclass
class WritingEngine:
    """Questions with an even number are easy; the others need a demonstration, the magic words or a lucky sample.

    Args:
        before: Called with how many requests came before this one, and the request; it may raise.
        learns: Whether demonstrations and instructions help.
    """

    before: Callable[[int, Asked], None] = lambda n, asked: None
    learns: bool = True
    asked: list[Asked] = field(default_factory=list)
    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> WritingEngine:
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        asked = _asked(request)
        with self._lock:
            n = len(self.asked)
            self.asked.append(asked)
        self.before(n, asked)
        text = json.dumps(self._answer(asked))
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant([lm15.TextPart(text)]),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=len(asked.text.split()), output_tokens=len(text.split())),
        )

    def close(self) -> None:
        pass

    def _answer(self, asked: Asked) -> dict[str, Any]:
        names = set(asked.properties)
        if "module_advice" in asked.text and not names:
            return {"discussion": "d", "module_advice": {"technique.write_queries": MAGIC}}
        if asked.proposes:
            return {name: f"{text} ({asked.seed})" for name, text in WRITTEN.items() if name in names}
        last = asked.messages[-1][1]
        n = int(re.findall(r"(?:number|of) (\d+)", last)[-1])
        if "best_guess" in names:
            guess = asked.properties["best_guess"]["enum"][0]
            return {
                "reasoning": "r", "confirming_evidence": ["c"], "discriminating_features": ["d"], "best_guess": guess
            }  # fmt: skip
        if "support" in names:
            told = MAGIC in asked.messages[0][1] or any(role == "assistant" for role, _ in asked.messages)
            lucky = bool(asked.temperature) and (asked.seed or 0) % 2 == 1
            word = "key" if n % 2 == 0 or ((told or lucky) and self.learns) else "other"
            return {"support": f"{word} of {n}", "distinguish": f"x of {n}", "verify": f"y of {n}"}
        shown = last.rsplit("passages:", 1)[-1]
        right = f"right {n}" if f"Decides {n}." in shown else f"wrong {n}"
        return {"answer": right}


def _asked(request: lm15.Request) -> Asked:
    form = request.config.response_format or {}
    schema = form.get("json_schema", form).get("schema", {})
    system = request.system if isinstance(request.system, str) else "".join(p.text for p in request.system or ())
    messages = (("system", system), *((message.role, message.text or "") for message in request.messages))
    config = request.config
    return Asked(messages, schema.get("properties", {}), config.seed, config.temperature or 0.0)


@pytest.fixture
def writing() -> type[WritingEngine]:
    return WritingEngine


def requests(lm: Any) -> Sequence[Asked]:
    """What an LM over a scripted engine was asked."""
    engine = lm.engine
    assert isinstance(engine, LMEngine)
    return list(engine.inner.asked)


@pytest.fixture
def asked_of() -> Callable[[Any], Sequence[Asked]]:
    return requests


@pytest.fixture(params=["journal", "postgresql"])
def storage_text(request: pytest.FixtureRequest) -> str:
    """The text of a storage that several processes share, each kind in turn."""
    return "journal" if request.param == "journal" else request.getfixturevalue("postgres").new_database()


@pytest.fixture
def open_study(storage_text: str, tmp_path: Path) -> Iterator[Callable[..., StudyStorage]]:
    """Opens the storage of one and the same study, any number of times."""
    with ExitStack() as opened:
        yield lambda name="s": opened.enter_context(open_storage(storage_text, tmp_path / "study", name))
