"""``querywright evaluate``: techniques and artifacts on labelled questions, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from querywright.cli.checks import check_file
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
    QuestionsArgument,
    ReaderOption,
    RerankerOption,
    RewriterOption,
    SplitOption,
    ThreadsOption,
)
from querywright.cli.prepare import Judging, Prepared, prepare
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.cli.workspace import lm_failures
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.optimize.evaluate import Evaluation

BASELINE = "plain"


def evaluate_command(
    questions: QuestionsArgument,
    collection: CollectionOption = None,
    technique: Annotated[
        list[str] | None,
        typer.Option(
            "--technique",
            metavar="NAME",
            help="NAME, NAME@ENGINE or NAME:KNOB=VALUE,... Repeatable. Default: closed_book, plain and, where there "
            "are options, hcqr.",
            show_default=False,
        ),
    ] = None,
    artifact: Annotated[
        list[Path] | None,
        typer.Option(
            "--artifact", metavar="FOLDER", help="A compiled program. Repeatable.", show_default=False
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
    rows: Annotated[
        Path | None,
        typer.Option(
            "--rows", metavar="FILE", help="Write every question's result here, JSON lines.", show_default=False
        ),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Evaluate techniques and artifacts on the same questions, each held against plain (else the first).

    Example: querywright evaluate questions.jsonl --collection textbooks --limit 40
    """
    from querywright.optimize.evaluate import evaluate

    if rows is not None:
        check_file(rows, "--rows")
    ready = prepare(
        questions,
        collection=collection,
        techniques=technique,
        artifacts=artifact,
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
    )
    found: list[Evaluation] = []
    with progress() as update, lm_failures():
        metrics = ready.metrics(threads=threads, max_failures=max_failures, progress=update)
        for name, program in ready.programs.items():
            found.append(
                evaluate(
                    program,
                    ready.questions,
                    lm=ready.workspace.lm,
                    name=name,
                    metrics=metrics,
                    threads=threads,
                    max_failures=max_failures,
                    progress=update,
                )
            )
    _report(questions, ready, found, [*metrics], as_json)
    if rows is not None:
        _write_rows(rows, found)
        note(f"every question's result: {rows}")


def _report(source: str, ready: Prepared, found: Sequence[Evaluation], metrics: Sequence[str], as_json: bool) -> None:
    from querywright.optimize.significance import against
    from querywright.optimize.tables import table_rows

    notes = ready.lines([name for name in metrics if not any(name in one.metrics for one in found)])
    comparisons = against(found, BASELINE if any(one.name == BASELINE for one in found) else found[0].name)
    if as_json:
        compared = [one.to_json() for one in comparisons]
        print_json({"arms": [one.to_json() for one in found], "comparisons": compared, "notes": notes})
        return
    show_table(
        f"{source}: {len(ready.questions)} questions",
        table_rows(found),
        notes=["; ".join(notes), *(one.sentence for one in comparisons)],
        breaks=("LM calls / question",),
    )
    say(ready.workspace.cost_line())


def _write_rows(path: Path, found: Sequence[Evaluation]) -> None:
    try:
        with path.open("w", encoding="utf-8", errors="replace") as file:
            for one in found:
                for row in one.rows:
                    file.write(json.dumps({"arm": one.name, **row.to_json()}, ensure_ascii=False) + "\n")
    except OSError as error:
        raise InputError(
            f"{path.name!r} could not be written: {error.strerror}; the results above stand, and the same command "
            "with another --rows asks nothing again"
        ) from error
