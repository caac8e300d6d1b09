"""Compile the programs in artifacts/ from a large LM's recorded answers, and compare instructions for ``rrs``.

Usage: python benchmarks/programs.py [programs] [instructions]

Neither part calls a model. The data is in benchmarks/data; ``results.py`` creates the tables for the pages.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
from results import DATA, LARGE_LM, ROOT, TUNINGS, prepare, with_recorded_plan

import querywright as qw
from querywright.data import read_questions
from querywright.data.types import Question
from querywright.metrics.judge import JudgedMetric
from querywright.metrics.judges import make_judge
from querywright.models.embedder import resolve_embedder
from querywright.models.lm import resolve_lm
from querywright.models.store import open_store
from querywright.optimize.contexts import asking
from querywright.programs import make_program
from querywright.retrieval.bm25 import BM25Retriever
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import passage_line
from querywright.retrieval.generated_questions import published_questions
from querywright.retrieval.hybrid import HybridRetriever

EXAMPLES = 30
"""Number of questions on which MIPROv2 tries instructions."""
FACT = "Decide which answer is most likely and what fact would settle it. Then write "
TERMS = " Name the terms that a source would use, not the wording of the question."
BY_HAND: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "a query per option": (
        f"{FACT}what finds that fact in a textbook. One short query for each option, in their order: what would be "
        f"found if it were the right one, with the key clue of the question.{TERMS}",
        "one for each option, names and key words",
        {"n_queries": 5},
    ),
    "a hypothetical sentence per role": (
        f"{FACT}three sentences as a textbook would have them, one for each role: evidence for the likely answer, what "
        f"tells it from its nearest rival, and what the key clue of the question means.{TERMS}",
        "sentences of a textbook, one for each role",
        {"n_queries": 3},
    ),
}
"""By name: the instructions for the plan, the description of its queries, and the knobs."""
UNTUNED = {"n_queries": 4, "n_written": 0, "top_k": 10, "fusion": "rrf", "rrf_k": 60, "search_passage": True}
"""The default knobs for ``rrs``. They are not searched, because each value needs a new selection per question."""
DEFAULTS = {"rewriter_sees_options": True, "n_queries": 3}
"""Knobs of HCQR that are not searched. A search chose one query on dev, which did worse on test than untuned HCQR."""


def read(file: str) -> list[Question]:
    """Read questions from a file in benchmarks/data."""
    return read_questions(DATA / file)


def compile_programs(threads: int) -> None:
    """Compile the programs in artifacts/, print their verdicts, and save them."""
    judged: dict[str, Any] = {"retriever": "nursing", "judge_lm": LARGE_LM, "objective": "judged_useful"}
    labeled: dict[str, Any] = {"retriever": "hotpotqa", "objective": "full_recall@2"}
    for folder, technique, engine, knobs, trials, given in (
        ("textbooks", "rrs", "hybrid", {"max_passages": 1, **UNTUNED}, 1, judged),
        ("textbooks-hcqr", "hcqr", "dense", {"max_passages": 5, **DEFAULTS}, 12, judged),
        ("two-hop", "rrs", "hybrid", {"max_passages": 2, **UNTUNED}, 1, labeled),
    ):
        data = given["retriever"]
        prepare(data)
        dev, test = read(f"{data}/dev.jsonl"), read(f"{data}/test.jsonl")
        more = read(f"{data}/more.jsonl") if technique == "hcqr" else []
        splits = {"train": dev[:10], "dev": [*dev[10:], *more], "test": test}
        save(folder, technique, splits, engine=engine, knobs=knobs, trials=trials, threads=threads, **given)
    prepare(index := "medquad-cdc")
    asked = read(f"{index}/questions.jsonl")
    half = len(asked) // 2
    splits = {"train": asked[half : half + 5], "dev": asked[half + 5 :], "test": asked[:half]}
    save(
        index, "qb_rag", splits, retriever=index, objective="exact_recovery@1", knobs={"max_passages": 5}, trials=12,
        threads=threads,
    )  # fmt: skip
    prepare("handbook")
    made = TUNINGS[0].compile(reader="multiple_choice", reader_demo_sizes=(2,))
    print(f"handbook: {made.verdict}: {made.sentence}", flush=True)
    made.save(ROOT / "artifacts" / "handbook", replace=True)
    written = b"".join(map(passage_line, published_questions(index, None).values()))
    (ROOT / "artifacts" / f"{index}-questions.jsonl.gz").write_bytes(gzip.compress(written, mtime=0))


def save(folder: str, technique: str, splits: Mapping[str, Sequence[Question]], **given: Any) -> None:
    """Compile a technique without demonstrations or a reader, print the verdict, and save the program."""
    made = qw.compile(technique, splits, lm=LARGE_LM, reader=None, demo_sizes=(), reader_demo_sizes=(), **given)
    print(f"{folder}: {made.verdict}: {made.sentence}", flush=True)
    made.save(ROOT / "artifacts" / folder, replace=True)


def instructions(threads: int) -> None:
    """Compare instructions for ``rrs`` from ``dspy.MIPROv2`` and by hand with the untuned instructions on dev."""
    prepare("nursing")
    lm = resolve_lm(LARGE_LM, store=open_store())
    dense = ChromaRetriever("nursing", embedder=resolve_embedder("embedded", store=open_store()))
    hybrid = HybridRetriever([dense, BM25Retriever("nursing", beside=dense)])
    programs = {"untuned": make_program("rrs", hybrid, max_passages=1)}
    with asking(lm):
        useful = JudgedMetric(make_judge("usefulness"), lm=lm)
        optimizer = dspy.MIPROv2(metric=useful, auto=None, num_candidates=4, num_threads=threads, max_errors=1, seed=0)
        examples = [one.to_example() for one in read("nursing/more.jsonl")[:EXAMPLES]]
        programs["by MIPROv2"] = optimizer.compile(
            programs["untuned"], trainset=examples, valset=examples, num_trials=5, minibatch=False,
            max_bootstrapped_demos=0, max_labeled_demos=0, program_aware_proposer=False,
        )  # fmt: skip
    show(programs, 1, ("nursing/dev.jsonl",))
    for budget in (1, 3):  # each program has its own budget
        programs = {"untuned": make_program("rrs", hybrid, max_passages=budget)}
        for name, (text, queries, knobs) in BY_HAND.items():
            programs[name] = make_program("rrs", hybrid, max_passages=budget, **knobs)
            planner: Any = programs[name].technique.plan_searches
            planner.signature = planner.signature.with_instructions(text).with_updated_fields("queries", desc=queries)
        show(programs, budget, ("nursing/dev.jsonl", "nursing/more.jsonl"))


def show(programs: Mapping[str, Any], budget: int, files: Sequence[str]) -> None:
    """Print the decision-useful rate of each program with a given passage budget."""
    asked = [question for file in files for question in read(file)]
    compared = qw.compare(
        programs, asked, retriever="nursing", lm=LARGE_LM, judge_lm=LARGE_LM, reader=None, metrics=["judged_useful"],
        max_passages=budget, references=False,
    )  # fmt: skip
    print(f"\n{len(asked)} questions, {budget} passages\n{compared}", flush=True)


def main() -> None:
    """Run the named parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=("programs", "instructions"))
    parser.add_argument("--threads", type=int, default=8)
    given = parser.parse_args()
    with_recorded_plan(LARGE_LM)
    if "programs" in given.parts:
        compile_programs(given.threads)
    if "instructions" in given.parts:
        instructions(given.threads)


if __name__ == "__main__":
    main()
