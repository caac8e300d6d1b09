"""Servers that fail, lie, drip or keep silent: no failure of theirs is scored, none is waited for, and no key leaks."""

from __future__ import annotations

import json
import random
import re
import runpy
import socket
import threading
from pathlib import Path

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError, LMError, LMProviderError, LMTimeoutError

from querywright.data.types import Question
from querywright.errors import OutageError
from querywright.models.adapter import PromptAdapter
from querywright.models.budget import Budget
from querywright.models.lm import engine_of
from querywright.models.pieces import heard_by
from querywright.models.store import open_store
from querywright.optimize.evaluate import evaluate
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.tables import table_rows
from querywright.programs import make_program

event = runpy.run_path(str(Path(__file__).parents[1] / "scripted_server.py"))["event"]

KEY = "sk-canary-0123456789abcdef"
GOOD = '{"answer": "tea"}'
PROSE = "I am afraid that I cannot do that."
EMPTY = {
    "no choices": {"body": {"id": "1", "model": "x", "choices": []}},
    "no content": {"body": {"id": "1", "model": "x", "choices": [{"message": {"role": "assistant", "content": None}}]}},
    "an empty text": "",
    "spaces": " \n ",
    "an empty object": {"body": b"{}"},
    "nothing": {"body": b" "},
    "half an answer": {"body": b'{"id": "1", "choices": [{"mess'},
}
FAULTS = [
    *EMPTY.values(),
    {"status": 429, "body": {}, "headers": {"Retry-After": "0"}},
    {"status": 500, "body": {"error": {"message": "boom"}}},
    {"drop": True},
]


class Ear(list):
    """Keeps what was heard."""

    def begin(self):
        self.append("")

    def hear(self, text):
        self.append(text)


def ask(lm, question="What is drunk hot?", ear=None):
    with dspy.context(lm=lm, adapter=PromptAdapter()), heard_by(ear):
        return dspy.Predict("question -> answer")(question=question).answer


def failure(lm, *asked, **given):
    """What asking ends with; None where it goes well."""
    try:
        ask(lm, *asked, **given)
    except Exception as error:  # noqa: BLE001 - the test says what it must be
        return error
    return None


def questions(count):
    return [Question(f"q{number}", f"What of number {number}?", answer=f"right {number}") for number in range(count)]


def closed_book(asked, lm, **given):
    program = make_program("closed_book", None, reader="short_answer")
    return evaluate(program, asked, lm=lm, name="closed book", **given)


def right(body):
    number = re.findall(r"number (\d+)", body["messages"][-1]["content"])[-1]
    return json.dumps({"answer": f"right {number}"})


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_no_failure_of_a_service_is_scored(attack, times, remote, share):
    """Of mixed faults, each question is answered rightly or failed; none is a zero, and none is of another question."""
    chance, lock = random.Random(f"faults {share}"), threading.Lock()

    def answer(body):
        with lock:
            fault = chance.choice(FAULTS) if chance.random() < share else None
        return right(body) if fault is None else fault

    lm, _ = remote(answer, limits={"outage_after": 10**6}, store=open_store())
    for row in closed_book(questions(times(200)), lm, threads=8, max_failures=1.0).rows:
        scored = row.scores["accuracy"]
        held = scored == 1.0 if row.failure is None else (row.failure, scored == scored) == ("lm", False)
        attack.tried("a service failure is never scored", held, row)
        attack.tried("each answer belongs to its question", row.answer in (None, f"right {row.id[1:]}"), row)
    kept = open_store().count("lm")
    attack.tried("no failure is cached", kept <= times(200), kept)


@pytest.mark.parametrize("step", EMPTY.values(), ids=EMPTY)
def test_a_service_that_answers_nothing_is_down(attack, remote, step):
    lm, server = remote(step, limits={"max_attempts": 2, "outage_after": 2}, store=open_store())
    failed = failure(lm)
    held = isinstance(failed, LMProviderError) and not isinstance(failed, AdapterParseError) and server.count == 2
    attack.tried("an empty answer counts as a service failure", held, failed)
    with pytest.raises((OutageError, TooManyFailuresError)):
        closed_book(questions(40), lm)
    attack.tried("a run ends if the service never answers", server.count <= 12, server.count)
    lm, server = remote(step, limits={"outage_after": 5})  # as a command asks: with as many threads as there may be
    with pytest.raises((OutageError, TooManyFailuresError)):
        closed_book(questions(100), lm, threads=engine_of(lm).threads, max_failures=1.0)
    attack.tried("a run ends if the service never answers", server.count <= 4 * 9, server.count)
    assert open_store().count("lm") == 0


