"""What a large LM makes of the techniques: tables, and the programs in artifacts/, from its recorded answers.

Usage: python benchmarks/large_lm.py PART ... [--data ../shared/data] [--lm recording:FILE]

DATA holds medqa, mmlu-med and hotpotqa (questions.jsonl), and nursing and hotpotqa (corpus.jsonl). Medical questions
are half of one set and half of the other; which of them are dev (40) and which test (100) a hash of their text says.
Nothing labels the passages of the textbooks: the judge of usefulness does, who knows the right answer and is the same
LM in another role. Writers and selectors never saw a judge's prompt, and writers no passage.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy

import querywright as qw
from querywright.data import read_passages, read_questions
from querywright.data.types import Question
from querywright.metrics.judge import JudgedMetric
from querywright.metrics.judges import make_judge
from querywright.metrics.statistics import p_value
from querywright.models.embedder import resolve_embedder
from querywright.models.lm import resolve_lm
from querywright.models.store import open_store
from querywright.optimize.contexts import asking
from querywright.optimize.question_build import build_questions, question_stats
from querywright.optimize.significance import ALPHA
from querywright.optimize.testsets import make_testset
from querywright.programs import make_program
from querywright.programs.question_writer import QuestionWriter
from querywright.programs.rewrite_retrieve_select import QuestionToSearches, RewriteRetrieveSelect
from querywright.programs.steps import Predict
from querywright.retrieval.bm25 import BM25Retriever
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import passage_line
from querywright.retrieval.generated_questions import published_questions
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.index import build_collection

RECORDING = "recording:artifacts/recordings/large-lm.jsonl.gz"
DEV, TEST, MORE = 40, 100, 60
"""Questions to choose on, to test on, and further ones to choose on where knobs are many."""
TEXTBOOK_ARMS = (
    "plain", "plain:query_with_options=true", "rerank:pool=10", "rerank:select=true", "filter:pool=10", "step_back",
    "query2doc", "hyde:n_documents=4", "qa_rag:top_k=6", "multi_query", "rag_fusion", "decomposition", "ircot", "rrr",
    "rrr@hybrid", "hcqr", "hcqr@hybrid", "rrs@hybrid",
)  # fmt: skip
TWO_HOP_ARMS = (
    "plain", "plain@hybrid", "rerank:select=true", "step_back", "query2doc", "hyde:n_documents=4",
    "qa_rag:rerank=false", "multi_query", "rag_fusion", "decomposition", "ircot", "rrr", "rrr@hybrid", "rrs@hybrid",
)  # fmt: skip
HARD_ARMS = (
    "plain", "plain:query_with_options=true", "rerank:select=true", "step_back", "query2doc", "hyde:n_documents=4",
    "qa_rag:rerank=false", "multi_query", "rag_fusion", "decomposition", "ircot", "rrr", "hcqr", "rrs",
)  # fmt: skip
QUESTION_ARMS = ("plain", "plain@bm25", "plain@hybrid", "plain@expanded", "qb_rag", "qb_rag:match=hybrid")
ASKING_ARMS = ("hyde:n_documents=1", "qa_rag:track=answer")
"""Arms that ask an LM at query time, compared with the index over the first source alone."""
LEARNT = 30
"""Questions that MIPROv2 tries instructions on."""
FACT = "Decide which answer is most likely and what fact would settle it. Then write "
TERMS = " Name the terms that a source would use, not the wording of the question."
LEVERS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "queries an option": (
        f"{FACT}what finds that fact in a textbook. One short query for each option, in their order: what would be "
        f"found if it were the right one, with the key clue of the question.{TERMS}",
        "one for each option, names and key words",
        {"n_queries": 5},
    ),
    "a hypothetical sentence a role": (
        f"{FACT}three sentences as a textbook would have them, one for each role: evidence for the likely answer, what "
        f"tells it from its nearest rival, and what the key clue of the question means.{TERMS}",
        "sentences of a textbook, one for each role",
        {"n_queries": 3},
    ),
}
"""Instructions for the plan, what its queries are said to be, and knobs."""
RECORDED_PLAN = QuestionToSearches.with_instructions(
    QuestionToSearches.instructions.replace("in a source.", "in a textbook.")
).with_updated_fields("passage", desc="the sentence of a textbook that would settle the question")
"""The plan of `rrs` in the words in which the recording was made; the next recording removes it."""
SOURCES = {"CDC": 140, "NINDS": 80}
"""Passages of each source of MedQuAD, those that something is asked about first."""
QUESTIONS, NEW = 4, 60
"""Questions that are written for a passage, and new ones that test the index."""
ABLATION = {
    "rrs@hybrid": "all of it",
    "rrs@hybrid:select_pool=40": "a pool of 40 instead of 20",
    "rrs@hybrid:select=false": "without the selection",
    "rrs@hybrid:search_passage=false": "without the hypothetical sentence",
    "rrs": "without BM25",
    "rrr@hybrid:select=true,top_k=10": "queries of Rewrite-Retrieve-Read, selected",
    "rrr@hybrid": "queries of Rewrite-Retrieve-Read",
    "hcqr": "HCQR's two calls, untuned",
}
"""Arms of the ablation, and what each is without."""


def medical(data: Path) -> dict[str, list[Question]]:
    """Dev, test and more: 20, 50 and 30 questions each of MedQA and MMLU-Med, one after the other."""
    return _halves([data / name / "questions.jsonl" for name in ("medqa", "mmlu-med")])


def two_hop(data: Path) -> dict[str, list[Question]]:
    """Dev and test of HotpotQA; evidence is both gold paragraphs."""
    return _halves([data / "hotpotqa" / "questions.jsonl"])


def _halves(files: Sequence[Path]) -> dict[str, list[Question]]:
    """The questions of each file in the order of their hash: the first for dev, the next for test, in turn."""
    sets = [
        sorted({q.question: q for q in read_questions(file)}.values(), key=lambda q: _order(q.question))
        for file in files
    ]
    ends = [0, *(part // len(sets) for part in itertools.accumulate((DEV, TEST, MORE)))]
    parts = {
        name: [one[start:end] for one in sets]
        for name, start, end in zip(("dev", "test", "more"), ends, ends[1:], strict=False)
    }
    return {name: [q for together in zip(*lists, strict=True) for q in together] for name, lists in parts.items()}


def _order(question: str) -> str:
    return hashlib.sha256(f"qw22{question}".encode()).hexdigest()


def index(name: str, corpus: Path | str) -> None:
    """Build the collection of that name; the same passages again cost nothing."""
    build_collection(name, read_passages(corpus), embedder=resolve_embedder("embedded", store=open_store()))


def source_of(data: Path, name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Passages of one source of MedQuAD, and the questions that stand there, in the order of their hash."""
    rows = [json.loads(line) for line in (data / "medquad" / "corpus.jsonl").read_text().splitlines()]
    asked = [json.loads(line) for line in (data / "medquad" / "questions.jsonl").read_text().splitlines()]
    golden = {id for one in asked for id in one["gold"]}
    mine = sorted((row for row in rows if row["source"] == name), key=lambda row: row["id"] not in golden)
    passages = [{key: row[key] for key in ("id", "title", "text")} for row in mine[: SOURCES[name]]]
    ids = {row["id"] for row in passages}
    found = {one["question"]: one for one in asked if ids.issuperset(one["gold"])}
    return passages, [{"question": text, "evidence": found[text]["gold"]} for text in sorted(found, key=_order)]


