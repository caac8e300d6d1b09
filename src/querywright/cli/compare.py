"""``querywright compare``: arms side by side, kept question by question, with a report to open in a browser."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from querywright.cli.common import (
    ApiBaseOption,
    CallsOption,
    CollectionOption,
    ColumnOption,
    EmbedderOption,
    EngineOption,
    FailuresOption,
    HomeOption,
    JsonOption,
    JudgeApiBaseOption,
    JudgeKeyOption,
    JudgeLMOption,
    KeyOption,
    KnobOption,
    LimitOption,
    LMOption,
    MetricOption,
    ReaderOption,
    RerankerOption,
    SplitOption,
    ThreadsOption,
    check_results,
    lm_failures,
)
from querywright.cli.prepare import Judging, Prepared, prepare
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.data.types import Passage
    from querywright.optimize.comparison import Compared
    from querywright.optimize.diagnosis import Diagnosis
    from querywright.programs import RAG

CLOSED_BOOK, ORACLE = "closed book", "oracle evidence"
RESULTS, SUMMARY, REPORT = "results.parquet", "comparison.json", "report.html"
NEEDS = ("any", "all")


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
        str,
        typer.Option("--evidence", metavar="any|all", help="Whether one helpful passage is enough, or all are needed."),
    ] = "any",
    metric: MetricOption = None,
    judge_lm: JudgeLMOption = None,
    judge_api_base: JudgeApiBaseOption = None,
    judge_api_key_env: JudgeKeyOption = None,
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
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare arms on the same questions and write every question's result and a report.

    Closed book and oracle evidence stand beside them where they can, to tell where answers are lost. A run that was
    ended goes on with the same command.

    Example: querywright compare plain@bm25 hyde artifacts/mine --data questions.jsonl --collection mine --out results
    """
    from querywright.optimize.comparison import compare

    if evidence not in NEEDS:
        raise InputError(f"--evidence is any or all, but got {evidence!r}")
    check_results(save_to, "--out")
    named = list(dict.fromkeys(arms if baseline in arms else [baseline, *arms]))
    folders = [name for name in named if _is_folder(name)]
    ready = prepare(
        data,
        collection=collection,
        techniques=[name for name in named if name not in folders],
        artifacts=[Path(name) for name in folders],
        metric=metric,
        judging=None if judge_lm is None else Judging(judge_lm, judge_api_base, judge_api_key_env),
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
        home=home,
    )
    with progress() as update, lm_failures():
        compared = compare(
            ready.programs,
            ready.questions,
            lm=ready.workspace.lm,
            folder=save_to,
            baseline=Path(baseline).name if _is_folder(baseline) else baseline,
            references=_references(ready),
            metrics=ready.metrics,
            scoring="" if judge_lm is None else judge_lm,
            threads=threads,
            max_failures=max_failures,
            progress=update,
        )
    diagnosis = _diagnosed(ready, compared, cast(Literal["any", "all"], evidence))
    _write(save_to, ready, compared, diagnosis, data, collection)
    _show(save_to, ready, compared, diagnosis, data, as_json)


def _is_folder(name: str) -> bool:
    """Whether an arm is the folder of an artifact, not a technique."""
    return os.sep in name.partition(":")[0] or (Path(name) / "manifest.json").is_file()


def _references(ready: Prepared) -> dict[str, RAG]:
    """Closed book and oracle evidence, where there is a reader, and evidence for the second."""
    from querywright.optimize.references import oracle_evidence
    from querywright.programs import make_program

    found: dict[str, RAG] = {}
    reader = ready.plan.reader
    if reader is None:
        return found
    if not any(program.technique.NAME == "closed_book" for program in ready.programs.values()):
        found[CLOSED_BOOK] = make_program("closed_book", None, reader=reader)
    retriever = next(iter(ready.retrievers.values()), None)
    budgets = [one.technique.max_passages for one in ready.programs.values() if "max_passages" in one.technique.knobs]
    oracle = oracle_evidence(retriever, ready.questions, reader, {"max_passages": max(budgets, default=1)})
    if oracle is not None:
        found[ORACLE] = oracle
    return found


def _diagnosed(ready: Prepared, compared: Compared, needs: Literal["any", "all"]) -> Diagnosis | None:
    """Where answers are lost; None where no answer is read or nothing is labelled."""
    from querywright.optimize.diagnosis import diagnose

    retriever = next(iter(ready.retrievers.values()), None)
    labelled = any(question.evidence for question in ready.questions)
    searching = [
        one
        for one in compared.arms
        if ready.programs[one.name].technique.retriever is not None and "accuracy" in one.metrics
    ]
    if retriever is None or not labelled or not searching:
        return None
    own = [one for one in compared.arms if ready.programs[one.name].technique.NAME == "closed_book"]
    return diagnose(
        searching,
        ready.questions,
        {passage.id for passage in retriever.passages()},
        needs=needs,
        closed_book=own[0] if own else compared.reference(CLOSED_BOOK),
        oracle=compared.reference(ORACLE),
    )


