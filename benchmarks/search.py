"""Several queries in one search against the same queries one by one: a ratio, measured in one run.

Usage: python benchmarks/search.py [--rounds 30]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from querywright.data import load_sample
from querywright.models.embedder import resolve_embedder
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection


def seconds(work: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    sample = load_sample()
    with tempfile.TemporaryDirectory() as folder:
        embedder = resolve_embedder("embedded")
        build_collection("sample", sample.passages, embedder=embedder, home=Path(folder))
        retriever = ChromaRetriever("sample", embedder=embedder, home=Path(folder))
        queries = [question.question for question in sample.questions[:4]]
        retriever.search(queries, 5)
        one = seconds(lambda: retriever.search(queries[:1], 5), rounds)
        four = seconds(lambda: retriever.search(queries, 5), rounds)
        apart = seconds(lambda: [retriever.search([query], 5) for query in queries], rounds)
    print(f"four queries in one search: {four / one:.2f} times one query; one by one: {apart / one:.2f} times")


if __name__ == "__main__":
    main()
