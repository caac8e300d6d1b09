"""``querywright evaluate`` and ``querywright compare``: evaluate arms on the same labeled questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.checks import check_file, check_folder
from querywright.cli.show import emit, note, progress, say, show_scores, show_slices, show_table, show_verdicts
from querywright.cli.tracking import tracking
from querywright.files import private, writing

if TYPE_CHECKING:
    from querywright.optimize.comparison import Comparison
    from querywright.workspace import Workspace


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of ``evaluate`` and ``compare``.

    Args:
        slice: Also break the results down by a question column, by 'options' (whether the question has options), or by
            'known' (whether the LM answers the question correctly without passages). Repeatable.
    """

    data: opt.DataOptions

    lm: opt.LMOptions = field(default_factory=opt.LMOptions)
    run: opt.RunOptions = field(default_factory=opt.RunOptions)
    arms: opt.ArmOptions = field(default_factory=opt.ArmOptions)
    judging: opt.Judging = field(default_factory=opt.Judging)
    slice: opt.Slices = ()
    output: opt.Results = field(default_factory=opt.Results)

    def open(self) -> Workspace:
        """Open the workspace with the LM, which needs an API key only if it is called."""
        self.judging.beside(self.lm)
        return self.lm.open(self.output.home, self.run.threads, asks=False)

    def compare(self, named: Sequence[str], workspace: Workspace, **more: Any) -> Comparison:
        """Compare arms as ``querywright.compare`` does."""
        from querywright.api import compare

        arms, judging, lm = self.arms, self.judging, self.lm
        if judging.guidelines is not None:
            check_file(judging.guidelines, "--guidelines")
        with progress("opening questions, collection, and models") as update:
            return compare(
                named, self.data.source, lm=workspace, reading=self.data.given, **arms.given(lm), engine=arms.engine,
                reader=arms.reader, max_passages=arms.max_passages, metrics=arms.metric, judge=judging.judge,
                judge_lm=judging.open(workspace, lm), guidelines=judging.guidelines, threads=self.run.threads,
                max_failures=self.run.max_failures, slices=self.slice,
                progress=update, tell=note, **more,
            )  # fmt: skip

    def show(self, found: Comparison, workspace: Workspace) -> None:
        """Print scores and verdicts, and, if closed book and oracle evidence were evaluated, where answers are lost."""
        from querywright.optimize.diagnosis import DECIDED, MEANING, decision_rows, lost_rows

        title, verbose = f"{self.data.source}: {len(found.questions)} questions", self.output.verbose
        show_scores(title, [*found.arms, *found.references], workspace, verbose=verbose, notes=found.below)
        show_verdicts(found.comparisons, verbose=verbose, programs=found.programs)
        by = f", {found.labelled_by}" if found.labelled_by else ""
        if found.references and found.diagnosis is not None:
            rows = lost_rows(found.diagnosis)
            meanings = [f"{stage}: {meaning}" for stage, meaning in MEANING.items() if stage in rows[0]]
            show_table(f"Where answers are lost{by}", rows, notes=meanings)
        if found.references and found.decisions:
            show_table(f"How passages changed the answers{by}", decision_rows(found.decisions), notes=[DECIDED])
        show_slices(found.comparisons, found.slices)
        if cost := workspace.cost_line():
            say(cost)


def evaluate_command(arm: opt.Arms = (), /, *, given: Options, rows: opt.File | None = None) -> None:
    """Evaluate arms and compare them with the baseline.

    All arms are evaluated on the same questions. The baseline is plain if it is among the arms, and otherwise the first
    arm.

    Example: querywright evaluate plain hcqr --data questions.jsonl --collection textbooks --limit 40

    Args:
        arm: One or more arms: techniques (NAME, NAME@ENGINE to choose the engine, or NAME:KNOB=VALUE,...),
            artifact folders, and your programs (FILE.py:NAME). Default: closed_book, plain, and (if the
            questions have options) hcqr.
        rows: File for the results per question, in JSON Lines format.
    """
    if rows is not None:
        check_file(rows, "--rows")
    log, workspace = tracking(given.output.log), given.open()
    found = given.compare(arm, workspace, references=False)
    data = {
        name: value for name, value in found.to_json().items() if name in ("arms", "comparisons", "slices", "notes")
    }
    emit(given.output.as_json, data, lambda: given.show(found, workspace))
    if rows is not None:
        _write_rows(rows, found)
        note(f"results per question: {rows}")
    log(found, name=Path(given.data.source).name, params=found.facts)


def compare_command(
    arm: opt.Arms,
    /,
    *,
    given: Options,
    save_to: opt.OutFolder,
    baseline: Annotated[str, Parameter(metavar="ARM")] = "plain",
) -> None:
    """Compare arms with a baseline and write a report.

    The output shows where answers are lost, and the folder also contains the results per question. If there is a reader
    and labeled evidence, closed book (no passages) and oracle evidence (the passages labeled ENTAILED) are evaluated,
    too. To resume an interrupted run, run the same command again; finished answers are cached. To add arms to the
    folder later, use the same questions and options.

    Example: querywright compare plain@bm25 hyde artifacts/mine --data questions.jsonl --collection mine --out results

    Args:
        arm: One or more arms: techniques (NAME, NAME@ENGINE to choose the engine, or NAME:KNOB=VALUE,...),
            artifact folders, and your programs (FILE.py:NAME).
        save_to: Folder for the results and the report.
        baseline: The arm to compare every other arm with; it is added if it is not among the arms.
    """
    from querywright.arms import spelled
    from querywright.optimize.comparison import REPORT, ROWS, SUMMARY

    check_folder(save_to, "--out", SUMMARY)
    log, workspace = tracking(given.output.log), given.open()
    baseline, *named = map(spelled, (baseline, *arm))
    named = named if baseline in named else [baseline, *named]
    found = given.compare(named, workspace, baseline=baseline, out=save_to)
    command = opt.typed(
        "compare", *found.settings["arms"].values(), **opt.chosen(given), baseline=baseline, out=save_to
    )
    files = found.save(save_to, command=command)
    emit(given.output.as_json, {**found.to_json(), "files": files}, lambda: given.show(found, workspace))
    if not given.output.as_json:
        note(f"report: {files[REPORT]}; results per question: {files[ROWS]}")
    log(found, name=save_to.name, params=found.facts, kept=[files[SUMMARY]])


def _write_rows(path: Path, found: Comparison) -> None:
    stands = "the results above are valid, and rerunning the command makes no LM calls"
    with (
        writing(f"{path.name!r}", stands, "--rows path"),
        open(path, "w", encoding="utf-8", errors="replace", opener=private) as file,
    ):
        for one in found.arms:
            for row in one.rows:
                file.write(json.dumps({"arm": one.name, **row.to_json()}, ensure_ascii=False) + "\n")