def _write(
    folder: Path,
    ready: Prepared,
    compared: Compared,
    diagnosis: Diagnosis | None,
    data: str,
    collection: str | None,
) -> None:
    """Results question by question, the summary, and the report."""
    from querywright.optimize.html import report_html
    from querywright.optimize.rows_table import write_rows
    from querywright.retrieval.collection import write_whole

    write_rows(folder / RESULTS, [*compared.arms, *compared.references], ready.questions)
    summary = json.dumps(_summary(ready, compared, diagnosis), ensure_ascii=False, indent=2, allow_nan=False)
    write_whole(folder / SUMMARY, summary.encode("utf-8", "replace") + b"\n")
    html = report_html(
        compared,
        ready.questions,
        _shown_passages(ready, compared),
        title=f"{Path(data).name}: {len(ready.questions)} questions",
        facts=_facts(ready, data, collection),
        notes=ready.lines(_unscored(ready, compared)),
        diagnosis=diagnosis,
    )
    write_whole(folder / REPORT, html.encode("utf-8", "replace"))


def _shown_passages(ready: Prepared, compared: Compared) -> Mapping[str, Passage]:
    """The passages that some arm gave its reader, and the labelled ones."""
    retriever = next(iter(ready.retrievers.values()), None)
    if retriever is None:
        return {}
    wanted = {key for one in (*compared.arms, *compared.references) for row in one.rows for key in row.passages}
    wanted |= {key for question in ready.questions for key in question.evidence}
    return {passage.id: passage for passage in retriever.passages() if passage.id in wanted}


def _facts(ready: Prepared, data: str, collection: str | None) -> dict[str, str]:
    from querywright import __version__

    retriever = next(iter(ready.retrievers.values()), None)
    facts = {
        "Questions": f"{len(ready.questions)} of {Path(data).name}",
        "LM": str(ready.workspace.lm.model),
        "Reader": ready.plan.reader or "none",
    }
    if collection is not None and retriever is not None:
        facts["Collection"] = f"{collection}, {retriever.count} passages"
        facts["Engines"] = ", ".join(ready.retrievers)
    return {**facts, "querywright": __version__}


def _unscored(ready: Prepared, compared: Compared) -> list[str]:
    return [name for name in ready.metrics if not any(name in one.metrics for one in compared.arms)]


def _summary(ready: Prepared, compared: Compared, diagnosis: Diagnosis | None) -> dict[str, Any]:
    return {
        **compared.to_json(),
        "diagnosis": None if diagnosis is None else diagnosis.to_json(),
        "notes": ready.lines(_unscored(ready, compared)),
    }


def _show(
    folder: Path, ready: Prepared, compared: Compared, diagnosis: Diagnosis | None, data: str, as_json: bool
) -> None:
    from querywright.optimize.report import table_rows

    files = {name: str(folder / name) for name in (RESULTS, SUMMARY, REPORT)}
    if as_json:
        print_json({**_summary(ready, compared, diagnosis), "files": files})
        return
    show_table(
        f"{data}: {len(ready.questions)} questions, held against {compared.baseline}",
        table_rows([*compared.arms, *compared.references]),
        notes=["; ".join(ready.lines(_unscored(ready, compared))), *(one.sentence for one in compared.comparisons)],
        breaks=("LM calls / question",),
    )
    if diagnosis is not None:
        show_table("Where answers are lost", _lost_rows(diagnosis), notes=_meanings(diagnosis))
    say(ready.workspace.cost_line())
    note(f"report: {files[REPORT]}; every question: {files[RESULTS]}")


def _lost_rows(diagnosis: Diagnosis) -> list[dict[str, str]]:
    from querywright.optimize.diagnosis import Stage

    counts = {arm: diagnosis.counts(arm) for arm in diagnosis.arms}
    stages = [stage for stage in Stage if any(count[stage] for count in counts.values())]
    return [{"arm": arm, **{str(stage): str(count[stage]) for stage in stages}} for arm, count in counts.items()]


def _meanings(diagnosis: Diagnosis) -> Sequence[str]:
    from querywright.optimize.diagnosis import MEANING

    seen = {lost.stage for losses in diagnosis.arms.values() for lost in losses}
    return [f"{stage}: {meaning}" for stage, meaning in MEANING.items() if stage in seen]
