"""Fixtures: an LM and a retriever that answer from a script and record their requests."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
import numpy as np
import pytest
from dspy import lm15

from querywright.data.types import Passage
from querywright.models.adapter import PromptAdapter
from querywright.models.engine import AsyncLMEngine
from querywright.programs import TECHNIQUES
from querywright.retrieval.generated_questions import (
    COMPLETE,
    PARTIAL,
    AnswerPair,
    PassageRecord,
    WrittenQuestion,
    publish_questions,
    question_id,
    questions_folder,
    write_pairs,
)
from querywright.retrieval.index import build_collection
from querywright.retrieval.question_index import Matching, QuestionIndex
from querywright.retrieval.types import Hit

PLANT = "Zyzzyva"
"""A word that appears in every text that the scripted LM fills in itself, and nowhere else."""


@dataclass(frozen=True)
class Asked:
    """One request to the scripted LM."""

    system: str
    messages: tuple[tuple[str, str], ...]
    properties: Mapping[str, Any]
    sampling: tuple[float | None, int | None] = (None, None)

    @property
    def text(self) -> str:
        return "\n".join([self.system, *(content for _, content in self.messages)])


Step = str | Mapping[str, Any] | lm15.ThinkingPart | Callable[[Asked], str]


class ScriptedEngine:
    """Answers with the steps in order, and then repeats the last one.

    A step is the text of an answer, a mapping of fields to values (missing fields are filled in), thoughts without
    text, or a function of the request.
    """

    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps or ({},)
        self.asked: list[Asked] = []
        self.written: list[str] = []
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> ScriptedEngine:
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        asked = _asked(request)
        with self._lock:
            step = self.steps[min(len(self.asked), len(self.steps) - 1)]
            self.asked.append(asked)
        part = step if isinstance(step, lm15.ThinkingPart) else lm15.TextPart(_answer(step, asked))
        with self._lock:
            self.written.append(part.text)
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant([part]),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=1, output_tokens=1),
        )

    def stream(self, request: lm15.Request) -> Any:
        return iter(lm15.response_to_events(self.complete(request)))

    def close(self) -> None:
        pass


class ScriptedRetriever:
    """Returns passages in an order that depends only on the query. It does not define how to copy it."""

    kind = "dense"

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = list(passages)
        self.searches: list[tuple[tuple[str, ...], int]] = []

    @property
    def fingerprint(self) -> str:
        return f"scripted {len(self.passages)}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.searches.append((tuple(queries), k))
        return [self._one(query)[:k] for query in queries]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[_number(text, axis) + 0.01 for axis in "abcd"] for text in texts], dtype=np.float32)

    def search_vectors(self, vectors: np.ndarray, k: int) -> list[list[Hit]]:
        return self.search([f"vector {np.round(row, 5).tolist()}" for row in vectors], k)

    def _one(self, query: str) -> list[Hit]:
        scored = sorted(((_number(query, p.id) ** 3, p) for p in self.passages), key=lambda pair: -pair[0])
        return [Hit(passage, score, rank) for rank, (score, passage) in enumerate(scored, start=1)]


class HashedEmbedder:
    """Returns meaningless vectors that depend only on the text."""

    id, dimension = "hashed", 8

    def encode(self, texts: Sequence[str], /) -> np.ndarray:
        rows = [[_number(text, axis) - 0.5 for axis in "abcdefgh"] for text in texts]
        vectors = np.array(rows, dtype=np.float32)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


class RecordingIndex(QuestionIndex):
    """A question index that records its searches."""

    searches: list[tuple[tuple[str, ...], int]]

    def match(self, queries: Sequence[str], k: int, matching: Matching | None = None) -> list[list[Hit]]:
        self.searches.append((tuple(queries), k))
        return super().match(queries, k, matching)


@pytest.fixture(scope="session")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RecordingIndex]:
    """Two question indexes for twelve passages: ``full``, and ``stale``, which is outdated and finds nothing."""
    home, embedder, made = tmp_path_factory.mktemp("questions"), HashedEmbedder(), {}
    passages = numbered_passages()[:12]
    texts = {p.id: [f"What is fact {n} of {p.title}?" for n in range(64)] for p in passages}  # more than any coverage
    further = [
        AnswerPair(question_id(p.id, text), passages[n - 1].id, passages[n - 1].text_digest(), 1.0, True)
        for n, p in enumerate(passages)
        for text in texts[p.id]
    ]
    for name, digest in (("full", Passage.text_digest), ("stale", lambda passage: "of another text")):
        build_collection(name, passages, embedder=embedder, home=home)
        records = [
            PassageRecord(p.id, digest(p), "s", tuple(
                WrittenQuestion(text, PARTIAL if n % 8 == 7 else COMPLETE) for n, text in enumerate(texts[p.id])
            ))
            for p in passages
        ]  # fmt: skip
        publish_questions(name, records, embedder=embedder, home=home)
        write_pairs(questions_folder(name, home), further)
        made[name] = RecordingIndex(name, embedder=embedder, home=home)
    return made


def numbered_passages() -> list[Passage]:
    return [Passage(f"p{n:02}", f"Fact number {n} of the handbook.", f"Title {n}") for n in range(60)]


@pytest.fixture
def plant() -> str:
    return PLANT


@pytest.fixture
def scripted() -> Callable[..., dspy.LM]:
    """Return a function that creates an LM from a list of steps; ``lm.engine.asked`` has the LM's requests."""

    def make(*steps: Step) -> dspy.LM:
        engine = ScriptedEngine(steps)
        return dspy.LM("scripted", engine=engine, async_engine=AsyncLMEngine(engine), cache=False, num_retries=0)

    return make


