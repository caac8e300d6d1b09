"""A study from its file to its outcome: workers try arms, dev decides, test is met once."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from querywright.data.splits import data_hash
from querywright.errors import InputError
from querywright.models.usage import Cost
from querywright.optimize.artifacts.rewriters import ref_of
from querywright.optimize.study.building import late_trials_of
from querywright.optimize.study.finish import finish
from querywright.optimize.study.objectives import objectives_of
from querywright.optimize.study.reading import read_spec, spec_differences, write_spec
from querywright.optimize.study.resources import Bench, open_bench
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.status import minutes_busy
from querywright.optimize.study.storage import (
    JOURNAL_NAME,
    SQLITE_NAME,
    StudyStorage,
    open_storage,
    plain_failures,
    storage_kind,
)
from querywright.optimize.study.trial import SPEC, Worker
from querywright.optimize.study.types import Snapshot, Spent, TrialRecord
from querywright.optimize.study.workers import workers_beside

SPEC_FILE = "study.yaml"
BUDGET, DATA, TEST, OUTCOME, SPENT = "budget", "data", "test", "outcome", "spent"
"""Attributes of the study in its storage, beside that of its specification."""

ELSEWHERE = "postgresql://"
"""The storage in the file of a study whose database is named on the command line, which is where a password goes."""

_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGSERVICE")
"""Variables that tell PostgreSQL's library where its server is."""

REPORT_SECONDS = 1.0
"""Between two looks at how far a study is, at least."""

Report = Callable[[Snapshot], None]


@plain_failures()
def run_study(
    spec: StudySpec,
    folder: Path,
    *,
    workers: int = 1,
    home: Path | None = None,
    storage: str | None = None,
    command: str = "",
    name: str = "1",
    progress: Report | None = None,
) -> Snapshot:
    """Run a study to its end, or go on with it.

    Trials are in Optuna's storage, answers and the budget in the store, so the same call after an interruption, a kill
    or a stop goes on from there. The same call once more while it runs is one more worker, on another machine too
    where both are given the same PostgreSQL storage.

    Args:
        spec: What is asked for, checked.
        folder: Where it is kept; made when missing.
        workers: Processes, 1 or more. Default 1: this one.
        home: The working folder.
        storage: Instead of the one in ``spec``, which is where a password has no place.
        command: What makes the study again, for the report.
        name: How this worker is called.
        progress: Called after a trial, and every second or so while others are at work.

    Raises:
        InputError: The folder or the storage holds another study, or something that was named cannot be used.
        OutageError: The LM is out of reach; nothing is lost.
        BudgetError: The budget is spent; nothing is lost.
        QuerywrightError: Most trials fail.
    """
    if workers < 1:
        raise InputError(f"workers must be 1 or more, but got {workers}")
    where = storage_of(spec, storage)
    kind = storage_kind(where)
    if workers > 1 and kind == "sqlite":
        raise InputError("an SQLite storage is for one process; leave --workers out, or use the journal")
    kept = spec
    if kind != storage_kind(spec.storage):  # the folder keeps no address but the one in the study's own file
        kept = spec.model_copy(update={"storage": ELSEWHERE if kind == "postgresql" else where})
    _check_folder(kept, folder)
    with open_storage(where, folder, spec.name) as store:
        _settle_spec(store, spec)
        write_spec(kept, folder / SPEC_FILE)  # last, so that what is refused changes nothing
        if store.attribute(OUTCOME) is None:
            with workers_beside(workers - 1, folder, where, home):
                url = where if kind == "postgresql" else None
                bench = open_bench(spec, home, url, budget=f"study {store.attribute(BUDGET)}")
                _settle_data(store, bench)
                looked = _looker(spec, store, bench, progress)
                worker = Worker(bench, store, name, looked)
                try:
                    worker.work()
                    _conclude(worker, folder, command)
                finally:
                    looked(force=True)
        return snapshot_of(spec, store)


