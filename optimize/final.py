"""The last word: what was chosen, on test, against what it was chosen over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from querywright.metrics.statistics import PairedTest, p_value
from querywright.optimize.contrasts import ALPHA, family
from querywright.optimize.demonstrations import Demos, with_demos
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.references import oracle_evidence
from querywright.optimize.results import NO_REWRITING, OBJECTIVE_METRICS, Comparison, Compiled, objective_value
from querywright.optimize.run import Run
from querywright.optimize.selection import paired
from querywright.programs import RAG, make_reader

Verdict = Literal["gain", "no gain shown", "loss", "no rewriting"]

READER_CHECK = ("oracle evidence", "closed book")
"""The two arms that say what the reader makes of perfect evidence and of none; they say nothing of a technique."""


def final_test(run: Run, compiled: RAG, recommended: str, reader_demos: Demos) -> list[Evaluation]:
    """Every program of the final table on the test questions, once.

    All arms read alike: with the demonstrations that were chosen for the reader, or as it is written where none
    were. What the demonstrations do is seen in one more row, the recommended program with its reader as written.
    Closed book and oracle evidence check the reader, and meet the questions of the reader check besides.

    Args:
        run: The compilation.
        compiled: The best arm of the technique, its reader as written.
        recommended: The row of the arm that won on dev: no rewriting or the technique, compiled.
        reader_demos: Demonstrations that were chosen for the reader; may be empty.
    """
    budget = {"max_passages": run.knobs["max_passages"]}
    asked = [*run.splits.test, *run.reader_check]
    programs: dict[str, RAG] = {}
    if run.reader is not None:
        programs["closed book"] = run.program("closed_book", reads=True, knobs={})
    programs[NO_REWRITING] = run.program("plain", reads=True, knobs=budget)
    programs[f"{run.technique} as written"] = run.program(run.technique, reads=True, knobs=run.knobs)
    programs[f"{run.technique} compiled"] = compiled
    oracle = oracle_evidence(run.retriever, asked, None if run.reader is None else make_reader(run.reader), budget)
    if oracle is not None:
        programs["oracle evidence"] = oracle
    rows = {name: with_demos(program, reader_demos) for name, program in programs.items()}
    if reader_demos:
        rows[_reader_as_written(recommended)] = programs[recommended]

    def meet(name: str) -> Evaluation:
        if name in READER_CHECK:
            return run.stage("reader check", lambda: run.evaluate(rows[name], asked, name))
        return run.stage("test", lambda: run.evaluate(rows[name], run.splits.test, name))

    return [meet(name) for name in rows]


def _reader_as_written(arm: str) -> str:
    return f"{arm}, reader as written"


def planned_comparisons(test: Sequence[Evaluation], technique: str, recommended: str) -> list[Comparison]:
    """The planned comparisons, whichever way they fall.

    Those of the technique are Holm-corrected together. Oracle evidence against closed book is a check of the
    reader and no claim about the technique, so it is a family of its own and corrects nothing else.
    """
    planned = [
        (metric, f"{technique} compiled", other)
        for metric in ("decision_useful", "accuracy")
        for other in (NO_REWRITING, f"{technique} as written")
    ]
    planned.append(("accuracy", recommended, _reader_as_written(recommended)))
    arms = {evaluation.name: evaluation for evaluation in test}
    return [
        *family("technique", planned, arms),
        *family("reader check", [("accuracy", *READER_CHECK)], arms, prefix="reader check: "),
    ]


def conclude(compiled: Compiled) -> tuple[Verdict, str]:
    """What came of a compilation, as a word and as one plain sentence with figures.

    A gain is a significant lead over no rewriting on test in a metric of the objective; with two metrics a loss in
    one of them is a loss.
    """
    objective = compiled.settings.objective
    if compiled.recommended == NO_REWRITING:
        values = [objective_value(one, objective) for one in paired(compiled.compiled, compiled.arms[0], objective)]
        mine, plain = ("-" if math.isnan(value) else f"{100 * value:.1f}" for value in values)
        return (
            "no rewriting",
            f"{compiled.technique} was not better than no rewriting on dev ({objective}: {mine} against {plain} per "
            "cent), so no rewriting is what was saved",
        )
    tests = {
        one.metric: one.test
        for one in compiled.comparisons
        if (one.arm, one.other) == (f"{compiled.technique} compiled", NO_REWRITING)
        and one.metric in OBJECTIVE_METRICS[objective]
    }
    return verdict_on(tests)


def verdict_on(tests: Mapping[str, PairedTest]) -> tuple[Verdict, str]:
    """What test says of a program that was chosen on dev, as a word and as one plain sentence with figures.

    Args:
        tests: It against no rewriting, by metric; the p values are corrected.
    """
    shown = {test.difference > 0 for test in tests.values() if test.p_two_sided < ALPHA}
    word: Verdict = "loss" if False in shown else "gain" if True in shown else "no gain shown"
    said = {
        "gain": "; test shows a gain over",
        "no gain shown": "; test does not show a gain over",
        "loss": ", but test shows a loss against",
    }[word]
    figures = "; ".join(f"{metric}: {_figures(test)}" for metric, test in tests.items())
    return word, f"Chosen on dev{said} no rewriting ({figures or 'no question could be scored'})"


def _figures(test: PairedTest) -> str:
    return f"{test.wins} won, {test.losses} lost of {test.n}, {p_value(test.p_two_sided, ALPHA)}"
