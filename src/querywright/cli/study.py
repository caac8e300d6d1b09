"""``querywright study``: search techniques, knobs and prompts together, and go on after any interruption."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from querywright.cli import options as opt
from querywright.cli.checks import check_file
from querywright.cli.show import emit, note, progress, say, show_scores, show_table, show_verdicts
from querywright.cli.tracking import tracking
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.optimize.study.results import Snapshot
    from querywright.studies import StudyData

REPORT = "report.html"
DETAILS = (
    *("recommended", "verdict", "sentence", "corrected", "comparisons", "failed_on_test"),
    *("costs", "judges", "seeds", "command"),
)
study_app = opt.make_app("study", "Search techniques, knobs and prompts together, and answer every question once.")

Minutes = Annotated[float, Parameter(metavar="N", validator=Number(gte=0.01))]
Study = Annotated[Path, Parameter(help="What study run was given with --out.")]
Dollars = Annotated[float, Parameter(metavar="N", validator=Number(gte=0))]


@Parameter(name="*", group="Run")
@dataclass(frozen=True)
class StorageOptions:
    """Where trials are kept.

    Args:
        storage: Of PostgreSQL, in place of the one in the file; it is never printed or kept.
    """

    storage: Annotated[opt.Url | None, Parameter(env_var="QUERYWRIGHT_STORAGE")] = None


@dataclass(frozen=True)
class WorkerOptions(StorageOptions):
    """Where trials are kept, and who runs them.

    Args:
        workers: Processes side by side.
    """

    workers: opt.Count = 1


@Parameter(name="*", group="Budget")
@dataclass(frozen=True)
class BudgetOptions:
    """What a study may take, in all.

    Args:
        trials: Trials in all, if more.
        budget_calls: LM calls in all.
        budget_tokens: Tokens in all.
        budget_dollars: US dollars in all.
        budget_minutes: Minutes in all; a trial that has begun continues when the study is resumed.
    """

    trials: opt.Count | None = None
    budget_calls: opt.Whole | None = None
    budget_tokens: opt.Whole | None = None
    budget_dollars: Dollars | None = None
    budget_minutes: Minutes | None = None
    deadline: opt.Deadline = None

    @property
    def changes(self) -> dict[str, Any]:
        """Changes of the study."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        budget = {name[7:]: value for name, value in given.items() if name.startswith("budget_")}
        own = {name: value for name, value in given.items() if not name.startswith("budget_")}
        return {**({"budget": budget} if budget else {}), **own}


