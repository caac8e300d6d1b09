"""What may be spent on LM calls: one count of calls, tokens and dollars for all who share it."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from querywright.errors import InputError, QuerywrightError
from querywright.models.engine_errors import LMBudgetError, LMStoreError
from querywright.models.store import Store
from querywright.models.usage import Cost
from querywright.shared import Shared

_TABLE = """CREATE TABLE IF NOT EXISTS querywright_budgets (
    name TEXT PRIMARY KEY, calls BIGINT NOT NULL, tokens BIGINT NOT NULL, dollars DOUBLE PRECISION NOT NULL)"""
_BEGIN = "INSERT INTO querywright_budgets VALUES (:name, 0, 0, 0) ON CONFLICT DO NOTHING"
_RESERVE = "UPDATE querywright_budgets SET calls = calls + 1 WHERE name = :name"
_SETTLE = "UPDATE querywright_budgets SET tokens = tokens + :tokens, dollars = dollars + :dollars WHERE name = :name"
_READ = "SELECT calls, tokens, dollars FROM querywright_budgets WHERE name = :name"
_FORGET = "DELETE FROM querywright_budgets WHERE name = :name"
_UNITS = {"calls": "LM calls", "tokens": "tokens", "dollars": "US dollars"}

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


class Budget(Shared):
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
        self._store = store or Store()
        self._remedy = remedy
        self._store.add_table(_TABLE)
        self._store.execute(_BEGIN, name=name)

    @property
    def spent(self) -> Spent:
        """What was spent so far, by all who share it."""
        rows, _ = self._execute(_READ)
        if not rows:
            raise LMStoreError(f"the count of the budget {self.name!r} is gone from {self._store!r}; run again")
        return Spent(*rows[0])

    def check(self) -> None:
        """Make sure that no limit is reached; nothing is counted."""
        spent = self.spent
        for unit, limit in self.limits.items():
            if getattr(spent, unit) >= limit:
                raise LMBudgetError(
                    f"the limit of {limit} {_UNITS[unit]} is reached; answers received so far are kept. {self._remedy}"
                )

    def reserve(self) -> None:
        """Count one attempt before it is sent.

        Raises:
            LMBudgetError: A limit is reached; nothing was counted.
            LMStoreError: The count cannot be kept.
        """
        within = "".join(f" AND {unit} < :{unit}" for unit in self.limits)
        _, n_rows = self._execute(_RESERVE + within, **self.limits)
        if not n_rows:
            self.check()
            raise LMBudgetError(f"the budget {self.name!r} was spent and raised meanwhile; run again")

    def settle(self, cost: Cost) -> None:
        """Enter the tokens and dollars of an attempt, once it ended; its call was counted by ``reserve``.

        What cannot be entered is told and goes uncounted: the answer that it paid for is there.
        """
        try:
            if cost.tokens or cost.dollars:
                self._execute(_SETTLE, tokens=cost.tokens, dollars=cost.dollars)
        except LMStoreError as error:
            _logger.warning("%s; what a call cost is not counted", error)

    def forget(self) -> None:
        """Remove the count, at the end of a run that nothing goes on from."""
        self._execute(_FORGET)

    def _execute(self, statement: str, **values: Any) -> tuple[list[Any], int]:
        try:
            return self._store.execute(statement, name=self.name, **values)
        except QuerywrightError as error:
            raise LMStoreError(f"the count of LM calls cannot be kept: {error}") from None
