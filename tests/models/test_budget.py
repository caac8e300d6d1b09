"""Costs, and limits on what LMs may spend, across threads, processes, and repeated runs."""

from __future__ import annotations

import contextvars
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest

from querywright.errors import BudgetError, InputError, QuerywrightError
from querywright.models.budget import Budget
from querywright.models.engine_errors import LMStoreError
from querywright.models.store import Store
from querywright.models.usage import Cost, Ledger, metered

WORKER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from querywright.errors import BudgetError
from querywright.models.budget import Budget
from querywright.models.store import Store
from querywright.models.usage import Cost

budget = Budget(Store(sys.argv[1]), "study", calls=50)
def spend(_):
    try:
        budget.reserve()
    except BudgetError:
        return 0
    budget.settle(Cost(calls=1, input_tokens=3, output_tokens=2, dollars=0.5))
    return 1
with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(spend, range(40))))
"""


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request, tmp_path):
    """The place of a store: a file, or a database of a PostgreSQL server."""
    if request.param == "file":
        return str(tmp_path / "store.sqlite")
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def store(place):
    store = Store(place)
    yield store
    store.close()


def reserved(budget, attempts=6):
    """Return how many of some attempts are allowed."""
    count = 0
    for _ in range(attempts):
        try:
            budget.reserve()
        except BudgetError:
            continue
        count += 1
    return count


def test_processes_together_make_exactly_as_many_calls_as_are_allowed(place, store):
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, place], stdout=subprocess.PIPE) for _ in range(2)]
    assert sum(int(worker.communicate(timeout=300)[0]) for worker in workers) == 50
    assert Budget(store, "study").spent == (50, 250, 25.0)


@pytest.mark.parametrize(
    ("limits", "cost", "said"),
    [
        ({"tokens": 10}, Cost(input_tokens=6, output_tokens=4), "10 tokens"),
        ({"dollars": 0.5}, Cost(dollars=0.5), "0.5 US dollars"),
    ],
)
def test_tokens_and_dollars_stop_it_when_they_are_spent(store, limits, cost, said):
    budget = Budget(store, "test", calls=100, **limits)
    budget.reserve()
    budget.check()
    budget.settle(cost)
    for refused in (budget.reserve, budget.check):
        with pytest.raises(BudgetError, match=f"reached the limit of {said}"):
            refused()
    assert budget.spent == (1, cost.tokens, cost.dollars)


def test_a_raised_budget_goes_on_where_the_last_run_stopped(store):
    assert reserved(Budget(store, "study", calls=2)) == 2
    assert reserved(Budget(store, "study", calls=3)) == 1
    assert reserved(Budget(store, "other", calls=3)) == 3
    Budget(store, "study").forget()
    assert reserved(Budget(store, "study", calls=3)) == 3


def test_a_cost_that_cannot_be_entered_is_told_and_stops_nothing(store, monkeypatch, caplog):
    budget = Budget(store, "test", tokens=10)
    monkeypatch.setattr(store, "execute", lambda *_, **__: (_ for _ in ()).throw(QuerywrightError("disk full")))
    budget.settle(Cost(input_tokens=10))
    assert "disk full. The cost of this call was not added" in caplog.text


def test_a_count_that_is_gone_stops_the_calls_and_is_not_begun_anew(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    budget = Budget(store, "study", calls=2)
    store.close()
    store.path.write_bytes(b"no database " * 500)
    with pytest.raises(LMStoreError, match="no amounts found for the budget 'study'"):
        budget.reserve()
    store.close()


def test_a_limit_is_named_and_one_below_nothing_refused():
    with pytest.raises(BudgetError, match=r"reached the limit of 0 LM calls; .* Raise --max-calls"):
        Budget(None, "test", calls=0).reserve()
    with pytest.raises(
        InputError, match=r"the budget limit 'calls' must be 0 or more, or None for no limit, but got -1"
    ):
        Budget(None, "test", calls=-1)


FULL = Cost(**{field.name: number for number, field in enumerate(fields(Cost), 1)})


def test_costs_add_subtract_and_are_written_and_read():
    assert FULL + FULL - FULL == FULL
    assert Cost(calls=2, saved=3).asked == 5
    assert Cost(input_tokens=4, output_tokens=5, saved_tokens=100).tokens == 9
    assert Cost.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL
    assert Cost.from_json({"calls": 3}) == Cost(calls=3)
    rounded = Cost(seconds=1.23456, dollars=0.12345678).to_json()
    assert (rounded["seconds"], rounded["dollars"], rounded["calls"]) == (1.235, 0.123457, 0)


def test_a_meter_sees_what_is_asked_inside_it_also_in_copies_of_its_context_and_nothing_else():
    ledger = Ledger()
    ledger.add(Cost(calls=1))
    with metered() as outer, ThreadPoolExecutor(4) as pool:
        ledger.add(Cost(calls=10))
        with metered() as inner:
            ledger.add(Cost(calls=100))
            contexts = [contextvars.copy_context() for _ in range(20)]
        list(pool.map(lambda context: context.run(ledger.add, Cost(calls=1000)), contexts))
        list(pool.map(lambda _: ledger.add(Cost(calls=5)), range(5)))
    assert (inner.total.calls, outer.total.calls, ledger.total.calls) == (20_100, 20_110, 20_136)