def questions(data: Path, lm: str, threads: int) -> None:
    """Build an index of questions of each source, and compare it with the passages on two sets that others wrote."""
    for source in SOURCES:
        name = f"medquad-{source.lower()}"
        passages, asked = source_of(data, source)
        embedder = resolve_embedder("embedded", store=open_store())
        build_collection(name, read_passages(passages), embedder=embedder, prune=True)
        answering = resolve_lm(lm, store=open_store())
        given: dict[str, Any] = {"lm": answering, "embedder": embedder}
        report = build_questions(name, writer=QuestionWriter(QUESTIONS, QUESTIONS), threads=threads, **given)
        stats = question_stats(name)
        print(f"\n{name}: {report.passages} passages, { ({k: v for k, v in stats.items() if k != 'bare'}) }")
        sets = {"MedQuAD's own questions": read_questions(asked[:TEST])}
        if source == next(iter(SOURCES)):
            new = make_testset("out-of-distribution", name, lm=answering, number=NEW, threads=threads)
            sets["new questions by another writer"] = list(new.questions)
        for title, among in sets.items():
            table(
                f"{source}, {title}", QUESTION_ARMS + ASKING_ARMS * (len(sets) > 1), among,
                {"exact_recovery@1": "source first", "ndcg@5": "nDCG@5"}, budgets=(5,), retriever=name, lm=lm,
                threads=threads,
            )  # fmt: skip


