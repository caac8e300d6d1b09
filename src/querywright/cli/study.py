"""``querywright study``: search techniques, knobs and prompts together, and go on after any interruption."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from querywright.cli.checks import check_file, note_unlearnt
from querywright.cli.options import HomeOption, JsonOption
from querywright.cli.show import note, print_json, say, show_table
from querywright.cli.study_show import show_status, show_study, study_progress
from querywright.cli.workspace import Workspace, lm_failures
from querywright.errors import InputError, QuerywrightError

if TYPE_CHECKING:
    from querywright.optimize.study.data import CheckedStudy
    from querywright.optimize.study.engine import Snapshot
    from querywright.optimize.study.spec import StudySpec

REPORT = "report.html"

study_app = typer.Typer(
    help="Search techniques, knobs and prompts together, and answer every question once.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

SpecArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The study: a YAML file.", show_default=False)]
FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="What study run was given with --out.", show_default=False)
]
WorkersOption = Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Processes side by side.")]
StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Of PostgreSQL, in place of the one in the file; it is never printed or kept.",
        show_default=False,
    ),
]


@study_app.command("check")
def check_command(
    file: SpecArgument,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time one question for real, to tell minutes; this asks the LM.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a study and its data, and say what it takes at most, before anything is asked.

    Example: querywright study check study.yaml
    """
    from querywright.optimize.study.data import checked_study
    from querywright.optimize.study.estimate import estimate

    checked = checked_study(file, home)
    spec = checked.spec
    _note_unlearnt(spec)
    workspace = Workspace.open(home, spec.lm, api_base=spec.api_base, api_key_env=spec.api_key_env)
    rewriter = workspace.rewriter(None if spec.rewriter is None else Path(spec.rewriter))
    seconds = None
    if measure:
        with lm_failures():
            seconds = _measured(checked, workspace, rewriter)
    found = estimate(
        spec,
        checked.space,
        checked.splits,
        workspace.lm,
        passages=checked.passages,
        seconds_per_call=seconds,
    )
    sizes = {name: len(part) for name, part in checked.splits._asdict().items()}
    if as_json:
        print_json({"name": spec.name, "trials": spec.trials, "questions": sizes, **found.to_json()})
        return
    questions = ", ".join(f"{name} {size}" for name, size in sizes.items())
    show_table(
        f"{spec.name}: {spec.trials} trials; questions: {questions}",
        [{name: value for name, value in row.items() if name != "how"} for row in found.rows()],
        notes=[
            *(f"{row['stage']}: {row['how']}" for row in found.rows() if row["how"]),
            *(f"assumed: {one}" for one in found.assumptions),
        ],
    )
    say(f"{file.name} is in order")


@study_app.command("run")
def run_command(
    file: SpecArgument,
    save_to: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where the study is kept, and taken up again.")
    ],
    workers: WorkersOption = 1,
    storage: StorageOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a study: try arms on dev, hold the best against no rewriting on test once, save programs and a report.

    A run that was ended, whichever way, goes on with the same command, or with study resume.

    Example: querywright study run study.yaml --out studies/mine --workers 4
    """
    from querywright.optimize.study.data import checked_study
    from querywright.optimize.study.engine import run_study

    spec = checked_study(file, home).spec
    _note_unlearnt(spec)
    with _resumable(save_to, storage), study_progress() as update, lm_failures():
        snapshot = run_study(
            spec,
            save_to,
            workers=workers,
            home=home,
            storage=storage,
            command=_command("run", file, "--out", save_to, "--workers", workers),
            progress=update,
        )
    _end(snapshot, save_to, as_json=as_json)


@study_app.command("resume")
def resume_command(
    folder: FolderArgument,
    workers: WorkersOption = 1,
    storage: StorageOption = None,
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", min=1, help="Trials in all, if more.", show_default=False)
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option("--budget-calls", metavar="N", min=0, help="LM calls in all.", show_default=False),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--budget-tokens", metavar="N", min=0, help="Tokens in all.", show_default=False)
    ] = None,
    dollars: Annotated[
        float | None,
        typer.Option("--budget-dollars", metavar="N", min=0.0, help="US dollars in all.", show_default=False),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--budget-minutes", metavar="N", min=0.01, help="Minutes in all.", show_default=False),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a study that was interrupted, killed, or stopped at its budget; nothing is asked twice.

    Example: querywright study resume studies/mine --budget-calls 20000
    """
    from querywright.optimize.study.engine import resume_study

    _check_study(folder)
    limits = {"calls": calls, "tokens": tokens, "dollars": dollars, "minutes": minutes}
    budget = {name: value for name, value in limits.items() if value is not None}
    changes: dict[str, Any] = {"budget": budget} if budget else {}
    if trials is not None:
        changes["trials"] = trials
    with _resumable(folder, storage), study_progress() as update, lm_failures():
        snapshot = resume_study(
            folder,
            workers=workers,
            home=home,
            storage=storage,
            changes=changes or None,
            command=_command("run", folder / "study.yaml", "--out", folder, "--workers", workers),
            progress=update,
        )
    _end(snapshot, folder, as_json=as_json)