def resume_study(
    folder: Path, *, changes: Mapping[str, Any] | None = None, storage: str | None = None, **options: Any
) -> Snapshot:
    """Go on with a study that was interrupted, killed or stopped.

    Args:
        folder: The study's.
        changes: New values of ``trials``, ``budget``, ``threads`` or ``max_failures``.
        storage: As of ``run_study``,
        options: and so are ``workers``, ``home``, ``command``, ``name`` and ``progress``.

    Raises:
        InputError: The folder holds no study, or what ``run_study`` raises.
    """
    spec = spec_in(folder)
    if changes:
        data = spec.to_json()
        budget = {**data["budget"], **changes.get("budget", {})}
        spec = read_spec({**data, **changes, "budget": budget})
    return run_study(spec, folder, storage=storage, **options)


@plain_failures()
def snapshot(folder: Path, storage: str | None = None) -> Snapshot:
    """How far a study is; nobody is disturbed and nothing is asked.

    Raises:
        InputError: The folder holds no study.
    """
    spec = spec_in(folder)
    where = storage_of(spec, storage)
    if storage_kind(where) == "journal" and not (folder / JOURNAL_NAME).exists():
        return Snapshot(spec)
    with open_storage(where, folder, spec.name) as store:
        return snapshot_of(spec, store)


def snapshot_of(spec: StudySpec, store: StudyStorage) -> Snapshot:
    """What an open storage knows now."""
    study = store.study([one.direction for one in objectives_of(spec.objectives)], create=False)
    trials = tuple(TrialRecord.of(one) for one in study.get_trials(deepcopy=False))
    outcome, paid = store.attribute(OUTCOME), store.attribute(SPENT, {})
    later = [Cost.from_json(cost) for name, cost in (outcome or {}).get("costs", {}).items() if name not in _TRIALS]
    saved = sum(one.spent.saved for one in trials) + sum(one.saved for one in later)
    minutes = minutes_busy(trials) + (outcome or {}).get("seconds", 0.0) / 60
    return Snapshot(spec, trials, Spent(saved=saved, minutes=minutes, **paid), outcome is not None, outcome)


_TRIALS = ("search", "prompts")
"""The stages of the outcome that its trials paid."""


def spec_in(folder: Path) -> StudySpec:
    """The study that a folder holds.

    Raises:
        InputError: It holds none.
    """
    if not (folder / SPEC_FILE).is_file():
        raise InputError(f"the folder {str(folder)!r} holds no study; name one that `querywright study run` made")
    return read_spec(folder / SPEC_FILE)


def storage_of(spec: StudySpec, storage: str | None) -> str:
    """The storage of a study.

    Raises:
        InputError: Its address was given on the command line, and is not there.
    """
    if storage is None and spec.storage == ELSEWHERE and not any(name in os.environ for name in _LIBPQ):
        raise InputError(
            "this study is in a PostgreSQL database, whose address is not kept in its folder; give it with --storage"
        )
    return storage or spec.storage


def _conclude(worker: Worker, folder: Path, command: str) -> None:
    """Choose, meet test, save; done once in a study, by whoever comes first, and again by whoever finds it undone."""
    store, began = worker.storage, time.time()
    with store.hold("finish"):
        if store.attribute(OUTCOME) is not None:
            return
        worker.see_trials()
        store.set_attribute(TEST, {"trials": worker.bench.spec.trials})
        worker.bench.progress = worker.within_minutes(began)
        outcome = finish(worker, folder, command=command)
        budget, told = worker.bench.budget, sum(cost["calls"] for cost in outcome["costs"].values())
        lost = 0 if budget is None else max(0, budget.spent.calls - told)
        outcome["costs"]["interrupted"] = Cost(calls=lost).to_json()
        store.set_attribute(OUTCOME, {**outcome, "seconds": round(time.time() - began, 3)})


