"""Create the tables in docs/results from benchmarks/data and recorded answers, without a remote model or a network.

Usage: python benchmarks/results.py [TABLE ...] [--check]

Each table on a page follows a comment ``<!-- table: NAME -->``. The script runs the comparison for each named table (by
default, for all tables), writes the rows into the page, and prints a diff of the rows that changed. With ``--check``,
it writes nothing and exits with 1 if a row differs.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import querywright as qw
from querywright.data import Label, read_passages, read_questions
from querywright.metrics.statistics import PairedTest, p_value
from querywright.models.embedder import resolve_embedder
from querywright.models.lm import resolve_lm
from querywright.models.store import open_store
from querywright.optimize.question_build import build_questions
from querywright.optimize.significance import ALPHA
from querywright.programs.question_writer import QuestionWriter
from querywright.programs.rewrite_retrieve_select import QuestionToSearches, RewriteRetrieveSelect
from querywright.programs.steps import Predict
from querywright.retrieval.index import build_collection

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "data"
PAGES = ROOT / "docs"
RECORDINGS = ROOT / "artifacts" / "recordings"
LARGE_LM = f"recording:{RECORDINGS / 'large-lm.jsonl.gz'}"

OPTIONS = "plain:query_with_options=true"
TEXTBOOK_ARMS = (
    "plain", OPTIONS, "rerank:pool=10", "rerank:select=true", "filter:pool=10", "step_back", "query2doc",
    "hyde:n_documents=4", "qa_rag:top_k=6", "multi_query", "rag_fusion", "decomposition", "ircot", "rrr", "rrr@hybrid",
    "hcqr", "hcqr@hybrid", "rrs@hybrid",
)  # fmt: skip
TWO_HOP_ARMS = (
    "plain", "plain@hybrid", "rerank:select=true", "step_back", "query2doc", "hyde:n_documents=4",
    "qa_rag:rerank=false", "multi_query", "rag_fusion", "decomposition", "ircot", "rrr", "rrr@hybrid", "rrs@hybrid",
)  # fmt: skip
HARD_ARMS = (
    "plain", OPTIONS, "rerank:select=true", "step_back", "query2doc", "hyde:n_documents=4", "qa_rag:rerank=false",
    "multi_query", "rag_fusion", "decomposition", "ircot", "rrr", "hcqr", "rrs",
)  # fmt: skip
HANDBOOK_ARMS = (
    "plain", OPTIONS, "plain@hybrid", "step_back", "multi_query", "rag_fusion", "query2doc", "query2doc@hybrid",
    "hyde:n_documents=2", "hcqr", "hcqr@hybrid", "rrr", "rrr@hybrid", "chr", "corpus_steered@hybrid", "rrs@hybrid",
)  # fmt: skip
DOCUMENTATION_ARMS = (
    "plain", OPTIONS, "plain@hybrid", "step_back@hybrid", "query2doc@hybrid", "hyde:n_documents=2", "hcqr@hybrid",
    "hcqr@hybrid:form=published", "rrr@hybrid", "chr", "corpus_steered@hybrid", "rrs@hybrid:select_words=40",
    "rrs@hybrid:select_by=needs", "rrs@hybrid",
)  # fmt: skip
FORMS = (
    "plain@hybrid", "hcqr@hybrid", "hcqr@hybrid:form=published", "query2doc@hybrid", "query2doc@hybrid:demos=4",
    "rrr@hybrid", "rrr@hybrid:demos=3", "step_back@hybrid", "step_back@hybrid:demos=1",
)  # fmt: skip
"""Techniques in our short form, each followed by the form that its paper uses."""
QUESTIONS = 4
"""Number of questions that the LM writes for each passage in a question index."""
RECORDED_PLAN = QuestionToSearches.with_instructions(
    QuestionToSearches.instructions.replace("in a source.", "in a textbook.")
).with_updated_fields("passage", desc="the sentence of a textbook that would settle the question")
"""The wording of the plan for ``rrs`` with which large-lm.jsonl.gz was recorded."""
ABLATION = {
    "rrs@hybrid": "complete, `rrs@hybrid`",
    "rrs@hybrid:search_passage=false": "without the hypothetical sentence, `search_passage=false`",
    "rrs@hybrid:select_pool=40": "a pool of 40 instead of 20, `select_pool=40`",
    "rrr@hybrid:select=true,top_k=10": ("with the queries of Rewrite-Retrieve-Read, `rrr@hybrid:select=true,top_k=10`"),
    "rrs": "without BM25, `rrs`",
    "hcqr": "HCQR, untuned, `hcqr`",
    "rrs@hybrid:select=false": "without the selection, `rrs@hybrid:select=false`",
    "rrr@hybrid": "Rewrite-Retrieve-Read, `rrr@hybrid`",
}
NAMES = {
    "plain": "baseline, `plain`",
    OPTIONS: "question and options",
    "plain@hybrid": "baseline with hybrid search, `plain@hybrid`",
    "plain@bm25": "baseline with BM25, `plain@bm25`",
    "plain@expanded": "BM25 over passages with their questions, `plain@expanded`",
    "rerank:pool=10": "rerank by grades, pool of 10",
    "rerank:select=true": "the question alone, then selected, `rerank:select=true`",
    "filter:pool=10": "filter, pool of 10",
    "step_back": "Step-Back",
    "query2doc": "Query2Doc",
    "query2doc@bm25": "Query2Doc, `query2doc@bm25`",
    "query2doc@hybrid": "Query2Doc, `query2doc@hybrid`",
    "hyde:n_documents=1": "HyDE, 1 document",
    "hyde:n_documents=2": "HyDE, 2 documents",
    "hyde:n_documents=4": "HyDE, 4 documents",
    "qa_rag:top_k=6": "QA-RAG, 6 per track",
    "qa_rag:rerank=false": "QA-RAG, not reranked",
    "qa_rag:track=answer": "the answer of QA-RAG alone",
    "multi_query": "Multi-Query",
    "rag_fusion": "RAG-Fusion",
    "rag_fusion@hybrid": "RAG-Fusion, `rag_fusion@hybrid`",
    "decomposition": "decomposition",
    "ircot": "IRCoT",
    "rrr": "Rewrite-Retrieve-Read",
    "rrr@hybrid": "Rewrite-Retrieve-Read, `rrr@hybrid`",
    "hcqr": "HCQR",
    "hcqr@hybrid": "HCQR, `hcqr@hybrid`",
    "hcqr@hybrid:form=published": "HCQR, published form, `hcqr@hybrid:form=published`",
    "query2doc@hybrid:demos=4": "Query2Doc, 4 demonstrations, `query2doc@hybrid:demos=4`",
    "rrr@hybrid:demos=3": "Rewrite-Retrieve-Read, 3 demonstrations, `rrr@hybrid:demos=3`",
    "step_back@hybrid": "Step-Back, `step_back@hybrid`",
    "step_back@hybrid:demos=1": "Step-Back, 1 demonstration, `step_back@hybrid:demos=1`",
    "ircot@hybrid": "IRCoT, `ircot@hybrid`",
    "ircot@hybrid:min_steps=3,fill=true": "IRCoT, 3 steps or more, filled, `ircot@hybrid:min_steps=3,fill=true`",
    "rrs@hybrid:select_by=needs": "Rewrite-Retrieve-Select by needs, `rrs@hybrid:select_by=needs`",
    "hcqr@hybrid:fusion=rrf,rrf_k=20,top_k=10": "HCQR, `hcqr@hybrid:fusion=rrf,rrf_k=20,top_k=10`",
    "corpus_steered@hybrid:feedback=2": "corpus-steered expansion, `corpus_steered@hybrid:feedback=2`",
    "rrs@hybrid:select_pool=8": "Rewrite-Retrieve-Select, `rrs@hybrid:select_pool=8`",
    "rrs@hybrid:select_pool=10": "Rewrite-Retrieve-Select, `rrs@hybrid:select_pool=10`",
    "rrs@hybrid:select_words=40": "Rewrite-Retrieve-Select, `rrs@hybrid:select_words=40`",
    "oracle evidence": "oracle: the passages labeled `ENTAILED`",
    "chr": "Contrastive Hypothesis Retrieval, `chr`",
    "corpus_steered@hybrid": "corpus-steered expansion, `corpus_steered@hybrid`",
    "rrs": "Rewrite-Retrieve-Select, `rrs`",
    "rrs@hybrid": "Rewrite-Retrieve-Select, `rrs@hybrid`",
    "qb_rag": "QB-RAG",
    "qb_rag:match=hybrid": "QB-RAG, `match=hybrid`",
    "closed_book": "closed book, no passages",
}
"""The names of the arms in tables."""
SEES_OPTIONS = (OPTIONS, "oracle", "hcqr", "rrr", "rrs", "chr", "corpus_steered", "closed_book")
"""Arms that show the options to the LM or include them in the query. A selection (``select=true``) shows them, too."""


@dataclass(frozen=True)
class Table:
    """A table on a page.

    Args:
        page: The page, relative to docs.
        collection: The collection, which has the same name as its folder in benchmarks/data.
        questions: The question file in benchmarks/data, or the name of a packaged set.
        arms: The arms, starting with the baseline.
        columns: A metric, its title, and the number of passages that each arm shows for it. A separate comparison runs
            for each number of passages. The first metric, or the one that ``decisive`` names, orders the arms and
            decides which questions are won.
        names: The names of arms in this table if they differ from ``NAMES``.
        decisive: The metric that orders the arms and decides wins and losses, if it is not the first.
        digits: Number of decimals.
        options: Whether a column shows which arms see the options.
        limit: The number of questions to use, starting with the first; by default, all.
        skip: The number of questions to leave out, starting with the first.
        won_at: Whether the title of the column with wins and losses includes the number of passages.
        compare: Further arguments for ``qw.compare``.
    """

    page: str
    collection: str
    questions: str
    arms: Sequence[str]
    columns: Sequence[tuple[str, str, int]]
    names: Mapping[str, str] = field(default_factory=dict)
    decisive: str = ""
    digits: int = 2
    options: bool = True
    won_at: bool = True
    limit: int | None = None
    skip: int = 0
    compare: Mapping[str, Any] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Run the comparisons; return the lines of the table."""
        first, _, shown = self.columns[0]
        decisive = self.decisive or first
        given = {"lm": LARGE_LM, "reader": None, "references": False, **self.compare}
        file = DATA / self.questions
        asked = read_questions(file if file.exists() else self.questions, limit=self.limit)[self.skip :]
        with_recorded_plan(given["lm"])
        runs = {}
        for budget in dict.fromkeys(budget for _, _, budget in self.columns):
            metrics = [metric for metric, _, number in self.columns if number == budget]
            reads = "accuracy" in metrics
            runs[budget] = qw.compare(
                [arm for arm in self.arms if reads or arm != "closed_book"], asked, retriever=self.collection,
                metrics=metrics, max_passages=budget, threads=8,
                **given | ({} if reads else {"reader": None, "references": False}),
            )  # fmt: skip
        won = f"won : lost at {self.decisive.partition('@')[2] or shown}" if self.won_at else "won : lost"
        titles = [title for _, title, _ in self.columns]
        head = ["arm", *titles, won, *(["options"] if self.options else []), "LM calls", "tokens"]
        arms = sorted(self.arms, key=lambda name: -runs[shown].arm(name).mean(decisive).value)
        if given["references"]:
            arms.insert(0, "oracle evidence")
        rows = [self._row(name, runs, decisive) for name in arms]
        return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]

    def _row(self, name: str, runs: Mapping[int, Any], decisive: str) -> list[str]:
        arms = {
            budget: next((arm for arm in (*run.references, *run.arms) if arm.name == name), None)
            for budget, run in runs.items()
        }
        scores = [
            "-"
            if (arm := arms[budget]) is None or (name == "closed_book" and metric != "accuracy")
            else _score(arm.mean(metric), self.digits)
            for metric, _, budget in self.columns
        ]
        first = self.columns[0][2]
        won = _won(runs[first].comparisons, name, decisive)
        options = ["yes" if name.startswith(SEES_OPTIONS) or "select=true" in name else "no"] if self.options else []
        arm = arms[first]
        calls = f"{arm.calls_per_question:.1f}".removesuffix(".0")
        return [self.names.get(name) or NAMES[name], *scores, won, *options, calls, f"{arm.tokens_per_question:,.0f}"]


