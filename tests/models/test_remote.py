"""Remote models over a real connection to a server that misbehaves."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import dspy
import pytest
from dspy.utils.exceptions import (
    AdapterParseError,
    LMAuthError,
    LMInvalidRequestError,
    LMProviderError,
    LMServerError,
    LMTimeoutError,
    LMTransportError,
)

from querywright.errors import BudgetError, ModelError, OutageError
from querywright.models.adapter import PromptAdapter
from querywright.models.budget import Budget
from querywright.models.circuit_breaker import Limits
from querywright.models.lm import engine_of, resolve_lm
from querywright.models.store import open_store
from querywright.models.usage import metered

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


def test_a_short_retry_after_is_waited_with_jitter(remote):
    lm, _, waits = remote({**LIMITED, "headers": {"Retry-After": "3"}}, GOOD, limits=Limits(backoff=0.5))

    ask(lm)
    assert 3.0 <= waits[0] <= 3.5


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
    assert 0.6 <= cost.seconds < 4


def test_an_outage_stops_all_that_is_asked(remote):
    lm, server, _ = remote(BROKEN, limits=Limits(max_attempts=2, outage_after=3))

    for number in range(3):
        with pytest.raises(LMServerError):
            ask(lm, f"{number}?")
    with pytest.raises(OutageError, match=r"3 requests in a row to openai/x at 127\.0\.0\.1"):
        ask(lm, "one more?")
    assert server.count == 6


def test_an_outage_under_threads_wastes_few_calls(remote):
    lm, server, _ = remote(BROKEN, limits=Limits(max_attempts=2, outage_after=3))

    def one(number):
        try:
            ask(lm, f"{number}?")
        except (OutageError, LMServerError) as error:
            return type(error).__name__

    with ThreadPoolExecutor(16) as pool:
        seen = list(pool.map(one, range(60)))
    assert None not in seen
    assert seen.count("LMOutageError") >= 60 - 16 - 3
    assert server.count <= 2 * (16 + 3)  # the attempts of what was under way, and of the three that failed


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


def test_a_request_at_fault_says_nothing_about_the_service(remote):
    lm, server, _ = remote({"status": 400, "body": {"error": {"message": "bad"}}}, limits=Limits(outage_after=1))

    for _ in range(2):
        with pytest.raises(LMInvalidRequestError):
            ask(lm)
    assert server.count == 2


def test_a_budget_stop_reaches_the_caller_unchanged(remote):
    lm, server, _ = remote(GOOD, budget=Budget(None, "test", calls=1))

    assert ask(lm).answer == "tea"
    with pytest.raises(BudgetError, match="the limit of 1 LM calls is reached"):
        ask(lm, "again?")
    assert server.count == 1


def test_retries_are_paid_from_the_budget(remote):
    lm, server, _ = remote(BROKEN, GOOD, budget=Budget(None, "test", calls=1))

    with pytest.raises(BudgetError):
        ask(lm)
    assert server.count == 1


def test_broken_json_is_repaired_by_one_more_call(remote):
    lm, server, _ = remote("I think it is tea.", GOOD)

    assert ask(lm).answer == "tea"
    cost = engine_of(lm).ledger.total
    assert (cost.calls, cost.repairs, server.count) == (2, 1, 2)
    first, second = (body["messages"][-1]["content"] for body in server.bodies)
    assert second.startswith(first)
    assert "The answer is no JSON object." in second
    assert second.endswith('with these fields: "answer".')


def test_two_bad_answers_are_a_parse_error(remote):
    lm, server, _ = remote("no", "never", GOOD, store=open_store())

    with pytest.raises(AdapterParseError, match="The answer is no JSON object"):
        ask(lm)
    assert server.count == 2
    # Neither was kept: the question has an answer as soon as the model has one.
    assert ask(lm).answer == "tea"
    assert server.count == 3


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


def test_the_same_question_is_answered_from_the_store(remote):
    lm, server, _ = remote(GOOD, store=open_store())
    with metered() as first:
        ask(lm)
    with metered() as second:
        ask(lm)

    assert (first.total.calls, first.total.saved) == (1, 0)
    assert (second.total.calls, second.total.saved, second.total.saved_tokens) == (0, 1, 18)
    assert server.count == 1


def test_the_address_is_part_of_what_an_answer_is_stored_under(remote):
    first, _, _ = remote(GOOD, store=open_store())
    other, server, _ = remote('{"answer": "coffee"}', store=open_store())

    assert (ask(first).answer, ask(other).answer) == ("tea", "coffee")
    assert server.count == 1


def test_sampled_answers_are_drawn_again(remote):
    lm, server, _ = remote(GOOD, '{"answer": "mate"}', store=open_store(), temperature=0.8)

    assert [ask(lm).answer, ask(lm).answer] == ["tea", "mate"]
    assert server.bodies[0]["temperature"] == 0.8


def test_many_threads_are_counted_exactly(remote):
    lm, server, _ = remote(GOOD, store=open_store())
    questions = [f"{number % 40}?" for number in range(160)]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda question: ask(lm, question).answer, questions))
    cost = engine_of(lm).ledger.total
    assert answers == ["tea"] * 160
    assert server.count == 40
    assert (cost.calls, cost.saved, cost.asked) == (40, 120, 160)
    assert (cost.input_tokens, cost.output_tokens, cost.saved_tokens) == (40 * 11, 40 * 7, 120 * 18)


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


def test_the_asynchronous_face_is_the_same_engine(remote):
    lm, server, _ = remote("no json", GOOD, store=open_store())

    async def main():
        with dspy.context(lm=lm, adapter=PromptAdapter()):
            predict = dspy.Predict(Ask)
            return (await predict.acall(question="hot?")).answer, (await predict.acall(question="cold?")).answer

    assert asyncio.run(main()) == ("tea", "tea")
    cost = engine_of(lm).ledger.total
    assert (cost.calls, cost.repairs, server.count) == (3, 1, 3)


def test_a_choice_is_read_whatever_its_case(remote):
    class Choose(dspy.Signature):
        """Choose."""

        question: str = dspy.InputField()
        answer: Literal["Green tea", "Coffee"] = dspy.OutputField()

    lm, server, _ = remote('{"answer": "green  tea."}', '{"answer": "water"}')
    assert ask(lm, signature=Choose).answer == "Green tea"
    assert 'one of "Green tea" | "Coffee"' in server.bodies[0]["messages"][0]["content"]
    with pytest.raises(AdapterParseError, match="The field answer"):
        ask(lm, "else?", signature=Choose)


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


@pytest.mark.parametrize(
    ("name", "message"), [("gpt-4o", "openai/gpt-4o"), ("openai/", "unknown LM 'openai/'"), ("", "unknown LM ''")]
)
def test_a_name_without_a_provider_or_a_model_is_refused(name, message):
    with pytest.raises(ModelError, match=message):
        resolve_lm(name)
