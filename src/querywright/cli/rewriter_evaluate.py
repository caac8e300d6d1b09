"""``querywright rewriter evaluate``: a rewriter as it is used, beside no rewriting and another LM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from querywright.cli.options import (
    Count,
    DataOptions,
    LimitedLM,
    LMOptions,
    Name,
    Names,
    Output,
    Questions,
    SearchOptions,
    Threads,
)
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.workspace import lm_failures


def evaluate_command(
    path: Path,
    questions: Questions,
    /,
    *,
    collection: Name,
    technique: Names = (),
    metric: Names = (),
    max_passages: Count | None = None,
    search: SearchOptions = SearchOptions(),
    data: DataOptions = DataOptions(),
    lm: LimitedLM = LimitedLM(),
    run: Threads = Threads(),
    output: Output = Output(),
) -> None:
    """Measure a rewriter as it is used: beside no rewriting, and beside --lm in the same techniques.

    No rewriting is measured with each engine that a technique searches with. The knobs are those that the rewriter was
    trained with, where none are given.

    Example: querywright rewriter evaluate artifacts/mine questions.jsonl --collection mine

    Args:
        path: A rewriter's folder.
        collection: The collection that is searched.
        technique: Repeatable. Default: those it was trained for.
        metric: What passages are measured by. Repeatable. Default: exact_recovery@1, recall@5, ndcg@10 and
            decision_useful, which need labelled evidence.
        max_passages: Of every arm. Default: as many as it was trained with, else 10.
    """
    from querywright.errors import InputError
    from querywright.models.rewriters import read_rewriter
    from querywright.named import knob_values, tell_unlearnt
    from querywright.optimize.evaluate import evaluate, metrics_by_name
    from querywright.optimize.results import NO_REWRITING
    from querywright.optimize.rewriter.evaluation import METRICS
    from querywright.optimize.significance import against
    from querywright.optimize.tables import table_rows
    from querywright.programs import make_program, takes_rewriter, technique_class

    rewriter = read_rewriter(path)
    tell_unlearnt(path, technique, note)
    asked = data.questions(questions)
    metrics = metrics_by_name([*(metric or METRICS)])
    # The questions of passages are written before a search, and no technique asks for them.
    names = [*technique] or [name for name in rewriter.techniques if takes_rewriter(technique_class(name))]
    if not names:
        raise InputError(
            f"{rewriter.name} learnt the prompts of {', '.join(rewriter.techniques)}, which no search asks; name a "
            "technique with --technique to measure it there"
        )
    engines = [search.engine_of(name) for name in names]
    given = search.knobs
    knobs = [knob_values(name, given) if given else _trained_with(rewriter.card, name) for name in names]
    passages = max_passages or max((one.get("max_passages", 0) for one in knobs), default=0) or 10
    workspace = lm.open(output.home)
    trained = LMOptions(f"rewriter:{path}").beside(workspace, lm.max_calls)
    arms: dict[str, list[Any]] = {}
    with progress() as update, lm_failures():
        for one in dict.fromkeys(engines):
            retriever = workspace.retriever(collection, search.embedder, one)
            plain = NO_REWRITING if len(set(engines)) == 1 else f"{NO_REWRITING}, {one}"
            asks = [(plain, make_program("plain", retriever, max_passages=passages), workspace.lm)]
            for name, searched, values in zip(names, engines, knobs, strict=True):
                if searched == one:
                    program = make_program(name, retriever, **{**values, "max_passages": passages})
                    asks += [
                        (f"{name}, {lm.lm}", program, workspace.lm),
                        (f"{name}, {rewriter.name}", program, trained),
                    ]
            arms[plain] = [
                evaluate(program, asked, lm=asked_lm, name=arm, metrics=metrics, threads=run.threads, progress=update)
                for arm, program, asked_lm in asks
            ]
    every = [arm for found in arms.values() for arm in found]
    comparisons = [one for plain, found in arms.items() for one in against(found, plain)]
    if output.as_json:
        print_json({"arms": [arm.to_json() for arm in every], "comparisons": [one.to_json() for one in comparisons]})
        return
    show_table(
        f"{rewriter.name} on {len(asked)} questions", table_rows(every), notes=[one.sentence for one in comparisons]
    )
    say(workspace.cost_line())


def _trained_with(card: Mapping[str, Any], technique: str) -> dict[str, Any]:
    """The knobs of the training; none for a technique that was not trained."""
    return dict(card.get("knobs") or {}) if card.get("technique") == technique else {}
