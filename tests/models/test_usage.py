from __future__ import annotations

import contextvars
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest

from querywright.models.usage import Cost, Ledger, metered

FULL = Cost(**{field.name: number for number, field in enumerate(fields(Cost), 1)})


def test_costs_add_and_subtract_field_by_field():
    assert FULL + FULL - FULL == FULL
    assert (FULL + Cost(calls=2)).calls == FULL.calls + 2
    assert Cost(calls=2, saved=3).asked == 5
    assert Cost(input_tokens=4, output_tokens=5, saved_tokens=100).tokens == 9


def test_json_and_back():
    assert Cost.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL
    assert Cost.from_json({"calls": 3}) == Cost(calls=3)
    assert Cost(seconds=1.23456, dollars=0.12345678).to_json()["seconds"] == 1.235
    assert Cost(dollars=0.12345678).to_json()["dollars"] == pytest.approx(0.123457)


def test_a_ledger_is_exact_under_threads():
    ledger = Ledger()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: ledger.add(Cost(calls=1, input_tokens=3)), range(4000)))
    assert ledger.total == Cost(calls=4000, input_tokens=12000)


def test_a_meter_sees_what_is_asked_inside_it_and_nothing_else():
    ledger = Ledger()
    ledger.add(Cost(calls=1))
    with metered() as outer:
        ledger.add(Cost(calls=10))
        with metered() as inner:
            ledger.add(Cost(calls=100))
    ledger.add(Cost(calls=1000))
    assert (inner.total.calls, outer.total.calls, ledger.total.calls) == (100, 110, 1111)


def test_meters_of_threads_do_not_mix():
    ledger = Ledger()

    def work(number):
        with metered() as meter:
            for _ in range(50):
                ledger.add(Cost(calls=number))
        return meter.total.calls

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [50 * number for number in range(8)]


def test_a_meter_sees_threads_that_run_in_a_copy_of_its_context():
    ledger = Ledger()
    with metered() as meter, ThreadPoolExecutor(4) as pool:
        contexts = [contextvars.copy_context() for _ in range(20)]
        list(pool.map(lambda context: context.run(ledger.add, Cost(saved=1)), contexts))
        list(pool.map(lambda _: ledger.add(Cost(saved=1)), range(5)))
    assert (meter.total.saved, ledger.total.saved) == (20, 25)