@study_app.command(name="check")
def check_command(file: Path, /, *, output: opt.Output = opt.Output()) -> None:
    """Check a study and its data, and say what it takes at most, before anything is asked.

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
            notes=["without the reader; optimizers, judges, and retries make further calls; cached answers make none"],
        )
        say(f"at most {calls['trials']:,} LM calls in trials and {calls['test']:,} on test")
        say(f"{file.name} is valid")

    emit(output.as_json, {"name": spec.name, "trials": spec.trials, "questions": sizes, "calls": calls}, shown)


@study_app.command(name="run")
def run_command(
    file: Path, /, *, save_to: opt.OutFolder, run: WorkerOptions = WorkerOptions(), output: opt.Results = opt.Results()
) -> None:
    """Run a study: try arms on dev, compare the best with the baseline on test once, save programs and a report.

    To resume an interrupted run, run the same command again, or study resume.

    Example: querywright study run study.yaml --out studies/mine --workers 4

    Args:
        file: The study: a YAML file.
        save_to: Where the study is kept, and taken up again.
    """
    from querywright.studies import check_study

    _go(check_study(file, output.home, tell=note), file, save_to, run, output)


@study_app.command(name="resume")
def resume_command(
    folder: Study,
    /,
    *,
    run: WorkerOptions = WorkerOptions(),
    budget: BudgetOptions = BudgetOptions(),
    output: opt.Results = opt.Results(),
) -> None:
    """Go on with a study that was interrupted, killed, or stopped at its budget; nothing is asked twice.

    Example: querywright study resume studies/mine --budget-calls 20000
    """
    from querywright.optimize.study.engine import changed_spec
    from querywright.studies import read_data

    _check_study(folder)
    _go(read_data(changed_spec(folder, budget.changes)), folder / "study.yaml", folder, run, output)


@study_app.command(name="status")
def status_command(folder: Study, /, *, where: StorageOptions = StorageOptions(), as_json: opt.Json = False) -> None:
    """Say how far a study is; it may be running, and is not disturbed.

    Example: querywright study status studies/mine
    """
    from querywright.optimize.study.results import status

    found = _snapshot(folder, where.storage)
    emit(as_json, status(found), lambda: show_status(found))


@study_app.command(name="report")
def report_command(
    folder: Study, /, *, save_to: opt.OutFile | None = None, where: StorageOptions = StorageOptions()
) -> None:
    """Write the report of a study so far: one HTML file that opens without a network.

    Example: querywright study report studies/mine --out mine.html

    Args:
        save_to: Default: report.html in FOLDER.
    """
    from querywright.optimize.study.results import write_report

    found = _snapshot(folder, where.storage)
    target = save_to or folder / REPORT
    check_file(target, "--out")
    write_report(found, target)
    say(f"report: {target}")


@study_app.command(name="export")
def export_command(
    folder: Study,
    /,
    *,
    save_to: opt.OutFile,
    questions: opt.Flag = False,
    where: StorageOptions = StorageOptions(),
) -> None:
    """Write the trials of a study as a table for other tools.

    Example: querywright study export studies/mine --out trials.parquet

    Args:
        save_to: A file that ends in .parquet, .csv or .jsonl.
        questions: A row a trial and question, in place of a row a trial.
    """
    from querywright.optimize.study.results import export
    from querywright.optimize.tables import check_table

    check_table(save_to)
    found = _snapshot(folder, where.storage)
    check_file(save_to, "--out")
    rows = export(found, save_to, questions=questions)
    say(f"{rows} rows: {save_to}")


def _snapshot(folder: Path, storage: str | None) -> Snapshot:
    from querywright.optimize.study.engine import snapshot

    _check_study(folder)
    return snapshot(folder, storage)


def _check_study(folder: Path) -> None:
    """Raise when the folder holds no study."""
    if not os.path.isfile(folder / "study.yaml"):
        there = "holds no study" if os.path.isdir(folder) else "is not a folder"
        raise InputError(f"{str(folder)!r} {there}; name one that querywright study run made with --out")


@contextlib.contextmanager
def _resumable(folder: Path, storage: str | None = None) -> Iterator[None]:
    """Print the command that resumes a study that stops, if the study exists by then."""
    try:
        yield
    except InputError:
        raise
    except (Exception, KeyboardInterrupt):
        if (folder / "study.yaml").is_file():
            elsewhere = {"storage": "URL"} if "://" in (storage or "") else {}
            note(f"nothing is lost; to go on: {opt.typed('study', 'resume', str(folder), **elsewhere)}", style="bold")
        raise


def _go(data: StudyData, file: Path, folder: Path, run: WorkerOptions, output: opt.Results) -> None:
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
    show_study(found, folder, as_json=output.as_json, verbose=output.verbose)
    logged(found, name=found.spec.name, kept=[folder / "artifacts"])


def _best(snapshot: Snapshot) -> str:
    """The best trial so far, with its interval."""
    from querywright.optimize.search.trials import arm_name, best, interval
    from querywright.optimize.study.results import shown

    aim = snapshot.spec.aims[0]
    found = best(snapshot.trials, aim)
    if found is None:
        return ""
    return f"best so far {shown(interval(found, aim), aim)} (trial {found.number}, {arm_name(found.arm)})"


def study_json(snapshot: Snapshot, files: Mapping[str, str]) -> dict[str, Any]:
    """A study and its outcome, without single questions, as a JSON object."""
    from querywright.optimize.study.results import status

    outcome = snapshot.outcome or {}
    test = [{name: value for name, value in one.items() if name != "rows"} for one in outcome.get("test") or ()]
    details = {name: outcome.get(name) for name in DETAILS}
    return {**status(snapshot), **details, "test": test, "files": dict(files)}


def show_study(snapshot: Snapshot, folder: Path, *, as_json: bool, verbose: bool = False) -> None:
    """Print the end of a study: dev, test, verdicts and cost; or one JSON object."""
    from querywright.optimize.search.trials import ranked
    from querywright.optimize.study.results import trial_table

    files = {"report": str(folder / "report.html"), "artifacts": str(folder / "artifacts")}
    objectives, outcome = snapshot.spec.aims, snapshot.outcome or {}

    def shown() -> None:
        rows = trial_table(ranked(snapshot.trials, objectives[0]), objectives)
        if rows:
            show_table(f"dev, best {len(rows)} arms, knobs that differ", rows)
        met = snapshot.evaluations
        if met:
            judged = [one["standing"] for one in outcome.get("judges", ())]
            notes = ["evaluated once; per cent with 95 % interval", *judged]
            show_scores(f"test, {len(met[0].rows)} questions", met, verbose=verbose, notes=notes)
            show_verdicts(snapshot.comparisons, verbose=verbose, sentence=False)
        for line in _verdicts(outcome):
            say(line)
        say(_cost(snapshot))
        note(f"report: {files['report']}; programs: {files['artifacts']}")

    emit(as_json, study_json(snapshot, files), shown)


def _verdicts(outcome: Mapping[str, Any]) -> list[str]:
    """Return the results of a study as sentences."""
    said: list[str] = []
    if outcome.get("recommended"):
        said.append(f"recommended: {outcome['recommended']} (chosen on dev)")
    last = outcome.get("reader_prompts") or {}
    if last.get("tried"):
        said.append(f"the reader's prompts, by accuracy on dev: {last['name']}")
    if last.get("failed"):
        said.append(f"reader prompts left out, because too many dev questions failed: {', '.join(last['failed'])}")
    if outcome.get("failed_on_test"):
        failed = ", ".join(outcome["failed_on_test"])
        said.append(f"programs left out, because too many test questions failed: {failed}")
    return [*said, str(outcome["sentence"])] if outcome.get("sentence") else said


def show_status(snapshot: Snapshot) -> None:
    """Print how far a study is."""
    from querywright.optimize.study.results import status, technique_table, trial_table

    found, objectives = status(snapshot), snapshot.spec.aims
    trials = found["trials"]
    ended = trials["complete"] + trials["pruned"] + trials["failed"]
    word = "finished" if found["finished"] else "not finished"
    show_table(
        f"{found['name']}: {word}; {ended} of {trials['planned']} trials ended ({trials['pruned']} pruned, "
        f"{trials['failed']} failed), {trials['running']} under way",
        technique_table(snapshot, objectives[0]),
    )
    front = found["front"]
    if front:
        rows = trial_table([one for one in snapshot.trials if one.number in front], objectives, len(front))
        show_table(f"front of {', '.join(found['objectives'])}", rows)
    limits = {name: one for name, one in found["spent"].items() if isinstance(one, dict) and one["limit"] is not None}
    budget = ", ".join(f"{one['made']:g} of {one['limit']:g} {name}" for name, one in limits.items())
    for line in (_best(snapshot), found["sentence"], budget and f"budget: {budget}", _cost(snapshot)):
        if line:
            say(line)


def _cost(snapshot: Snapshot) -> str:
    """What the study cost over all its workers and runs."""
    spent = snapshot.spent
    dollars = f"; {spent.dollars:.4f} US dollars estimated" if spent.dollars else ""
    calls = f"LM calls: {spent.calls} made ({spent.saved} cached)"
    return f"{calls}; {spent.tokens} tokens; {spent.minutes:.1f} minutes{dollars}"
