"""Limits of what LMs may spend, over threads, processes and runs that are started again."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from dspy import lm15
from dspy.utils.exceptions import LMAuthError

from querywright.errors import BudgetError, InputError, OutageError
from querywright.models.budget import Budget
from querywright.models.engine import LMEngine
from querywright.models.engine_errors import LMStoreError
from querywright.models.response_parsing import text_response
from querywright.models.store import Store
from querywright.models.usage import Cost

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


@pytest.fixture
def store(place):
    store = Store(place)
    yield store
    store.close()


@pytest.fixture(params=["memory", "store"])
def shared(request, tmp_path):
    """What makes budgets that are counted together where they have one name."""
    if request.param == "memory":
        yield lambda **limits: Budget(None, "test", **limits)
        return
    store = Store(tmp_path / "store.sqlite")
    yield lambda **limits: Budget(store, "test", **limits)
    store.close()


def reserved(budget, attempts=6):
    """How many of some attempts are let through."""
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
    assert sum(int(worker.communicate(timeout=120)[0]) for worker in workers) == 50
    assert Budget(store, "study").spent == (50, 250, 25.0)


@pytest.mark.parametrize("limit", [0, 3, 10])
def test_threads_together_too(shared, limit):
    budget = shared(calls=limit)
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(reserved, [budget] * 4)) == limit == budget.spent.calls
    with pytest.raises(BudgetError, match=rf"the limit of {limit} LM calls is reached; .* Raise --max-calls"):
        budget.reserve()


@pytest.mark.parametrize(
    ("limits", "cost", "said"),
    [
        ({"tokens": 10}, Cost(input_tokens=6, output_tokens=4), "10 tokens"),
        ({"dollars": 0.5}, Cost(dollars=0.5), "0.5 US dollars"),
    ],
)
def test_tokens_and_dollars_stop_it_when_they_are_spent(shared, limits, cost, said):
    budget = shared(calls=100, **limits)
    budget.reserve()
    budget.check()
    budget.settle(cost)
    for refused in (budget.reserve, budget.check):
        with pytest.raises(BudgetError, match=f"the limit of {said} is reached"):
            refused()
    assert budget.spent == (1, cost.tokens, cost.dollars)


def test_a_raised_budget_goes_on_where_the_last_run_stopped(store):
    assert reserved(Budget(store, "study", calls=2)) == 2
    assert reserved(Budget(store, "study", calls=3)) == 1
    assert reserved(Budget(store, "other", calls=3)) == 3
    Budget(store, "study").forget()
    assert reserved(Budget(store, "study", calls=3)) == 3


def test_a_count_that_is_gone_stops_the_calls_and_is_not_begun_anew(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    budget = Budget(store, "study", calls=2)
    store.close()
    store.path.write_bytes(b"no database " * 500)
    with pytest.raises(LMStoreError, match="the count of the budget 'study' is gone"):
        budget.reserve()
    store.close()


def test_a_limit_below_nothing_is_refused():
    with pytest.raises(InputError, match=r"a budget of calls must be 0 or more, or None for no limit, but got -1"):
        Budget(None, "test", calls=-1)


class Model:
    """Fails as often as it is told to, then answers."""

    def __init__(self, failures=0):
        self.failures = failures

    def complete(self, request):
        if self.failures:
            self.failures -= 1
            raise LMAuthError("no such key")
        return text_response("yes", "stop", request.model, 10, 2)


def ask(engine, text):
    return engine.complete(lm15.Request(model="m", messages=(lm15.Message.user(text),), config=lm15.Config()))


def test_every_attempt_of_every_lm_is_paid_from_it_and_answers_that_are_kept_are_not(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    budget = Budget(store, "test", calls=2)
    one, two = (LMEngine(Model(), identity=name, store=store, budget=budget, price=lambda *_: 0.25) for name in "ab")
    for engine in (one, two, one, two):
        ask(engine, "question")
    with pytest.raises(BudgetError):
        ask(one, "another")
    assert budget.spent == (2, 24, 0.5)
    store.close()


def test_a_failed_attempt_is_paid_and_what_the_open_breaker_keeps_back_is_not():
    budget = Budget(None, "test")
    engine = LMEngine(Model(failures=1), identity="m", budget=budget)
    with pytest.raises(LMAuthError):
        ask(engine, "a")
    with pytest.raises(OutageError):
        ask(engine, "b")
    assert budget.spent == (1, 0, 0)
