"""What may be spent on LM calls: one count of calls, tokens and dollars for all who share it."""

from __future__ import annotations

import logging
import threading
from typing import Any, NamedTuple

from querywright.errors import InputError, QuerywrightError
from querywright.models.engine_errors import LMBudgetError, LMStoreError
from querywright.models.store import Store, sql
from querywright.models.usage import Cost

_BEGIN = "INSERT INTO querywright_budgets VALUES (:name, 0, 0, 0) ON CONFLICT DO NOTHING"
_RESERVE = "UPDATE querywright_budgets SET calls = calls + 1 WHERE name = :name"
_SETTLE = "UPDATE querywright_budgets SET tokens = tokens + :tokens, dollars = dollars + :dollars WHERE name = :name"
_READ = "SELECT calls, tokens, dollars FROM querywright_budgets WHERE name = :name"
_FORGET = "DELETE FROM querywright_budgets WHERE name = :name"

_logger = logging.getLogger(__name__)


class Spent(NamedTuple):
    """What was spent of a budget.

    Args:
        calls: Attempts at LM calls that were sent, those under way and those of killed processes included.
        tokens: Input and output tokens of calls made.
        dollars: Estimated US dollars of calls made.
    """

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0


class Budget:
    """Limits of what LMs may spend together; exact in calls, over by the calls under way in tokens and dollars.

    Every LM that is made with it (``resolve_lm(..., budget=)``) spends from it. With a store it is counted in the
    store's database, so that all threads, processes and hosts with that store and this name share it, and a run that is
    started again goes on where the last one stopped; without one it is this object's own.

    Args:
        store: Where it is counted, or None for in memory.
        name: Whose budget it is; each name has a count of its own.
        calls: Attempts that may be sent in all, each retry counted; None for no limit. Default None.
        tokens: Input and output tokens after which nothing more is sent; None for no limit. Default None.
        dollars: Estimated US dollars after which nothing more is sent; None for no limit. A call whose price is not
            known costs none. Default None.
        remedy: What the error says is to be done to go on. Default: raise ``--max-calls``.

    Raises:
        InputError: A limit is below 0.
        QuerywrightError: The store cannot be used.
    """

    def __init__(
        self,
        store: Store | None,
        name: str,
        calls: int | None = None,
        tokens: int | None = None,
        dollars: float | None = None,
        *,
        remedy: str = "Raise --max-calls to go on",
    ) -> None:
        given = {"calls": calls, "tokens": tokens, "dollars": dollars}
        self.limits: dict[str, float] = {unit: limit for unit, limit in given.items() if limit is not None}
        for unit, limit in self.limits.items():
            if not limit >= 0:
                raise InputError(f"a budget of {unit} must be 0 or more, or None for no limit, but got {limit}")
        self.name = name
        self._store = store
        self._remedy = remedy
        self._lock = threading.Lock()
        self._spent = Spent()
        self._unsettled = Cost()
        if store is not None:
            store.transact(lambda connection: connection.execute(sql(_BEGIN), {"name": name}))

    def __deepcopy__(self, memo: dict[int, object]) -> Budget:
        return self

    @property
    def spent(self) -> Spent:
        """What was spent so far, by all who share it.

        Raises:
            LMStoreError: The count cannot be read, or is gone.
        """
        if self._store is None:
            return self._spent
        row = self._run(lambda connection: connection.execute(sql(_READ), {"name": self.name}).first())
        if row is None:
            raise LMStoreError(f"the count of the budget {self.name!r} is gone from {self._store!r}; run again")
        return Spent(*row)

    def check(self) -> None:
        """Make sure that no limit is reached; nothing is counted.

        Raises:
            LMBudgetError: One is.
            LMStoreError: The count cannot be read.
        """
        self._check(self.spent)

    def reserve(self) -> None:
        """Count one attempt before it is sent.

        Raises:
            LMBudgetError: A limit is reached; nothing was counted.
            LMStoreError: The count cannot be kept.
        """
        if self._store is None:
            with self._lock:
                self._check(self._spent)
                self._spent = self._spent._replace(calls=self._spent.calls + 1)
            return
        within = "".join(f" AND {unit} < :{unit}" for unit in self.limits)
        given = {"name": self.name, **self.limits}
        if not self._run(lambda connection: connection.execute(sql(_RESERVE + within), given).rowcount):
            self.check()
            raise LMBudgetError(f"the budget {self.name!r} was spent and raised meanwhile; run again")

    def settle(self, cost: Cost) -> None:
        """Enter what an attempt cost, once it ended; its call was counted by ``reserve``.

        What cannot be entered now is entered the next time: the answer that it paid for is there.

        Args:
            cost: Its tokens and dollars count, nothing else.
        """
        with self._lock:
            if self._store is None:
                calls, tokens, dollars = self._spent
                self._spent = Spent(calls, tokens + cost.tokens, dollars + cost.dollars)
                return
            cost, self._unsettled = self._unsettled + cost, Cost()
        if not (cost.tokens or cost.dollars):
            return
        given = {"name": self.name, "tokens": cost.tokens, "dollars": cost.dollars}
        try:
            self._run(lambda connection: connection.execute(sql(_SETTLE), given))
        except LMStoreError as error:
            _logger.warning("%s; it is tried again with the next call", error)
            with self._lock:
                self._unsettled = self._unsettled + cost

    def forget(self) -> None:
        """Remove the count, at the end of a run that nothing goes on from."""
        if self._store is not None:
            self._run(lambda connection: connection.execute(sql(_FORGET), {"name": self.name}))

    def _check(self, spent: Spent) -> None:
        for unit, limit in self.limits.items():
            if getattr(spent, unit) >= limit:
                what = {"calls": "LM calls", "tokens": "tokens", "dollars": "US dollars"}[unit]
                raise LMBudgetError(
                    f"the limit of {limit} {what} is reached; answers received so far are kept. {self._remedy}"
                )

    def _run(self, operation: Any) -> Any:
        if self._store is None:  # never asked then
            raise AssertionError
        try:
            return self._store.transact(operation)
        except QuerywrightError as error:
            raise LMStoreError(f"the count of LM calls cannot be kept: {error}") from None
