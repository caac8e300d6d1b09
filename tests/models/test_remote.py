"""Remote models over a real connection to a server that misbehaves."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from dspy.utils.exceptions import (
    AdapterParseError,
    LMAuthError,
    LMProviderError,
    LMServerError,
    LMTimeoutError,
    LMTransportError,
)

from querywright.errors import OutageError
from querywright.models.adapter import PromptAdapter
from querywright.models.circuit_breaker import Limits
from querywright.models.lm import engine_of, resolve_lm
from querywright.models.store import open_store

KEY = "sk-canary-0123456789abcdef"
GOOD = '{"answer": "tea"}'
LIMITED = {
    "status": 429,
    "body": {"error": {"message": "slow down", "code": "rate_limit_exceeded"}},
    "headers": {"Retry-After": "86400"},
}
BROKEN = {"status": 500, "body": {"error": {"message": "boom"}}}


class Ask(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


@pytest.fixture
def remote(chat_server):
    """An LM whose server answers from a script, and that server; waits are noted, not waited."""
    opened = []

    def make(*steps, **options):
        server = chat_server(*steps)
        lm = resolve_lm("openai/x", **{"api_base": server.url, "api_key": KEY, "timeout": 5.0, **options})
        engine = engine_of(lm)
        waits: list[float] = []
        engine.retrying.sleep = waits.append
        opened.append(engine)
        return lm, server, waits

    yield make
    for engine in opened:
        engine.close()


def ask(lm, question="What is drunk hot?", signature=Ask):
    with dspy.context(lm=lm, adapter=PromptAdapter()):
        return dspy.Predict(signature)(question=question)


def test_a_good_answer_is_counted_as_the_server_counted_it(remote):
    lm, server, _ = remote(GOOD)

    assert ask(lm).answer == "tea"
    cost = engine_of(lm).ledger.total
    assert (cost.calls, cost.input_tokens, cost.output_tokens, cost.unpriced) == (1, 11, 7, 1)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    body = server.bodies[0]
    assert (body["model"], body["temperature"]) == ("x", 0.0)
    assert "Answer with one JSON object" in body["messages"][0]["content"]
    assert body["messages"][-1]["content"] == "question: What is drunk hot?"


def test_the_price_of_a_known_model_is_counted(chat_server):
    lm = resolve_lm("openai/gpt-4o-mini", api_base=chat_server(GOOD).url, api_key=KEY)
    ask(lm)
    engine_of(lm).close()

    cost = engine_of(lm).ledger.total
    assert cost.unpriced == 0
    assert cost.dollars == pytest.approx((11 * 0.15 + 7 * 0.60) / 1e6)


def test_a_busy_server_is_asked_again_after_at_most_the_longest_wait(remote):
    lm, server, waits = remote(LIMITED, BROKEN, GOOD, limits=Limits(max_wait=9.0, backoff=0.5))

    assert ask(lm).answer == "tea"
    assert waits[0] == 9.0
    assert 0 <= waits[1] <= 1.0
    cost = engine_of(lm).ledger.total
    assert (cost.calls, cost.retries, cost.failures) == (1, 2, 0)
    assert server.count == 3


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (BROKEN, LMServerError),
        ({"drop": True}, LMTransportError),
        ({"body": b"<html>gateway</html>"}, LMProviderError),
    ],
    ids=["500", "drop", "garbage"],
)
def test_a_fault_that_lasts_is_an_error_of_its_type(remote, step, error):
    lm, server, _ = remote(step, limits=Limits(max_attempts=3))

    with pytest.raises(error):
        ask(lm)
    cost = engine_of(lm).ledger.total
    assert (cost.calls, cost.retries, cost.failures, server.count) == (0, 2, 1, 3)


def test_a_server_that_hangs_costs_the_timeout(remote):
    lm, _, _ = remote({"hang": True}, timeout=0.3, limits=Limits(max_attempts=2))

    with pytest.raises((LMTransportError, LMTimeoutError)):
        ask(lm)
    cost = engine_of(lm).ledger.total
    assert (cost.failures, cost.retries) == (1, 1)


def test_a_wrong_key_stops_at_once_and_is_shown_nowhere(remote, caplog, working_folder):
    caplog.set_level(logging.DEBUG)
    echo = {"status": 401, "body": {"error": {"message": f"Incorrect API key provided: {KEY}"}}}
    lm, server, _ = remote(echo, store=open_store())

    with pytest.raises(LMAuthError) as caught:
        ask(lm)
    with pytest.raises(OutageError) as outage:
        ask(lm, "and now?")
    assert server.count == 1
    chain = [caught.value, caught.value.__cause__, caught.value.__context__, outage.value]
    shown = " ".join([*map(repr, chain), caplog.text, json.dumps(lm.dump_state()), str(lm.history)])
    assert "Incorrect API key provided: ***" in shown
    assert KEY not in shown
    assert all(KEY.encode() not in path.read_bytes() for path in working_folder.glob("*.sqlite*"))


def test_a_key_of_the_environment_is_not_shown_either(chat_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary 77!")
    server = chat_server({"status": 401, "body": {"error": {"message": "bad key: canary 77!"}}})
    lm = resolve_lm("openai/x", api_base=server.url)

    with pytest.raises(LMAuthError) as caught:
        ask(lm)
    engine_of(lm).close()
    assert server.headers[0]["Authorization"] == "Bearer canary 77!"
    assert "canary 77!" not in str(caught.value)


def test_a_password_in_the_address_is_neither_shown_nor_part_of_the_identity(remote, caplog):
    caplog.set_level(logging.DEBUG)
    lm, _, _ = remote(api_base="http://user:s3cretpass@127.0.0.1:9/v1", limits=Limits(max_attempts=1))

    with pytest.raises(LMTransportError) as caught:
        ask(lm)
    shown = str(caught.value) + caplog.text + json.dumps(lm.dump_state()) + engine_of(lm).identity
    assert "s3cretpass" not in shown
    assert engine_of(lm).identity == "openai/x at 127.0.0.1:9/v1"


def test_an_empty_account_stops_at_once(remote):
    quota = {"status": 429, "body": {"error": {"message": "no money", "code": "insufficient_quota"}}}
    lm, server, _ = remote(quota)

    with pytest.raises(dspy.utils.exceptions.LMBillingError):
        ask(lm)
    with pytest.raises(OutageError, match="no money"):
        ask(lm)
    assert server.count == 1


@pytest.mark.parametrize("step", [{"body": {"choices": []}}, ""], ids=["no choices", "empty"])
def test_an_empty_answer_is_a_parse_error_after_its_repair(remote, step):
    lm, server, _ = remote(step, store=open_store())

    with pytest.raises((AdapterParseError, LMProviderError)):
        ask(lm)
    assert server.count >= 2
    assert open_store().count("lm") == 0


def test_only_whole_json_answers_are_kept(remote):
    lm, _, _ = remote('{"answer": "te', store=open_store())
    with pytest.raises(AdapterParseError, match="breaks off"):
        ask(lm, "What?")
    for number, line in enumerate([{"answer": GOOD, "finish_reason": "length"}, f"Sure! {GOOD}"]):
        lm, _, _ = remote(line, store=open_store())
        assert ask(lm, f"{number}?").answer == "tea"
    assert open_store().count("lm") == 1  # words around the object do not harm it


def test_the_address_is_part_of_what_an_answer_is_stored_under(remote):
    first, _, _ = remote(GOOD, store=open_store())
    other, server, _ = remote('{"answer": "coffee"}', store=open_store())

    assert (ask(first).answer, ask(other).answer) == ("tea", "coffee")
    assert server.count == 1


def test_faults_of_all_kinds_do_not_change_what_comes_out(remote):
    def flaky(body):
        asked = sum(other["messages"] == body["messages"] for other in server.bodies)
        number = int(body["messages"][-1]["content"].split()[-1])
        faults = [LIMITED, BROKEN, {"drop": True}, {"body": b"garbage"}]
        return faults[number % 4] if asked <= number % 3 else json.dumps({"answer": str(number)})

    lm, server, _ = remote(flaky, limits=Limits(max_attempts=4, outage_after=5))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: ask(lm, f"say {number}").answer, range(60)))
    cost = engine_of(lm).ledger.total
    assert answers == [str(number) for number in range(60)]
    assert (cost.calls, cost.failures) == (60, 0)
    assert server.count == cost.calls + cost.retries == 60 + 60


@pytest.mark.slow
def test_an_openai_compatible_server_needs_no_litellm_and_no_other_address(chat_server):
    server = chat_server(GOOD)
    script = f"""
import socket, sys
real = socket.socket.connect
def connect(self, address):
    if self.family != socket.AF_UNIX and address[1] != {server.url.split(":")[2].split("/")[0]}:
        raise RuntimeError(f"connection to {{address}}")
    return real(self, address)
socket.socket.connect = connect
sys.modules["litellm"] = None
import dspy
from querywright.models.adapter import PromptAdapter
from querywright.models.lm import resolve_lm
lm = resolve_lm("openai/x", api_base={server.url!r}, api_key="none")
with dspy.context(lm=lm, adapter=PromptAdapter()):
    print(dspy.Predict("question -> answer")(question="hot?").answer)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "tea", done.stderr
    assert server.count == 1
