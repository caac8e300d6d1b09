"""Run a study: workers run trials, a program is chosen on dev, and the best program is evaluated once on test."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from querywright.data.splits import data_hash
from querywright.errors import BudgetError, InputError, QuerywrightError
from querywright.models.usage import Cost
from querywright.optimize.artifacts.save import copied_lines, save_program
from querywright.optimize.artifacts.writers import ref_of
from querywright.optimize.evaluate import finite, stands
from querywright.optimize.report import render
from querywright.optimize.results import BASELINE, by_judges, today
from querywright.optimize.search.core import COPIED, Search, optuna_study
from querywright.optimize.search.outcome import TestOutcome, run_test
from querywright.optimize.search.trials import TrialRecord, standing
from querywright.optimize.search.worker import Worker
from querywright.optimize.study.results import Snapshot, Spent
from querywright.optimize.study.spec import StudySpec, read_spec, spec_differences, write_spec
from querywright.optimize.study.storage import (
    JOURNAL_NAME,
    LOCKS_NAME,
    StudyStorage,
    open_storage,
    plain_failures,
    storage_kind,
)
from querywright.progress import Progress
from querywright.technique_names import code_digest, names_code

SPEC_FILE = "study.yaml"
SPEC, BUDGET, DATA, TEST, OUTCOME, SPENT = "spec", "budget", "data", "test", "outcome", "spent"
"""The study's attributes in its storage."""

ELSEWHERE = "postgresql://"
"""The storage value in a study's file if its database address is not stored, because the address may contain a
password.
"""

_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGSERVICE")
"""Environment variables from which PostgreSQL's client library reads the server address."""

STORAGE = "QUERYWRIGHT_STORAGE"
"""Environment variable for a storage's address, so that other users on the machine cannot read the address."""

REPORT_SECONDS = 1.0
"""Minimum time between two reports of progress."""

WAIT_SECONDS = 60.0
"""Time for other workers to receive the answers to running LM calls and to notice that the study has ended."""

AGAIN = "use a different name and a different --out; cached answers cost nothing"

GOLDEN = 3
"""Number of golden questions in a saved program."""

RECOMMENDED, RUNNER_UP = "recommended", "runner-up"
"""Names of the artifacts: the recommended program, and the runner-up (the best arm or the baseline, whichever was not
recommended).
"""

_MADE = (
    "recommended",
    "verdict",
    "sentence",
    "corrected",
    "comparisons",
    "costs",
    "seeds",
    "data",
    "judges",
)
"""Parts of the outcome that are copied to an artifact's manifest."""

_logger = logging.getLogger(__name__)


