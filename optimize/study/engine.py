"""A study from its file to its outcome: workers try arms, dev decides, test is met once."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from querywright.data.splits import data_hash
from querywright.errors import InputError, QuerywrightError
from querywright.models.ledger import Cost, Ledger
from querywright.models.memo import remembering
from querywright.optimize.study.account import Account, Spent
from querywright.optimize.study.bench import Bench, open_lm, open_store_at
from querywright.optimize.study.building import build_space, late_trials_of
from querywright.optimize.study.claims import ClaimLostError
from querywright.optimize.study.data import data_of
from querywright.optimize.study.finish import finish
from querywright.optimize.study.journal import FILE_NAME as JOURNAL_NAME
from querywright.optimize.study.objectives import objectives_of
from querywright.optimize.study.reading import read_spec, spec_differences, write_spec
from querywright.optimize.study.records import RESULT, record_of
from querywright.optimize.study.select import choose, surviving
from querywright.optimize.study.space import seeded_sampler
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.storage import StudyStorage, open_storage, storage_kind, with_plain_failures
from querywright.optimize.study.trial import Worker
from querywright.optimize.study.types import TrialRecord

SPEC_FILE = "study.yaml"
SPEC, DATA, TEST, OUTCOME = "spec", "data", "test", "outcome"
"""Attributes of the study in its storage."""

FINISH = "finish"
"""What is claimed to meet test."""

ELSEWHERE = "postgresql://"
"""The storage in the file of a study whose database is named on the command line, which is where a password goes."""

_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGSERVICE")
"""Variables that tell PostgreSQL's library where its server is."""

IDLE_SECONDS = 0.2
"""Between two looks of a worker that has nothing to do."""

TICK_SECONDS = 5.0
"""Between two entries of working time in the account."""

REPORT_SECONDS = 1.0
"""Between two looks at how far a study is."""

TAKE_SECONDS = 120.0
"""How long a worker waits for the others to take their trials."""

MOST_FAILED = 5
"""Failed trials, more than the others, that end a study: something is wrong with all of them."""

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
    where = _where(spec, storage)
    if workers > 1 and where == "sqlite":
        raise InputError("an SQLite storage is for one process; leave --workers out, or use the journal")
    check_folder(_placed(spec, where), folder)
    with open_storage(where, folder, spec.name) as store:
        settle_spec(store, spec)
        write_spec(_placed(spec, where), folder / SPEC_FILE)  # last, so that what is refused changes nothing
        if store.attribute(OUTCOME) is None:
            if workers == 1:
                with _reporting(spec, store, progress):
                    bench = open_bench(spec, home, store)
                    work(bench, store, "1")
                    conclude_study(bench, store, folder, command)
            else:
                from querywright.optimize.study.workers import work_in_processes

                with _reporting(spec, store, progress):
                    work_in_processes(folder, where, workers, home)
                    bench = open_bench(spec, home, store)
                    work(bench, store, "0")
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
    where = _where(spec, storage)
    if storage_kind(where) == "journal" and not (folder / JOURNAL_NAME).exists():
        return Snapshot(spec, (), Spent(), False, None)
    with open_storage(where, folder, spec.name) as store:
        return snapshot_of(spec, store)


def _where(spec: StudySpec, storage: str | None) -> str:
    """The storage of a study.

    Raises:
        InputError: Its address was given on the command line, and is not there.
    """
    if storage is None and spec.storage == ELSEWHERE and not any(name in os.environ for name in _LIBPQ):
        raise InputError(
            "this study is in a PostgreSQL database, whose address is not kept in its folder; give it with --storage"
        )
    return storage or spec.storage


def _placed(spec: StudySpec, where: str) -> StudySpec:
    """The study as its folder keeps it: with the kind of its storage, and no address but the one in its own file."""
    if storage_kind(where) == storage_kind(spec.storage):
        return spec
    return spec.model_copy(update={"storage": ELSEWHERE if storage_kind(where) == "postgresql" else where})


def spec_in(folder: Path) -> StudySpec:
    """The study that a folder holds.

    Raises:
        InputError: It holds none.
    """
    if not (folder / SPEC_FILE).is_file():
        raise InputError(f"the folder {str(folder)!r} holds no study; name one that `querywright study run` made")
    return read_spec(folder / SPEC_FILE)


def check_folder(spec: StudySpec, folder: Path) -> None:
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
    elif folder.exists() and (not folder.is_dir() or not all(map(_is_ours, list(folder.iterdir())))):
        raise InputError(f"{str(folder)!r} is there and holds no study; give another --out")


