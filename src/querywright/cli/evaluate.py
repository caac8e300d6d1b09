"""``querywright evaluate``: techniques and artifacts on labelled questions, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from querywright.cli.common import (
    ApiBaseOption,
    CallsOption,
    ColumnOption,
    EmbedderOption,
    EngineOption,
    HomeOption,
    JsonOption,
    KeyOption,
    KnobOption,
    LimitOption,
    LMOption,
    QuestionsArgument,
    ReaderOption,
    RerankerOption,
    SplitOption,
    ThreadsOption,
    Workspace,
    check_engine,
    check_file,
    lm_failures,
    open_reranker,
    pairs,
)
from querywright.cli.judges import make_panel
from querywright.cli.plan import Plan, make_plan, planned_programs, planned_questions, settle
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.data.types import Question
    from querywright.optimize.evaluate import Evaluation
    from querywright.retrieval.engines import CollectionRetriever

BASELINE = "plain"
SHOWN_WARNINGS = 3


def evaluate_command(
    questions: QuestionsArgument,
    collection: Annotated[
        str | None,
        typer.Option(
            "--collection", metavar="NAME", help="The collection that is searched.", show_default=False
        ),
    ] = None,
    technique: Annotated[
        list[str] | None,
        typer.Option(
            "--technique",
            metavar="NAME",
            help="Repeatable. Default: closed_book, plain and, where there are options, hcqr.",
            show_default=False,
        ),
    ] = None,
    artifact: Annotated[
        list[Path] | None,
        typer.Option(
            "--artifact", metavar="FOLDER", help="A compiled program. Repeatable.", show_default=False
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Repeatable. Default: accuracy, and by evidence where it is labelled.",
            show_default=False,
        ),
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            "--judge", metavar="NAME", help="A judge (querywright judge list) or a saved one's path. Repeatable.",
            show_default=False,
        ),
    ] = None,
    judge_lm: Annotated[
        str | None,
        typer.Option(
            "--judge-lm", metavar="NAME", help="The LM that judges, usefulness if no --judge is given. Default: --lm.",
            show_default=False,
        ),
    ] = None,
    judge_api_base: Annotated[
        str | None,
        typer.Option(
            "--judge-api-base", metavar="URL", help="Address of the judge's server.", show_default=False
        ),
    ] = None,
    judge_api_key_env: Annotated[
        str | None,
        typer.Option(
            "--judge-api-key-env", metavar="NAME", help="Environment variable that holds the judge's key.",
            show_default=False,
        ),
    ] = None,
    guidelines: Annotated[
        Path | None,
        typer.Option(
            "--guidelines", metavar="FILE", help="Points that answers are held against, for --judge coverage.",
            show_default=False,
        ),
    ] = None,
    knob: KnobOption = None,
    reader: ReaderOption = "auto",
    column: ColumnOption = None,
    limit: LimitOption = None,
    split: SplitOption = None,
    lm: LMOption = "embedded",
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    max_calls: CallsOption = None,
    max_failures: Annotated[
        float,
        typer.Option(
            "--max-failures", metavar="SHARE", min=0.0, max=1.0, help="Share of questions that may fail, 0 to 1."
        ),
    ] = 0.05,
    threads: ThreadsOption = 4,
    embedder: EmbedderOption = "embedded",
    engine: EngineOption = "dense",
    reranker: RerankerOption = None,
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
    check_engine(engine)
    panel = make_panel(judge, judge_lm, guidelines)
    plan = make_plan(technique, artifact, reader, pairs(knob, "--knob"), metric)
    asked = planned_questions(plan, questions, pairs(column, "--column"), limit, split)
    settle(plan, asked, judged=bool(panel.judges))
    if plan.searches and collection is None:
        raise InputError(f"{plan.searches[0]} searches; name a collection with --collection")
    if reranker is not None and not plan.reranks:
        raise InputError("nothing here reranks; leave --reranker out, or name a technique that does")

    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
    judging = workspace.lm
    if judge_lm is not None and (judge_lm, judge_api_base or api_base, judge_api_key_env or api_key_env) != (
        lm, api_base, api_key_env
    ):  # fmt: skip
        judging = workspace.another_lm(
            judge_lm, api_base=judge_api_base, api_key_env=judge_api_key_env, max_calls=max_calls
        )
    retriever = None
    if collection is not None and (plan.searches or plan.artifacts or panel.guidelines):
        retriever = workspace.retriever(collection, embedder, engine)
        _warn_of_missing_evidence(asked, retriever)
    programs = planned_programs(plan, retriever, workspace, home, open_reranker(reranker))
    found: list[Evaluation] = []
    with progress() as update, lm_failures():
        metrics = dict(plan.metrics) | panel.at_work(
            judging, asked, retriever, threads=threads, max_failures=max_failures, progress=update
        )
        for name, program in programs.items():
            found.append(
                evaluate(
                    program,
                    asked,
                    lm=workspace.lm,
                    name=name,
                    metrics=metrics,
                    threads=threads,
                    max_failures=max_failures,
                    progress=update,
                )
            )
    plan.notes += panel.notes(judging.model, workspace.lm.model)
    _report(questions, asked, found, plan, workspace, metrics, as_json)
    if rows is not None:
        _write_rows(rows, found)
        note(f"every question's result: {rows}")


def _warn_of_missing_evidence(asked: Sequence[Question], retriever: CollectionRetriever) -> None:
    from querywright.data.reading import check_evidence

    missing = check_evidence(asked, {passage.id for passage in retriever.passages()})
    for line in missing[:SHOWN_WARNINGS]:
        note(f"warning: {line}", style="yellow")
    if len(missing) > SHOWN_WARNINGS:
        note(f"warning: and {len(missing) - SHOWN_WARNINGS} questions more", style="yellow")


def _report(
    source: str,
    asked: Sequence[Question],
    found: Sequence[Evaluation],
    plan: Plan,
    workspace: Workspace,
    metrics: Mapping[str, Any],
    as_json: bool,
) -> None:
    from querywright.optimize.report import table_rows

    unscored = [name for name in metrics if not any(name in one.metrics for one in found)]
    notes = [
        f"LM {workspace.lm.model}; mean in per cent with its 95 % interval",
        *plan.notes,
        *(f"{name}: no question could be scored" for name in unscored),
    ]
    comparisons = _comparisons(found)
    if as_json:
        print_json({"arms": [one.to_json() for one in found], "comparisons": comparisons, "notes": notes})
        return
    show_table(
        f"{source}: {len(asked)} questions",
        table_rows(found),
        notes=["; ".join(notes), *(one["sentence"] for one in comparisons)],
        breaks=("LM calls / question",),
    )
    say(workspace.cost_line())


def _comparisons(found: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Each arm against plain, or against the first where plain is none of them; Holm-corrected within a metric."""
    from dataclasses import replace

    from querywright.metrics.statistics import holm, verdict

    base = next((one for one in found if one.name == BASELINE), found[0])
    result: list[dict[str, Any]] = []
    for metric in base.metrics:
        tests = [(one, one.against(base, metric)) for one in found if one is not base and metric in one.metrics]
        for (one, test), p in zip(tests, holm([test.p_two_sided for _, test in tests]), strict=True):
            sentence = verdict(replace(test, p_two_sided=p), a=one.name, b=base.name)
            result.append(
                {
                    "metric": metric,
                    "arm": one.name,
                    "other": base.name,
                    "wins": test.wins,
                    "losses": test.losses,
                    "ties": test.ties,
                    "difference": test.difference,
                    "low": test.low,
                    "high": test.high,
                    "p_holm": p,
                    "sentence": f"{metric}: {sentence}",
                }
            )
    return result


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
