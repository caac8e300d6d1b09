"""``querywright study``: search techniques, knobs, and prompts together, and resume after any interruption."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.checks import check_file
from querywright.cli.show import emit, note, progress, say, show_scores, show_slices, show_table, show_verdicts
from querywright.cli.tracking import tracking
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.optimize.study.results import Snapshot
    from querywright.studies import StudyData

REPORT = "report.html"
MOST_REASONS = 3
"""Maximum number of reasons for failed trials to print."""
study_app = opt.make_app(
    "study",
    "Search techniques, knobs, and prompts together.\n\nA YAML file describes the study: its questions, techniques, "
    "and budget. The study chooses a program by its results on some of the questions (dev), and then evaluates it once "
    "on the others (test).",
)

Study = Annotated[Path, Parameter(help="A study folder, created by study run --out.")]


@Parameter(name="*", group="Run")
@dataclass(frozen=True)
class StorageOptions:
    """The storage of the trials.

    Args:
        storage: URL of a PostgreSQL database to use instead of the storage in the file. The URL is never printed or
            stored.
    """

    storage: Annotated[opt.Url | None, Parameter(env_var="QUERYWRIGHT_STORAGE")] = None


@dataclass(frozen=True)
class WorkerOptions(StorageOptions):
    """The storage of the trials, and the number of workers.

    Args:
        workers: Number of worker processes.
    """

    workers: opt.Count = 1


@study_app.command(name="check")
def check_command(file: Path, /, *, output: opt.Output = opt.Output()) -> None:
    """Check a study and its data without calling an LM.

    The output includes the maximum number of LM calls in trials and on test.

    Example: querywright study check study.yaml

    Args:
        file: The study: a YAML file.
    """
    from querywright.optimize.search.space import build_space
    from querywright.optimize.study.estimate import most_calls
    from querywright.studies import check_study

    spec, splits, reader, *_ = check_study(file, output.home, tell=note)
    calls = most_calls(spec, build_space(spec, reader, writers=spec.writer_names), splits)
    sizes = {name: len(part) for name, part in splits._asdict().items()}

    def shown() -> None:
        questions = ", ".join(f"{name} {size}" for name, size in sizes.items())
        show_table(
            f"{spec.name}: {spec.trials} trials; questions: {questions}",
            [{"technique": name, "LM calls per question": str(n)} for name, n in calls["calls_per_question"].items()],
            notes=[
                "reader calls are not included; optimizers, judges, and retries add calls; cached answers need no calls"
            ],
        )
        say(f"at most {calls['trials']:,} LM calls in trials and {calls['test']:,} on test")
        say(f"{file.name} is valid")

    emit(output.as_json, {"name": spec.name, "trials": spec.trials, "questions": sizes, "calls": calls}, shown)


@study_app.command(name="run")
def run_command(
    file: Path, /, *, save_to: opt.OutFolder, run: WorkerOptions = WorkerOptions(), output: opt.Results = opt.Results()
) -> None:
    """Run a study: search on dev, evaluate once on test.

    To resume a study, run the same command again. Before that, you can increase the budget in the file and, if test
    has not been evaluated, the trials.

    Example: querywright study run study.yaml --out studies/mine --workers 4

    Args:
        file: The study: a YAML file.
        save_to: Folder for the study.
    """
    from querywright.studies import check_study

    _run(check_study(file, output.home, tell=note), file, save_to, run, output)


@study_app.command(name="resume")
def resume_command(
    folder: Study, /, *, run: WorkerOptions = WorkerOptions(), output: opt.Results = opt.Results()
) -> None:
    """Resume an interrupted study, or join it as another worker.

    Example: querywright study resume studies/mine
    """
    from querywright.studies import check_study

    _check_folder(folder)
    file = folder / "study.yaml"
    _run(check_study(file, output.home, tell=note), file, folder, run, output)


@study_app.command(name="status")
def status_command(folder: Study, /, *, where: StorageOptions = StorageOptions(), as_json: opt.Json = False) -> None:
    """Show a study's trials, even while the study runs.

    Example: querywright study status studies/mine
    """
    from querywright.optimize.study.results import status

    found = _snapshot(folder, where.storage)
    emit(as_json, status(found), lambda: show_status(found))


@study_app.command(name="report")
def report_command(
    folder: Study, /, *, save_to: opt.OutFile | None = None, where: StorageOptions = StorageOptions()
) -> None:
    """Write a finished study's report as one HTML file.

    Example: querywright study report studies/mine --out mine.html

    Args:
        save_to: The file. Default: report.html in FOLDER.
    """
    from querywright.optimize.study.results import write_report

    found = _snapshot(folder, where.storage)
    target = save_to or folder / REPORT
    check_file(target, "--out")
    write_report(found, target)
    say(f"report: {target}")


@study_app.command(name="export")
def export_command(folder: Study, /, *, save_to: opt.OutFile, where: StorageOptions = StorageOptions()) -> None:
    """Write a study's trials as a table.

    Example: querywright study export studies/mine --out trials.parquet

    Args:
        save_to: A .parquet, .csv, or .jsonl file.
    """
    from querywright.optimize.study.results import export
    from querywright.optimize.tables import check_table

    check_table(save_to)
    found = _snapshot(folder, where.storage)
    check_file(save_to, "--out")
    say(f"{export(found, save_to)} rows: {save_to}")


def _snapshot(folder: Path, storage: str | None) -> Snapshot:
    from querywright.optimize.study.engine import snapshot

    _check_folder(folder)
    return snapshot(folder, storage)


def _check_folder(folder: Path) -> None:
    """Raise an error if the folder does not contain a study."""
    if not os.path.isfile(folder / "study.yaml"):
        problem = "does not contain a study" if os.path.isdir(folder) else "is not a folder"
        raise InputError(f"{str(folder)!r} {problem}; pass a folder that querywright study run created with --out")


@contextlib.contextmanager
def _resumable(folder: Path, storage: str | None = None) -> Iterator[None]:
    """If a study stops, print the command that resumes it, provided that the study already exists."""
    try:
        yield
    except InputError:
        raise
    except (Exception, KeyboardInterrupt):
        if (folder / "study.yaml").is_file():
            options = {"storage": "URL"} if "://" in (storage or "") else {}
            note(
                f"the results so far are saved; to resume, run: {opt.typed('study', 'resume', str(folder), **options)}",
                style="bold",
            )
        raise


def _run(data: StudyData, file: Path, folder: Path, run: WorkerOptions, output: opt.Results) -> None:
    """Run a study to its end, write its report, and show the results."""
    from querywright.optimize.study.results import write_report
    from querywright.studies import run_named

    logged = tracking(output.log)
    command = opt.typed("study", "run", str(file), out=str(folder), workers=run.workers)
    with _resumable(folder, run.storage), progress("opening") as update:
        found = run_named(
            data, folder, workers=run.workers, home=output.home, storage=run.storage, command=command, progress=update,
            tell=note,
        )  # fmt: skip
    write_report(found, folder / REPORT)
    files = {"report": str(folder / REPORT), "artifacts": str(folder / "artifacts")}
    emit(output.as_json, {**study_json(found), "files": files}, lambda: show_study(found, verbose=output.verbose))
    if not output.as_json:
        note(f"report: {files['report']}; programs: {files['artifacts']}")
    logged(found, name=found.spec.name, kept=[folder / "artifacts"])


def study_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return a finished study and its outcome as a JSON object, without individual questions."""
    from querywright.optimize.study.results import status

    outcome, compared = snapshot.outcome, snapshot.compared
    assert outcome is not None
    assert compared is not None
    test = [{name: value for name, value in one.items() if name != "rows"} for one in outcome["test"]]
    names = ("corrected", "comparisons", "failed_on_test", "costs", "judges", "seeds", "command")
    told: dict[str, Any] = {"notes": compared.all_notes}
    told |= {"slices": [one.to_json() for one in compared.slices]} if compared.slices else {}
    copied = {"copied_prompts": outcome["copied_prompts"]} if "copied_prompts" in outcome else {}
    return {**status(snapshot), **{name: outcome.get(name) for name in names}, **told, **copied, "test": test}


