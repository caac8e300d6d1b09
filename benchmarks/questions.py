"""One question matched with stored questions against a plain search of as many passages: ratios, measured in one run.

With --memory instead: the most memory that publishing so many questions takes, in a process of its own, beside that of
Chroma alone, given the same vectors a batch at a time.

Usage: python benchmarks/questions.py [--size 100000] [--each 8] [--rounds 300] [--memory]
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from querywright.data.types import Passage
from querywright.models.embedder import Vectors
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.chroma_index import EF_CONSTRUCTION, EF_SEARCH, SPACE, SYNC_THRESHOLD
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion, publish_questions
from querywright.retrieval.index import build_collection
from querywright.retrieval.question_index import QuestionIndex
from querywright.retrieval.types import Retriever

DIMENSION = 384
SPREAD = 0.6
"""Share of a question's vector that is its own and not its passage's: two questions of a passage have a cosine of
about 0.74, the same as two questions of a card have above two of different ones."""
K = 5
FILLING = "what is asked about it in a question of middling length"


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


def made(size: int, each: int) -> Iterator[PassageRecord]:
    """Records as a build gives them.

    Args:
        size: Questions.
        each: Questions of a passage, 1 or more.
    """
    for number in range(math.ceil(size / each)):
        key = f"{number:07}"
        questions = range(min(each, size - number * each))
        yield PassageRecord(
            key,
            Passage(key, f"{number}").text_digest(),
            "benchmark",
            tuple(WrittenQuestion(f"{number}.{one} {FILLING}", COMPLETE, 4 * FILLING) for one in questions),
        )


class Part(StrEnum):
    """What a process does whose memory is measured."""

    BARE = "bare"
    CHROMA = "chroma"
    PUBLISH = "publish"


def do(part: Part, size: int, each: int, home: Path) -> int:
    """Does one part.

    Args:
        part: Which one; ``bare`` is nothing but the imports.
        size: Questions.
        each: Questions of a passage, 1 or more.
        home: An empty folder.

    Returns:
        The most memory that this process has had, in bytes.
    """
    import chromadb.api.rust  # noqa: F401 - what both others import

    if part is Part.CHROMA:
        _insert(size, home)
    elif part is Part.PUBLISH:
        publish_questions("asked", made(size, each), embedder=Numbered(), home=home)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _insert(size: int, home: Path) -> None:
    """What publishing hands to Chroma, and the search with which it looks at the result; none of our own code."""
    import chromadb

    settings = chromadb.config.Settings(anonymized_telemetry=False, chroma_api_impl="chromadb.api.rust.RustBindingsAPI")
    hnsw = {
        "space": SPACE,
        "ef_search": EF_SEARCH,
        "ef_construction": EF_CONSTRUCTION,
        "sync_threshold": SYNC_THRESHOLD,
    }
    client, drawn = chromadb.PersistentClient(str(home), settings=settings), np.random.default_rng(0)
    table = client.create_collection("passages", configuration={"hnsw": hnsw}, embedding_function=None)
    for start in range(0, size, client.get_max_batch_size()):
        ids = [f"{n:024x}" for n in range(start, min(size, start + client.get_max_batch_size()))]
        rows = drawn.standard_normal((len(ids), DIMENSION), np.float32)
        about: list[Mapping[str, str]] = [{"passage": id, "digest": 64 * "d", "label": COMPLETE} for id in ids]
        table.add(ids=ids, embeddings=rows, metadatas=about)
    client.close()
    client = chromadb.PersistentClient(str(home), settings=settings)
    query = drawn.standard_normal((500, DIMENSION), np.float32)
    client.get_collection("passages", embedding_function=None).query(query_embeddings=query, n_results=1, include=[])
    client.close()


def memory(size: int, each: int) -> dict[str, float]:
    """The most memory of each part above that of the imports, in MB, each in a process of its own.

    Args:
        size: Questions.
        each: Questions of a passage, 1 or more.
    """
    most: dict[str, float] = {}
    for part in Part:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--part", part, "--size", f"{size}", "--each", f"{each}"]
            done = subprocess.run([*command, "--home", folder], check=True, stdout=subprocess.PIPE, text=True)
        most[part] = int(done.stdout) / 2**20
    return {part: had - (part != Part.BARE) * most[Part.BARE] for part, had in most.items()}


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--part", type=Part, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(do(given.part, given.size, given.each, given.home))
        return
    if given.memory:
        most = memory(given.size, given.each)
        print(
            f"publishing {given.size} questions, {given.each} a passage: {most['publish']:.0f} MB above the imports "
            f"({most['bare']:.0f} MB), of which Chroma alone takes {most['chroma']:.0f}"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        ratios = compare(build(Path(folder), given.size, given.each), given.rounds)
    print(
        f"one question over {given.size} stored questions, {given.each} a passage: {ratios['median']:.2f} times a "
        f"plain search at the median, {ratios['p95']:.2f} at p95 ({ratios['matched ms']:.2f} and "
        f"{ratios['plain ms']:.2f} ms)"
    )


if __name__ == "__main__":
    main()