class KnownTable(Table):
    """A table of the questions that the LM answers without passages, and of the others."""

    def lines(self) -> list[str]:
        """Run the comparison; return the lines of the table."""
        given = {"lm": LARGE_LM, "references": False, **self.compare}
        metrics = [metric for metric, _, _ in self.columns]
        run = qw.compare(
            self.arms, read_questions(self.questions), retriever=self.collection, metrics=metrics, slices=["known"],
            max_passages=self.columns[0][2], threads=8, **given,
        )  # fmt: skip
        slices = sorted(run.slices, key=lambda one: one.value)  # no, then yes
        titles = {"no": "not known", "yes": "known"}
        heads = [
            f"{title}, {titles[one.value]} ({one.n})"
            for one in slices
            for title in (*(title for _, title, _ in self.columns), "won : lost")
        ]
        rows = []
        for name in self.arms:
            if name == "closed_book":
                continue
            cells = []
            for one in slices:
                arm = next(arm for arm in one.arms if arm.name == name)
                cells += [_score(arm.mean(metric), self.digits) for metric in metrics]
                cells.append(_won(one.comparisons, name, metrics[0]))
            rows.append([self.names.get(name) or NAMES[name], *cells])
        head = ["arm", *heads]
        return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


class DecisionTable(Table):
    """A table of the answers that passages change, and of accuracy by the label of the passages."""

    def lines(self) -> list[str]:
        """Run the comparison; return the lines of the table."""
        run = qw.compare(
            self.arms, read_questions(self.questions), retriever=self.collection, metrics=["accuracy"],
            max_passages=self.columns[0][2], threads=8, **{"references": True, **self.compare},
        )  # fmt: skip
        labels = (Label.ENTAILED, Label.USEFUL, Label.NOT_USEFUL)
        head = ["arm", "wrong to right", "right to wrong", *(f"{label}: accuracy, closed book (n)" for label in labels)]
        rows = []
        for one in sorted(run.decisions, key=lambda one: -run.arm(one.arm).mean("accuracy").value):
            flips = one.turned["closed book"]
            cells = []
            for label in labels:
                found = one.by_label.get(label)
                cells.append(
                    "-" if not found or not found.n else f"{found.arm.value:.2f}, {found.other.value:.2f} ({found.n})"
                )
            rows.append(
                [
                    self.names.get(one.arm) or NAMES[one.arm],
                    str(flips.wrong_to_right),
                    str(flips.right_to_wrong),
                    *cells,
                ]
            )
        return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


