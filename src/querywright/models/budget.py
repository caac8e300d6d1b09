"""Limits on LM calls, tokens, and dollars, which threads, processes, and hosts share."""

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


class Spending(NamedTuple):
    """Amounts that were spent from a budget.

    Args:
        calls: Attempts that were sent, including running attempts and attempts of killed processes.
        tokens: Input and output tokens of calls made.
        dollars: Estimated US dollars of calls made.
    """

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0


class Budget(Shared):
    """Limits what several LMs spend together.

    The limit of calls is exact. The limits of tokens and dollars may be exceeded by the calls that are running. Every
    LM that is made with a budget (``resolve_lm(..., budget=)``) spends from it. With a store, the amounts are kept in
    the store's database: all threads, processes, and hosts with the same store and name share them, and a repeated run
    continues from them. Without a store, they belong to this object.

    Args:
        store: Where the amounts are kept, or None for this object's memory.
        name: Name of the budget. Each name has separate amounts.
        calls: Maximum number of attempts, including retries; None for no limit. Default None.
        tokens: Input and output tokens after which no call is sent; None for no limit. Default None.
        dollars: Estimated US dollars after which no call is sent; None for no limit. A call whose price is not known
            costs 0. Default None.
        remedy: Last sentence of the error, which tells how to continue. Default: raise ``--max-calls``.

    Raises:
        InputError: A limit is less than 0.
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
        remedy: str = "Raise --max-calls to continue",
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
    def spent(self) -> Spending:
        """Amounts spent so far, by all LMs that share the budget."""
        rows, _ = self._execute(_READ)
        if not rows:
            raise LMStoreError(
                f"the amounts of the budget {self.name!r} are missing from {self._store!r}; run the command again"
            )
        return Spending(*rows[0])

    def check(self) -> None:
        """Raise ``LMBudgetError`` if a limit is reached; nothing is counted."""
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
            LMStoreError: The count cannot be written.
        """
        within = "".join(f" AND {unit} < :{unit}" for unit in self.limits)
        _, n_rows = self._execute(_RESERVE + within, **self.limits)
        if not n_rows:
            self.check()
            raise LMBudgetError(f"the budget {self.name!r} was used up, and then its limits were raised; run again")

    def settle(self, cost: Cost) -> None:
        """Enter the tokens and dollars of an attempt after it ends; ``reserve`` counted its call.

        If they cannot be written, a warning is logged and they are not counted, because the answer is already paid for.
        """
        try:
            if cost.tokens or cost.dollars:
                self._execute(_SETTLE, tokens=cost.tokens, dollars=cost.dollars)
        except LMStoreError as error:
            _logger.warning("%s; the cost of a call is not counted", error)

    def forget(self) -> None:
        """Delete the amounts, at the end of a run that nothing continues."""
        self._execute(_FORGET)

    def _execute(self, statement: str, **values: Any) -> tuple[list[Any], int]:
        try:
            return self._store.execute(statement, name=self.name, **values)
        except QuerywrightError as error:
            raise LMStoreError(f"LM calls cannot be counted: {error}") from None
