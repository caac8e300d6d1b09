"""One question matched with stored questions against a plain search of as many passages: ratios, measured in one run.

Usage: python benchmarks/questions.py [--size 100000] [--each 8] [--rounds 300]
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from querywright.data.types import Passage
from querywright.models.embedder import Vectors
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection
from querywright.retrieval.question_index import QuestionIndex
from querywright.retrieval.question_records import COMPLETE, PassageRecord, WrittenQuestion, publish_questions
from querywright.retrieval.types import Retriever

DIMENSION = 384
SPREAD = 0.6
"""Share of a question's vector that is its own and not its passage's: two questions of a passage have a cosine of
about 0.74, the same as two questions of a card have above two of different ones."""
K = 5


class Numbered:
    """An embedder without a model: a text ``p.n`` is near all texts that begin with ``p``."""

    id, dimension = "numbered", DIMENSION

    def encode(self, texts: Sequence[str], /) -> Vectors:
        """One random direction a text, the same each time, around that of what stands before the point."""
        rows = []
        for text in texts:
            head, _, own = text.partition(".")
            rows.append(_direction(head, "") + (SPREAD * _direction(head, own) if own else 0))
        vectors = np.array(rows, dtype=np.float32)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def _direction(head: str, own: str) -> Vectors:
    drawn = np.random.default_rng([ord(letter) for letter in f"{head}.{own}"]).standard_normal(DIMENSION, np.float32)
    return np.asarray(drawn / np.linalg.norm(drawn), dtype=np.float32)


@dataclass(frozen=True)
class Bench:
    """What is compared.

    Args:
        plain: A collection of as many passages as there are questions.
        index: The questions.
    """

    plain: ChromaRetriever
    index: QuestionIndex


def build(home: Path, size: int, each: int) -> Bench:
    """Builds both collections.

    Args:
        home: The working folder.
        size: Stored questions, and passages of the plain collection.
        each: Questions of a passage, 1 or more.
    """
    embedder = Numbered()
    build_collection("plain", [Passage(f"{n:07}", f"{n}") for n in range(size)], embedder=embedder, home=home)
    passages = [Passage(f"{n:07}", f"{n}") for n in range(math.ceil(size / each))]
    build_collection("asked", passages, embedder=embedder, home=home)
    records = [
        PassageRecord(passage.id, passage.digest(), "benchmark", tuple(
            WrittenQuestion(f"{number}.{one}", COMPLETE) for one in range(min(each, size - number * each))
        ))
        for number, passage in enumerate(passages)
    ]  # fmt: skip
    publish_questions("asked", records, embedder=embedder, home=home)
    return Bench(
        ChromaRetriever("plain", embedder=embedder, home=home), QuestionIndex("asked", embedder=embedder, home=home)
    )


def compare(bench: Bench, rounds: int) -> dict[str, float]:
    """Ratios of the seconds of matching to those of plain search, in turns over the same questions.

    Args:
        bench: Both collections.
        rounds: Questions that are asked of each, 2 or more.
    """
    searches: dict[str, Retriever] = {"plain": bench.plain, "matched": bench.index}
    taken: dict[str, list[float]] = {name: [] for name in searches}
    for number in range(-10, rounds):  # the first ten are not counted
        query = f"{number * bench.index.count // rounds % bench.index.count}.asked"
        for name, retriever in searches.items():
            seconds = _seconds(lambda retriever=retriever, query=query: retriever.search([query], K))  # type: ignore[misc]
            if number >= 0:
                taken[name].append(seconds)
    return {
        "median": statistics.median(taken["matched"]) / statistics.median(taken["plain"]),
        "p95": float(np.quantile(taken["matched"], 0.95) / np.quantile(taken["plain"], 0.95)),
        "plain ms": 1000 * statistics.median(taken["plain"]),
        "matched ms": 1000 * statistics.median(taken["matched"]),
    }


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ratios = compare(build(Path(folder), given.size, given.each), given.rounds)
    print(
        f"one question over {given.size} stored questions, {given.each} a passage: {ratios['median']:.2f} times a "
        f"plain search at the median, {ratios['p95']:.2f} at p95 ({ratios['matched ms']:.2f} and "
        f"{ratios['plain ms']:.2f} ms)"
    )


if __name__ == "__main__":
    main()
