"""Programs run dry: every prompt is rendered as it would be sent, and answered with filler instead of asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy
import numpy as np
from dspy import lm15

from querywright.data.types import Passage, Question
from querywright.models.embedder import Vectors
from querywright.models.engine import LMEngine
from querywright.optimize.evaluate import asking
from querywright.programs import RAG
from querywright.retrieval.types import Hit, Kind

FILLER_WORDS = 12
"""Words of a text in a made-up answer."""

_ITEMS = 16
_KINDS: dict[str, Kind] = {"bm25": "lexical", "expanded": "lexical", "hybrid": "hybrid"}


@dataclass(frozen=True, slots=True)
class Request:
    """A call that would be made.

    Args:
        prompt: All that would be sent.
        key: Equal for equal calls: prompt, temperature and seed.
    """

    prompt: str
    key: str


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a program would ask for one question.

    Args:
        technique: The technique's calls.
        reader: The reader's.
    """

    technique: tuple[Request, ...]
    reader: tuple[Request, ...]


@dataclass
class _DryEngine:
    """Answers every request with filler in the form asked for; the same request, the same filler."""

    decides_by_likelihood: bool = False
    asked: list[Request] = field(default_factory=list)
    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __deepcopy__(self, memo: dict[int, Any]) -> _DryEngine:
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Note the prompt and make an answer up."""
        system: Any = request.system
        first = system if isinstance(system, str) else "".join(str(part.text) for part in system or ())
        prompt = "\n".join([first, *(str(message.text or "") for message in request.messages)])
        drawn = (request.config.temperature, request.config.seed)
        mark = hashlib.sha256(f"{prompt}{drawn}".encode()).hexdigest()[:8]
        self.asked.append(Request(prompt, mark))
        form: Any = request.config.response_format or {}
        schema = form.get("json_schema", form).get("schema", {})
        text = json.dumps({name: _filler(one, f"{name} {mark}") for name, one in schema.get("properties", {}).items()})
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant([lm15.TextPart(text)]),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=1, output_tokens=1),
        )

    def close(self) -> None:
        """Do nothing."""


class _DryRetriever:
    """Finds as many passages as it is asked for, others for every query; what they say is made up or sampled."""

    def __init__(self, engine: str, passages: Sequence[Passage]) -> None:
        self.kind: Kind = _KINDS.get(engine, "dense")
        self._engine, self._passages = engine, passages

    def __deepcopy__(self, memo: dict[int, Any]) -> _DryRetriever:
        return self

    @property
    def fingerprint(self) -> str:
        """Of no collection."""
        return f"dry {self._engine}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Passages that only this query finds."""
        return [[self._hit(query, rank) for rank in range(1, k + 1)] for query in queries]

    def _hit(self, query: str, rank: int) -> Hit:
        mark = hashlib.sha256(f"{self._engine}\n{query}\n{rank}".encode()).hexdigest()
        one = self._passages[int(mark[:8], 16) % len(self._passages)]
        return Hit(Passage(mark[:16], one.text, f"{one.title} {mark[:6]}".strip()), 0.0, rank)


class _DryVectors(_DryRetriever):
    """The same, searched by vectors too."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Any vectors."""
        return np.ones((len(texts), 2), dtype=np.float32)

    def search_vectors(self, vectors: Any, k: int) -> list[list[Hit]]:
        """Any passages."""
        return self.search([f"vector {place}" for place in range(len(vectors))], k)


def dry_retriever(engine: str, passages: Sequence[Passage]) -> Any:
    """A retriever that searches nothing.

    Args:
        engine: The engine that it stands for.
        passages: What it shows, one or more.
    """
    return (_DryVectors if engine == "dense" else _DryRetriever)(engine, passages)


def dry_run(program: RAG, question: Question, *, decides_by_likelihood: bool = False) -> DryRun:
    """What a program would ask an LM for a question, as far as made-up answers lead.

    Args:
        program: Over a ``dry_retriever``.
        question: The question.
        decides_by_likelihood: Whether the LM decides choices by likelihood, and is shown no list of them and no
            quotation marks.
    """
    engine = _DryEngine(decides_by_likelihood)
    lm = dspy.LM("dry/run", engine=LMEngine(engine, identity="dry"), cache=False, num_retries=0)
    options = list(question.options) or None
    with asking(lm):
        found = program.technique(question=question.question, options=options)
        before = len(engine.asked)
        if program.reader is not None:
            program.reader(
                question=question.question, options=options, passages=found.passages, findings=found.findings
            )
    return DryRun(tuple(engine.asked[:before]), tuple(engine.asked[before:]))


def _filler(schema: Any, mark: str) -> Any:
    """A value of a JSON schema."""
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind == "array":
        count = schema.get("minItems", _ITEMS)
        items = schema.get("items", {})
        return [_filler(items, f"{mark} {place}") for place in range(1 if items.get("type") == "integer" else count)]
    if kind in {"integer", "number"}:
        return schema.get("minimum", 1)
    if kind == "boolean":
        return True
    return " ".join([mark, *["filler"] * (FILLER_WORDS - len(mark.split()))])