class SelectionTable(Table):
    """A table of the decision-useful rate at one passage against tokens, for programs that read less, on three sets."""

    def lines(self) -> list[str]:
        """Run the comparisons; return the lines of the table."""
        sets: Mapping[str, tuple[str, str, str, dict[str, Any]]] = {
            "handbook": ("handbook", "handbook", "decision_useful", _HANDBOOK),
            "documentation": ("docs", "docs/questions.jsonl", "decision_useful", _DOCUMENTATION),
            "textbooks": ("nursing", "nursing/test.jsonl", "judged_useful", {"lm": LARGE_LM, **_BY_JUDGE}),
        }
        rows = {name: [NAMES[name]] for name in self.arms}
        for collection, questions, metric, given in sets.values():
            prepare(collection)
            file = DATA / questions
            with_recorded_plan(given["lm"])
            run = qw.compare(
                self.arms, read_questions(file if file.exists() else questions), retriever=collection, reader=None,
                metrics=[metric], references=False, max_passages=1, threads=8, **given,
            )  # fmt: skip
            for name, row in rows.items():
                row += [_score(run.arm(name).mean(metric), 3), f"{run.arm(name).tokens_per_question:,.0f}"]
        head = ["program", *(part for name in sets for part in (f"{name}, useful at 1", "tokens"))]
        return [_line(head), _line(["---"] * len(head)), *map(_line, rows.values())]


