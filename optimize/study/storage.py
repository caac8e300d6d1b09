"""Where the trials of a study are kept: a journal, a SQLite file, PostgreSQL, or memory."""

from __future__ import annotations

import fcntl
import functools
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from querywright.errors import InputError, QuerywrightError
from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.study.account import FILE_NAME as SPEND_NAME
from querywright.optimize.study.account import Account, spend_file, spend_in_memory
from querywright.optimize.study.claims import Claims, FileClaims, MemoryClaims
from querywright.optimize.study.journal import FILE_NAME as JOURNAL_NAME
from querywright.optimize.study.journal import open_journal
from querywright.optimize.study.postgres import SCHEMES, PostgresServer, unreachable
from querywright.optimize.study.postgres_claims import PostgresClaims
from querywright.optimize.study.spec import BudgetSpec

SQLITE_NAME = "study.sqlite"
CLAIMS_NAME = "claims"
SETUP_SECONDS = 60.0
"""How long one worker waits for another to make the tables."""

P = ParamSpec("P")
R = TypeVar("R")


class StudyStorage:
    """A study's trials, attributes, claims and account, closed by its ``with`` block.

    Made by ``open_storage`` and ``memory_storage``.

    Args:
        kind: ``journal``, ``sqlite``, ``postgresql`` or ``memory``.
        name: The study's name.
        trials: Optuna's storage.
        claims: Who works at what.
        spend: Makes the engine of the account's database.
        closing: What is closed with it.
    """

    def __init__(
        self, kind: str, name: str, trials: Any, claims: Claims, spend: Callable[[], Any], closing: ExitStack
    ) -> None:
        self.kind = kind
        self.name = name
        self.claims = claims
        self._trials = trials
        self._spend = spend
        self._closing = closing
        self._accounts: dict[BudgetSpec, Account] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<the {self.kind} storage of the study {self.name!r}>"

    def __enter__(self) -> StudyStorage:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all claims and close files and connections."""
        self._closing.close()

    def study(self, directions: Sequence[str], sampler: Any = None, *, create: bool = True) -> Any:
        """Optuna's study.

        Args:
            directions: ``maximize`` or ``minimize`` for each objective.
            sampler: What proposes trials. Default Optuna's.
            create: Whether it is made where it is not there. Default True.

        Returns:
            An ``optuna.Study``.

        Raises:
            InputError: It is not there and not to be made, or was made for other directions.
        """
        import optuna

        begun: Any = list(directions)
        with quiet_optuna():
            if create:
                # Two workers that begin together: Optuna makes one study and gives it to both.
                with self.claims.wait("make the study", SETUP_SECONDS):
                    study = optuna.create_study(
                        storage=self._trials,
                        study_name=self.name,
                        directions=begun,
                        sampler=sampler,
                        load_if_exists=True,
                    )
            else:
                self._id()
                study = optuna.load_study(study_name=self.name, storage=self._trials, sampler=sampler)
        there = [direction.name.lower() for direction in study.directions]
        if there != begun:
            raise InputError(
                f"the study {self.name!r} in this storage was begun for {', '.join(there)} (one an objective), not for "
                f"{', '.join(directions)}; go on with its objectives, or give the new study another name"
            )
        return study

    def attribute(self, name: str, default: Any = None) -> Any:
        """A value that was kept with the study, or the default.

        Raises:
            InputError: There is no such study.
        """
        return self._trials.get_study_user_attrs(self._id()).get(name, default)

    def set_attribute(self, name: str, value: Any) -> None:
        """Keep a value with the study.

        Args:
            name: What it is.
            value: JSON.

        Raises:
            InputError: There is no such study.
        """
        self._trials.set_study_user_attr(self._id(), name, value)

    def account(self, budget: BudgetSpec) -> Account:
        """The study's account, opened once; closed with this storage.

        Args:
            budget: Where the study stops.

        Raises:
            LMStoreError: Its database cannot be used.
        """
        with self._lock:
            if budget not in self._accounts:  # each has connections of its own, and a study is looked at all the time
                account = Account(self._spend(), self.name, budget)
                with self.claims.wait("make the account", SETUP_SECONDS):
                    account.create()
                self._accounts[budget] = account
            return self._accounts[budget]

    def _id(self) -> int:
        try:
            return int(self._trials.get_study_id_from_name(self.name))
        except KeyError:
            raise InputError(f"there is no study {self.name!r} in this storage; run it first") from None


def open_storage(text: str, folder: Path, name: str) -> StudyStorage:
    """Open the storage of a study.

    Args:
        text: ``journal`` (a file in the folder, for any number of processes of a host), ``sqlite`` (the same, for one
            process), or ``postgresql://user:password@host/database`` (for any number of hosts).
        folder: The study's folder; made where it is not there.
        name: The study's name.

    Raises:
        InputError: There is no such storage, its driver is missing, or it is another process's.
        QuerywrightError: It cannot be reached or written.
    """
    from optuna.storages import get_storage

    kind = storage_kind(text)
    with ExitStack() as closing:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            closing.enter_context(quiet_optuna())
            if kind == "postgresql":
                trials, claims, spend = _postgres(text, name, closing)
            else:
                claims = FileClaims(folder / CLAIMS_NAME)
                closing.callback(claims.close)
                trials = _sqlite(folder, closing) if kind == "sqlite" else open_journal(folder / JOURNAL_NAME)
                spend = _spend_file(folder / SPEND_NAME, closing)
        except OSError as error:
            raise QuerywrightError(
                f"the study's folder {str(folder)!r} cannot be written ({error.strerror}); name another with --out"
            ) from error
        return StudyStorage(kind, name, get_storage(trials), claims, spend, closing.pop_all())


def memory_storage(name: str) -> StudyStorage:
    """A storage that ends with this process, for one worker: what was answered is kept by the LM's store.

    Args:
        name: The study's name.
    """
    from optuna.storages import InMemoryStorage

    with ExitStack() as closing:
        closing.enter_context(quiet_optuna())
        engine = spend_in_memory()
        closing.callback(engine.dispose)
        return StudyStorage("memory", name, InMemoryStorage(), MemoryClaims(), lambda: engine, closing.pop_all())


def with_plain_failures(work: Callable[P, R]) -> Callable[P, R]:
    """The same function, which says in plain words that a database failed, without its address in any error."""

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return work(*args, **kwargs)
        except _database_errors() as error:
            failure = _plain(error)
        raise failure  # here, so that the driver's error is not part of it

    return call


def _database_errors() -> tuple[type[Exception], ...]:
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    return SQLAlchemyError, StorageInternalError


def _plain(error: Exception) -> QuerywrightError:
    import sqlite3

    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, sqlite3.Error):
        return QuerywrightError(
            f"{SQLITE_NAME} of the study cannot be used ({error}); make room or make it writable, and run again"
        )
    return unreachable(error)


def storage_kind(text: str) -> str:
    """``journal``, ``sqlite`` or ``postgresql``.

    Args:
        text: What ``open_storage`` is given.

    Raises:
        InputError: There is no such storage; an address is not repeated.
    """
    scheme, separator, _ = text.partition("://")
    if not separator and text in {"journal", "sqlite"}:
        return text
    if separator and scheme in SCHEMES:
        return "postgresql"
    known = "give journal (processes of one host), sqlite (one process) or postgresql://... (several hosts)"
    # Only a plain word is repeated: anything else may be a URL, mistyped, with a password.
    shown = f"{scheme}://..." if separator and scheme.replace("+", "").isalnum() else text if text.isalnum() else "..."
    reasons = {
        "sqlite": "a study's SQLite file is in its own folder: write sqlite",
        "redis": "a study's claims and account need a database with transactions",
        "mysql": "only PostgreSQL is supported of the database servers",
        "mariadb": "only PostgreSQL is supported of the database servers",
        "postgresql": "the driver is psycopg: write postgresql://",
    }
    reason = reasons.get(scheme.partition("+")[0], "there is no such storage") if separator else "there is no such one"
    raise InputError(f"storage {shown!r}: {reason}; {known}")


def _sqlite(folder: Path, closing: ExitStack) -> Any:
    from sqlalchemy import URL
    from sqlalchemy.exc import SQLAlchemyError

    path = folder / SQLITE_NAME
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    closing.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            "the study's storage is sqlite, which serves one process, and another process has it open; wait until that "
            "ends, or begin the study with --storage journal, which any number of processes share"
        ) from None
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    url = URL.create("sqlite", database=str(path)).render_as_string().replace("{", "{{").replace("}", "}}")
    try:
        return _tables(url, {"connect_args": {"timeout": 30}, "hide_parameters": True}, closing)
    except SQLAlchemyError as error:
        raise QuerywrightError(
            f"{path.name} of the study cannot be used ({type(error).__name__}); restore it, or name another folder"
        ) from error


def _tables(url: str, options: dict[str, Any], closing: ExitStack) -> Any:
    """Optuna's storage in a database, its tables made where they are not there."""
    from optuna.storages import RDBStorage

    # Its own check of the version would leave connections open.
    storage = RDBStorage(url, engine_kwargs=options, skip_compatibility_check=True)
    closing.callback(storage.engine.dispose)
    if storage.get_current_version() != storage.get_head_version():
        raise InputError(
            "the tables of this storage were made by another version of Optuna; go on with that version, or name "
            "another storage"
        )
    return storage


def _spend_file(path: Path, closing: ExitStack) -> Callable[[], Any]:
    def make() -> Any:
        engine = spend_file(path)
        closing.callback(engine.dispose)
        return engine

    return make


def _postgres(text: str, name: str, closing: ExitStack) -> tuple[Any, Claims, Callable[[], Any]]:
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    server = PostgresServer(text)
    setup = PostgresClaims(server.connect, "")
    closing.callback(setup.close)
    # Tables are made by one worker at a time: PostgreSQL lets two try, and fails one of them.
    with setup.wait("make the tables", SETUP_SECONDS):
        try:
            storage: Any = _tables("postgresql+psycopg://", server.engine_options(), closing)
        except (SQLAlchemyError, StorageInternalError) as error:
            storage = unreachable(error)
    if isinstance(storage, QuerywrightError):
        raise storage  # here, so that the driver's error is not part of it
    setup.close()
    claims = PostgresClaims(server.connect, name)
    closing.callback(claims.close)
    return storage, claims, lambda: storage.engine.execution_options(isolation_level="AUTOCOMMIT")
