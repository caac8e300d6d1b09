"""``querywright compare``: arms side by side on the same questions, with a report to open in a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from querywright.cli.checks import check_results
from querywright.cli.options import (
    ApiBaseOption,
    CallsOption,
    CollectionOption,
    ColumnOption,
    EmbedderOption,
    EngineOption,
    FailuresOption,
    GuidelinesOption,
    HomeOption,
    JsonOption,
    JudgeApiBaseOption,
    JudgeKeyOption,
    JudgeLMOption,
    JudgeOption,
    KeyOption,
    KnobOption,
    LimitOption,
    LMOption,
    MetricOption,
    ReaderOption,
    RerankerOption,
    RewriterOption,
    SplitOption,
    ThreadsOption,
)
from querywright.cli.prepare import Judging, Prepared, prepare
from querywright.cli.results import Results
from querywright.cli.show import note, progress
from querywright.cli.workspace import lm_failures
from querywright.errors import InputError

NEEDS = ("any", "all")
MANY_ROWS = 2000  # that take more than two seconds to compare and write


def compare_command(
    arms: Annotated[
        list[str],
        typer.Argument(
            metavar="ARM...",
            help="Techniques (NAME, NAME@ENGINE, NAME:KNOB=VALUE,...) and folders of artifacts.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str, typer.Option("--data", metavar="QUESTIONS", help="A file of labelled questions, hf:NAME, or sample.")
    ],
    save_to: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where results and report are written, and taken up again.")
    ],
    collection: CollectionOption = None,
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="ARM", help="What every arm is held against; added if it is not named.")
    ] = "plain",
    evidence: Annotated[
        str | None,
        typer.Option(
            "--evidence",
            metavar="any|all",
            help="Whether one helpful passage is enough, or it takes all of them. Default: as the data says, else any.",
            show_default=False,
        ),
    ] = None,
    metric: MetricOption = None,
    judge: JudgeOption = None,
    judge_lm: JudgeLMOption = None,
    judge_api_base: JudgeApiBaseOption = None,
    judge_api_key_env: JudgeKeyOption = None,
    guidelines: GuidelinesOption = None,
    knob: KnobOption = None,
    reader: ReaderOption = "auto",
    column: ColumnOption = None,
    limit: LimitOption = None,
    split: SplitOption = None,
    lm: LMOption = "embedded",
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    max_calls: CallsOption = None,
    max_failures: FailuresOption = 0.05,
    threads: ThreadsOption = 4,
    embedder: EmbedderOption = "embedded",
    engine: EngineOption = "dense",
    reranker: RerankerOption = None,
    rewriter: RewriterOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare arms on the same questions and write every question's result and a report.

    Closed book and oracle evidence stand beside them where they can, to tell where answers are lost. A run that was
    ended goes on with the same command: its answers are in the store.

    Example: querywright compare plain@bm25 hyde artifacts/mine --data questions.jsonl --collection mine --out results
    """
    from querywright.optimize.comparison import compare

    if evidence not in (None, *NEEDS):
        raise InputError(f"--evidence is any or all, but got {evidence!r}")
    check_results(save_to, "--out")
    baseline, *named = (_arm(name) for name in (baseline, *arms))
    named = list(dict.fromkeys(named if baseline in named else [baseline, *named]))
    folders = [name for name in named if _is_folder(name)]
    ready = prepare(
        data,
        collection=collection,
        techniques=[name for name in named if name not in folders],
        artifacts=[Path(name) for name in folders],
        metric=metric,
        judging=Judging(judge or (), judge_lm, judge_api_base, judge_api_key_env, guidelines),
        knob=knob,
        reader=reader,
        column=column,
        limit=limit,
        split=split,
        lm=lm,
        api_base=api_base,
        api_key_env=api_key_env,
        max_calls=max_calls,
        embedder=embedder,
        engine=engine,
        reranker=reranker,
        rewriter=rewriter,
        home=home,
        jointly=None if evidence is None else evidence == "all",
    )
    with progress() as update, lm_failures():
        metrics = ready.metrics(threads=threads, max_failures=max_failures, progress=update)
        compared = compare(
            ready.programs,
            ready.questions,
            lm=ready.workspace.lm,
            baseline=_shown_as(baseline, ready),
            metrics=metrics,
            threads=threads,
            max_failures=max_failures,
            progress=update,
        )
    if len(compared.arms) * len(ready.questions) >= MANY_ROWS:
        note("comparing, and writing the report")
    results = Results.of(ready, compared, data=data, collection=collection)
    results.write(save_to)
    results.show(save_to, as_json=as_json)


def _arm(name: str) -> str:
    """An arm as it is named; the folder of an artifact in one spelling only."""
    return os.path.normpath(name) if _is_folder(name) else name


def _is_folder(name: str) -> bool:
    """Whether an arm is the folder of an artifact, not a technique."""
    return os.sep in name.partition(":")[0] or (Path(name) / "manifest.json").is_file()


def _shown_as(named: str, ready: Prepared) -> str:
    """The name of the arm that was named: an artifact's is not its path."""
    found = [name for name, (path, _) in ready.plan.artifacts.items() if path == Path(named)]
    return found[0] if found and _is_folder(named) else named
