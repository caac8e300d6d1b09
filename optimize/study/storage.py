"""Where the trials of a study are kept: Optuna's journal or PostgreSQL storage; and the locks of its workers."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from querywright.errors import InputError, QuerywrightError
from querywright.files import append_line, locked
from querywright.models.postgres import server_options, unreachable
from querywright.optimize.contexts import quiet_optuna
from querywright.optimize.search.trials import ARM, TrialRecord
from querywright.optimize.search.worker import Locks
from querywright.optimize.study.spec import check_storage

JOURNAL_NAME, LOCKS_NAME = "journal.log", "locks"
LOCK_SECONDS = 60.0
"""How long a worker waits for another that writes to the journal."""


class StudyStorage(ExitStack, Locks):
    """The trials, attributes and locks of a study, closed by its ``with`` block.

    Args:
        name: The study's.
    """

    trials: Any
    """Optuna's storage."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.lock: Callable[[str], ExitStack | None]

    def take(self, name: str) -> ExitStack | None:
        """Take the lock of a name, which ends with the process that has it; None if another worker has it."""
        return self.lock(name)

    def records(self) -> tuple[TrialRecord, ...]:
        """Return the records of all trials whose arm is settled.

        Raises:
            InputError: There is no such study.
        """
        every = self.trials.get_all_trials(self._id(), deepcopy=False)
        return tuple(TrialRecord.of(one) for one in every if ARM in one.user_attrs)

    def attribute(self, name: str, default: Any = None) -> Any:
        """A value that was kept with the study, or the default.

        Raises:
            InputError: There is no such study.
        """
        return self.trials.get_study_user_attrs(self._id()).get(name, default)

    def set_attribute(self, name: str, value: Any) -> None:
        """Keep a JSON value with the study; it raises what ``attribute`` raises."""
        self.trials.set_study_user_attr(self._id(), name, value)

    def _id(self) -> int:
        try:
            return int(self.trials.get_study_id_from_name(self.name))
        except KeyError:
            raise InputError(f"there is no study {self.name!r} in this storage; run it first") from None


def open_storage(text: str, folder: Path, name: str) -> StudyStorage:
    """Open the storage of a study of this name, whose folder is made where it is not there.

    Args:
        text: ``journal`` (a file in the folder, for any number of processes of a host), or
            ``postgresql://user:password@host/database`` (for any number of hosts).
        folder: The study's.
        name: The study's.

    Raises:
        InputError: There is no such storage, or its driver is missing.
        QuerywrightError: It cannot be reached or written.
    """
    kind, opened = storage_kind(text), StudyStorage(name)
    opened.enter_context(quiet_optuna())
    try:
        with plain_failures():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / LOCKS_NAME).mkdir(mode=0o700, exist_ok=True)
            opened.lock = partial(_file_lock, folder / LOCKS_NAME)
            if kind == "postgresql":
                _open_postgres(opened, server_options(text))
            else:
                opened.trials = _journal(folder / JOURNAL_NAME)
    except BaseException as error:
        opened.close()
        if isinstance(error, OSError):
            raise QuerywrightError(
                f"the study's folder {str(folder)!r} cannot be written ({error.strerror}); name another with --out"
            ) from error
        raise
    return opened


def storage_kind(text: str) -> str:
    """``journal`` or ``postgresql``, of what ``open_storage`` is given.

    Raises:
        InputError: There is no such storage; no more of an address than its scheme is shown.
    """
    return "postgresql" if "://" in check_storage(text) else text


@contextmanager
def plain_failures() -> Iterator[None]:
    """Say in plain words that a database failed, without its address in any error."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        cause: BaseException = error
        while isinstance(cause.__cause__, Exception):
            cause = cause.__cause__
        raise unreachable(cause) from None  # the driver's error names host and user
    except (ValueError, LookupError) as error:  # of a row that is damaged, as Optuna or its database reads it
        last = traceback.extract_tb(error.__traceback__)[1:]
        if not any({"optuna", "sqlalchemy"} & set(Path(one.filename).parts) for one in last):
            raise
        said = f"a record of the study cannot be read ({type(error).__name__}: {error}); restore it, or begin another"
        raise QuerywrightError(said) from None


def _journal(path: Path) -> Any:
    """Optuna's journal under a lock that ends with its process, and without the half of a record that one left."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    @contextmanager
    def refused() -> Iterator[None]:
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError, AssertionError) as error:
            raise InputError(
                f"a record of {path.name} cannot be read ({type(error).__name__}); restore the file, or give another "
                "--out: what was answered is kept"
            ) from error

    class Journal(JournalFileBackend):
        def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
            logs = super().read_logs(log_number_from)
            while True:  # a damaged last record is noticed only where another one follows it
                with refused():
                    log = next(logs, None)
                if log is None:
                    return
                yield log

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with locked(path.with_suffix(".lock"), seconds=LOCK_SECONDS):
                for log in logs:
                    # What a power cut takes of a trial under way is found again; one that has ended is on disk.
                    line = json.dumps(log, separators=(",", ":")).encode()
                    append_line(path, line, durable="state" in log)

    with refused():
        return JournalStorage(Journal(str(path)))


def _open_postgres(opened: StudyStorage, options: dict[str, Any]) -> None:
    from optuna.storages import RDBStorage, get_storage
    from sqlalchemy import NullPool, create_engine, text

    alone = {key: value for key, value in options.items() if key in {"connect_args", "hide_parameters"}}
    sessions = create_engine("postgresql+psycopg://", poolclass=NullPool, isolation_level="AUTOCOMMIT", **alone)

    def take(lock: str) -> ExitStack | None:
        """An advisory lock of its session, which the server gives back when the session ends."""
        digest = hashlib.sha256(f"{opened.name}\0{lock}".encode()).digest()
        key = int.from_bytes(digest[:8], "big", signed=True)
        held = ExitStack()
        session = held.enter_context(sessions.connect())
        if session.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}).scalar():
            return held
        held.close()
        return None

    opened.lock = take
    with opened.hold("tables"):  # one worker makes them: PostgreSQL lets two try, and fails one of them
        # Optuna's own check of the version would leave connections open.
        storage = RDBStorage("postgresql+psycopg://", engine_kwargs=options, skip_compatibility_check=True)
    opened.callback(storage.engine.dispose)
    if storage.get_current_version() != storage.get_head_version():
        raise InputError(
            "the tables of this storage were made by another version of Optuna; use that version, or name another "
            "storage"
        )
    opened.trials = get_storage(storage)


def _file_lock(folder: Path, name: str) -> ExitStack | None:
    held = ExitStack()
    try:
        held.enter_context(locked(folder / f"{name}.lock", BlockingIOError()))
    except BlockingIOError:
        return None
    return held