@pytest.fixture
def asking() -> Callable[..., Any]:
    """Return a context in which programs call an LM, with querywright's adapter or a different one."""
    return lambda lm, adapter=None: dspy.context(lm=lm, adapter=adapter or PromptAdapter())


@pytest.fixture
def run(retriever: Any, scripted: Callable[..., dspy.LM], asking: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a technique with scripted answers, and returns the result and the LM's requests."""

    def run(
        technique: Any,
        *steps: Step,
        question: str,
        options: Any = None,
        over: Any = None,
        adapter: Any = None,
        **given: Any,
    ) -> tuple[Any, list[Asked]]:
        lm = scripted(*steps)
        with asking(lm, adapter):
            out = technique(over or retriever, **given)(question=question, options=options)
        return out, lm.engine.asked

    return run


@pytest.fixture
def passages() -> list[Passage]:
    return numbered_passages()


@pytest.fixture
def retriever(request: pytest.FixtureRequest, passages: list[Passage]) -> ScriptedRetriever | RecordingIndex:
    """A retriever that suits the technique under test, which is named by the test's parameter ``name``."""
    return _index(request, "full") or ScriptedRetriever(passages)


@pytest.fixture
def nothing(request: pytest.FixtureRequest) -> ScriptedRetriever | RecordingIndex:
    """A retriever that finds nothing."""
    return _index(request, "stale") or ScriptedRetriever([])


def _index(request: pytest.FixtureRequest, name: str) -> RecordingIndex | None:
    """Return an index if the technique under test can search only question indexes."""
    technique = getattr(getattr(request.node, "callspec", None), "params", {}).get("name")
    if technique not in TECHNIQUES or TECHNIQUES[technique].ENGINE != "questions":
        return None
    index: RecordingIndex = request.getfixturevalue("indexes")[name]
    index.searches = []
    return index


def _asked(request: lm15.Request) -> Asked:
    system = request.system
    joined = system if isinstance(system, str) else "".join(part.text for part in system or ())
    form = request.config.response_format or {}
    schema = form.get("json_schema", form).get("schema", {})
    messages = tuple((message.role, message.text or "") for message in request.messages)
    sampling = (request.config.temperature, request.config.seed)
    return Asked(joined, messages, schema.get("properties", {}), sampling)


def _answer(step: str | Mapping[str, Any] | Callable[[Asked], str], asked: Asked) -> str:
    if isinstance(step, str):
        return step
    if callable(step):
        return step(asked)
    seen = f"{asked.text}{asked.sampling[1] or ''}"
    mark = f"{PLANT} {hashlib.sha256(seen.encode('utf-8', 'replace')).hexdigest()[:8]}"
    values = {name: step.get(name, _filled(name, spec, mark)) for name, spec in asked.properties.items()}
    return json.dumps(values, ensure_ascii=False)


def _filled(name: str, spec: Mapping[str, Any], mark: str) -> Any:
    if "enum" in spec:
        return spec["enum"][int(mark[-4:], 16) % len(spec["enum"])]
    if spec.get("type") == "array" and spec.get("items", {}).get("type") == "integer":
        return [1]
    if spec.get("type") == "array":
        return [f"{mark} {name} {n}" for n in range(3)]
    return {"integer": 1, "number": 0.5, "boolean": True}.get(spec.get("type", ""), f"{mark} {name}")


@functools.cache
def _number(*parts: str) -> float:
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:6]) / 2**48
