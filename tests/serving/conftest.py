"""A real server over a program with a scripted LM and a retriever in memory."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dspy
import httpx
import pytest
from dspy import lm15

from querywright.data.types import Passage
from querywright.models.circuit_breaker import Limits
from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.models.response_parsing import text_response
from querywright.optimize.artifacts.files import ArtifactManifest
from querywright.optimize.artifacts.load import LoadedProgram
from querywright.programs import make_program
from querywright.retrieval.types import Hit
from querywright.serving.app import make_app
from querywright.serving.middleware import LOGGER
from querywright.serving.server import JsonLines, Server, listening
from querywright.serving.settings import ServeSettings

TOKEN = "a-token-for-the-tests-only"


@dataclass
class Scripted:
    """An LM whose answer is made from the number in the question: ``answer 7`` to ``What of 7?``.

    Args:
        before: Called with the question's number before each answer; it may wait, or raise.
        answer: Makes the answer.
    """

    before: Callable[[int], None] = lambda number: None
    answer: Callable[[int], str] = lambda number: f"answer {number}"
    asked: list[int] = field(default_factory=list)
    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __deepcopy__(self, memo: dict[int, Any]) -> Scripted:
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        numbers = re.findall(r"What of (\d+)", request.messages[-1].text or "")
        number = int(numbers[-1]) if numbers else -1
        self.asked.append(number)
        self.before(number)
        form = request.config.response_format or {}
        properties = form.get("json_schema", form).get("schema", {})["properties"]
        enum = properties.get("answer", {}).get("enum")
        values: dict[str, Any] = dict.fromkeys(properties, "x")
        values["answer"] = enum[0] if enum else self.answer(number)
        if "passage_numbers" in values:
            values |= {"passage_numbers": [1], "passages_hold_the_answer": "yes"}
        return text_response(json.dumps(values), "stop", request.model, 3, 2)

    def close(self) -> None:
        pass


class InMemory:
    """Finds three passages for any query, made from the number in it."""

    fingerprint = "in memory"

    def __init__(self) -> None:
        self.before: Callable[[], None] = lambda: None

    def __deepcopy__(self, memo: dict[int, Any]) -> InMemory:
        return self

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.before()
        return [self._hits(query)[:k] for query in queries]

    def _hits(self, query: str) -> list[Hit]:
        number = (re.findall(r"\d+", query) or ["0"])[0]
        made = [Passage(f"p{number}-{rank}", f"Text {rank} on {number}.", f"Title {rank}") for rank in (1, 2, 3)]
        return [Hit(passage, 1 / rank, rank) for rank, passage in enumerate(made, 1)]


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def retriever() -> InMemory:
    return InMemory()


class Marked(ArtifactManifest):
    """A manifest whose id a test knows."""

    @property
    def id(self) -> str:
        return 12 * str(self.made["mark"])


def loaded(
    engine: Scripted, retriever: Any = None, *, reader: str | None = "short_answer", mark: str = "a", **limits: Any
) -> LoadedProgram:
    """A program as ``load`` would give it. ``mark`` is what its version begins with."""
    guarded = LMEngine(
        engine, identity="scripted",
        limits=Limits(**{"max_attempts": 1, "outage_after": 1000, "backoff": 0.0, "max_wait": 0.0} | limits),
    )  # fmt: skip
    lm = dspy.LM(
        "scripted/model", engine=guarded, async_engine=AsyncLMEngine(guarded), cache=False, num_retries=0
    )  # fmt: skip
    manifest = Marked(
        format=5, technique="plain", reader=reader, lm="scripted/model", embedder=None, collection=None, engine=None,
        reranker=None, fingerprint="f", created="2026-01-02", versions={}, made={"mark": mark},
    )  # fmt: skip
    return LoadedProgram(make_program("plain", retriever or InMemory(), reader=reader), lm, manifest)


@pytest.fixture
def make() -> Callable[..., LoadedProgram]:
    return loaded


class Running:
    """A server in a thread, and a client of it."""

    def __init__(self, app: Any, settings: ServeSettings) -> None:
        self.logs = io.StringIO()
        self.expected: list[dict[str, Any]] = []  # of what nobody expects
        self.server, self.service = Server(app, settings), app.state.service
        heard = listening("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{heard.getsockname()[1]}"
        self._thread = threading.Thread(target=self.server.run, args=([heard],), daemon=True)
        self._handler = logging.StreamHandler(self.logs)
        self._handler.setFormatter(JsonLines())
        logging.getLogger(LOGGER).addHandler(self._handler)
        logging.getLogger(LOGGER).setLevel(logging.INFO)
        self._thread.start()
        headers = {} if settings.token is None else {"Authorization": f"Bearer {settings.token}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=300)

    def ask(self, number: int = 7, **more: Any) -> httpx.Response:
        return self.client.post("/ask", json={"question": f"What of {number}?"} | more)

    def unexpected(self) -> list[dict[str, Any]]:
        return self.lines("unexpected")

    def lines(self, event: str = "request") -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.logs.getvalue().splitlines()]
        return [line for line in found if line["event"] == event]

    def metric(self, name: str, **labels: str) -> float:
        inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        start = f"querywright_{name}" + (f"{{{inside}}}" if inside else "") + " "
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith(start):
                return float(line.removeprefix(start))
        return 0.0

    def wait_for(self, true: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "it did not come to that"
            time.sleep(0.01)

    def stop(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self._thread.join(60)
        logging.getLogger(LOGGER).removeHandler(self._handler)
        assert not self._thread.is_alive()
        assert self.unexpected() == self.expected


@pytest.fixture
def run(scripted: Scripted, retriever: InMemory) -> Iterator[Callable[..., Running]]:
    """Starts servers of a program, by default one over the scripted LM, and stops them at the end."""
    running: list[Running] = []

    def start(program: Any = None, **changes: Any) -> Running:
        settings = replace(ServeSettings(grace=5), **changes)
        app = make_app(program or loaded(scripted, retriever), settings, name="sample")
        running.append(Running(app, settings))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def token() -> str:
    return TOKEN
