"""A study from its file to its outcome: workers try arms, dev decides, test is met once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from querywright.errors import InputError
from querywright.models.memo import remembering
from querywright.models.usage import Cost, Ledger
from querywright.optimize.study.account import Spent
from querywright.optimize.study.building import build_space
from querywright.optimize.study.data import data_of
from querywright.optimize.study.finish import finish
from querywright.optimize.study.journal import FILE_NAME as JOURNAL_NAME
from querywright.optimize.study.objectives import objectives_of
from querywright.optimize.study.reading import read_spec, write_spec
from querywright.optimize.study.records import record_of
from querywright.optimize.study.resources import Bench, open_lm, open_store_at, open_study_rewriter
from querywright.optimize.study.select import choose
from querywright.optimize.study.settling import (
    FINISH,
    OUTCOME,
    SPEC_FILE,
    TEST,
    as_kept,
    check_folder,
    see_trials,
    settle_data,
    settle_spec,
    spec_in,
    storage_of,
)
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.storage import StudyStorage, open_storage, storage_kind, with_plain_failures
from querywright.optimize.study.trial import Worker
from querywright.optimize.study.types import TrialRecord
from querywright.optimize.study.workers import work_in_processes
from querywright.optimize.study.working import repeating, settling, ticking, work

REPORT_SECONDS = 1.0
"""Between two looks at how far a study is."""

Report = Callable[["Snapshot"], None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a storage knows of a study at one moment.

    Args:
        spec: The study.
        trials: By number.
        spent: Over all workers and runs.
        finished: Whether test was met and programs are saved.
        outcome: All that ``finish`` found; None before.
    """

    spec: StudySpec
    trials: tuple[TrialRecord, ...]
    spent: Spent
    finished: bool
    outcome: Mapping[str, Any] | None


@with_plain_failures
def run_study(
    spec: StudySpec,
    folder: Path,
    *,
    workers: int = 1,
    home: Path | None = None,
    storage: str | None = None,
    command: str = "",
    progress: Report | None = None,
) -> Snapshot:
    """Run a study to its end, or go on with it.

    What was tried, answered, searched and spent is kept at every moment. The same call after an interruption, a kill
    or a stop goes on from there, and so do workers on other machines that are given the same PostgreSQL storage.

    Args:
        spec: What is asked for, checked.
        folder: Where it is kept; made when missing.
        workers: Processes, 1 or more. Default 1: this one.
        home: The working folder.
        storage: Instead of the one in ``spec``, which is where a password has no place.
        command: What makes the study again, for the report.
        progress: Called every second or so with how far it is.

    Raises:
        InputError: The folder or the storage holds another study, or something that was named cannot be used.
        OutageError: The LM is out of reach; nothing is lost.
        BudgetError: The budget is spent; nothing is lost.
        QuerywrightError: Most trials fail.
    """
    if workers < 1:
        raise InputError(f"workers must be 1 or more, but got {workers}")
    where = storage_of(spec, storage)
    if workers > 1 and where == "sqlite":
        raise InputError("an SQLite storage is for one process; leave --workers out, or use the journal")
    check_folder(as_kept(spec, where), folder)
    with open_storage(where, folder, spec.name) as store:
        settle_spec(store, spec)
        write_spec(as_kept(spec, where), folder / SPEC_FILE)  # last, so that what is refused changes nothing
        if store.attribute(OUTCOME) is None:
            with _reporting(spec, store, progress):
                if workers > 1:
                    work_in_processes(folder, where, workers, home)
                bench = open_bench(spec, home, store)
                work(bench, store, "1" if workers == 1 else "0")  # 0 takes up what killed workers left
                conclude_study(bench, store, folder, command)
        return snapshot_of(spec, store)


