"""The last word: what was chosen, on test, against what it was chosen over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from querywright.metrics.statistics import holm, verdict
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.results import Comparison
from querywright.optimize.run import Run
from querywright.programs import RAG, OracleEvidence, make_reader

RECOMMENDED = "no rewriting, reader with demonstrations"
"""Name on test of plain retrieval whose reader was tuned."""


def final_test(run: Run, compiled: RAG, recommended: RAG | None) -> list[Evaluation]:
    """Every program of the final table on the test questions, once."""
    budget = {"max_passages": run.knobs["max_passages"]}
    programs: dict[str, RAG] = {}
    if run.reader is not None:
        programs["closed book"] = run.program("closed_book", reads=True, knobs={})
    programs["no rewriting"] = run.program("plain", reads=True, knobs=budget)
    programs[f"{run.technique} as written"] = run.program(run.technique, reads=True, knobs=run.knobs)
    programs[f"{run.technique} compiled"] = compiled
    if recommended is not None:
        programs[RECOMMENDED] = recommended
    oracle = _oracle(run, budget)
    if oracle is not None:
        programs["oracle evidence"] = oracle
    return [run.evaluate(program, run.splits.test, name) for name, program in programs.items()]


def _oracle(run: Run, budget: Mapping[str, Any]) -> RAG | None:
    """The deciding passages themselves, where the retriever can give passages by id."""
    get = getattr(run.retriever, "get", None)
    if run.reader is None or get is None or not any(question.evidence for question in run.splits.test):
        return None
    ids = sorted({key for question in run.splits.test for key in question.evidence})
    passages = {passage.id: passage for passage in get([key for key in ids if key in run.retriever])}
    return RAG(OracleEvidence(passages, run.splits.test, **budget), make_reader(run.reader))


def compare(test: Sequence[Evaluation], technique: str) -> list[Comparison]:
    """The planned comparisons, Holm-corrected together, whichever way they fall."""
    arms = {evaluation.name: evaluation for evaluation in test}
    pairs = [
        (metric, f"{technique} compiled", other)
        for metric in ("decision_useful", "accuracy")
        for other in ("no rewriting", f"{technique} as written")
    ]
    pairs += [("accuracy", RECOMMENDED, "no rewriting"), ("accuracy", "oracle evidence", "closed book")]
    tests = [
        (metric, a, b, arms[a].against(arms[b], metric))
        for metric, a, b in pairs
        if a in arms and b in arms and metric in arms[a].metrics
    ]
    corrected = holm([test.p_two_sided for *_, test in tests])
    comparisons = []
    for (metric, a, b, raw), p in zip(tests, corrected, strict=True):
        result = replace(raw, p_two_sided=p)
        comparisons.append(Comparison(metric, a, b, result, f"{metric}: {verdict(result, a=a, b=b)}"))
    return comparisons
