"""``querywright evaluate``: techniques and artifacts on labelled questions, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from querywright.cli.bench import Bench
from querywright.cli.checks import check_file
from querywright.cli.options import (
    ArmOptions,
    DataOptions,
    File,
    Helpers,
    Judging,
    LimitedLM,
    Names,
    Output,
    Questions,
    RunOptions,
)
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.errors import InputError
from querywright.workspace import lm_failures

if TYPE_CHECKING:
    from querywright.optimize.evaluate import Evaluation

BASELINE = "plain"


def evaluate_command(
    questions: Questions,
    /,
    *,
    technique: Names = (),
    artifact: Annotated[tuple[Path, ...], Parameter(metavar="FOLDER", show_default=False)] = (),
    rows: File | None = None,
    arms: ArmOptions = ArmOptions(),
    helpers: Helpers = Helpers(),
    judging: Judging = Judging(),
    data: DataOptions = DataOptions(),
    lm: LimitedLM = LimitedLM(),
    run: RunOptions = RunOptions(),
    output: Output = Output(),
) -> None:
    """Evaluate techniques and artifacts on the same questions, each held against plain (else the first).

    Example: querywright evaluate questions.jsonl --collection textbooks --limit 40

    Args:
        technique: NAME, NAME@ENGINE or NAME:KNOB=VALUE,... Repeatable. Default: closed_book, plain and, where there
            are options, hcqr.
        artifact: A compiled program. Repeatable.
        rows: Write every question's result here, JSON lines.
    """
    from querywright.optimize.evaluate import evaluate

    if rows is not None:
        check_file(rows, "--rows")
    bench = Bench.open(
        questions, [*technique, *artifact], arms=arms, helpers=helpers, judging=judging, data=data, lm=lm,
        home=output.home,
    )  # fmt: skip
    ready = bench.ready
    with progress() as update, lm_failures():
        metrics = bench.metrics(run, update)
        found = [
            evaluate(
                program, ready.questions, lm=ready.workspace.lm, name=name, metrics=metrics, **run.given,
                progress=update,
            )
            for name, program in ready.programs.items()
        ]  # fmt: skip
    _report(questions, bench, found, [*metrics], output.as_json)
    if rows is not None:
        _write_rows(rows, found)
        note(f"every question's result: {rows}")


def _report(source: str, bench: Bench, found: Sequence[Evaluation], metrics: Sequence[str], as_json: bool) -> None:
    from querywright.optimize.significance import against
    from querywright.optimize.tables import table_rows

    notes = bench.lines(found, metrics)
    comparisons = against(found, BASELINE if any(one.name == BASELINE for one in found) else found[0].name)
    if as_json:
        compared = [one.to_json() for one in comparisons]
        print_json({"arms": [one.to_json() for one in found], "comparisons": compared, "notes": notes})
        return
    show_table(
        f"{source}: {len(bench.ready.questions)} questions",
        table_rows(found),
        notes=["; ".join(notes), *(one.sentence for one in comparisons)],
        breaks=("LM calls / question",),
    )
    say(bench.ready.workspace.cost_line())


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