def show_study(snapshot: Snapshot, *, verbose: bool = False) -> None:
    """Print the results of a finished study: the trials on dev, the results on test, the verdict, and the cost."""
    from querywright.optimize.search.trials import ranked
    from querywright.optimize.study.results import trial_table, unscored_note

    aims, outcome, evaluations = snapshot.spec.aims, snapshot.outcome or {}, snapshot.evaluations
    compared = snapshot.compared
    assert compared is not None
    rows = trial_table(ranked(snapshot.trials, aims[0]), aims)
    show_table(f"dev, best {len(rows)} arms, with changed knobs", rows)
    _show_front(snapshot)
    if note := unscored_note(snapshot):
        say(note)
    title = f"test, {len(evaluations[0].rows)} questions, evaluated once"
    show_scores(title, evaluations, verbose=verbose, notes=compared.below)
    show_verdicts(snapshot.comparisons, verbose=verbose)
    show_slices(snapshot.comparisons, compared.slices)
    for line in [*_remarks(snapshot, outcome), _cost(snapshot)]:
        say(line)


def _remarks(snapshot: Snapshot, outcome: Mapping[str, Any]) -> list[str]:
    """Return a finished study's recommendation and verdict as sentences."""
    said = _failures(snapshot)
    said += [f"recommended: {outcome['recommended']} (chosen on dev)"]
    last = outcome["reader_prompts"]
    if last["tried"]:
        said.append(f"reader prompts, chosen by accuracy on dev: {last['name']}")
    if last["failed"]:
        said.append(f"reader prompts left out because too many dev questions failed: {', '.join(last['failed'])}")
    if outcome["failed_on_test"]:
        failed = ", ".join(outcome["failed_on_test"])
        said.append(f"programs left out because too many test questions failed: {failed}")
    return [*said, str(outcome["sentence"])]


