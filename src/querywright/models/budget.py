"""Limits on LM calls, tokens, and dollars, shared by threads, processes, and hosts."""

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
    """The amounts spent from a budget.

    Args:
        calls: Attempts sent, including those still running and those from processes that were killed.
        tokens: Input and output tokens of the calls made.
        dollars: Estimated cost of the calls made, in US dollars.
    """

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0


class Budget(Shared):
    """Limits the combined spending of several LMs.

    The limit on calls is exact. Calls that are already running may exceed the limits on tokens and dollars. Every LM
    created with a budget (``resolve_lm(..., budget=)``) spends from that budget. With a store, the amounts are kept in
    the store's database: all threads, processes, and hosts that use the same store and name share the amounts, and a
    repeated run continues from them. Without a store, the amounts are kept only in this object.

    Args:
        store: Store for the amounts, or None to keep them in this object's memory.
        name: Name of the budget. Amounts are counted separately for each name.
        calls: Maximum number of attempts, including retries; None for no limit. Default None.
        tokens: Number of input and output tokens after which no more calls are sent; None for no limit. Default None.
        dollars: Estimated US dollars after which no more calls are sent; None for no limit. A call with an unknown
            price costs 0. Default None.
        remedy: Last sentence of the error message, which tells the user how to continue. Default: raise
            ``--max-calls``.

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
                raise InputError(f"the budget limit {unit!r} must be 0 or more, or None for no limit, but got {limit}")
        self.name = name
        self._store = store or Store()
        self._remedy = remedy
        self._store.add_table(_TABLE)
        self._store.execute(_BEGIN, name=name)

    @property
    def spent(self) -> Spending:
        """Amounts spent so far by all LMs that share the budget."""
        rows, _ = self._execute(_READ)
        if not rows:
            raise LMStoreError(
                f"no amounts found for the budget {self.name!r} in {self._store!r}; run the command again to "
                "start a new count"
            )
        return Spending(*rows[0])

    def check(self) -> None:
        """Raise ``LMBudgetError`` if a limit has been reached, without counting anything."""
        spent = self.spent
        for unit, limit in self.limits.items():
            if getattr(spent, unit) >= limit:
                raise LMBudgetError(
                    f"reached the limit of {limit} {_UNITS[unit]}; answers received so far are cached. {self._remedy}"
                )

    def reserve(self) -> None:
        """Count one attempt before it is sent.

        Raises:
            LMBudgetError: A limit has been reached; the attempt was not counted.
            LMStoreError: The count cannot be written.
        """
        within = "".join(f" AND {unit} < :{unit}" for unit in self.limits)
        _, n_rows = self._execute(_RESERVE + within, **self.limits)
        if not n_rows:
            self.check()
            raise LMBudgetError(
                f"the budget {self.name!r} was used up, but its limits have since been raised; run the command again"
            )

    def settle(self, cost: Cost) -> None:
        """Add an attempt's tokens and dollars after it ends; ``reserve`` has already counted the call.

        If they cannot be written, they are not counted. Only a warning is logged, because the answer is already paid
        for.
        """
        try:
            if cost.tokens or cost.dollars:
                self._execute(_SETTLE, tokens=cost.tokens, dollars=cost.dollars)
        except LMStoreError as error:
            _logger.warning("%s. The cost of this call was not added to the budget", error)

    def forget(self) -> None:
        """Delete the amounts at the end of a run that no later run will continue."""
        self._execute(_FORGET)

    def _execute(self, statement: str, **values: Any) -> tuple[list[Any], int]:
        try:
            return self._store.execute(statement, name=self.name, **values)
        except QuerywrightError as error:
            raise LMStoreError(f"cannot count LM calls for the budget {self.name!r}: {error}") from None