def test_thinking_that_took_all_tokens_is_no_answer_and_is_not_asked_for_again(remote):
    lm, server = remote({"answer": "", "finish_reason": "length"})
    with pytest.raises(LMError, match=r"all its tokens for thinking; increase max_tokens="):
        ask(lm)
    assert (server.count, engine_of(lm).ledger.total.output_tokens) == (1, 7)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_short_run_of_which_nothing_can_be_read_ends_as_well_whatever_is_allowed(remote, count):
    lm, _ = remote(PROSE, limits={"max_unreadable": 0.99})
    with pytest.raises(TooManyFailuresError, match=f"{count} of {count} LM answers in 'closed book'"):
        closed_book(questions(count), lm)


def test_some_unreadable_answers_are_told_in_table_and_data(attack, remote):
    lm, _ = remote(lambda body: PROSE if "number 1" in body["messages"][-1]["content"] else right(body))
    found = closed_book(questions(10), lm)  # number 1 alone
    attack.tried("unreadable answers are counted", (found.cost.unreadable, found.unreadable_rate) == (1, 0.1))
    assert found.to_json()["unreadable_rate"] == 0.1
    assert table_rows([found])[0]["unreadable"] == "10%"
    with pytest.raises(TooManyFailuresError, match="limit: 0%"):
        closed_book(questions(10), remote(PROSE, limits={"max_unreadable": 0})[0])


@pytest.mark.parametrize("ear", [None, Ear()], ids=["whole", "stream"])
@pytest.mark.parametrize("step", [{"hang": True}, {"drip": 0.05}], ids=["silent", "drips"])
def test_a_server_that_never_ends_costs_a_handful_of_attempts(attack, remote, step, ear):
    lm, server = remote(step, timeout=0.3, limits={"max_attempts": 2, "outage_after": 3})
    failed = failure(lm, ear=ear)
    told = "no complete answer within 0.3 seconds" in str(failed) and "increase timeout=" in str(failed)
    attack.tried(
        "an attempt ends in time, even if data keeps trickling in", isinstance(failed, LMTimeoutError) and told, failed
    )
    with pytest.raises(OutageError, match="consecutive failures"):
        closed_book(questions(40), lm, max_failures=1.0)
    attack.tried("a run ends after a few attempts if the server is silent", server.count <= 3 + 4, server.count)
    if "drip" in step:
        for _ in range(100):
            if server.left == server.count:
                break
            threading.Event().wait(0.05)
        attack.tried("an abandoned answer is not read any further", server.left == server.count, server.left)


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens": -5, "completion_tokens": -7}, {"prompt_tokens": "many", "completion_tokens": None}, {},
     {"prompt_tokens": 10**30, "completion_tokens": 1}, {"prompt_tokens": 1.5, "completion_tokens": True}, [1]],
)  # fmt: skip
def test_a_server_that_lies_about_tokens_gives_no_budget_back(attack, remote, usage):
    budget = Budget(None, "a test", calls=3, tokens=10**6)
    lm, _ = remote({"answer": GOOD, "usage": usage}, budget=budget)
    failed = failure(lm)
    spent, total = budget.spent, engine_of(lm).ledger.total
    held = spent.calls == 1 and spent.tokens >= 0 and min(total.input_tokens, total.output_tokens) >= 0
    attack.tried("a false token count lowers no total", held, (usage, spent, total))
    attack.tried(
        "a false token count causes no unexpected error", failed is None or isinstance(failed, LMError), failed
    )


def test_a_name_that_is_looked_up_for_ever_ends_an_attempt_in_time(attack, remote, monkeypatch):
    lm, _ = remote(GOOD, timeout=0.3, limits={"max_attempts": 1})
    gate, found = threading.Event(), []

    def slow(*_, **__):
        gate.wait(60)
        found.append("late")
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    failed = failure(lm)
    attack.tried(
        "an attempt ends in time, even if data keeps trickling in",
        isinstance(failed, LMTimeoutError) and not found,
        failed,
    )
    gate.set()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("ear", [None, Ear()], ids=["whole", "stream"])
def test_a_redirect_takes_neither_question_nor_key_elsewhere(attack, remote, chat_server, status, ear):
    other = chat_server(GOOD)
    lm, _ = remote({"status": status, "headers": {"Location": f"{other.url}/chat/completions"}})
    failed = failure(lm, ear=ear)
    told = isinstance(failed, LMError) and f"HTTP {status}" in str(failed) and "api_base=" in str(failed)
    attack.tried("a redirect is not followed", (told, other.count) == (True, 0), failed)
    transport = engine_of(lm).inner._client.config.transport._inner
    free = transport._pool._slot._value
    attack.tried("a redirect does not leak a connection", free == transport.max_connections, free)
    attack.tried("no API key is shown", KEY not in repr(failed) + str(failed), failed)


@pytest.mark.parametrize("key", ["k", "ab", "xyz", "four"])
def test_a_short_key_is_not_shown_either(attack, remote, key):
    lm, _ = remote({"status": 401, "body": {"error": {"message": f"bad key: {key}, said the server"}}}, api_key=key)
    failed = failure(lm)
    attack.tried("no API key is shown", "bad key: ***, said the server" in str(failed), failed)
