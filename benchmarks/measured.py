"""Benchmark material: passages and questions, and an embedder and a retriever that measure their time."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from querywright.data.types import Label, Passage, Question
from querywright.models.embedder import TextEmbedder, Vectors
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.types import Hit

_START = ("Al", "Bran", "Cor", "Dun", "El", "Far", "Gar", "Hel", "Is", "Jor", "Kal", "Lin", "Mar", "Nor", "Os", "Pel")
_MIDDLE = ("a", "be", "do", "en", "fi", "go", "hu", "i", "la", "mo", "ne", "or", "ri", "su", "ta", "ve")
_END = ("bridge", "dale", "field", "ford", "ham", "land", "mere", "mouth", "port", "stead", "ton", "wick")
_KINDS = ("town", "novel", "railway", "school", "film", "river", "museum", "orchestra", "football club", "newspaper")
_FACTS = (
    "It is best known for a dispute over its name that was settled by a court in the capital.",
    "Its archive is kept in the national library and was opened to the public after the war.",
    "A monument near the old market square recalls the event, and a festival is held there every spring.",
    "Critics disagreed about its importance at first, but later historians counted it among the finest of its time.",
    "It changed hands several times before the council bought it for a small sum.",
    "More than a thousand people took part in the opening, which a storm had delayed by two days.",
)


@dataclass(frozen=True)
class Material:
    """The passages and questions for a benchmark.

    Args:
        source: Where they come from, in words.
        passages: The passages in the collection.
        questions: The questions, each with four options.
    """

    source: str
    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]


def material(folder: Path | None, passages: int, questions: int) -> Material:
    """Return HotpotQA data if the folder contains enough of it, else generated data.

    Args:
        folder: Folder with ``corpus.jsonl`` and ``questions.jsonl``; None for generated data.
        passages: Number of passages, at least as many as belong to the questions.
        questions: Number of questions, 4 or more.
    """
    if folder is not None and (folder / "questions.jsonl").is_file():
        found = _lines(folder / "questions.jsonl")
        corpus = _lines(folder / "corpus.jsonl")
        if len(found) >= questions and len(corpus) >= passages:
            return _hotpotqa(found[:questions], corpus, passages)
    return _made_up(passages, questions)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _hotpotqa(rows: list[dict[str, Any]], corpus: list[dict[str, Any]], count: int) -> Material:
    gold = {id for row in rows for id in row["gold"]}
    corpus.sort(key=lambda row: row["id"] not in gold)
    kept = tuple(Passage(row["id"], row["text"], row["title"]) for row in corpus[:count])
    labels = [dict.fromkeys(row["gold"], Label.USEFUL) for row in rows]
    asked = [(row["id"], row["question"], row["answer"], label) for row, label in zip(rows, labels, strict=True)]
    return Material(f"HotpotQA, {len(kept)} passages", kept, _with_options(asked))


def _made_up(passages: int, questions: int) -> Material:
    rng = random.Random(20261121)
    kept, asked = [], []
    names = [f"{start}{one}{two}{end}" for start in _START for one in _MIDDLE for two in _MIDDLE for end in _END]
    rng.shuffle(names)
    for number in range(passages):
        name, place, founder = names[number], rng.choice(names), f"{rng.choice(_START)}a {rng.choice(names)}"
        kind, year = rng.choice(_KINDS), rng.randint(1500, 1999)
        text = f"{name} is a {kind} in {place}, begun in {year} by {founder}. {' '.join(rng.sample(_FACTS, 3))}"
        kept.append(Passage(f"p{number}", text, name))
        if number < questions:
            asked.append(
                (f"q{number}", f"In which year did {founder} begin the {kind} that is named after {name}?",
                 str(year), {f"p{number}": Label.USEFUL})
            )  # fmt: skip
    return Material(f"made up by a seeded generator, {len(kept)} passages", tuple(kept), _with_options(asked))


def _with_options(asked: Sequence[tuple[str, str, str, dict[str, Label]]]) -> tuple[Question, ...]:
    """Return the questions; the options of each are its answer and the answers to three other questions."""
    answers = list(dict.fromkeys(answer for _, _, answer, _ in asked))
    place = {answer: number for number, answer in enumerate(answers)}
    made = []
    for id, question, answer, labels in asked:
        four = [answers[(place[answer] + step) % len(answers)] for step in range(min(4, len(answers)))]
        made.append(Question(id, question, options=tuple(sorted(four)), answer=answer, evidence=labels))
    return tuple(made)


class Clock:
    """Measures the total seconds that all threads spend in one part of the work, including waiting time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.items = 0
        self._lock = threading.Lock()

    @contextmanager
    def running(self, items: int) -> Iterator[None]:
        """Add the time of a ``with`` block that processes ``items`` items."""
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds += time.perf_counter() - began
                self.items += items


class TimedEmbedder:
    """An embedder with a clock; if ``cached`` is true, it reuses the vectors of known texts.

    Args:
        inner: The embedder that does the work.
    """

    def __init__(self, inner: TextEmbedder) -> None:
        self.id, self.dimension = inner.id, inner.dimension
        self.clock = Clock()
        self.cached = False
        self._inner = inner
        self._known: dict[str, Any] = {}

    def encode(self, texts: Sequence[str], /) -> Vectors:
        """Return one row per text."""
        with self.clock.running(len(texts)):
            missing = [text for text in texts if not (self.cached and text in self._known)]
            if missing:
                self._known.update(zip(missing, self._inner.encode(missing), strict=True))
            return np.stack([self._known[text] for text in texts])


class TimedRetriever(ChromaRetriever):
    """A retriever with a clock for its index searches."""

    def __init__(self, name: str, *, embedder: TextEmbedder, home: Path) -> None:
        super().__init__(name, embedder=embedder, home=home)
        self.clock = Clock()

    def search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        """Return the passages nearest to each vector."""
        with self.clock.running(len(np.asarray(vectors))):
            return super().search_vectors(vectors, k)


class OneByOne:
    """A sentence-transformers model used the way other libraries use it: each call embeds only its own texts.

    Args:
        id: Id of the model.
        model: The model.
    """

    def __init__(self, id: str, model: Any) -> None:
        self.id, self.dimension = id, int(model.encode(["a"]).shape[1])
        self._model = model

    def encode(self, texts: Sequence[str], /) -> Vectors:
        """Return one row per text."""
        vectors: Vectors = self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return vectors
