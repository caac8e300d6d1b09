"""A whole training of a few seconds: two steps of each stage with a random model of four layers."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy

from querywright.data.splits import Splits
from querywright.data.types import Label, Passage, Question
from querywright.models.engine import LMEngine
from querywright.models.response_parsing import text_response
from querywright.optimize.rewriter.recipes import OURS
from querywright.optimize.rewriter.settings import Given, TrainSettings
from querywright.optimize.rewriter.train import Trained, train
from querywright.retrieval.types import Hit

QUESTIONS = [
    Question(f"q{n}", f"What of number {n}?", answer=f"right {n}", evidence={f"decides-{n}": Label.ENTAILED})
    for n in range(24)
]
SPLITS = Splits(QUESTIONS[:16], QUESTIONS[16:20], QUESTIONS[20:])
RECIPE = replace(OURS, steps=2, batch=2, group=3, room=16, top_k=0, length_penalty=0.01, lr=0.01, temperature=0.5)
SETTINGS = TrainSettings(
    "rrr", recipe=RECIPE, metric="recall@5", candidates=2, epochs=1, warmup_batch=8, warmup_lr=0.01, least_pairs=4,
    look_each=2, rank=2, device="cpu",
)  # fmt: skip


class World:
    """The deciding passage is found by a query with the key word, and not by the question."""

    fingerprint = "a small world"

    def __deepcopy__(self, memo: dict[int, Any]) -> World:
        return self

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[Hit(p, 1 / rank, rank) for rank, p in enumerate(self._find(one)[:k], 1)] for one in queries]

    def _find(self, query: str) -> list[Passage]:
        number = int(([*re.findall(r"\d+", query)] or ["0"])[0])
        found = [Passage(f"other-{(number + step) % 9}", f"Nothing to do with it, {step}.") for step in range(8)]
        return [Passage(f"decides-{number}", f"Decides {number}."), *found] if "key" in query else found


class Engine:
    """Writes a key word into its query for three questions of four."""

    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def complete(self, request: Any) -> Any:
        number = int(re.findall(r"number (\d+)", request.messages[-1].text or "")[-1])
        word = "other" if number % 4 == 3 else "key"
        text = json.dumps({"thought": "look it up", "queries": [f"{word} of {number}"]})
        return text_response(text, "stop", request.model, 1, 1)


def small(folder: Path, name: str = "run", progress: Any = None, **changes: Any) -> Trained:
    """Train in the folder; the same name goes on."""
    base = folder / "tiny"
    if not base.is_dir():
        runpy.run_path(str(Path(__file__).with_name("tiny.py")))["save_tiny"](base)
    engine: Any = LMEngine(Engine(), identity="scripted")
    teacher = dspy.LM("scripted/teacher", engine=engine, cache=False, num_retries=0)
    given = {"splits": SPLITS, "retriever": World(), "collection": "small", "teacher": teacher}
    given |= {key: changes.pop(key) for key in list(changes) if key in Given.__slots__}
    settings = replace(SETTINGS, base=str(base), **changes)
    return train(settings, Given(**given), out=folder / name / "out", work=folder / name / "work", progress=progress)
