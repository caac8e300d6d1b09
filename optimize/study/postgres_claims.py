"""Claims between hosts: advisory locks in the database that has the study."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from querywright.errors import QuerywrightError
from querywright.optimize.study.claims import Claim, ClaimLostError, waited

if TYPE_CHECKING:
    import psycopg


class PostgresClaims:
    """Claims between hosts: advisory locks of one connection a process.

    When the connection breaks, the server gives all of them back, and so all are lost together. It must be a
    connection of one's own: a pooler that shares connections between transactions holds no such locks.

    Args:
        connect: Opens a connection in autocommit mode.
        study: Tells the claims of studies in one database apart.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], study: str) -> None:
        self._connect = connect
        self._study = study
        self._lock = threading.RLock()
        self._connection: psycopg.Connection[Any] | None = None
        self._session = 0
        self._taken: dict[str, _PostgresClaim] = {}

    def take(self, name: str) -> Claim | None:
        """The claim, or None when another worker or thread has it."""
        with self._lock:
            if name in self._taken:  # the server would give it to the same session again
                return None
            if self._connection is not None and not self._alive():
                self._lose()
            if self._connection is None:
                self._connection = self._connect()
                self._session = self._connection.info.backend_pid
            if not self._ask("SELECT pg_try_advisory_lock(%s)", self._key(name)):
                return None
            self._taken[name] = _PostgresClaim(self, name)
            return self._taken[name]

    def wait(self, name: str, seconds: float) -> AbstractContextManager[Claim]:
        """Hold the claim in a ``with`` block, after waiting for it."""
        return waited(self.take, name, seconds)

    def close(self) -> None:
        """Release everything."""
        with self._lock:
            self._taken.clear()
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _key(self, name: str) -> int:
        digest = hashlib.sha256(f"{self._study}\0{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    def _ask(self, sql: str, *values: Any) -> Any:
        import psycopg

        assert self._connection is not None
        try:
            row = self._connection.execute(sql.encode(), values).fetchone()
        except psycopg.Error:
            self._lose()
            raise QuerywrightError("the PostgreSQL storage no longer answers; run again when it does") from None
        return None if row is None else row[0]

    def _alive(self) -> bool:
        import psycopg

        assert self._connection is not None
        try:
            row = self._connection.execute("SELECT pg_backend_pid()").fetchone()
        except psycopg.Error:
            return False
        return row is not None and row[0] == self._session

    def _lose(self) -> None:
        """Forget a broken connection.

        Raises:
            ClaimLostError: Something was claimed.
        """
        names = sorted(self._taken)
        self.close()
        if names:
            raise ClaimLostError(
                f"the connection to the PostgreSQL storage broke, and with it the claims to {', '.join(names)}; "
                "other workers may be at that by now"
            )

    def _holds(self, claim: _PostgresClaim) -> bool:
        with self._lock:
            if self._taken.get(claim.name) is not claim:
                return False
            if self._alive():
                return True
            self.close()
            return False

    def _give_back(self, claim: _PostgresClaim) -> None:
        with self._lock:
            if self._taken.get(claim.name) is not claim:
                return
            del self._taken[claim.name]
            import psycopg

            assert self._connection is not None
            try:
                self._connection.execute("SELECT pg_advisory_unlock(%s)", (self._key(claim.name),))
            except psycopg.Error:
                self.close()  # the others are lost too, which each finds out when it is used


class _PostgresClaim(Claim):
    def __init__(self, claims: PostgresClaims, name: str) -> None:
        super().__init__(name)
        self._claims = claims

    @property
    def held(self) -> bool:
        return self._claims._holds(self)

    def release(self) -> None:
        self._claims._give_back(self)
