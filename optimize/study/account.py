"""What a study spent, over all its workers and resumed runs, and where it stops."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.models.engine_errors import LMBudgetError, LMStoreError
from querywright.models.usage import Cost
from querywright.optimize.study.spec import BudgetSpec

if TYPE_CHECKING:
    from sqlalchemy import Engine, TextClause

FILE_NAME = "spend.sqlite"
TABLE_NAME = "querywright_spend"
TICK_SECONDS = 5.0
_BUSY_SECONDS = 30.0

# One text for SQLite and PostgreSQL.
_MAKE = f"""
CREATE TABLE IF NOT EXISTS {TABLE_NAME} (
    study TEXT PRIMARY KEY,
    calls BIGINT NOT NULL DEFAULT 0,
    saved BIGINT NOT NULL DEFAULT 0,
    tokens BIGINT NOT NULL DEFAULT 0,
    saved_tokens BIGINT NOT NULL DEFAULT 0,
    dollars DOUBLE PRECISION NOT NULL DEFAULT 0,
    lm_seconds DOUBLE PRECISION NOT NULL DEFAULT 0,
    seconds DOUBLE PRECISION NOT NULL DEFAULT 0,
    ticked DOUBLE PRECISION NOT NULL DEFAULT 0
)
"""
_BEGIN = f"INSERT INTO {TABLE_NAME} (study) VALUES (:study) ON CONFLICT DO NOTHING"
_RESERVE = f"""
UPDATE {TABLE_NAME} SET calls = calls + 1
WHERE study = :study AND calls < :calls AND tokens < :tokens AND dollars < :dollars AND seconds < :seconds
"""
_SETTLE = f"""
UPDATE {TABLE_NAME}
SET saved = saved + :saved, tokens = tokens + :tokens, saved_tokens = saved_tokens + :saved_tokens,
    dollars = dollars + :dollars, lm_seconds = lm_seconds + :lm_seconds
WHERE study = :study
"""
_NOW = {"sqlite": ":now", "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"}
_TICK = """
UPDATE {table}
SET seconds = seconds + CASE WHEN {now} < ticked THEN 0 WHEN {now} - ticked < :ran THEN {now} - ticked ELSE :ran END,
    ticked = {now}
