"""``querywright evaluate``: techniques on labelled questions, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from querywright.cli.common import (
    ApiBaseOption,
    CallsOption,
    ColumnOption,
    EmbedderOption,
    HomeOption,
    JsonOption,
    KeyOption,
    KnobOption,
    LimitOption,
    LMOption,
    ThreadsOption,
    Workspace,
    err,
    knob_values,
    out,
    pairs,
    print_json,
    progress,
    reader_for,
    show_table,
)
from querywright.errors import InputError


def evaluate_command(
    questions: Annotated[str, typer.Argument(help="A file of questions, hf:NAME, or sample.")],
    collection: Annotated[
        str | None, typer.Option("--collection", help="The collection that is searched.", show_default=False)
    ] = None,
    technique: Annotated[
        list[str] | None,
        typer.Option(
            "--technique", help="Repeatable. Default: closed_book, plain and hcqr.", show_default=False
        ),
    ] = None,
    artifact: Annotated[
        list[Path] | None,
        typer.Option("--artifact", help="A compiled program. Repeatable.", show_default=False),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            help="Repeatable. Default: accuracy, and by evidence where it is labelled.",
            show_default=False,
        ),
    ] = None,
    judge_lm: Annotated[
        str | None,
        typer.Option(
            "--judge-lm", help="An LM that judges usefulness; uncalibrated, and said so.", show_default=False
        ),
    ] = None,
    knob: KnobOption = None,
    reader: Annotated[
        str, typer.Option("--reader", help="auto, multiple_choice, short_answer or none.")
    ] = "auto",
    column: ColumnOption = None,
    limit: LimitOption = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Split of a dataset.", show_default=False)
    ] = None,
    lm: LMOption = "embedded",
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    max_calls: CallsOption = None,
    max_failures: Annotated[
        float, typer.Option("--max-failures", min=0.0, max=1.0, help="Share of questions that may fail.")
    ] = 0.05,
    threads: ThreadsOption = 4,
    embedder: EmbedderOption = "embedded",
    rows: Annotated[
        Path | None,
        typer.Option("--rows", help="Write every question's result here, JSON lines.", show_default=False),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate techniques and artifacts on the same questions; the first arm is what the others are held against.

    Example: querywright evaluate questions.jsonl --collection textbooks --technique plain --technique hcqr --limit 40
    """
    from querywright.data import read_questions
    from querywright.data.reading import check_evidence
    from querywright.metrics.statistics import holm
    from querywright.optimize.evaluate import Evaluation, evaluate, metrics_by_name
    from querywright.optimize.report import table_rows
    from querywright.programs import RAG, make_program, technique_class

    asked = read_questions(questions, columns=pairs(column, "--column"), limit=limit, split=split)
    names = list(technique or ()) or ([] if artifact else ["closed_book", "plain", "hcqr"])
    for name in names:
        technique_class(name)
    knobs = pairs(knob, "--knob")
    unused = [
        key for key in knobs if not any(key in {k.name for k in technique_class(n).KNOBS} for n in names)
    ]
    if unused:
        raise InputError(f"no technique here has the knob {unused[0]!r}")
    labelled = any(question.evidence for question in asked)
    chosen = metrics_by_name(metric or (["accuracy", *(["decision_useful", "recall"] if labelled else [])]))
    reading = None if reader == "none" else reader_for(asked, reader)

    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
    retriever = None
    if any(technique_class(name).SEARCHES != "0" for name in names):
        if collection is None:
            raise InputError("these techniques search; name a collection with --collection")
        retriever = workspace.retriever(collection, embedder)
        missing = check_evidence(asked, {passage.id for passage in retriever.passages()})
        for line in missing[:3]:
            err.print(f"warning: {line}", style="yellow", highlight=False, markup=False)
    notes = (
        [f"LM {workspace.lm.model}; {len(asked)} questions; usefulness from labelled evidence"]
        if labelled
        else [f"LM {workspace.lm.model}; {len(asked)} questions; no labelled evidence"]
    )
    if judge_lm is not None:
        chosen["judged_useful"] = _judge(workspace, judge_lm, home)
        notes.append(f"judged_useful: judge {judge_lm}, not calibrated against people")
    programs: dict[str, tuple[RAG, Any]] = {
        name: (
            make_program(name, retriever, reader=reading, **knob_values(name, knobs, strict=False)),
            workspace.lm,
        )
        for name in names
    }
    for path in artifact or ():
        from querywright.optimize.load import load

        loaded = load(path, home=home, lm=workspace.lm)
        programs[path.name] = (loaded.program, workspace.lm)
    found: list[Evaluation] = []
    with progress() as update:
        for name, (program, model) in programs.items():
            found.append(
                evaluate(
                    program,
                    asked,
                    lm=model,
                    name=name,
                    metrics=chosen,
                    threads=threads,
                    max_failures=max_failures,
                    progress=update,
                )
            )
    if rows is not None:
        _write_rows(rows, found)
    comparisons = _comparisons(found, holm)
    if as_json:
        print_json({"arms": [one.to_json() for one in found], "comparisons": comparisons, "notes": notes})
        return
    show_table(
        f"{questions}: {len(asked)} questions",
        table_rows(found),
        notes=[*notes, *(c["sentence"] for c in comparisons)],
    )
    if rows is not None:
        out.print(f"every question's result: {rows}", highlight=False, markup=False)


def _comparisons(found: list[Any], holm: Any) -> list[dict[str, Any]]:
    """Each arm against the first, Holm-corrected within a metric."""
    from dataclasses import replace

    from querywright.metrics.statistics import verdict

    result: list[dict[str, Any]] = []
    for metric in dict.fromkeys(name for one in found for name in one.metrics):
        if len(found) < 2 or metric not in found[0].metrics:
            continue
        tests = [(one, one.against(found[0], metric)) for one in found[1:] if metric in one.metrics]
        for (one, test), p in zip(tests, holm([test.p_two_sided for _, test in tests]), strict=True):
            corrected = replace(test, p_two_sided=p)
            sentence = f"{metric}: {verdict(corrected, a=one.name, b=found[0].name)}"
            result.append(
                {
                    "metric": metric,
                    "arm": one.name,
                    "other": found[0].name,
                    "wins": test.wins,
                    "losses": test.losses,
                    "ties": test.ties,
                    "p_holm": p,
                    "sentence": sentence,
                }
            )
    return result


def _judge(workspace: Workspace, name: str, home: Path | None) -> Any:
    import dspy

    from querywright.metrics.judge import UsefulnessJudge, judged_metric
    from querywright.models.adapter import PromptAdapter
    from querywright.models.lm import resolve_lm

    model = resolve_lm(name, store=workspace.store, ledger=workspace.ledger)
    metric = judged_metric(UsefulnessJudge())

    def judged(example: Any, prediction: Any, trace: Any = None) -> float:
        with dspy.context(lm=model, adapter=PromptAdapter()):
            return metric(example, prediction, trace)

    return judged


def _write_rows(path: Path, found: list[Any]) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            for one in found:
                for row in one.rows:
                    file.write(json.dumps({"arm": one.name, **row.to_json()}, ensure_ascii=False) + "\n")
    except OSError as error:
        raise InputError(f"{path.name} could not be written: {error.strerror}") from error