@dataclass(frozen=True)
class Tuning:
    """A run of a prompt optimizer on the handbook: 60 train, 40 dev, and 100 test questions.

    Args:
        technique: The technique, with hybrid search and three passages.
        teleprompter: The name of the optimizer.
        arguments: The optimizer's arguments.
        title: The name of the optimizer on the page.
    """

    technique: str
    teleprompter: str
    arguments: Mapping[str, Any]
    title: str

    def compile(self, **given: Any) -> qw.Compilation:
        """Replay the run from the recording with further arguments of ``qw.compile``; return the compilation."""
        asked = read_questions("handbook")
        return qw.compile(
            self.technique, {"train": asked[:60], "dev": asked[60:100], "test": asked[100:]}, retriever="handbook",
            engine="hybrid", lm=f"recording:{RECORDINGS / 'tuning.jsonl.gz'}", max_passages=3, objective="recall@3",
            teleprompter=self.teleprompter, arguments=self.arguments, trials=2, tell=lambda said: None,
            **{"reader": None, **given},
        )  # fmt: skip


TUNINGS = (
    Tuning("rag_fusion", "gepa", {"max_metric_calls": 300, "reflection_minibatch_size": 5}, "GEPA"),
    Tuning("query2doc", "gepa", {"max_metric_calls": 400, "reflection_minibatch_size": 6}, "GEPA"),
    Tuning(
        "rrr", "mipro",
        {"num_candidates": 6, "num_trials": 10, "max_bootstrapped_demos": 2, "max_labeled_demos": 0}, "MIPROv2",
    ),
    Tuning("rag_fusion", "bootstrap_few_shot", {"max_bootstrapped_demos": 3}, "BootstrapFewShot"),
    Tuning("hcqr", "bootstrap_few_shot", {"max_bootstrapped_demos": 3}, "BootstrapFewShot"),
)  # fmt: skip
"""All runs of a prompt optimizer that were recorded with the large LM on the handbook, the best first."""


