from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import dspy
import pytest
from dspy import lm15
from dspy.utils.exceptions import (
    LMError,
    LMProviderError,
    LMRateLimitError,
    LMServerError,
    LMTimeoutError,
)

from querywright.errors import BudgetError, OutageError, QuerywrightError
from querywright.models import circuit_breaker
from querywright.models.adapter import PromptAdapter
from querywright.models.budget import Budget
from querywright.models.circuit_breaker import Limits
from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.models.engine_errors import redact
from querywright.models.response_parsing import text_response
from querywright.models.store import Store
from querywright.models.usage import surrounded


class FakeEngine:
    """Performs its steps in turn, and repeats the last one: raises an error, or answers with a text."""

    def __init__(self, *steps, deterministic=False, finish="stop", seconds=0.0):
        self.steps = steps or ("yes",)
        self.deterministic = deterministic
        self.finish = finish
        self.seconds = seconds
        self.asked = 0
        self._lock = threading.Lock()

    def complete(self, request):
        with self._lock:
            step = self.steps[min(self.asked, len(self.steps) - 1)]
            self.asked += 1
        time.sleep(self.seconds)
        if isinstance(step, BaseException):
            raise step
        return text_response(step, self.finish, request.model, 10, 2)


def request(text="hello", system=None, **config):
    return lm15.Request(model="m", messages=(lm15.Message.user(text),), system=system, config=lm15.Config(**config))


def guard(*steps, store=None, limits=None, deterministic=False, finish="stop", seconds=0.0, **options):
    engine = FakeEngine(*steps, deterministic=deterministic, finish=finish, seconds=seconds)
    return LMEngine(engine, store=store, limits=limits, **{"identity": "fake", **options})


@pytest.fixture
def store(working_folder):
    store = Store(working_folder / "answers.sqlite")
    yield store
    store.close()


def test_an_answer_is_stored_and_used_for_the_same_request_only(store, monkeypatch):
    engine = guard("one", "two", "three", store=store)

    assert [engine.complete(request()).text for _ in range(3)] == ["one"] * 3
    assert engine.complete(request("other")).text == "two"
    assert engine.complete(request(max_tokens=5)).text == "three"
    assert engine.ledger.total.calls == 3
    monkeypatch.setattr(store, "get_or_compute", None)  # a repeated answer is not read from the store again
    assert engine.complete(request()).text == "one"
    assert (engine.ledger.total.saved, engine.ledger.total.saved_tokens) == (3, 36)


@pytest.mark.parametrize(("kept", "finish"), [(True, "length"), (False, "stop")])
def test_what_is_not_kept_is_not_remembered(store, kept, finish):
    engine = guard("one", "two", "three", store=store if kept else None, finish=finish)

    assert [engine.complete(request()).text for _ in range(3)] == ["one", "two", "three"]