@plain_failures()
def run_study(
    spec: StudySpec,
    folder: Path,
    open_search: Callable[[str | None, str], Search],
    *,
    reopen: bool = False,
    workers: int = 1,
    home: Path | None = None,
    storage: str | None = None,
    command: str = "",
    progress: Progress | None = None,
    tell: Callable[[str], object] = _logger.warning,
) -> Snapshot:
    """Run or resume a study.

    Trials are kept in Optuna's storage, and answers and the budget in the store, so the same call resumes a study that
    was interrupted or killed. Making the same call while the study runs adds a worker, even on a different host if both
    use the same PostgreSQL storage.

    Args:
        spec: The checked study.
        folder: The study's folder; it is created if it is missing.
        open_search: Opens the search, given the address of the PostgreSQL database that stores the answers (None for
            the workspace) and the budget's name.
        reopen: Whether to open the search even if the study is finished, to check that its data is unchanged. Default
            False.
        workers: Number of processes, 1 or more; the others run ``study resume``. Default 1.
        home: The workspace.
        storage: The storage's address, which replaces the address in ``spec``, because the address in ``spec`` has no
            password.
        command: The command or call that reruns the study, for the report.
        progress: Called after each question, and about once a second while other workers run.
        tell: Called with each warning. Default: write it to the log.

    Raises:
        InputError: The folder or the storage contains a different study, or something named in the study cannot be
            used.
        OutageError: The LM cannot be reached; nothing is lost.
        BudgetError: The budget is spent; nothing is lost.
        QuerywrightError: Most trials failed.
    """
    if workers < 1:
        raise InputError(f"workers must be 1 or more, but got {workers}")
    where = storage_of(spec, storage)
    kind = storage_kind(where)
    kept = spec
    if kind != storage_kind(spec.storage):  # the folder stores only the address in the study's own file
        kept = spec.model_copy(update={"storage": ELSEWHERE if kind == "postgresql" else where})
    _check_folder(kept, folder)
    is_new, unused = kind == "journal" and not folder.exists(), False
    try:
        with open_storage(where, folder, spec.name) as store:
            _settle_spec(store, spec)
            write_spec(kept, folder / SPEC_FILE)  # last, so that a rejected study changes nothing
            finished = store.attribute(OUTCOME) is not None
            if finished and not reopen:
                tell("this study is finished, so changes to its questions or collection have no effect")
            if reopen or not finished:
                with _workers_beside(0 if finished else workers - 1, folder, where, home):
                    try:
                        search = open_search(
                            where if kind == "postgresql" else None, f"study {store.attribute(BUDGET)}"
                        )
                    except BaseException:
                        unused = is_new and store.attribute(DATA) is None  # no other worker has opened the study
                        raise
                    search.progress, search.tell = progress, tell
                    _settle_data(store, search)
                    if not finished:
                        _work(store, search, folder, command)
            return _snapshot_of(spec, store)
    finally:
        if unused:  # the search could not be opened; a corrected call must not find this folder
            shutil.rmtree(folder, ignore_errors=True)


def _work(store: StudyStorage, search: Search, folder: Path, command: str) -> None:
    """Run trials until all have ended, and then evaluate on test."""
    spec = search.spec
    check = partial(_check_trials, store, spec.trials)
    worker = Worker(search, optuna_study(spec, store.trials), store, secrets.token_hex(2), check)
    worker.looked = looked = _looker(worker, store)
    try:
        worker.work()
        _conclude(worker, store, folder, command)
    finally:
        looked(force=True)


@plain_failures()
def snapshot(folder: Path, storage: str | None = None) -> Snapshot:
    """Return the trials and results of a study, which may be running.

    Args:
        folder: The study's folder.
        storage: The storage's address, if it is not in the folder.

    Raises:
        InputError: The folder does not contain a study.
    """
    spec = spec_in(folder)
    where = storage_of(spec, storage)
    if storage_kind(where) == "journal" and not (folder / JOURNAL_NAME).exists():
        return Snapshot(spec)
    with open_storage(where, folder, spec.name) as store:
        return _snapshot_of(spec, store)


def spec_in(folder: Path) -> StudySpec:
    """Return the study in a folder, even if its code cannot be imported; raise an ``InputError`` if there is none."""
    if not (folder / SPEC_FILE).is_file():
        raise InputError(
            f"the folder {str(folder)!r} does not contain a study; pass a folder that `querywright study run` created"
        )
    return read_spec(folder / SPEC_FILE, stored=True)


def storage_of(spec: StudySpec, storage: str | None) -> str:
    """Return the storage of a study.

    Raises:
        InputError: The study is in a database, but its address is not given.
    """
    if storage is None and spec.storage == ELSEWHERE and not any(name in os.environ for name in _LIBPQ):
        raise InputError(
            "this study is in a PostgreSQL database, but its folder does not store the address; pass the address "
            "with --storage"
        )
    return storage or spec.storage


