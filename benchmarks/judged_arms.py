"""Answers that people judged, as arms of searches found them: what a judge's order of arms is held against.

Usage: python benchmarks/judged_arms.py DATA OUT [--depth 2] [--seed 0]

DATA is a folder as LiveQA-Med is: corpus.jsonl (id, text) and questions.jsonl (id, question, message, judged: grade by
passage id). Every arm searches the whole corpus; of what people judged for a question its first passages are kept, and
one arm takes them by chance. OUT is a file of cases with their arms, for

    querywright judge calibrate usefulness --data OUT
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from querywright import ChromaRetriever
from querywright.retrieval.bm25 import BM25Retriever
from querywright.retrieval.hybrid import HybridRetriever


def pooled(data: Path, depth: int, seed: int) -> list[dict[str, Any]]:
    """The cases: what any arm found among its first judged passages, with the names of those that did.

    Args:
        data: The folder.
        depth: Judged passages that each arm shows.
        seed: Of the arm that chooses by chance.
    """
    corpus, questions = (_rows(data / name) for name in ("corpus.jsonl", "questions.jsonl"))
    passages = [{"id": row["id"], "text": row["text"]} for row in corpus]
    texts = {row["id"]: row["text"] for row in passages}
    with tempfile.TemporaryDirectory() as home:
        dense = ChromaRetriever.build("arms", passages, home=Path(home))
        words = BM25Retriever("arms", home=Path(home))
        searches: dict[str, Any] = {"dense": dense, "bm25": words, "hybrid": HybridRetriever([dense, words])}
        found = {
            f"{name}, {asked}": retriever.search([str(row[asked]) for row in questions], len(passages))
            for name, retriever in searches.items()
            for asked in ("question", "message")
        }
    cases = []
    for place, row in enumerate(questions):
        grades, arms = row["judged"], dict[str, list[str]]()
        by_chance = random.Random(f"{seed}:{row['id']}").sample(sorted(grades), min(depth, len(grades)))
        lists = {name: [hit.passage.id for hit in hits[place]] for name, hits in found.items()}
        for name, ids in (lists | {"by chance": by_chance}).items():
            for id in [id for id in ids if id in grades][:depth]:
                arms.setdefault(id, []).append(name)
        asked = {"id": row["id"], "question": row["question"]}
        cases += [asked | {"passage": texts[id], "label": grades[id], "arms": names} for id, names in arms.items()]
    return cases


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    cases = pooled(given.data, given.depth, given.seed)
    given.out.write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases), encoding="utf-8")


if __name__ == "__main__":
    main()