def _is_ours(path: Path) -> bool:
    """Whether a file is what another run writes, or ended over, before the study's file is there."""
    return path.name.startswith((f".{SPEC_FILE}.", "journal.", "study.sqlite", "spend.sqlite", "claims"))


def settle_spec(store: StudyStorage, spec: StudySpec) -> None:
    """Note what a storage's study is about, or see that it is this one.

    Raises:
        InputError: It is another.
    """
    study = store.study([one.direction for one in objectives_of(spec.objectives)])
    with store.claims.wait("spec", TAKE_SECONDS):
        known = store.attribute(SPEC)
        if known is not None:
            before = read_spec(known)
            _same_study(before, spec, "the storage")
            if before.trials != spec.trials:
                _see_test(store)
                _see_late(study, before)
        store.set_attribute(SPEC, {**spec.to_json(), "storage": "journal"})


def _see_test(store: StudyStorage) -> None:
    """Refuse more trials for a study that meets its test questions, or has met them.

    Raises:
        InputError: It does, or has.
    """
    claim = store.claims.take(FINISH)
    if claim is not None:
        claim.release()
    if claim is None or store.attribute(TEST) is not None:
        raise InputError(
            "this study has met its test questions, which is done once; for more trials give another name and "
            "another --out: what was answered is kept and costs nothing again"
        )


def _see_late(study: Any, spec: StudySpec) -> None:
    """Refuse more trials once techniques were chosen for the late ones.

    Raises:
        InputError: They were.
    """
    late = late_trials_of(spec)
    if late and len(study.get_trials(deepcopy=False)) > spec.trials - late:
        raise InputError(
            f"the late trials of this study have begun, for techniques that survived {spec.trials - late} trials; for "
            "more trials give another name and another --out: what was answered is kept and costs nothing again"
        )


def settle_data(store: StudyStorage, bench: Bench) -> None:
    """Note what questions and collections a study is about, or see that they are the same.

    Raises:
        InputError: They changed since it was begun.
    """
    now = {name: data_hash(part) for name, part in bench.splits._asdict().items()}
    now |= {f"the collection, by {engine}": bench.retriever(engine).fingerprint for engine in bench.space.engines}
    with store.claims.wait("data", TAKE_SECONDS):
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


def _see_trials(store: StudyStorage, spec: StudySpec) -> None:
    """End this run when another was given more trials: who is late and what is tested follows from their number.

    Raises:
        QuerywrightError: Another was.
    """
    trials = store.attribute(SPEC, {}).get("trials", spec.trials)
    if trials != spec.trials:
        raise QuerywrightError(
            f"another run gave this study {trials} trials, and goes on with them; this one knew of {spec.trials}"
        )


def _same_study(before: StudySpec, now: StudySpec, where: str) -> None:
    differences = spec_differences(before, now)
    if differences:
        raise InputError(
            f"{where} holds a study of the name {before.name!r} that differs: {'; '.join(differences)}. "
            "Undo that, or give another name and another --out"
        )


def open_bench(spec: StudySpec, home: Path | None, store: StudyStorage) -> Bench:
    """Open all that a trial needs."""
    folder, answers = open_store_at(home)
    ledger = Ledger()
    lm = open_lm(spec, answers, ledger, store.account(spec.budget))
    splits, readers = data_of(spec)
    space = build_space(spec, readers)
    bench = Bench(spec, splits, space, objectives_of(spec.objectives), lm, ledger, answers, folder)
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


def work(bench: Bench, store: StudyStorage, name: str) -> None:
    """Try arms until every trial has ended, this worker's and the others'.

    Args:
        bench: What is open.
        store: Where trials are kept.
        name: How this worker is called.
    """
    spec = bench.spec
    study = store.study(
        [objective.direction for objective in bench.objectives],
        seeded_sampler(spec.sampler, spec.seed, bench.space),
    )
    account = store.account(spec.budget)
    worker = Worker(bench, store, study, name)
    with remembering(bench.memo), _ticking(account):
        while True:
            taken = _take(worker, store, spec)
            if taken is None:
                ended = [one for one in study.get_trials(deepcopy=False) if RESULT in one.user_attrs]
                if len(ended) >= spec.trials:
                    return
                time.sleep(IDLE_SECONDS)
                continue
            trial, claim, survivors = taken
            with claim, contextlib.suppress(ClaimLostError):  # whoever takes it up next finds all that was answered
                if spec.budget.minutes is not None:  # the others are looked at before every call
                    account.check()
                with _settling(bench, account):
                    worker.run(trial, survivors, claim.check)
            _see_failures(worker)