@contextlib.contextmanager
def _workers_beside(count: int, folder: Path, storage: str, home: Path | None) -> Iterator[None]:
    """Run additional workers during the ``with`` block, each with the ``study resume`` command.

    If a worker is killed, another worker takes over its trial. If this process is killed, the workers continue.
    """
    command = [sys.executable, "-m", "querywright", "study", "resume", str(folder)]
    command += [] if home is None else ["--home", str(home)]
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    known.pop(STORAGE, None)
    known |= {STORAGE: storage} if "://" in storage else {}
    off = subprocess.DEVNULL
    said = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115 - closed below
    workers = [subprocess.Popen(command, env=known, stdin=off, stdout=off, stderr=file) for file in said]
    try:
        yield
    except BudgetError:
        raise  # the other workers end for the same reason
    except BaseException:
        for one in workers:
            one.send_signal(signal.SIGINT)
        raise
    finally:
        for one, file in zip(workers, said, strict=True):
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(WAIT_SECONDS)
            one.kill()
            with file:
                if one.wait() and sys.exc_info()[0] is None:
                    file.seek(0)
                    last = file.read().decode(errors="replace").strip().rpartition("\n")[2]
                    _logger.warning("a worker exited early with status %s: %s", one.returncode, last)


def _snapshot_of(spec: StudySpec, store: StudyStorage) -> Snapshot:
    """Return the content of an open storage."""
    trials = store.records()
    outcome: dict[str, Any] | None = store.attribute(OUTCOME)
    costs = {} if outcome is None else outcome["costs"]
    later = [Cost.from_json(cost) for name, cost in costs.items() if name not in {"search", "prompts"}]
    saved = sum(one.spent.saved for one in trials) + sum(one.saved for one in later)
    return Snapshot(spec, trials, Spent(saved=saved, **store.attribute(SPENT, {})), outcome)


def _check_trials(store: StudyStorage, mine: int) -> None:
    """Raise if another run added trials to the study, because the result on test depends on the number of trials."""
    trials = store.attribute(SPEC)["trials"]
    if trials != mine:
        raise QuerywrightError(
            f"another run changed this study from {mine} to {trials} trials; resume the study to join that run"
        )


def _conclude(worker: Worker, store: StudyStorage, folder: Path, command: str) -> None:
    """Choose a program, evaluate it on test, and save it; only one worker does this (another worker if it dies)."""
    search = worker.search
    with store.hold("finish"):
        if store.attribute(OUTCOME) is not None:
            return
        worker.check()
        store.set_attribute(TEST, {"trials": search.spec.trials})
        outcome = finish(search, worker.finished(), folder, command=command)
        told = sum(cost["calls"] for cost in outcome["costs"].values())
        lost = 0 if search.budget is None else max(0, search.budget.spent.calls - told)
        outcome["costs"]["interrupted"] = Cost(calls=lost).to_json()
        store.set_attribute(OUTCOME, outcome)


def finish(search: Search, trials: Sequence[TrialRecord], folder: Path, *, command: str) -> dict[str, Any]:
    """Evaluate on test, save programs in the study's folder, and return the outcome as plain data.

    A repeated call returns the same result.

    Args:
        search: The search.
        trials: All trials.
        folder: The study's folder.
        command: The command that reruns the study.
    """
    began = search.judged
    tested = run_test(search, trials)
    chosen = tested.chosen
    prompts = sum((one.prompt_spent for one in trials), Cost())
    costs = {"search": sum((one.spent for one in trials), Cost()) - prompts, "prompts": prompts, **tested.costs}
    if search.judging:
        costs["judges"] = sum((one.judged for one in trials), search.judged - began)
    outcome: dict[str, Any] = {
        "recommended": tested.recommended,
        "verdict": tested.verdict,
        "sentence": tested.sentence,
        "best": None if chosen.best is None else _of_trial(chosen.best, tested.best),
        "plain": _of_trial(chosen.plain, BASELINE),
        "front": [one.number for one in chosen.front],
        "arms": {name: arm.to_json() for name, arm in tested.arms.items()},
        "corrected": chosen.corrected,
        "reader_prompts": tested.reader_prompts.to_json(),
        "failed_on_test": dict(tested.failed),
        "test": [one.to_json(rows=True) for one in tested.rows],
        "comparisons": [one.to_json() for one in tested.comparisons],
        "judges": search.judge_facts,
        "hints": [*search.hints, *tested.hints],
        "notes": list(tested.notes),
        "remarks": list(tested.remarks),
        "costs": {name: cost.to_json() for name, cost in costs.items()},
        "command": command,
        "seeds": {"study": search.spec.seed},
        "questions": [one.to_json() for one in (*search.splits.dev, *search.splits.test, *search.reader_check)],
        "data": {name: {"n": len(part), "sha256": data_hash(part)} for name, part in search.data.items()},
    }
    if search.spec.slices:
        outcome["slices"] = {one.id: dict(one.slices) for one in search.splits.test}
    if copied := _copied_prompts(search, trials):
        outcome["copied_prompts"] = copied
    before = search.total
    _save(search, tested, outcome, folder)
    outcome["costs"]["saving"] = search.spent_since(before).to_json()
    return outcome