@pytest.fixture
def full(store):
    """Return a function that fills the store, or makes room again."""

    def let(is_full):
        pages = store.transact(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar())
        most = pages if is_full else 1_000_000
        store.transact(lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {most}").close())

    return let


def test_an_answer_that_the_store_cannot_take_is_used_and_stored_when_there_is_room(store, full, caplog):
    long = ["one " * 2000, "two " * 2000]
    engine = guard(*long, *long, store=store)
    full(True)
    assert [engine.complete(request(text)).text for text in "ab"] == long
    (said,) = [one.getMessage() for one in caplog.records]
    assert "disk is full" in said
    assert "free some disk space" in said
    full(False)
    assert [engine.complete(request(text)).text for text in "abab"] == long * 2
    assert (engine.ledger.total.calls, store.count("lm")) == (4, 2)


def test_a_draw_is_never_stored_and_a_seeded_sample_is(store):
    engine = guard("a", "b", "c", "d", store=store)
    draws = [engine.complete(request(temperature=0.7)).text for _ in range(2)]
    seeded = [engine.complete(request(temperature=0.7, seed=3)).text for _ in range(2)]
    assert (draws, seeded) == (["a", "b"], ["c", "c"])
    assert store.count("lm") == 1


NUMBER, NUMBERS, CHOICE = "q -> a: float", "q -> a: list[int]", "q -> a: Literal['tea', 'coffee']"
SCHEMA = {"type": "json_schema", "schema": {"properties": {"note": {}, "a": {}}, "required": ["a"]}}


@pytest.mark.parametrize(
    ("text", "finish", "config", "signature", "kept"),
    [
        ("yes", "stop", {}, None, True),
        ("yes", "length", {}, None, False),
        ("yes", "tool_call", {}, None, True),
        ("yes", "stop", {"response_format": {"type": "json_object"}}, None, False),
        ('{"a": 1}', "stop", {"response_format": {"type": "json_object"}}, None, True),
        ("yes", "stop", {}, NUMBER, False),
        ('{"a": 1} or {"a": 2}', "stop", {}, NUMBER, False),
        ('{"a": 1', "stop", {}, NUMBER, True),
        ('{"a": 1', "length", {}, NUMBER, False),
        ('{"a": 1} and so on', "length", {}, NUMBER, True),
        ('{"a": "x', "stop", {}, NUMBER, False),
        ('{"b": 1}', "stop", {}, NUMBER, False),
        ("{'a': 1}\n(I left {placeholders} out.)", "stop", {}, NUMBER, True),
        ('<think>Perhaps {"a": 2} or {b, c}.</think>{"a": 1}', "stop", {}, NUMBER, True),
        ('<think>Perhaps {"a": 2}.', "stop", {}, NUMBER, False),
        ('{"note": 1, "a": 1,}', "stop", {"response_format": SCHEMA}, NUMBER, True),
        ('{"note": 1}', "stop", {"response_format": SCHEMA}, NUMBER, False),
        ('{"note": 1, "a": 1,}', "stop", {"response_format": SCHEMA}, None, True),
        ('{"note": 1}', "stop", {"response_format": SCHEMA}, None, False),
        ('{"a": ["the first"]}', "stop", {"response_format": SCHEMA}, NUMBERS, False),
        ('{"a": [1, "2"]}', "stop", {"response_format": SCHEMA}, NUMBERS, True),
        ('{"a": "water"}', "stop", {}, CHOICE, False),
        ('{"a": "Tea."}', "stop", {}, CHOICE, True),
    ],
)
def test_answers_that_can_be_read_are_kept(store, text, finish, config, signature, kept):
    engine = guard(text, store=store, finish=finish, limits=Limits(max_attempts=1))
    parse = None if signature is None else partial(PromptAdapter().parse, dspy.Signature(signature))
    with surrounded(parse=parse):
        engine.complete(request(**config))
    assert store.count("lm") == int(kept)


def test_thinking_is_separated_from_the_answer_and_not_kept(store):
    engine = guard("<think>Tea? No.</think>\n\nCoffee.", store=store)
    first, stored = (engine.complete(request()) for _ in range(2))
    assert (first.text, first.message.parts[0].text) == ("Coffee.", "<think>Tea? No.</think>")
    assert (stored.text, engine.ledger.total.calls) == ("Coffee.", 1)


def test_a_deterministic_engine_has_no_better_answer(store):
    engine = guard("", "x", store=store, deterministic=True, finish="length")
    assert [engine.complete(request()).text for _ in range(2)] == ["", ""]


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """The seconds of the waits between attempts, which are skipped."""
    found = []
    monkeypatch.setattr(circuit_breaker, "sleep", found.append)
    return found


def test_transient_failures_are_tried_again_with_growing_waits(waits):
    engine = guard(LMServerError("a"), LMTimeoutError("b"), LMProviderError("c"), "yes")

    assert engine.complete(request()).text == "yes"
    assert all(0 <= wait <= 2**number for number, wait in enumerate(waits))
    assert len(waits) == 3
    total = engine.ledger.total
    assert (total.calls, total.retries, total.failures, total.unpriced) == (1, 3, 0, 1)


@pytest.mark.parametrize(
    ("retry_after", "low", "high"),
    [(0.0, 0, 1), (5.0, 5, 6), (60.0, 8, 8), (86400.0, 8, 8), (float("nan"), 8, 8), (-3.0, 0, 1)],
)
def test_a_server_may_ask_for_a_wait_but_not_for_a_long_one(waits, retry_after, low, high):
    error = LMRateLimitError("slow down", retry_after=retry_after)
    guard(error, "yes", limits=Limits(max_wait=8.0)).complete(request())
    assert low <= waits[0] <= high


def test_requests_in_a_row_open_the_breaker_and_a_success_resets_it():
    down = LMServerError("down")
    engine = guard(down, down, "yes", down, down, down, limits=Limits(max_attempts=1, outage_after=3))
    for number in range(6):
        if number == 2:
            assert engine.complete(request("2")).text == "yes"
        else:
            with pytest.raises(LMServerError):
                engine.complete(request(str(number)))
    with pytest.raises(OutageError, match=r"3 consecutive failures.*Last error: down"):
        engine.complete(request("6"))
    assert engine.inner.asked == 6


def test_requests_at_fault_do_not_open_the_breaker():
    engine = guard(dspy.utils.exceptions.LMInvalidRequestError("bad"), limits=Limits(outage_after=1))
    for _ in range(3):
        with pytest.raises(dspy.utils.exceptions.LMInvalidRequestError):
            engine.complete(request())
    assert engine.ledger.total.failures == 3


def test_after_a_while_one_request_finds_out_whether_the_model_is_back(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(circuit_breaker, "monotonic", lambda: now[0])
    down = LMServerError("down")
    limits = Limits(max_attempts=1, outage_after=1, cooldown=30.0)
    engine = guard(down, down, "yes", limits=limits)

    def outcome(text):
        try:
            return engine.complete(request(text)).text
        except LMError as error:
            return type(error).__name__

    seen = []
    for seconds in (0, 29, 30, 31, 59, 60, 61):
        now[0] = float(seconds)
        seen.append(outcome(str(seconds)))
    assert seen == ["LMServerError", "LMOutageError", "LMServerError", *["LMOutageError"] * 2, "yes", "yes"]


def test_every_attempt_of_every_lm_is_paid_and_answers_that_are_kept_are_not(store):
    budget = Budget(store, "test", calls=2)
    one, two = (guard(identity=name, store=store, budget=budget, price=lambda *_: 0.25) for name in "ab")
    for engine in (one, two, one, two):
        engine.complete(request())
    with pytest.raises(BudgetError):
        one.complete(request("another"))
    assert budget.spent == (2, 24, 0.5)
    failing = guard(LMServerError("a"), LMServerError("b"), "yes", budget=(attempts := Budget(None, "attempts")))
    failing.complete(request())
    assert attempts.spent == (3, 12, 0)


def test_a_store_that_cannot_be_used_is_an_error_of_ours(store, monkeypatch):
    def full(*_):
        raise QuerywrightError("the store cannot be used; free some space")

    monkeypatch.setattr(store, "get", full)
    lm = dspy.LM("m", engine=guard(store=store), cache=False, num_retries=0)
    with dspy.context(lm=lm), pytest.raises(QuerywrightError, match="free some space"):
        dspy.Predict("question -> answer")(question="?")


@pytest.mark.parametrize(
    "text",
    [
        "sk-proj-0123456789abcdef",
        "Authorization: Bearer abc.def-ghi",
        "http://user:secret@host:80/v1",
        "http://user:secret@secret@host",
        "https://secret@host/v1?a=me@home",
        "AIzaSyA1234567890abcdefghijk",
        "hf_ABCDEFGHIJKLMNOP",
    ],
)
def test_what_looks_like_a_key_is_removed(text):
    shown = redact(f"before {text} after")
    assert "***" in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert not any(secret in shown for secret in ("0123456789", "abc.def", "secret", "A1234567", "ABCDEFGH"))


def test_an_event_loop_has_more_requests_under_way_than_threads_of_its_own():
    together = threading.Barrier(20)  # breaks unless twenty requests are under way at the same time

    class Waiting:
        def complete(self, asked):
            together.wait(timeout=60)
            return text_response("done", "stop", asked.model, 1, 1)

    engine = AsyncLMEngine(LMEngine(Waiting(), identity="waiting", limits=Limits(at_once=20)))

    async def main():
        return await asyncio.gather(*(engine.complete(request(f"question {n}")) for n in range(20)))

    assert [answer.text for answer in asyncio.run(main())] == ["done"] * 20