def table(
    title: str,
    arms: Sequence[str],
    asked: Sequence[Question],
    metrics: Mapping[str, str],
    *,
    shown: Mapping[str, str] | None = None,
    budgets: Sequence[int] = (1, 3, 5),
    others_at: int = 0,
    **given: Any,
) -> None:
    """Print arms by budgets, best first at the smallest, each compared with the baseline.

    Args:
        title: What stands above.
        arms: The first is what the others are compared with.
        asked: The questions.
        metrics: How a metric is called in the table, by its name; the first decides, the others stand at one budget
            alone.
        shown: What an arm is called in the table, where not by its name.
        budgets: Passages shown to the reader.
        others_at: The place of the budget at which the other metrics stand. Default 0: the smallest.
        given: As ``qw.compare`` takes it.
    """
    by_budget = {
        k: qw.compare(arms, asked, reader=None, metrics=list(metrics), max_passages=k, references=False, **given)
        for k in budgets
    }
    first, shown = next(iter(metrics)), shown or {}
    print(f"\n{title}, {len(asked)} questions\n")
    cells = [(first, k) for k in budgets] + [(metric, budgets[others_at]) for metric in metrics if metric != first]
    heads = [f"{metrics[metric]} at {k}" for metric, k in cells]
    print("| arm | " + " | ".join(heads) + " | won : lost at " + f"{budgets[0]} | LM calls | tokens |")
    print("| --- |" + " --- |" * (len(heads) + 3))
    found = {k: {one.name: one for one in compared.arms} for k, compared in by_budget.items()}
    for name in sorted(arms, key=lambda name: -found[budgets[0]][name].mean(first).value):
        shares = [_mean(found[k][name].mean(metric)) for metric, k in cells]
        test = next((c.test for c in by_budget[budgets[0]].comparisons if (c.arm, c.metric) == (name, first)), None)
        won = "-" if test is None else f"{test.wins} : {test.losses}, {p_value(test.p_two_sided, ALPHA)}"
        one = found[budgets[0]][name]
        shares += [won, f"{one.calls_a_question:.1f}", f"{one.tokens_a_question:,.0f}"]
        print(" | ".join([f"| {shown.get(name, f'`{name}`')}", *shares]) + " |")
    for one in by_budget[budgets[-1]].notes:
        print(f"- {one}")


def _mean(score: Any) -> str:
    return f"{score.value:.3f} [{score.low:.2f}, {score.high:.2f}]"


def _with_recorded_plan(self: RewriteRetrieveSelect, retriever: Any = None, **knobs: Any) -> None:
    super(RewriteRetrieveSelect, self).__init__(retriever, **knobs)
    self.plan_searches = Predict(RECORDED_PLAN)