def resume_study(
    folder: Path,
    *,
    workers: int = 1,
    home: Path | None = None,
    storage: str | None = None,
    changes: Mapping[str, Any] | None = None,
    command: str = "",
    progress: Report | None = None,
) -> Snapshot:
    """Go on with a study that was interrupted, killed or stopped.

    Args:
        folder: The study's.
        workers: As of ``run_study``.
        home: As of ``run_study``.
        storage: As of ``run_study``.
        changes: New values of ``trials``, ``budget``, ``threads`` or ``max_failures``.
        command: As of ``run_study``.
        progress: As of ``run_study``.

    Raises:
        InputError: The folder holds no study, or what ``run_study`` raises.
    """
    spec = spec_in(folder)
    if changes:
        merged = {**spec.to_json(), **changes}
        if isinstance(changes.get("budget"), Mapping):
            merged["budget"] = {**spec.to_json()["budget"], **changes["budget"]}
        spec = read_spec(merged)
    return run_study(
        spec, folder, workers=workers, home=home, storage=storage, command=command, progress=progress
    )  # fmt: skip


@with_plain_failures
def snapshot(folder: Path, storage: str | None = None) -> Snapshot:
    """How far a study is; nobody is disturbed and nothing is asked.

    Raises:
        InputError: The folder holds no study.
    """
    spec = spec_in(folder)
    where = storage_of(spec, storage)
    if storage_kind(where) == "journal" and not (folder / JOURNAL_NAME).exists():
        return Snapshot(spec, (), Spent(), False, None)
    with open_storage(where, folder, spec.name) as store:
        return snapshot_of(spec, store)


def open_bench(spec: StudySpec, home: Path | None, store: StudyStorage) -> Bench:
    """Open all that a trial needs."""
    folder, answers = open_store_at(home)
    ledger = Ledger()
    account = store.account(spec.budget)
    lm = open_lm(spec, answers, ledger, account)
    rewriter = open_study_rewriter(spec, folder, answers, ledger, account)
    splits, readers, further = data_of(spec)
    space = build_space(spec, readers)
    bench = Bench(
        spec, splits, space, objectives_of(spec.objectives), lm, ledger, answers, folder, further, rewriter=rewriter
    )
    settle_data(store, bench)
    return bench


@with_plain_failures
def work_alone(folder: Path, storage: str, home: Path | None, name: str) -> None:
    """Try arms of a study as one of several workers.

    Args:
        folder: The study's.
        storage: Where trials are kept.
        home: The working folder.
        name: How this worker is called.
    """
    spec = spec_in(folder)
    with open_storage(storage, folder, spec.name) as store:
        work(open_bench(spec, home, store), store, name)


def conclude_study(bench: Bench, store: StudyStorage, folder: Path, command: str) -> None:
    """Choose, meet test, save; done once in a study, by whoever comes first."""
    with store.claims.wait(FINISH, 24 * 3600.0) as claim:
        if store.attribute(OUTCOME) is not None:
            return
        see_trials(store, bench.spec)
        study = store.study([objective.direction for objective in bench.objectives])
        trials = [record_of(one) for one in study.get_trials(deepcopy=False)]
        chosen = choose(trials, bench.objectives, len(bench.splits.test))
        worker = Worker(bench, store, study, "0")
        account = store.account(bench.spec.budget)
        store.set_attribute(TEST, {"trials": bench.spec.trials})
        with remembering(bench.memo), ticking(account), settling(bench, account):
            outcome = finish(worker, chosen, trials, folder, command=command)
        told = sum(cost["calls"] for cost in outcome["costs"].values())
        outcome["costs"]["interrupted"] = Cost(calls=max(0, account.spent.calls - told)).to_json()
        claim.check()
        store.set_attribute(OUTCOME, outcome)


def snapshot_of(spec: StudySpec, store: StudyStorage) -> Snapshot:
    """What an open storage knows now."""
    study = store.study([one.direction for one in objectives_of(spec.objectives)], create=False)
    trials = tuple(record_of(one) for one in study.get_trials(deepcopy=False))
    outcome = store.attribute(OUTCOME)
    return Snapshot(spec, trials, store.account(spec.budget).spent, outcome is not None, outcome)


def _reporting(
    spec: StudySpec, store: StudyStorage, progress: Report | None
) -> contextlib.AbstractContextManager[None]:
    if progress is None:
        return contextlib.nullcontext()
    return repeating(lambda: progress(snapshot_of(spec, store)), REPORT_SECONDS)
