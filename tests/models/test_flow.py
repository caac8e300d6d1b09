"""The number of parallel calls: adapted to the server, or configured."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from querywright.errors import InputError
from querywright.models.circuit_breaker import Limits
from querywright.models.flow import MOST, Flow
from querywright.models.lm import engine_of
from querywright.models.usage import Ledger, metered
from querywright.pool import bounded_map


class Capacity:
    """A server with a limit on parallel requests, which delays its answers until it has refused a request."""

    def __init__(self, takes):
        self.takes, self.under_way, self.most, self.refused = takes, 0, 0, 0
        self.lock, self.full = threading.Lock(), threading.Event()

    def __call__(self, body):
        with self.lock:
            if self.under_way >= self.takes:
                self.refused += 1
                self.full.set()
                return {"status": 429, "body": {"error": {"message": "too many requests"}}}
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        self.full.wait(60)
        with self.lock:
            self.under_way -= 1
        return "yes"


def test_no_answer_is_lost_where_the_server_refuses_what_comes_beside(remote):
    server = Capacity(2)
    lm, _ = remote(server, limits={"max_attempts": 8, "backoff": 0.02, "max_wait": 0.1})
    engine = engine_of(lm)
    asked = [f"question {number}" for number in range(100)]
    answers = bounded_map(lambda text: lm(text), asked, threads=engine.threads)

    assert engine.threads == MOST
    assert answers == [["yes"]] * len(asked)
    assert server.refused > 0
    assert engine.flow.limit < MOST / 2, "a refusal takes calls away, and one by one they come back"
    assert engine.ledger.total.failures == 0


def test_threads_that_are_told_stay(remote):
    server = Capacity(MOST)
    server.full.set()
    lm, _ = remote(server, limits={"at_once": 3})
    assert engine_of(lm).threads == 3
    assert bounded_map(lambda text: lm(text), [str(number) for number in range(30)], threads=16) == [["yes"]] * 30
    assert 1 <= server.most <= 3
    with pytest.raises(InputError, match="at_once must be 1 or more, or None, but got 0"):
        Limits(at_once=0)


def test_of_the_calls_that_wait_that_of_the_oldest_question_is_next():
    flow, order, threads = Flow(1), list[str](), list[threading.Thread]()
    old, new = Ledger(began=1.0), Ledger(began=2.0)

    def call(name, question):
        with metered(question), flow.turn():
            order.append(name)

    with flow.turn():
        for name, question in (("new", new), ("old", old), ("new, second", new)):
            threads.append(threading.Thread(target=call, args=(name, question)))
            threads[-1].start()
            while len(flow._waiting) < len(threads):
                threads[-1].join(0.001)
    for thread in threads:
        thread.join(30)
    assert order == ["old", "new", "new, second"]


@pytest.mark.parametrize("takes", [2, 10, 40])
def test_the_number_of_calls_settles_where_the_server_refuses(takes):
    flow = Flow()
    refused = asked = 0
    for turn in range(100):
        calls = [flow.turn() for _ in range(int(flow.limit))]
        for call in calls:
            call.__enter__()
        cuts = flow.cuts
        for place, call in enumerate(calls):
            if place < takes:
                flow.answered(1.0, 10)
            else:
                flow.refused(cuts)
            call.__exit__(None, None, None)
            if turn >= 50:
                asked, refused = asked + 1, refused + (place >= takes)
        if turn >= 50:
            assert takes / 2 <= flow.limit <= takes + 2
    assert refused < asked / 4


@pytest.mark.parametrize(
    ("seconds", "tokens", "low", "high"),
    [
        (lambda calls, tokens: 1.0, [10], MOST, MOST),  # one that takes all
        (lambda calls, tokens: max(1.0, calls / 8), [10], 8, 31),  # one that works on eight at a time
        (lambda calls, tokens: (16 + tokens) / 100, [10, 400, 10, 400], MOST, MOST),  # long answers are no slow ones
    ],
)
def test_a_server_that_refuses_nothing_is_given_as_many_as_it_works_on(seconds, tokens, low, high):
    flow = Flow()
    for count in tokens:
        for _ in range(50):
            with ExitStack() as calls:
                under_way = int(flow.limit)
                for _ in range(under_way):
                    calls.enter_context(flow.turn())
                for _ in range(under_way):
                    flow.answered(seconds(under_way, count), count)
    assert low <= flow.limit <= high
