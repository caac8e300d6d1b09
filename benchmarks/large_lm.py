"""What a large LM makes of the techniques: tables, and the programs in artifacts/, from its recorded answers.

Usage: python benchmarks/large_lm.py table|programs|ablation [--data ../shared/data] [--lm recording:FILE] [--limit N]

DATA holds medqa, mmlu-med and hotpotqa (questions.jsonl), and nursing and hotpotqa (corpus.jsonl). Medical questions
are half of one set and half of the other; which of them are dev (40) and which test (100) a hash of their text says.
Nothing labels the passages of the textbooks: the judge of usefulness does, who knows the right answer and is the same
LM in another role. Writers and selectors never saw a judge's prompt, and writers no passage.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import querywright as qw
from querywright.data import read_passages, read_questions
from querywright.data.types import Question
from querywright.metrics.statistics import p_value
from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.significance import ALPHA
from querywright.retrieval.index import build_collection

RECORDING = "recording:artifacts/recordings/large-lm.jsonl.gz"
DEV, TEST = 40, 100
TEXTBOOK_ARMS = (
    "plain", "plain:query_with_options=true", "step_back", "query2doc", "hyde:n_documents=4", "multi_query",
    "rag_fusion", "rrr", "rrr@hybrid", "hcqr", "hcqr@hybrid", "rrs@hybrid",
)  # fmt: skip
TWO_HOP_ARMS = (
    "plain", "plain@hybrid", "step_back", "query2doc", "multi_query", "rag_fusion", "rrr", "rrr@hybrid", "rrs@hybrid",
)  # fmt: skip
ABLATION = {
    "rrs@hybrid": "all of it",
    "rrs@hybrid:select=false": "without the selection",
    "rrs@hybrid:search_passage=false": "without the hypothetical sentence",
    "rrs": "without BM25",
    "rrr@hybrid:select=true,top_k=10": "queries of Rewrite-Retrieve-Read, selected",
    "rrr@hybrid": "queries of Rewrite-Retrieve-Read",
    "hcqr": "HCQR's two calls, as written",
}
"""Arms of the ablation, and what each is without."""


def medical(data: Path) -> dict[str, list[Question]]:
    """Dev and test: 20 and 50 questions each of MedQA and MMLU-Med, one after the other."""
    return _halves([data / name / "questions.jsonl" for name in ("medqa", "mmlu-med")])


def two_hop(data: Path) -> dict[str, list[Question]]:
    """Dev and test of HotpotQA; evidence is both gold paragraphs."""
    return _halves([data / "hotpotqa" / "questions.jsonl"])


def _halves(files: Sequence[Path]) -> dict[str, list[Question]]:
    """The questions of each file in the order of their hash: the first for dev, the next for test, in turn."""
    sets = [sorted({q.question: q for q in read_questions(file)}.values(), key=_order) for file in files]
    dev, test = DEV // len(sets), TEST // len(sets)
    parts = {"dev": [one[:dev] for one in sets], "test": [one[dev : dev + test] for one in sets]}
    return {name: [q for together in zip(*lists, strict=True) for q in together] for name, lists in parts.items()}


def _order(question: Question) -> str:
    return hashlib.sha256(f"qw22{question.question}".encode()).hexdigest()


def index(name: str, corpus: Path) -> None:
    """Build the collection of that name; the same passages again cost nothing."""
    build_collection(name, read_passages(corpus), embedder=resolve_embedder("embedded", store=open_store()))


def table(
    title: str,
    arms: Sequence[str],
    asked: Sequence[Question],
    metrics: Mapping[str, str],
    *,
    shown: Mapping[str, str] | None = None,
    budgets: Sequence[int] = (1, 3, 5),
    **given: Any,
) -> None:
    """Print arms by budgets, best first at the smallest, each held against no rewriting.

    Args:
        title: What stands above.
        arms: The first is what the others are held against.
        asked: The questions.
        metrics: How a metric is called in the table, by its name; the first decides.
        shown: What an arm is called in the table, where not by its name.
        budgets: Passages shown to the reader.
        given: As ``qw.compare`` takes it.
    """
    by_budget = {
        k: qw.compare(arms, asked, reader=None, metrics=list(metrics), max_passages=k, references=False, **given)
        for k in budgets
    }
    first, shown = next(iter(metrics)), shown or {}
    print(f"\n{title}, {len(asked)} questions\n")
    heads = [f"{what} at {k}" for what in metrics.values() for k in budgets]
    print("| arm | " + " | ".join(heads) + " | won : lost at " + f"{budgets[0]} | LM calls |")
    print("| --- |" + " --- |" * (len(heads) + 2))
    found = {k: {one.name: one for one in compared.arms} for k, compared in by_budget.items()}
    for name in sorted(arms, key=lambda name: -found[budgets[0]][name].mean(first).value):
        cells = [_mean(found[k][name].mean(metric)) for metric in metrics for k in budgets]
        test = next((c.test for c in by_budget[budgets[0]].comparisons if (c.arm, c.metric) == (name, first)), None)
        won = "-" if test is None else f"{test.wins} : {test.losses}, {p_value(test.p_two_sided, ALPHA)}"
        cells += [won, f"{found[budgets[0]][name].calls_a_question:.1f}"]
        print(" | ".join([f"| {shown.get(name, f'`{name}`')}", *cells]) + " |")
    for one in by_budget[budgets[-1]].notes:
        print(f"- {one}")


def _mean(score: Any) -> str:
    return f"{score.value:.3f} [{score.low:.2f}, {score.high:.2f}]"


def main() -> None:
    """Run the parts that were named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=("table", "ablation", "programs"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--lm", default=RECORDING)
    parser.add_argument("--limit", type=int, default=TEST)
    parser.add_argument("--threads", type=int, default=8)
    given = parser.parse_args()
    for name in ("nursing", "hotpotqa"):
        index(name, given.data / name / "corpus.jsonl")
    health, hops = medical(given.data), two_hop(given.data)
    judged = {"judged_useful": "useful", "judged_entailed": "settled"}
    textbooks: dict[str, Any] = {"retriever": "nursing", "lm": given.lm, "judge_lm": given.lm, "threads": given.threads}
    test = health["test"][: given.limit]
    if "table" in given.parts:
        table("Textbooks", TEXTBOOK_ARMS, test, judged, **textbooks)
        facts = {"full_recall@5": "both", "recall": "recall"}
        table(
            "HotpotQA",
            TWO_HOP_ARMS,
            hops["test"][: given.limit],
            facts,
            budgets=(2, 3, 5),
            retriever="hotpotqa",
            lm=given.lm,
            threads=given.threads,
        )
    if "ablation" in given.parts:
        shown = {name: f"{what} (`{name}`)" for name, what in ABLATION.items()}
        table("Ablation", list(ABLATION), test, judged, shown=shown, **textbooks)
    if "programs" in given.parts:
        programs(health, hops, given.lm, given.threads)


AS_WRITTEN = {"n_queries": 4, "n_written": 0, "top_k": 10, "fusion": "rrf", "rrf_k": 60, "search_passage": True}
"""The knobs of rrs, given so that none is searched: each value would be another pool, and another call a question."""


def programs(health: Mapping[str, list[Question]], hops: Mapping[str, list[Question]], lm: str, threads: int) -> None:
    """Compile what stands in artifacts/, print its verdicts and save it."""
    judged: dict[str, Any] = {
        "retriever": "nursing", "judge_lm": lm, "objective": "judged_useful"
    }  # fmt: skip
    labelled: dict[str, Any] = {"retriever": "hotpotqa", "objective": "full_recall@2"}
    for folder, technique, engine, knobs, asked, given in (
        ("textbooks", "rrs", "hybrid", {"max_passages": 1, **AS_WRITTEN}, health, judged),
        ("textbooks-hcqr", "hcqr", "dense", {"max_passages": 5, "rewriter_sees_options": True}, health, judged),
        ("two-hop", "rrs", "hybrid", {"max_passages": 2, **AS_WRITTEN}, hops, labelled),
    ):
        splits = {"train": asked["dev"][:10], "dev": asked["dev"][10:], "test": asked["test"]}
        trials = 1 if technique == "rrs" else 12
        tuned = qw.compile(
            technique, splits, lm=lm, reader=None, engine=engine, knobs=knobs,
            n_trials=trials, demo_sizes=(), reader_demo_sizes=(), threads=threads, **given,
        )  # fmt: skip
        print(f"\n{folder}: {tuned.verdict}: {tuned.sentence}")
        tuned.save(Path("artifacts") / folder)


if __name__ == "__main__":
    main()