@contextlib.contextmanager
def _settling(bench: Bench, account: Account) -> Iterator[None]:
    """Enter the calls that are saved in the ``with`` block, however it ends; those made enter themselves."""
    before = bench.ledger.total
    try:
        yield
    finally:
        spent = bench.spent_since(before)
        account.settle(Cost(saved=spent.saved, saved_tokens=spent.saved_tokens))


def _take(worker: Worker, store: StudyStorage, spec: StudySpec) -> tuple[Any, Any, list[str]] | None:
    """A trial to work at, whose worker has died or a new one; None while others are at work at all there are."""
    import optuna

    study, space = worker.study, worker.bench.space
    with store.claims.wait("take", TAKE_SECONDS):
        _see_trials(store, spec)
        trials = study.get_trials(deepcopy=False)
        for one in trials:
            claim = None if one.state.is_finished() else store.claims.take(f"trial-{one.number}")
            if claim is None:
                continue
            if not study._storage.get_trial(one._trial_id).state.is_finished():
                return optuna.trial.Trial(study, one._trial_id), claim, _survivors(worker, trials, one.number)
            claim.release()  # its worker ended it since
        number = len(trials)
        if number >= spec.trials:
            return None
        early = [one for one in trials if not space.is_late(one.number)]
        if space.is_late(number) and any(not one.state.is_finished() for one in early):
            return None  # who survives is known when the first phase has ended
        survivors = _survivors(worker, trials, number)
        trial = study.ask()
        claim = store.claims.take(f"trial-{trial.number}")
        if claim is None:
            raise QuerywrightError(f"trial {trial.number} is new, but another process holds it; run the study again")
        return trial, claim, survivors


def _survivors(worker: Worker, trials: Sequence[Any], number: int) -> list[str]:
    """The techniques that a trial may have; none where it is no late one, which has them all."""
    bench = worker.bench
    if not bench.space.is_late(number):
        return []
    early = [one for one in worker.finished(trials) if not bench.space.is_late(one.number)]
    return surviving(early, bench.objectives, bench.spec.survivors) or list(bench.space.chosen)


def _see_failures(worker: Worker) -> None:
    """End a study most of whose trials fail.

    Raises:
        QuerywrightError: They do.
    """
    ended = worker.finished()
    failed = [one for one in ended if one.state == "failed"]
    if len(failed) >= MOST_FAILED and 2 * len(failed) > len(ended):
        raise QuerywrightError(f"{len(failed)} of {len(ended)} trials failed; the last: {failed[-1].message}")


def conclude_study(bench: Bench, store: StudyStorage, folder: Path, command: str) -> None:
    """Choose, meet test, save; done once in a study, by whoever comes first."""
    with store.claims.wait(FINISH, 24 * 3600.0) as claim:
        if store.attribute(OUTCOME) is not None:
            return
        _see_trials(store, bench.spec)
        study = store.study([objective.direction for objective in bench.objectives])
        trials = [record_of(one) for one in study.get_trials(deepcopy=False)]
        chosen = choose(trials, bench.objectives, len(bench.splits.test))
        worker = Worker(bench, store, study, "0")
        account = store.account(bench.spec.budget)
        store.set_attribute(TEST, {"trials": bench.spec.trials})
        with remembering(bench.memo), _ticking(account), _settling(bench, account):
            outcome = finish(
                bench, chosen, trials, lambda arm: worker.variant(arm)[0], folder, command=command
            )  # fmt: skip
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


@contextlib.contextmanager
def _repeating(work: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do something now and then, beside the ``with`` block and once after it."""
    work = with_plain_failures(work)
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            with contextlib.suppress(QuerywrightError, OSError):
                work()

    thread = threading.Thread(target=repeat, daemon=True, name="querywright-study")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(QuerywrightError, OSError):
            work()


def _ticking(account: Any) -> contextlib.AbstractContextManager[None]:
    return _repeating(account.tick, TICK_SECONDS)


def _reporting(
    spec: StudySpec, store: StudyStorage, progress: Report | None
) -> contextlib.AbstractContextManager[None]:
    if progress is None:
        return contextlib.nullcontext()
    return _repeating(lambda: progress(snapshot_of(spec, store)), REPORT_SECONDS)