class TuningTable(Table):
    """A table of prompt optimizers: each program before and after, on test."""

    def lines(self) -> list[str]:
        """Replay the runs; return the lines of the table."""
        metric, title, _ = self.columns[0]
        rows = []
        for one in TUNINGS:
            made = one.compile()
            test = {row.name: row for row in made.test}
            before = test.get(f"{one.technique} untuned")
            after = test[f"{one.technique} compiled"]
            tested = next(
                (row.test for row in made.comparisons if row.other.endswith("untuned") and row.metric == metric),
                None,
            )
            won = "the untuned prompt was best on dev" if tested is None else _counts(tested)
            scores = [_score((before or after).mean(metric), self.digits), _score(after.mean(metric), self.digits)]
            rows.append([f"{NAMES[one.technique]}, `{one.technique}@hybrid`", one.title, *scores, won])
        head = ["technique", "optimizer", f"{title}, untuned", f"{title}, tuned", "won : lost"]
        return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _won(comparisons: Sequence[Any], name: str, metric: str) -> str:
    """Return how many questions an arm won and lost, with the p-value; ``-`` for the baseline."""
    test = next((one.test for one in comparisons if (one.arm, one.metric) == (name, metric)), None)
    return "-" if test is None else _counts(test)


def _counts(test: PairedTest) -> str:
    """Return how many questions a paired test counts as won and lost, with the p-value."""
    return f"{test.wins} : {test.losses}, {p_value(test.p_two_sided, ALPHA)}"


def _score(score: Any, digits: int) -> str:
    """Return a mean and its interval, such as ``.49 [.39, .59]``; ``-`` if no question has a score."""
    if not score.n:
        return "-"
    low, high = (f"{bound:.2f}" for bound in (score.low, score.high))
    return f"{_short(f'{score.value:.{digits}f}')} [{_short(low)}, {_short(high)}]"


def _short(number: str) -> str:
    return "1" if number == "1.00" else number.removeprefix("0")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_USEFUL = tuple(("judged_useful", f"useful at {budget}", budget) for budget in (1, 3, 5))
_JUDGED = (*_USEFUL, ("judged_entailed", "settled at 1", 1))
_BOTH = (*(("full_recall@5", f"both at {budget}", budget) for budget in (2, 3, 5)), ("recall", "recall at 2", 2))
_SOURCE = (("exact_recovery@1", "source first at 5", 5), ("ndcg@5", "nDCG@5 at 5", 5))
_HANDBOOK = {"lm": "recording:handbook"}
_DOCUMENTATION = {"lm": f"recording:{RECORDINGS / 'documentation.jsonl.gz'}"}
_QUESTION_ARMS = ("plain", "plain@bm25", "plain@hybrid", "plain@expanded", "qb_rag", "qb_rag:match=hybrid")
_ASKING_ARMS = (*_QUESTION_ARMS, "hyde:n_documents=1", "qa_rag:track=answer")
_BY_JUDGE = {"judge_lm": LARGE_LM}
_EXAM, _INDEX = "results/exam-questions.md", "results/question-index.md"

_READ = ("plain", "closed_book", "hcqr@hybrid", "corpus_steered@hybrid", "rrs@hybrid")
_ALL_READ = (
    *_READ, OPTIONS, "plain@hybrid", "hyde:n_documents=2", "hcqr@hybrid:form=published", "rrr@hybrid", "chr",
)  # fmt: skip

