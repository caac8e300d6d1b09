"""Compute the maximum number of LM calls in a study, before any LM is called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from querywright.data.splits import Splits
from querywright.data.types import Passage, Question
from querywright.models.embedder import Vectors
from querywright.optimize.rewriter.episodes import Turn, run_episodes
from querywright.optimize.search.outcome import FRONT
from querywright.optimize.search.space import Space, TechniqueSpace, largest
from querywright.optimize.study.spec import StudySpec
from querywright.programs import RAG, make_program, technique_class
from querywright.retrieval.types import Hit

TEST_PROGRAMS = 6
"""Number of programs evaluated on test: baseline, best, untuned technique, untuned reader, closed book, and oracle
evidence.
"""


def most_calls(spec: StudySpec, space: Space, splits: Splits) -> dict[str, Any]:
    """Return the maximum number of LM calls in a study: trials times questions times calls per question.

    Every trial counts as a trial of the most expensive technique, and no answer counts as cached.

    Returns:
        ``calls_per_question`` for each technique, without the reader; ``trials`` and ``test``, the calls in these two
        stages; and ``calls``, their sum. Calls by optimizers and judges are not included, and neither are retries.
    """
    each = {one.name: calls_per_question(one, splits.dev[0]) for one in space.techniques}
    most, programs = max(each.values()), TEST_PROGRAMS + (FRONT if len(spec.objectives) > 1 else 0)
    trials = spec.trials * len(splits.dev) * (most + spec.reads)
    test = programs * len(splits.test) * (most + (space.reader is not None))
    return {"calls_per_question": each, "trials": trials, "test": test, "calls": trials + test}


def calls_per_question(space: TechniqueSpace, question: Question) -> int:
    """Return a technique's LM calls per question: the maximum over default knobs and the largest knob values."""
    if not technique_class(space.name).LM_STAGES:
        return 0
    most: dict[str, Any] = {**space.given, **{name: largest(domain) for name, domain in space.domains.items()}}
    calls = []
    for knobs in (dict[str, Any](space.given), most):
        program = make_program(space.name, _MadeUpPassages(), reader=None, **knobs)
        (episode,) = run_episodes(RAG(program.technique, None), [question], _made_up_answer, limits=None)
        calls.append(len(episode.turns))
    return max(calls)


class _MadeUpPassages:
    """Returns as many passages as a search requests, with different passages for each query."""

    fingerprint = "made up"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [
            [Hit(Passage(f"{query} {rank}", f"filler {query} {rank}"), 0.0, rank) for rank in range(1, k + 1)]
            for query in queries
        ]

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.ones((len(texts), 2), dtype=np.float32)

    def search_vectors(self, vectors: Any, k: int) -> list[list[Hit]]:
        return self.search([f"vector {place}" for place in range(len(vectors))], k)


def _made_up_answer(turn: Turn) -> str:
    """Return filler in the requested form; no two answers are the same."""
    fields = {} if turn.schema is None else turn.schema["properties"]
    return json.dumps({name: _filler(one, f"{name} {turn.number}") for name, one in fields.items()})


def _filler(schema: Any, mark: str) -> Any:
    """Return a value that matches a JSON schema."""
    if "enum" in schema or "const" in schema:
        return schema.get("enum", [schema.get("const")])[0]
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items", {})
        count = 1 if items.get("type") == "integer" else schema.get("minItems", 16)
        return [_filler(items, f"{mark} {place}") for place in range(count)]
    if kind in {"integer", "number"}:
        return schema.get("minimum", 1)
    return kind == "boolean" or f"filler {mark}"