def main() -> None:
    """Run the parts that were named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=("table", "ablation", "hard", "questions", "prompts", "programs"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--lm", default=RECORDING)
    parser.add_argument("--limit", type=int, default=TEST)
    parser.add_argument("--threads", type=int, default=8)
    given = parser.parse_args()
    RewriteRetrieveSelect.__init__ = _with_recorded_plan
    for name in ("nursing", "hotpotqa"):
        index(name, given.data / name / "corpus.jsonl")
    health, hops = medical(given.data), two_hop(given.data)
    judged = {"judged_useful": "useful", "judged_entailed": "settled"}
    textbooks: dict[str, Any] = {"retriever": "nursing", "lm": given.lm, "judge_lm": given.lm, "threads": given.threads}
    test = health["test"][: given.limit]
    if "table" in given.parts:
        table("Textbooks", TEXTBOOK_ARMS, test, judged, **textbooks)
        table("Textbooks, as HCQR is published", TEXTBOOK_ARMS, test, judged, budgets=(15,), **textbooks)
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
    if "hard" in given.parts:
        index("sample", "sample")
        harder = {"decision_useful": "useful", "full_recall@3": "all of it", "abstention_recall": "none shown"}
        table(
            "sample-hard",
            HARD_ARMS,
            read_questions("sample-hard"),
            harder,
            budgets=(1, 3),
            others_at=1,
            retriever="sample",
            lm=given.lm,
            threads=given.threads,
        )
    if "questions" in given.parts:
        questions(given.data, given.lm, given.threads)
    if "prompts" in given.parts:
        prompts(health, given.lm, given.threads)
    if "programs" in given.parts:
        programs(health, hops, given.lm, given.threads)
        question_program(given.data, given.lm, given.threads)


UNTUNED = {"n_queries": 4, "n_written": 0, "top_k": 10, "fusion": "rrf", "rrf_k": 60, "search_passage": True}
"""The knobs of rrs, given so that none is searched: each value would be another pool, and another call a question."""

AS_PUBLISHED = {"rewriter_sees_options": True, "n_queries": 3}
"""What of HCQR is not searched: with one query alone it was chosen on dev, and worse on test than untuned."""


def programs(health: Mapping[str, list[Question]], hops: Mapping[str, list[Question]], lm: str, threads: int) -> None:
    """Compile what stands in artifacts/, print its verdicts and save it."""
    judged: dict[str, Any] = {"retriever": "nursing", "judge_lm": lm, "objective": "judged_useful"}
    labelled: dict[str, Any] = {"retriever": "hotpotqa", "objective": "full_recall@2"}
    for folder, technique, engine, knobs, asked, given in (
        ("textbooks", "rrs", "hybrid", {"max_passages": 1, **UNTUNED}, health, judged),
        ("textbooks-hcqr", "hcqr", "dense", {"max_passages": 5, **AS_PUBLISHED}, health, judged),
        ("two-hop", "rrs", "hybrid", {"max_passages": 2, **UNTUNED}, hops, labelled),
    ):
        more = asked["more"] if technique == "hcqr" else []
        splits = {"train": asked["dev"][:10], "dev": [*asked["dev"][10:], *more], "test": asked["test"]}
        trials = 1 if technique == "rrs" else 12
        tuned = qw.compile(
            technique, splits, lm=lm, reader=None, engine=engine, knobs=knobs,
            trials=trials, demo_sizes=(), reader_demo_sizes=(), threads=threads, **given,
        )  # fmt: skip
        print(f"\n{folder}: {tuned.verdict}: {tuned.sentence}")
        tuned.save(Path("artifacts") / folder, replace=True)


def prompts(health: Mapping[str, list[Question]], lm: str, threads: int) -> None:
    """Other instructions of rrs, by ``dspy.MIPROv2`` and by hand, compared with the untuned ones on dev."""
    answering = resolve_lm(lm, store=open_store())
    dense = ChromaRetriever("nursing", embedder=resolve_embedder("embedded", store=open_store()))
    hybrid = HybridRetriever([dense, BM25Retriever("nursing", beside=dense)])
    arms = {"untuned": make_program("rrs", hybrid, max_passages=1)}
    with asking(answering):
        useful = JudgedMetric(make_judge("usefulness"), lm=answering)
        mipro = dspy.MIPROv2(metric=useful, auto=None, num_candidates=4, num_threads=threads, max_errors=1, seed=0)
        learnt = [one.to_example() for one in health["more"][:LEARNT]]
        first = arms["untuned"]
        dspy.Evaluate(devset=learnt, metric=useful, num_threads=threads, max_errors=1)(first)  # asked side by side
        arms["by MIPROv2"] = mipro.compile(
            first, trainset=learnt, valset=learnt, num_trials=5, minibatch=False, max_bootstrapped_demos=0,
            max_labeled_demos=0, program_aware_proposer=False,
        )  # fmt: skip
        for name, predictor in arms["by MIPROv2"].named_predictors():
            print(f"\n{name}: {predictor.signature.instructions}")
    judged: dict[str, Any] = {"retriever": hybrid, "judge_lm": lm, "lm": lm, "threads": threads}
    table("Instructions by MIPROv2, dev", arms, health["dev"], {"judged_useful": "useful"}, budgets=(1,), **judged)
    among = [*health["dev"], *health["more"]]
    for shown in (1, 3):  # a program keeps to its own budget
        arms = {"untuned": make_program("rrs", hybrid, max_passages=shown)}
        for name, (instructions, queries, knobs) in LEVERS.items():
            arms[name] = make_program("rrs", hybrid, max_passages=shown, **knobs)
            planner: Any = arms[name].technique.plan_searches
            planner.signature = planner.signature.with_instructions(instructions).with_updated_fields(
                "queries", desc=queries
            )
        table(
            "Instructions by hand, dev and more", arms, among, {"judged_useful": "useful"}, budgets=(shown,), **judged
        )


def question_program(data: Path, lm: str, threads: int) -> None:
    """Compile QB-RAG over the index of the first source, which ``questions`` built, and save both."""
    source = next(iter(SOURCES))
    name, asked = f"medquad-{source.lower()}", read_questions(source_of(data, source)[1])
    half = len(asked) // 2
    splits = {"train": asked[half : half + 5], "dev": asked[half + 5 :], "test": asked[:half]}
    tuned = qw.compile(
        "qb_rag", splits, retriever=name, lm=lm, reader=None, objective="exact_recovery@1", knobs={"max_passages": 5},
        trials=12, demo_sizes=(), reader_demo_sizes=(), threads=threads,
    )  # fmt: skip
    print(f"\n{name}: {tuned.verdict}: {tuned.sentence}")
    tuned.save(Path("artifacts") / name, replace=True)
    written = b"".join(map(passage_line, published_questions(name, None).values()))
    Path("artifacts", f"{name}-questions.jsonl.gz").write_bytes(gzip.compress(written, mtime=0))


if __name__ == "__main__":
    main()
