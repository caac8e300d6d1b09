"""A study from its file to its outcome: workers try arms, dev decides, test is met once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from querywright.errors import InputError, QuerywrightError
from querywright.models.ledger import Cost, Ledger
from querywright.models.memo import remembering
from querywright.optimize.study.account import Spent
from querywright.optimize.study.bench import Bench, open_lm, open_store_at
from querywright.optimize.study.building import build_space
from querywright.optimize.study.data import data_of
from querywright.optimize.study.finish import finish
from querywright.optimize.study.objectives import objectives_of
from querywright.optimize.study.reading import read_spec, spec_differences, write_spec
from querywright.optimize.study.records import RESULT, record_of
from querywright.optimize.study.select import choose, surviving
from querywright.optimize.study.space import seeded_sampler
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.storage import StudyStorage, open_storage
from querywright.optimize.study.trial import Worker
from querywright.optimize.study.types import TrialRecord

SPEC_FILE = "study.yaml"
SPEC, OUTCOME = "spec", "outcome"
"""Attributes of the study in its storage."""

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
    prepare_folder(spec, folder)
    where = storage or spec.storage
    with open_storage(where, folder, spec.name) as store:
        settle_spec(store, spec)
        if store.attribute(OUTCOME) is None:
            if workers == 1:
                with _reporting(spec, store, progress):
                    bench = open_bench(spec, home, store)
                    work(bench, store, "1")
                    conclude_study(bench, store, folder, command)
            elif where == "sqlite":
                raise InputError("an SQLite storage is for one process; leave --workers out, or use the journal")
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


def snapshot(folder: Path, storage: str | None = None) -> Snapshot:
    """How far a study is; nobody is disturbed and nothing is asked.

    Raises:
        InputError: The folder holds no study.
    """
    spec = spec_in(folder)
    with open_storage(storage or spec.storage, folder, spec.name) as store:
        return snapshot_of(spec, store)


def spec_in(folder: Path) -> StudySpec:
    """The study that a folder holds.

    Raises:
        InputError: It holds none.
    """
    if not (folder / SPEC_FILE).is_file():
        raise InputError(f"the folder {str(folder)!r} holds no study; name one that `querywright study run` made")
    return read_spec(folder / SPEC_FILE)


def prepare_folder(spec: StudySpec, folder: Path) -> None:
    """Make the folder of a study, or see that it is this one's.

    Raises:
        InputError: It holds something else.
    """
    file = folder / SPEC_FILE
    if file.is_file():
        _same_study(read_spec(file), spec, f"the folder {str(folder)!r}")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} is there and holds no study; give another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_spec(spec, file)


def settle_spec(store: StudyStorage, spec: StudySpec) -> None:
    """Note what a storage's study is about, or see that it is this one.

    Raises:
        InputError: It is another.
    """
    store.study([one.direction for one in objectives_of(spec.objectives)])
    with store.claims.wait("spec", TAKE_SECONDS):
        known = store.attribute(SPEC)
        if known is not None:
            before = read_spec(known)
            _same_study(before, spec, "the storage")
            if store.attribute(OUTCOME) is not None and before.trials != spec.trials:
                raise InputError(
                    "this study has met its test questions, which is done once; for more trials give another name and "
                    "another --out: what was answered is kept and costs nothing again"
                )
        store.set_attribute(SPEC, {**spec.to_json(), "storage": "journal"})


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
    return Bench(spec, splits, space, objectives_of(spec.objectives), lm, ledger, answers, folder)


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
            account.check()
            taken = _take(worker, store, spec)
            if taken is None:
                ended = [one for one in study.get_trials(deepcopy=False) if RESULT in one.user_attrs]
                if len(ended) >= spec.trials:
                    return
                time.sleep(IDLE_SECONDS)
                continue
            trial, claim, survivors = taken
            with claim:
                saved = bench.ledger.total.saved
                worker.run(trial, survivors)
            account.settle(Cost(saved=bench.ledger.total.saved - saved))
            _see_failures(worker)


def _take(worker: Worker, store: StudyStorage, spec: StudySpec) -> tuple[Any, Any, list[str]] | None:
    """A trial to work at, whose worker has died or a new one; None while others are at work at all there are."""
    import optuna

    study, space = worker.study, worker.bench.space
    with store.claims.wait("take", TAKE_SECONDS):
        trials = study.get_trials(deepcopy=False)
        for one in trials:
            if not one.state.is_finished():
                claim = store.claims.take(f"trial-{one.number}")
                if claim is not None:
                    return optuna.trial.Trial(study, one._trial_id), claim, _survivors(worker, trials, one.number)
        number = len(trials)
        if number >= spec.trials:
            return None
        if space.is_late(number) and any(not one.state.is_finished() for one in trials):
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
    return surviving(early, bench.objectives, bench.spec.survivors)


def _see_failures(worker: Worker) -> None:
    """End a study most of whose trials fail.

    Raises:
        QuerywrightError: No rewriting failed, or too many others did.
    """
    ended = worker.finished()
    failed = [one for one in ended if one.state == "failed"]
    if any(one.number == 0 for one in failed):
        raise QuerywrightError(f"no rewriting failed, and every arm is held against it: {failed[0].message}")
    if len(failed) >= MOST_FAILED and 2 * len(failed) > len(ended):
        raise QuerywrightError(f"{len(failed)} of {len(ended)} trials failed; the last: {failed[-1].message}")


def conclude_study(bench: Bench, store: StudyStorage, folder: Path, command: str) -> None:
    """Choose, meet test, save; done once in a study, by whoever comes first."""
    with store.claims.wait("finish", 24 * 3600.0):
        if store.attribute(OUTCOME) is not None:
            return
        study = store.study([objective.direction for objective in bench.objectives])
        trials = [record_of(one) for one in study.get_trials(deepcopy=False)]
        chosen = choose(trials, bench.objectives, len(bench.splits.test))
        worker = Worker(bench, store, study, "0")
        with remembering(bench.memo), _ticking(store.account(bench.spec.budget)):
            outcome = finish(
                bench, chosen, trials, lambda arm: worker.variant(arm)[0], folder, command=command
            )  # fmt: skip
        store.set_attribute(OUTCOME, outcome)


def snapshot_of(spec: StudySpec, store: StudyStorage) -> Snapshot:
    """What an open storage knows now."""
    study = store.study([one.direction for one in objectives_of(spec.objectives)])
    trials = tuple(record_of(one) for one in study.get_trials(deepcopy=False))
    outcome = store.attribute(OUTCOME)
    return Snapshot(spec, trials, store.account(spec.budget).spent, outcome is not None, outcome)


@contextlib.contextmanager
def _repeating(work: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do something now and then, beside the ``with`` block and once after it."""
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
        thread.join(seconds)
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
