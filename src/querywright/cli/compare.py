"""``querywright compare``: arms side by side on the same questions, with a report to open in a browser."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from querywright.cli.bench import Bench
from querywright.cli.checks import check_folder
from querywright.cli.options import ArmOptions, DataOptions, Helpers, Judging, LimitedLM, OutFolder, Output, RunOptions
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.errors import InputError
from querywright.workspace import lm_failures

if TYPE_CHECKING:
    from querywright.optimize.comparison import Compared
    from querywright.prepared import Prepared

NEEDS = ("any", "all")
ROWS, SUMMARY, REPORT = "results.parquet", "comparison.json", "report.html"
MANY_ROWS = 2000  # that take more than two seconds to compare and write


def compare_command(
    arm: Annotated[tuple[str, ...], Parameter(metavar="ARM...")],
    /,
    *,
    questions: Annotated[str, Parameter(name="--data", metavar="QUESTIONS")],
    save_to: OutFolder,
    baseline: Annotated[str, Parameter(metavar="ARM")] = "plain",
    evidence: Annotated[str | None, Parameter(metavar="any|all")] = None,
    arms: ArmOptions = ArmOptions(),
    helpers: Helpers = Helpers(),
    judging: Judging = Judging(),
    data: DataOptions = DataOptions(),
    lm: LimitedLM = LimitedLM(),
    run: RunOptions = RunOptions(),
    output: Output = Output(),
) -> None:
    """Compare arms on the same questions and write every question's result and a report.

    Closed book and oracle evidence stand beside them where they can, to tell where answers are lost. A run that was
    ended goes on with the same command: its answers are in the store.

    Example: querywright compare plain@bm25 hyde artifacts/mine --data questions.jsonl --collection mine --out results

    Args:
        arm: Techniques (NAME, NAME@ENGINE, NAME:KNOB=VALUE,...) and folders of artifacts.
        questions: A file of labelled questions, hf:NAME, or sample.
        save_to: Where results and report are written.
        baseline: What every arm is held against; added if it is not named.
        evidence: Whether one helpful passage is enough, or it takes all of them. Default: as the data says, else any.
    """
    from querywright.optimize.comparison import compare

    if evidence not in (None, *NEEDS):
        raise InputError(f"--evidence is any or all, but got {evidence!r}")
    check_folder(save_to, "--out", SUMMARY, "folder of results")
    baseline, *named = (_arm(name) for name in (baseline, *arm))
    named = list(dict.fromkeys(named if baseline in named else [baseline, *named]))
    bench = Bench.open(
        questions, named, arms=arms, helpers=helpers, judging=judging, data=data, lm=lm, home=output.home,
        jointly=None if evidence is None else evidence == "all",
    )  # fmt: skip
    ready = bench.ready
    names = dict(zip(named, ready.programs, strict=True))
    with progress() as update, lm_failures():
        compared = compare(
            ready.programs,
            ready.questions,
            lm=ready.workspace.lm,
            baseline=names[baseline],
            metrics=bench.metrics(run, update),
            **run.given,
            progress=update,
        )
    if len(compared.arms) * len(ready.questions) >= MANY_ROWS:
        note("comparing, and writing the report")
    notes = _notes(bench, compared)
    facts = _facts(ready, questions, arms.collection)
    files = _write(save_to, compared, f"{Path(questions).name}: {len(ready.questions)} questions", facts, notes)
    if output.as_json:
        print_json({**compared.to_json(), "notes": notes, "files": files})
    else:
        _show(f"{questions}: {len(ready.questions)} questions", compared, notes)
        say(ready.workspace.cost_line())
        note(f"report: {files[REPORT]}; every question: {files[ROWS]}")


def _arm(name: str) -> str:
    """An arm as it is named; the folder of an artifact in one spelling only."""
    from querywright.arms import is_folder

    return os.path.normpath(name) if is_folder(name) else name


def _notes(bench: Bench, compared: Compared) -> list[str]:
    from querywright.optimize.comparison import RIGHT

    read = any(metric in one.metrics for one in compared.arms for metric in RIGHT)
    if bench.ready.reader is not None and bench.ready.searched and compared.diagnosis is None and not read:
        bench.ready.notes.append(f"no diagnosis, which needs {' or '.join(RIGHT)} among the metrics")
    tried = dict.fromkeys(name for one in compared.arms for row in one.rows for name in row.scores)
    return bench.lines(compared.arms, tried)


def _facts(ready: Prepared, data: str, collection: str | None) -> dict[str, str]:
    from querywright import __version__

    facts = {
        "Questions": f"{len(ready.questions)} of {Path(data).name}",
        "LM": str(ready.workspace.lm.model),
        "Reader": ready.reader or "none",
    }
    if ready.rewriters:
        facts["Rewriter"] = ", ".join(ready.rewriters)
    if collection is not None and ready.retrievers:
        facts["Collection"] = f"{collection}, {ready.retriever.count} passages"
        facts["Engines"] = ", ".join(ready.retrievers)
    return {**facts, "querywright": __version__}


def _write(
    folder: Path, compared: Compared, title: str, facts: Mapping[str, str], notes: Sequence[str]
) -> dict[str, str]:
    """Write results question by question, the summary and the report; gives the paths."""
    from querywright.files import write_file
    from querywright.optimize.tables import question_rows, write_table

    folder.mkdir(parents=True, exist_ok=True)
    summary = json.dumps({**compared.to_json(), "notes": notes}, ensure_ascii=False, indent=2, allow_nan=False)
    write_file(folder / SUMMARY, summary.encode("utf-8", "replace") + b"\n")
    write_table(folder / ROWS, question_rows([*compared.arms, *compared.references], compared.questions))
    compared.report(folder / REPORT, title=title, facts=facts, notes=notes)
    return {name: str(folder / name) for name in (ROWS, SUMMARY, REPORT)}


def _show(title: str, compared: Compared, notes: Sequence[str]) -> None:
    from querywright.optimize.decisions import decision_rows
    from querywright.optimize.diagnosis import MEANING, lost_rows
    from querywright.optimize.tables import table_rows

    show_table(
        f"{title}, held against {compared.baseline}",
        table_rows([*compared.arms, *compared.references]),
        notes=["; ".join(notes), *(one.sentence for one in compared.comparisons)],
        breaks=("LM calls / question",),
    )
    if compared.diagnosis is not None:
        rows = lost_rows(compared.diagnosis)
        meanings = [f"{stage}: {meaning}" for stage, meaning in MEANING.items() if stage in rows[0]]
        show_table("Where answers are lost", rows, notes=meanings)
    if compared.decisions:
        show_table("What the passages did to the decisions", decision_rows(compared.decisions))