def _copied_prompts(search: Search, trials: Sequence[TrialRecord]) -> dict[str, list[str]]:
    """Return the training texts that were copied into prompts, by prompt name, whichever worker tried the prompts."""
    for one in trials:
        if search.spec.allow_copies and one.state == "complete":
            search.variant(one.arm)  # records its copies
    found = {name: [*map(str, copies)] for name, copies in search.copied.items()}
    for one in trials:
        if one.state == "failed" and COPIED in one.message:
            found.setdefault(f"{one.arm.technique}, {one.arm.prompt}", [one.message])
    return found


def _of_trial(record: TrialRecord, name: str) -> dict[str, Any]:
    values = {key: finite(value) for key, value in record.values.items()}
    return {"name": name, "number": record.number, "arm": record.arm.to_json(), "values": values}


def _save(search: Search, tested: TestOutcome, outcome: dict[str, Any], folder: Path) -> None:
    """Save the recommended program, the runner-up, and the rest of the front as artifacts."""
    copied = outcome.get("copied_prompts", {})
    made = {"study": search.spec.name, **{key: outcome[key] for key in _MADE}}
    made |= {"copied_prompts": copied} if copied else {}
    made["reader_prompts"] = tested.reader_prompts.name
    about = f"from the study `{search.spec.name}` of {today()} for the LM `{search.lm.model}`."
    for name, arm in tested.arms.items():
        if name.startswith("front"):
            called = name.replace(", trial ", "-")
        elif name in {tested.recommended, tested.best, BASELINE}:
            called = RECOMMENDED if name == tested.recommended else RUNNER_UP
        else:
            continue  # untuned
        advice = "" if name == tested.recommended else f" The study recommends **{tested.recommended}**."
        card = render(
            "program.md",
            name=called,
            program=tested.programs[name],
            made=f" ({name}), {about}{advice}",
            sentence=tested.sentence,
            said=copied_lines(copied, allowed=search.spec.allow_copies),
            tested=tested.rows,
            note=by_judges(search.judge_facts),
            metrics=list(dict.fromkeys(metric for one in tested.rows for metric in one.metrics)),
            sentences=(),
        )
        save_program(
            folder / "artifacts" / called,
            tested.programs[name],
            lm=search.lm,
            asked=search.splits.dev[:GOLDEN],
            threads=search.threads,
            made={**made, "arm": arm.to_json(), "name": name},
            card=card,
        )


