"""``querywright compare``: arms side by side on the same questions, with a report to open in a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from querywright.cli.checks import check_results
from querywright.cli.options import ArmOptions, DataOptions, Helpers, Judging, LimitedLM, OutFolder, Output, RunOptions
from querywright.cli.prepare import Prepared, prepare
from querywright.cli.results import Results
from querywright.cli.show import note, progress
from querywright.cli.workspace import lm_failures
from querywright.errors import InputError

NEEDS = ("any", "all")
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
    check_results(save_to, "--out")
    baseline, *named = (_arm(name) for name in (baseline, *arm))
    named = list(dict.fromkeys(named if baseline in named else [baseline, *named]))
    folders = [name for name in named if _is_folder(name)]
    ready = prepare(
        questions,
        [name for name in named if name not in folders],
        [Path(name) for name in folders],
        arms=arms,
        helpers=helpers,
        judging=judging,
        data=data,
        lm=lm,
        home=output.home,
        jointly=None if evidence is None else evidence == "all",
    )
    with progress() as update, lm_failures():
        metrics = ready.metrics(**run.given, progress=update)
        compared = compare(
            ready.programs,
            ready.questions,
            lm=ready.workspace.lm,
            baseline=_shown_as(baseline, ready),
            metrics=metrics,
            **run.given,
            progress=update,
        )
    if len(compared.arms) * len(ready.questions) >= MANY_ROWS:
        note("comparing, and writing the report")
    results = Results.of(ready, compared, data=questions, collection=arms.collection)
    results.write(save_to)
    results.show(save_to, as_json=output.as_json)


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