TABLES = {
    "handbook-passages": Table(
        "results/handbook.md", "handbook", "handbook", HANDBOOK_ARMS,
        (("recall@1", "recall at 1", 5), ("full_recall@3", "all at 3", 5), ("full_recall@5", "all at 5", 5)),
        decisive="full_recall@3", compare=_HANDBOOK,
    ),
    "handbook-answers": Table(
        "results/handbook.md", "handbook", "handbook",
        _ALL_READ,
        (("accuracy", "accuracy at 3", 3), ("full_recall@3", "all at 3", 3), ("full_recall@5", "all at 5", 5)),
        digits=3, won_at=False, names={"hcqr@hybrid": "HCQR, `hcqr@hybrid`"},
        compare={**_HANDBOOK, "reader": "multiple_choice", "references": True},
    ),
    "handbook-decisions": DecisionTable(
        "results/handbook.md", "handbook", "handbook", [arm for arm in _ALL_READ if arm != "closed_book"],
        (("accuracy", "accuracy", 3),),
        compare={**_HANDBOOK, "reader": "multiple_choice"},
    ),
    "handbook-known": KnownTable(
        "results/known.md", "handbook", "handbook", _READ,
        (("full_recall@3", "all needed passages", 3), ("accuracy", "accuracy", 3)),
        compare={**_HANDBOOK, "reader": "multiple_choice"},
    ),
    "handbook-tuning": Table(
        "results/tuning.md", "handbook", "handbook",
        ("hcqr", "hcqr@hybrid", "hcqr@hybrid:fusion=rrf,rrf_k=20,top_k=10", "corpus_steered@hybrid:feedback=2",
         "corpus_steered@hybrid", "rrs@hybrid:select_pool=8", "rrs@hybrid:select_words=40", "rrs@hybrid"),
        (("full_recall@3", "all at 3", 3), ("recall@1", "recall at 1", 3)),
        options=False, skip=100, compare=_HANDBOOK,
    ),
    "handbook-forms": Table(
        "results/documentation.md", "handbook", "handbook", FORMS,
        (("full_recall@3", "all at 3", 3), ("recall@1", "recall at 1", 3)), skip=100,
        compare=_HANDBOOK,
    ),
    "documentation-passages": Table(
        "results/documentation.md", "docs", "docs/questions.jsonl", DOCUMENTATION_ARMS,
        (("full_recall@3", "all at 3", 3), ("decision_useful", "useful at 1", 1),
         ("decision_useful", "useful at 3", 3)),
        compare=_DOCUMENTATION,
    ),
    "documentation-answers": Table(
        "results/documentation.md", "docs", "docs/questions.jsonl",
        ("plain", "closed_book", "hcqr@hybrid", "rrs@hybrid"),
        (("accuracy", "accuracy at 3", 3), ("full_recall@3", "all at 3", 3)), digits=3, won_at=False,
        compare={**_DOCUMENTATION, "reader": "multiple_choice", "references": True},
    ),
    "documentation-forms": Table(
        "results/documentation.md", "docs", "docs/questions.jsonl", FORMS,
        (("full_recall@3", "all at 3", 3), ("decision_useful", "useful at 1", 1)),
        compare=_DOCUMENTATION,
    ),
    "handbook-prompts": TuningTable(
        "results/tuning.md", "handbook", "handbook", (), (("recall@3", "recall at 3", 3),)
    ),
    "textbooks": Table(_EXAM, "nursing", "nursing/test.jsonl", TEXTBOOK_ARMS, _JUDGED, compare=_BY_JUDGE),
    "textbooks-15": Table(
        _EXAM, "nursing", "nursing/test.jsonl", TEXTBOOK_ARMS,
        (("judged_useful", "useful at 15", 15), ("judged_entailed", "settled at 15", 15)), compare=_BY_JUDGE,
    ),
    "sample-hard": Table(
        _EXAM, "sample", "sample-hard", HARD_ARMS,
        (("decision_useful", "useful at 1", 1), ("decision_useful", "useful at 3", 3),
         ("full_recall@3", "all of it at 3", 3), ("abstention_recall", "none shown at 3", 3)),
        digits=3,
    ),
    "ablation": Table(
        "explanation/rewrite-retrieve-select.md", "nursing", "nursing/test.jsonl", tuple(ABLATION), _USEFUL,
        names=ABLATION, options=False, compare=_BY_JUDGE,
    ),
    "selection": SelectionTable(
        "explanation/rewrite-retrieve-select.md", "handbook", "handbook",
        ("rrs@hybrid", "rrs@hybrid:select_pool=10", "rrs@hybrid:select_words=40"), (("decision_useful", "", 1),),
    ),
    "two-hop": Table("results/two-hop.md", "hotpotqa", "hotpotqa/test.jsonl", TWO_HOP_ARMS, _BOTH, options=False),
    "scifact": Table(
        "results/scifact.md", "scifact", "scifact/questions.jsonl",
        ("plain", "plain@bm25", "plain@hybrid", "query2doc", "query2doc@bm25", "query2doc@hybrid",
         "hyde:n_documents=1", "rag_fusion", "rag_fusion@hybrid"),
        (("ndcg@10", "nDCG@10", 10), ("recall@10", "recall@10", 10)), digits=3, options=False, won_at=False,
        compare={"lm": f"recording:{RECORDINGS / 'scifact.jsonl.gz'}"},
    ),
    "questions-cdc": Table(
        _INDEX, "medquad-cdc", "medquad-cdc/questions.jsonl", _ASKING_ARMS, _SOURCE, options=False, limit=100
    ),
    "questions-ninds": Table(
        _INDEX, "medquad-ninds", "medquad-ninds/questions.jsonl", _QUESTION_ARMS, _SOURCE, options=False
    ),
    "questions-new": Table(
        _INDEX, "medquad-cdc", "medquad-cdc/new.jsonl", _ASKING_ARMS, _SOURCE, options=False
    ),
}  # fmt: skip