def _looker(worker: Worker, store: StudyStorage) -> Callable[..., None]:
    """Return a function that stores the cost so far for all workers and shows their trials' scores."""
    search, last, most = worker.search, 0.0, worker.search.spec.budget.calls
    earlier, start = store.attribute(SPENT, {}), search.total + search.judged

    def made() -> dict[str, Any]:
        if search.budget is not None:
            return search.budget.spent._asdict()
        cost = search.total + search.judged - start  # without a budget there is only one worker
        return {name: earlier.get(name, 0) + getattr(cost, name) for name in ("calls", "tokens", "dollars")}

    def calls() -> str:
        return f"{made()['calls']} LM calls{'' if most is None else f' of at most {most}'}"

    def look(force: bool = False) -> None:
        nonlocal last
        spent = made()
        if spent != store.attribute(SPENT):
            store.set_attribute(SPENT, spent)
        if search.progress is not None and (force or time.monotonic() - last > REPORT_SECONDS):
            told = partial(standing, worker.records(), search.objectives[0], len(search.splits.dev))
            stands(search.progress, told, calls)
            last = time.monotonic()

    return look


def _check_folder(spec: StudySpec, folder: Path) -> None:
    """Raise if a folder contains a different study or unrelated files."""
    if (folder / SPEC_FILE).is_file():
        before = spec_in(folder)
        _same_study(before, spec, f"the folder {str(folder)!r}")
        kinds = storage_kind(before.storage), storage_kind(spec.storage)
        if kinds[0] != kinds[1]:
            raise InputError(
                f"the study is stored in {kinds[0]}, not in {kinds[1]}; pass the address of its storage with --storage"
            )
        return
    ours = (f".{SPEC_FILE}.", Path(JOURNAL_NAME).stem, LOCKS_NAME)  # written before the study's file
    if folder.exists() and (not folder.is_dir() or not all(one.name.startswith(ours) for one in folder.iterdir())):
        raise InputError(f"{str(folder)!r} already exists but does not contain a study; use a different --out")


def _settle_spec(store: StudyStorage, spec: StudySpec) -> None:
    """Store the specification of a new study, or raise if the storage contains a different one."""
    optuna_study(spec, store.trials)
    with store.hold("ask"):
        known = store.attribute(SPEC)
        if known is None:
            store.set_attribute(BUDGET, secrets.token_hex(16))
        else:
            before = read_spec(known, stored=True)
            _same_study(before, spec, "the storage")
            if before.trials != spec.trials and store.attribute(TEST) is not None:
                raise InputError(
                    f"this study's test runs only once and already ran after {before.trials} trials; for more "
                    f"trials, {AGAIN}"
                )
        store.set_attribute(SPEC, {**spec.to_json(), "storage": "journal"})


def _settle_data(store: StudyStorage, search: Search) -> None:
    """Store the digests of a new study's questions, collections, judges, and code, or raise if they changed."""
    now = {f"the {name} questions": data_hash(part) for name, part in search.data.items()}
    for engine in search.space.engines:
        where = f"the retriever {engine}" if engine in search.spec.retrievers else f"the collection (engine {engine})"
        now[where] = search.retriever(engine).fingerprint
    metrics = [*search.spec.objectives, *(one.metric for one in search.spec.prompts.values() if one.metric)]
    code = [name for name in (*search.spec.techniques, *metrics) if names_code(name)]
    now |= {f"the code of {name}": code_digest(name) for name in code}
    now |= {f"the writer {name}": str(ref_of(one)) for name, one in search.writers.items() if one is not None}
    now |= {f"the judge {one['judge']}": f"{one['digest']} {one['lm_digest']}" for one in search.judge_facts}
    with store.hold("ask"):
        before = store.attribute(DATA)
        if before is None:
            store.set_attribute(DATA, now)
            return
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        raise InputError(
            "these changed since this study started, so old and new trials cannot be compared: "
            f"{', '.join(changed)}; undo the change, or {AGAIN}"
        )


def _same_study(before: StudySpec, now: StudySpec, where: str) -> None:
    differences = spec_differences(before, now)
    if differences:
        raise InputError(
            f"{where} contains a different study named {before.name!r}: {'; '.join(differences)}. "
            "Undo the change, or use a different name and a different folder"
        )