@study_app.command("status")
def status_command(folder: FolderArgument, storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """Say how far a study is; it may be running, and is not disturbed.

    Example: querywright study status studies/mine
    """
    from querywright.optimize.study.status import status

    found = _snapshot(folder, storage)
    if as_json:
        print_json(status(found))
    else:
        show_status(found)


@study_app.command("report")
def report_command(
    folder: FolderArgument,
    save_to: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Default: report.html in FOLDER.", show_default=False),
    ] = None,
    storage: StorageOption = None,
) -> None:
    """Write the report of a study as it stands now: one HTML file that opens without a network.

    Example: querywright study report studies/mine --out mine.html
    """
    from querywright.optimize.study.report import write_report

    found = _snapshot(folder, storage)
    target = save_to or folder / REPORT
    check_file(target, "--out")
    write_report(found, target)
    say(f"report: {target}")


@study_app.command("export")
def export_command(
    folder: FolderArgument,
    save_to: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="A file that ends in .parquet, .csv or .jsonl.")
    ],
    questions: Annotated[
        bool, typer.Option("--questions", help="A row a trial and question, in place of a row a trial.")
    ] = False,
    storage: StorageOption = None,
) -> None:
    """Write the trials of a study as a table for other tools.

    Example: querywright study export studies/mine --out trials.parquet
    """
    from querywright.optimize.study.export import export
    from querywright.optimize.tables import check_table

    check_table(save_to)
    found = _snapshot(folder, storage)
    check_file(save_to, "--out")
    rows = export(found, save_to, questions=questions)
    say(f"{rows} rows: {save_to}")


def _snapshot(folder: Path, storage: str | None) -> Snapshot:
    from querywright.optimize.study.engine import snapshot

    _check_study(folder)
    return snapshot(folder, storage)


def _check_study(folder: Path) -> None:
    """Raise when the folder holds no study."""
    if not (folder / "study.yaml").is_file():
        there = "holds no study" if folder.is_dir() else "is no folder"
        raise InputError(f"{str(folder)!r} {there}; name one that querywright study run made with --out")


@contextlib.contextmanager
def _resumable(folder: Path, storage: str | None = None) -> Iterator[None]:
    """Say how a study that stops goes on, where there is one by then."""
    try:
        yield
    except InputError:
        raise
    except (QuerywrightError, KeyboardInterrupt, OSError):
        if (folder / "study.yaml").is_file():
            elsewhere = ("--storage", "URL") if "://" in (storage or "") else ()
            note(f"nothing is lost; to go on: {_command('resume', folder, *elsewhere)}", style="bold")
        raise


def _end(snapshot: Snapshot, folder: Path, *, as_json: bool) -> None:
    """Write the report of a study that has ended, and show what came of it."""
    from querywright.optimize.study.report import write_report

    write_report(snapshot, folder / REPORT)
    show_study(snapshot, folder, as_json=as_json)


def _command(*words: object) -> str:
    """A command as it is typed; an address of a storage is never part of it."""
    return shlex.join(["querywright", "study", *(str(word) for word in words)])


def _note_unlearnt(spec: StudySpec) -> None:
    """Say which techniques of a study ask its rewriter and are strange to it."""
    note_unlearnt(None if spec.rewriter is None else Path(spec.rewriter), (spec))


def _measured(checked: CheckedStudy, workspace: Workspace, rewriter: Any) -> float | None:
    """Seconds of one LM call, from one dev question through the first technique that was named."""
    from querywright.optimize.study.estimate import measure
    from querywright.programs import make_program, takes_rewriter, technique_class

    name = next(iter(checked.spec.techniques))
    retriever = workspace.retriever(checked.spec.collection, checked.spec.embedder, checked.space[name].engine)
    rewriter = rewriter if takes_rewriter(technique_class(name)) else None
    program = make_program(name, retriever, reader=checked.readers[0], rewriter=rewriter)
    return measure(workspace.lm, program, checked.splits.dev[0])