_init = RewriteRetrieveSelect.__init__


def with_recorded_plan(lm: str) -> None:
    """Make ``rrs`` plan with ``RECORDED_PLAN`` if the LM is the recording that was created with it."""

    def init(self: RewriteRetrieveSelect, retriever: Any = None, **knobs: Any) -> None:
        _init(self, retriever, **knobs)
        self.plan_searches = Predict(RECORDED_PLAN)

    RewriteRetrieveSelect.__init__ = init if lm == LARGE_LM else _init  # type: ignore[method-assign]


def prepare(collection: str) -> None:
    """Build a collection and, for a MedQuAD source, its question index; what already exists is not rebuilt."""
    embedder = resolve_embedder("embedded", store=open_store())
    corpus = next((DATA / collection).glob("corpus.*"), None) if (DATA / collection).exists() else None
    build_collection(collection, read_passages(corpus or collection), embedder=embedder, prune=True)
    if collection.startswith("medquad"):
        lm = resolve_lm(LARGE_LM, store=open_store())
        build_questions(collection, writer=QuestionWriter(QUESTIONS, QUESTIONS), lm=lm, embedder=embedder, threads=8)


def replace_table(text: str, name: str, lines: Sequence[str]) -> str:
    """Return a page's text with new rows in the named table.

    Raises:
        SystemExit: The page has no such table.
    """
    mark = f"<!-- table: {name} -->"
    before, found, after = text.partition(mark)
    if not found:
        raise SystemExit(f"the page has no line {mark!r}; add this line before the table")
    rows = re.match(r"\n*(?:\|.*\n)*", after)
    return f"{before}{mark}\n\n" + "".join(f"{line}\n" for line in lines) + after[rows.end() if rows else 0 :]


def main(arguments: Sequence[str] | None = None) -> int:
    """Create the named tables; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--check", action="store_true", help="write nothing; exit with status 1 if a row differs")
    given = parser.parse_args(arguments)
    if unknown := sorted({*given.tables} - {*TABLES}):
        parser.error(f"unknown table {unknown[0]!r}; choose from {', '.join(TABLES)}")
    changed = 0
    for number, name in enumerate(names := given.tables or list(TABLES), start=1):
        table, began = TABLES[name], time.monotonic()
        print(f"{number} of {len(names)}: {name}, {PAGES.name}/{table.page}", flush=True)
        prepare(table.collection)
        path = PAGES / table.page
        old = path.read_text(encoding="utf-8")
        new = replace_table(old, name, table.lines())
        differences = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))[2:]
        changed += bool(differences)
        print("\n".join(differences) or "  as on the page", f"({time.monotonic() - began:.0f} s)", flush=True)
        if differences and not given.check:
            path.write_text(new, encoding="utf-8")
    print(f"{changed} of {len(names)} tables differ from their pages")
    return int(bool(changed) and given.check)


if __name__ == "__main__":
    sys.exit(main())