def _failures(snapshot: Snapshot) -> list[str]:
    """Return a line for each reason why trials failed."""
    from querywright.optimize.search.trials import ended

    reasons: dict[str, list[str]] = {}
    for one in ended(snapshot.trials, "failed"):
        reason = one.message.partition("\n")[0].replace(repr(one.name), "the trial") or "unknown reason"
        reasons.setdefault(reason, []).append(str(one.number))
    lines = [f"failed trials ({', '.join(numbers)}): {reason}" for reason, numbers in reasons.items()]
    if more := lines[MOST_REASONS:]:
        lines[MOST_REASONS:] = [f"more reasons for failed trials, listed in the export: {len(more)}"]
    return lines


def show_status(snapshot: Snapshot) -> None:
    """Print a study's trials so far."""
    from querywright.optimize.search.trials import best
    from querywright.optimize.study.results import status, trial_table, unscored_note

    found, aims = status(snapshot), snapshot.spec.aims
    trials = found["trials"]
    ended = trials["complete"] + trials["pruned"] + trials["failed"]
    word = "finished" if found["finished"] else "not finished"
    show_table(
        f"{found['name']}: {word}; {ended} of {trials['planned']} trials ended ({trials['pruned']} pruned, "
        f"{trials['failed']} failed), {trials['running']} running; best trial for each technique",
        trial_table([one for one in (best(own, aims[0]) for own in snapshot.by_technique.values()) if one], aims),
    )
    _show_front(snapshot)
    limits = {name: one for name, one in found["spent"].items() if isinstance(one, dict) and one["limit"] is not None}
    budget = ", ".join(f"{one['made']:g} of {one['limit']:g} {name}" for name, one in limits.items())
    for line in (
        unscored_note(snapshot),
        *_failures(snapshot),
        found["sentence"],
        budget and f"budget: {budget}",
        _cost(snapshot),
    ):
        if line:
            say(line)


def _show_front(snapshot: Snapshot) -> None:
    """If there are several objectives, print the trials that no other trial beats in all of them, and the cheapest."""
    from querywright.optimize.search.trials import front
    from querywright.optimize.study.results import cheapest_text, trial_table

    aims = snapshot.spec.aims
    kept = front(snapshot.trials, aims) if len(aims) > 1 else []
    if kept:
        rows = trial_table([one for one in snapshot.trials if one.number in kept], aims)
        show_table(f"Pareto front on dev: {', '.join(aim.name for aim in aims)}", rows)
        say(cheapest_text(snapshot))


def _cost(snapshot: Snapshot) -> str:
    """Return a study's cost over all workers and runs."""
    spent = snapshot.spent
    dollars = f"; estimated cost: ${spent.dollars:.4f}" if spent.dollars else ""
    return f"LM calls: {spent.calls} made ({spent.saved} cached); {spent.tokens} tokens{dollars}"