WHERE study = :study
"""
_READ = f"""
SELECT calls, saved, tokens, saved_tokens, dollars, lm_seconds, seconds / 60 FROM {TABLE_NAME} WHERE study = :study
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a study spent so far.

    Args:
        calls: Attempts at LM calls that were sent, those under way and those of killed workers included.
        saved: LM calls saved, as far as they were entered.
        tokens: Input and output tokens of calls made.
        saved_tokens: Input and output tokens of the calls saved.
        dollars: Estimated US dollars of calls made.
        lm_seconds: Seconds that calls took, summed over threads and workers.
        minutes: Minutes in which at least one worker ran.
    """

    calls: int = 0
    saved: int = 0
    tokens: int = 0
    saved_tokens: int = 0
    dollars: float = 0.0
    lm_seconds: float = 0.0
    minutes: float = 0.0


class Account:
    """The account of a study: one row of a table, so that no number of processes and threads can exceed a limit.

    Args:
        engine: The database, SQLite or PostgreSQL, whose connections make each statement a transaction of its own.
        study: The row.
        budget: Where the study stops.
        interval: Seconds between two calls of ``tick``; after twice as many a worker counts as asleep. Default 5.
    """

    def __init__(self, engine: Engine, study: str, budget: BudgetSpec, interval: float = TICK_SECONDS) -> None:
        from sqlalchemy import text

        now = _NOW[engine.dialect.name]
        texts = {"make": _MAKE, "begin": _BEGIN, "reserve": _RESERVE, "settle": _SETTLE, "read": _READ}
        texts["tick"] = _TICK.format(table=TABLE_NAME, now=now)
        self._sql: dict[str, TextClause] = {name: text(sql) for name, sql in texts.items()}
        self._engine = engine
        self._study = study
        self._budget = budget
        self._interval = interval
        self._own_clock = now == ":now"
        # SQLite has one writer at a time and lets others try again after a sleep; threads can take turns at once.
        self._turn = threading.Lock() if self._own_clock else contextlib.nullcontext()
        self._lock = threading.Lock()
        self._unsettled = Cost()
        self._ticked = time.monotonic()
        given = (budget.calls, budget.tokens, budget.dollars, None if budget.minutes is None else 60 * budget.minutes)
        limits = [math.inf if limit is None else limit for limit in given]
        self._limits = dict(zip(("calls", "tokens", "dollars", "seconds"), limits, strict=True))

    def create(self) -> None:
        """Make the table and the row where they are not there; by one process at a time.

        Raises:
            LMStoreError: The database cannot be used.
        """
        with self._connected() as connection:
            connection.execute(self._sql["make"])
            connection.execute(self._sql["begin"], {"study": self._study})

    def reserve(self) -> None:
        """Count one attempt at an LM call, before it is sent.

        Raises:
            LMBudgetError: A limit is reached; nothing was counted.
            LMStoreError: The account cannot be kept.
        """
        if not self._run("reserve", **self._limits):
            self.check()
            raise LMStoreError(f"the study {self._study!r} has no account any more; start it in another folder")

    def settle(self, cost: Cost) -> None:
        """Enter tokens, dollars and seconds of attempts that ended, and calls saved.

        What cannot be entered now is entered the next time: the answer that it paid for is there.

        Args:
            cost: Any number of attempts at once. Its ``calls`` are not counted: ``reserve`` did.
        """
        with self._lock:
            cost, self._unsettled = self._unsettled + cost, Cost()
        try:
            self._run(
                "settle",
                saved=cost.saved,
                tokens=cost.tokens,
                saved_tokens=cost.saved_tokens,
                dollars=cost.dollars,
                lm_seconds=cost.seconds,
            )
        except LMStoreError as error:
            logger.warning("%s; it is tried again with the next call", error)
            with self._lock:
                self._unsettled = self._unsettled + cost

    def tick(self) -> None:
        """Say that this worker runs; called every few seconds by each of them.

        The time since this worker's last call is added, less what another worker has added of it already.

        Raises:
            LMStoreError: The account cannot be kept.
        """
        with self._lock:
            now = time.monotonic()
            ran, self._ticked = min(now - self._ticked, 2 * self._interval), now
        self._run("tick", ran=ran, **({"now": time.time()} if self._own_clock else {}))

    def check(self) -> None:
        """Make sure that no limit is reached; nothing is counted.

        Raises:
            LMBudgetError: One is.
            LMStoreError: The account cannot be read.
        """
        spent, budget = self.spent, self._budget
        limits = (
            ("calls", spent.calls, budget.calls, f"{budget.calls} LM calls"),
            ("tokens", spent.tokens, budget.tokens, f"{budget.tokens} tokens"),
            ("dollars", spent.dollars, budget.dollars, f"{budget.dollars} US dollars"),
            ("minutes", spent.minutes, budget.minutes, f"{budget.minutes} minutes"),
        )
        for name, used, limit, said in limits:
            if limit is not None and used >= limit:
                raise LMBudgetError(
                    f"the study's budget of {said} is spent (so far {spent.calls} calls, {spent.tokens} tokens, "
                    f"{spent.dollars:.4f} US dollars and {spent.minutes:.1f} minutes). Raise budget.{name} in the "
                    "study's file and run it again: what was answered so far is kept"
                )

    @property
    def spent(self) -> Spent:
        """What the study spent so far, in all workers and runs.

        Raises:
            LMStoreError: The account cannot be read.
        """
        with self._connected() as connection:
            row = connection.execute(self._sql["read"], {"study": self._study}).first()
        return Spent() if row is None else Spent(*row)

    def _run(self, name: str, **values: Any) -> int:
        """How many rows a statement changed."""
        given = {"study": self._study, **values}
        if self._own_clock:  # each call of an LM comes here twice, and the layers above the driver cost the most of it
            with self._connected(self._engine.raw_connection) as connection:
                return int(connection.driver_connection.execute(self._sql[name].text, given).rowcount)
        with self._connected() as connection:
            return int(connection.execute(self._sql[name], given).rowcount)

    @contextlib.contextmanager
    def _connected(self, connect: Callable[[], Any] | None = None) -> Iterator[Any]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self._turn, contextlib.closing((connect or self._engine.connect)()) as connection:
                yield connection
        except (SQLAlchemyError, sqlite3.Error) as error:
            kind = type(getattr(error, "orig", None) or error).__name__
        else:
            return
        raise LMStoreError(
            f"the study's account cannot be kept ({kind}); free some space, allow writing there, or start the "
            "database, and run again"
        )


def spend_file(path: Path) -> Engine:
    """The database of accounts in a file, safe for processes of one host.

    Args:
        path: The file; made where it is not there.
    """
    from sqlalchemy import URL, create_engine, event

    # One that is there is not opened here: closing it again would release the locks of SQLite in this process.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    url = URL.create("sqlite", database=str(path))
    engine = create_engine(
        url, connect_args={"timeout": _BUSY_SECONDS}, isolation_level="AUTOCOMMIT", hide_parameters=True
    )

    def prepare(connection: Any, record: object) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(engine, "connect", prepare)
    return engine


def spend_in_memory() -> Engine:
    """A database of accounts that ends with this process."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    # One connection for all threads: another would see another database.
    return create_engine(
        "sqlite://",
        poolclass=StaticPool,
        connect_args={"check_same_thread": False},
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
    )
