"""``querywright rewriter evaluate``: a rewriter as it is used, beside no rewriting and another LM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from querywright.cli.common import (
    ApiBaseOption,
    CallsOption,
    ColumnOption,
    EmbedderOption,
    HomeOption,
    JsonOption,
    KeyOption,
    LimitOption,
    LMOption,
    QuestionsArgument,
    SplitOption,
    TechniqueEngineOption,
    ThreadsOption,
    Workspace,
    check_engine,
    engine_for,
    lm_failures,
    pairs,
)
from querywright.cli.show import print_json, progress, say, show_table


def evaluate_command(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A rewriter's folder.")],
    questions: QuestionsArgument,
    collection: Annotated[str, typer.Option("--collection", metavar="NAME", help="The collection that is searched.")],
    technique: Annotated[
        list[str] | None,
        typer.Option(
            "--technique", metavar="NAME", help="Repeatable. Default: those it was trained for.", show_default=False
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="Repeatable. Default: by evidence.", show_default=False),
    ] = None,
    max_passages: Annotated[int, typer.Option("--max-passages", metavar="N", min=1, help="Of every arm.")] = 10,
    lm: LMOption = "embedded",
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    max_calls: CallsOption = None,
    column: ColumnOption = None,
    limit: LimitOption = None,
    split: SplitOption = None,
    embedder: EmbedderOption = "embedded",
    engine: TechniqueEngineOption = None,
    threads: ThreadsOption = 4,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a rewriter as it is used: beside no rewriting, and beside --lm in the same techniques.

    Example: querywright rewriter evaluate artifacts/mine questions.jsonl --collection mine
    """
    from querywright.data import read_questions
    from querywright.models.rewriters import read_rewriter
    from querywright.optimize.contrasts import against
    from querywright.optimize.evaluate import evaluate, metrics_by_name
    from querywright.optimize.report import table_rows
    from querywright.optimize.results import NO_REWRITING
    from querywright.optimize.rewriter.evaluation import METRICS
    from querywright.programs import make_program

    rewriter = read_rewriter(path)
    asked = read_questions(questions, columns=pairs(column, "--column"), limit=limit, split=split)
    metrics = metrics_by_name(metric or METRICS)
    names = technique or list(rewriter.techniques)
    engines = [engine_for(name, None if engine is None else check_engine(engine)) or "dense" for name in names]
    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
    trained = workspace.another_lm(f"rewriter:{path}", api_base=None, api_key_env=None, max_calls=max_calls)
    arms = []
    with progress() as update, lm_failures():
        plain = make_program("plain", workspace.retriever(collection, embedder, "dense"), max_passages=max_passages)
        asks = [(NO_REWRITING, plain, workspace.lm)]
        for name, one in zip(names, engines, strict=True):
            program = make_program(name, workspace.retriever(collection, embedder, one), max_passages=max_passages)
            asks += [(f"{name}, {lm}", program, workspace.lm), (f"{name}, {rewriter.name}", program, trained)]
        for arm, program, asked_lm in asks:
            arms.append(
                evaluate(program, asked, lm=asked_lm, name=arm, metrics=metrics, threads=threads, progress=update)
            )
    comparisons = against(arms, NO_REWRITING)
    if as_json:
        print_json({"arms": [arm.to_json() for arm in arms], "comparisons": [one.to_json() for one in comparisons]})
        return
    show_table(
        f"{rewriter.name} on {len(asked)} questions", table_rows(arms), notes=[one.sentence for one in comparisons]
    )
    say(workspace.cost_line())
