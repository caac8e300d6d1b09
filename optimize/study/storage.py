"""The storage for a study's trials (Optuna's journal or PostgreSQL), and the locks for its workers."""

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
from querywright.files import append_line, locked, private
from querywright.models.postgres import server_options, unreachable
from querywright.optimize.contexts import quiet_optuna
from querywright.optimize.search.trials import ARM, TrialRecord
from querywright.optimize.search.worker import Locks
from querywright.optimize.study.spec import check_storage

JOURNAL_NAME, LOCKS_NAME = "journal.log", "locks"
LOCK_SECONDS = 60.0
"""Time that a worker waits while another worker writes to the journal."""


class StudyStorage(ExitStack, Locks):
    """A study's trials, attributes, and locks. Use it in a ``with`` block, which closes it.

    Args:
        name: The name of the study.
    """

    trials: Any
    """Optuna's storage."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.lock: Callable[[str], ExitStack | None]

    def take(self, name: str) -> ExitStack | None:
        """Return the lock with the given name (released when its process ends); None if another worker has it."""
        return self.lock(name)

    def records(self) -> tuple[TrialRecord, ...]:
        """Return the records of all trials whose arm has been chosen.

        Raises:
            InputError: The storage does not contain the study.
        """
        every = self.trials.get_all_trials(self._id(), deepcopy=False)
        return tuple(TrialRecord.of(one) for one in every if ARM in one.user_attrs)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the study, or the default.

        Raises:
            InputError: The storage does not contain the study.
        """
        return self.trials.get_study_user_attrs(self._id()).get(name, default)

    def set_attribute(self, name: str, value: Any) -> None:
        """Store a JSON value as an attribute of the study. Raises the same errors as ``attribute``."""
        self.trials.set_study_user_attr(self._id(), name, value)

    def _id(self) -> int:
        try:
            return int(self.trials.get_study_id_from_name(self.name))
        except KeyError:
            raise InputError(
                f"this storage does not contain a study named {self.name!r}; run the study first"
            ) from None


def open_storage(text: str, folder: Path, name: str) -> StudyStorage:
    """Open a study's storage, and create its folder if it is missing.

    Args:
        text: ``journal`` (a file in the folder, for several processes on one host), or
            ``postgresql://user:password@host/database`` (for several hosts).
        folder: The study's folder.
        name: The name of the study.

    Raises:
        InputError: The text does not name a storage, or the database driver is missing.
        QuerywrightError: The storage cannot be reached or written to.
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
                f"cannot write to the study folder {str(folder)!r} ({error.strerror}); choose a different one with "
                "--out"
            ) from error
        raise
    return opened


def storage_kind(text: str) -> str:
    """Return ``journal`` or ``postgresql`` for a storage.

    Raises:
        InputError: The text does not name a storage; the message shows only the scheme of an address.
    """
    return "postgresql" if "://" in check_storage(text) else text


@contextmanager
def plain_failures() -> Iterator[None]:
    """Convert database errors to a ``QuerywrightError`` without the address."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        cause: BaseException = error
        while isinstance(cause.__cause__, Exception):
            cause = cause.__cause__
        raise unreachable(cause) from None  # the driver's error contains the host and the user
    except (ValueError, LookupError) as error:  # Optuna read a damaged row
        last = traceback.extract_tb(error.__traceback__)[1:]
        if not any({"optuna", "sqlalchemy"} & set(Path(one.filename).parts) for one in last):
            raise
        raise QuerywrightError(
            f"cannot read a record of the study ({type(error).__name__}: {error}); restore the study's storage, or "
            "start a new study"
        ) from None


def _journal(path: Path) -> Any:
    """Return Optuna's journal without half-written records, with a lock that is released when its process ends."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    @contextmanager
    def refused() -> Iterator[None]:
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError, AssertionError) as error:
            raise InputError(
                f"cannot read a record in {path.name} ({type(error).__name__}); restore the file, or use a different "
                "--out (cached answers cost nothing)"
            ) from error

    class Journal(JournalFileBackend):
        def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
            logs = super().read_logs(log_number_from)
            while True:  # Optuna detects a damaged last record only if another record follows
                with refused():
                    log = next(logs, None)
                if log is None:
                    return
                yield log

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with locked(path.with_suffix(".lock"), seconds=LOCK_SECONDS):
                for log in logs:
                    # A record of a running trial may be lost in a power outage; the end of a trial must not.
                    line = json.dumps(log, separators=(",", ":")).encode()
                    append_line(path, line, durable="state" in log)

    with open(path, "ab", opener=private), refused():
        return JournalStorage(Journal(str(path)))


def _open_postgres(opened: StudyStorage, options: dict[str, Any]) -> None:
    from optuna.storages import RDBStorage, get_storage
    from sqlalchemy import NullPool, create_engine, text

    alone = {key: value for key, value in options.items() if key in {"connect_args", "hide_parameters"}}
    sessions = create_engine("postgresql+psycopg://", poolclass=NullPool, isolation_level="AUTOCOMMIT", **alone)

    def take(lock: str) -> ExitStack | None:
        """Return an advisory lock, which the server releases when its session ends."""
        digest = hashlib.sha256(f"{opened.name}\0{lock}".encode()).digest()
        key = int.from_bytes(digest[:8], "big", signed=True)
        held = ExitStack()
        session = held.enter_context(sessions.connect())
        if session.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}).scalar():
            return held
        held.close()
        return None

    opened.lock = take
    with opened.hold("tables"):  # two workers that create tables at the same time would fail
        # Optuna's own version check would leave connections open.
        storage = RDBStorage("postgresql+psycopg://", engine_kwargs=options, skip_compatibility_check=True)
    opened.callback(storage.engine.dispose)
    if storage.get_current_version() != storage.get_head_version():
        raise InputError(
            "the tables in this storage are from a different version of Optuna; use that version, or a different "
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