def _looker(spec: StudySpec, store: StudyStorage, bench: Bench, progress: Report | None) -> Callable[..., None]:
    """Keeps what was spent where everybody sees it, and tells how far the study is."""
    last = 0.0

    def look(force: bool = False) -> None:
        nonlocal last
        spent = bench.budget.spent._asdict() if bench.budget is not None else {}
        if spent != store.attribute(SPENT):
            store.set_attribute(SPENT, spent)
        if progress is not None and (force or time.monotonic() - last > REPORT_SECONDS):
            progress(snapshot_of(spec, store))
            last = time.monotonic()

    return look


def _check_folder(spec: StudySpec, folder: Path) -> None:
    """See that a folder is this study's, or free.

    Raises:
        InputError: It holds something else.
    """
    file = folder / SPEC_FILE
    if file.is_file():
        before = read_spec(file)
        _same_study(before, spec, f"the folder {str(folder)!r}")
        if storage_kind(before.storage) != storage_kind(spec.storage):
            raise InputError(
                f"the study in the folder {str(folder)!r} is kept in the storage {storage_kind(before.storage)}, not "
                f"in {storage_kind(spec.storage)}, where it would begin anew; give the same with --storage, or another "
                "--out"
            )
    elif folder.exists() and (not folder.is_dir() or not all(map(_is_ours, folder.iterdir()))):
        raise InputError(f"{str(folder)!r} is there and holds no study; give another --out")


def _is_ours(path: Path) -> bool:
    """Whether a file is what another run writes, or ended over, before the study's file is there."""
    return path.name.startswith((f".{SPEC_FILE}.", JOURNAL_NAME.partition(".")[0], SQLITE_NAME, "locks"))


def _settle_spec(store: StudyStorage, spec: StudySpec) -> None:
    """Note what a storage's study is about, or see that it is this one.

    Raises:
        InputError: It is another, or can have no more trials.
    """
    study = store.study([one.direction for one in objectives_of(spec.objectives)])
    with store.hold("ask"):
        known = store.attribute(SPEC)
        if known is None:
            store.set_attribute(BUDGET, uuid.uuid4().hex)
        else:
            before = read_spec(known)
            _same_study(before, spec, "the storage")
            late = late_trials_of(before)
            again = "give another name and another --out: what was answered is kept and costs nothing again"
            if before.trials != spec.trials and store.attribute(TEST) is not None:
                raise InputError(
                    f"this study has met its test questions, which is done once; for more trials {again}"
                )  # fmt: skip
            if before.trials != spec.trials and late and len(study.get_trials(deepcopy=False)) > before.trials - late:
                raise InputError(
                    "the late trials of this study have begun, for techniques that survived "
                    f"{before.trials - late} trials; for more trials {again}"
                )
        store.set_attribute(SPEC, {**spec.to_json(), "storage": "journal"})


def _settle_data(store: StudyStorage, bench: Bench) -> None:
    """Note what questions and collections a study is about, or see that they are the same.

    Raises:
        InputError: They changed since it was begun.
    """
    now = {name: data_hash(part) for name, part in bench.splits._asdict().items()}
    now |= {"reader_check": data_hash(bench.reader_check)} if bench.reader_check else {}
    now |= {f"the collection, by {engine}": bench.retriever(engine).fingerprint for engine in bench.space.engines}
    now |= {} if bench.rewriter is None else {"the rewriter": str(ref_of(bench.rewriter))}
    with store.hold("ask"):
        before = store.attribute(DATA)
        if before is None:
            store.set_attribute(DATA, now)
            return
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        raise InputError(
            f"{', '.join(changed)} changed since this study was begun, so its trials cannot be compared with new ones; "
            "undo that, or give another name and another --out: what was answered is kept"
        )


def _same_study(before: StudySpec, now: StudySpec, where: str) -> None:
    differences = spec_differences(before, now)
    if differences:
        raise InputError(
            f"{where} holds a study of the name {before.name!r} that differs: {'; '.join(differences)}. "
            "Undo that, or give another name and another --out"
        )
