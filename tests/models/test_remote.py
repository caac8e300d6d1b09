"""Remote models over a real connection to a faulty server, and answers that are heard while they are written."""

from __future__ import annotations

import asyncio
import json
import logging
import runpy
from pathlib import Path

import dspy
import pytest
from dspy.utils.exceptions import (
    AdapterParseError,
    LMAuthError,
    LMError,
    LMProviderError,
    LMServerError,
    LMStreamAssemblyError,
    LMTransportError,
)

from querywright.errors import OutageError
from querywright.models.adapter import PromptAdapter
from querywright.models.engine_errors import LMRefusedError
from querywright.models.lm import engine_of, resolve_lm
from querywright.models.pieces import FieldText, heard_by
from querywright.models.store import open_store

SERVER = runpy.run_path(str(Path(__file__).parents[1] / "scripted_server.py"))
event, ENDING = SERVER["event"], SERVER["ENDING"]

KEY = "sk-canary-0123456789abcdef"
GOOD = '{"answer": "tea"}'
PIECES = ['{"answer": "hot', " caf\u00e9 ", '\U0001f600"}']
HEARD = "hot caf\u00e9 \U0001f600"
BROKEN = {"status": 500, "body": {"error": {"message": "boom"}}}
ENDS_EARLY = {"chunks": [event(PIECES[0])]}
BREAKS_OFF = {"chunks": [event(PIECES[0])], "promised": 500}


class Ear(list):
    """Collects the pieces, and an empty text for each beginning."""

    def begin(self):
        self.append("")

    def hear(self, text):
        self.append(text)


def ask(lm, question="What is drunk hot?", ear=None):
    with dspy.context(lm=lm, adapter=PromptAdapter()), heard_by(ear):
        return dspy.Predict("question -> answer")(question=question).answer


def cost_of(lm):
    return engine_of(lm).ledger.total


def test_a_good_answer_is_counted_as_the_server_counted_it(remote):
    lm, server = remote(GOOD)
    assert ask(lm) == "tea"
    cost = cost_of(lm)
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
    assert cost_of(lm).unpriced == 0
    assert cost_of(lm).dollars == pytest.approx((11 * 0.15 + 7 * 0.60) / 1e6)


@pytest.mark.parametrize(
    ("step", "error", "heard"),
    [
        (BROKEN, LMServerError, None),
        ({"drop": True}, LMTransportError, None),
        ({"body": b"<html>gateway</html>"}, LMProviderError, None),
        (ENDS_EARLY, LMStreamAssemblyError, ["", PIECES[0]]),
        (BREAKS_OFF, LMTransportError, ["", PIECES[0]]),
        (BROKEN, LMServerError, [""]),
    ],
    ids=["500", "drop", "garbage", "ends early", "breaks off", "500 of a stream"],
)
def test_a_fault_that_lasts_is_an_error_of_its_type_and_keeps_nothing(remote, step, error, heard):
    lm, server = remote(step, limits={"max_attempts": 3}, store=open_store())
    ear = None if heard is None else Ear()
    with pytest.raises(error):
        ask(lm, ear=ear)
    assert (cost_of(lm).calls, cost_of(lm).retries, cost_of(lm).failures, server.count) == (0, 2, 1, 3)
    assert ear == (None if heard is None else heard * 3)
    assert open_store().count("lm") == 0


def choice(finish_reason="stop", error=None, **message):
    """Return a reply with one choice."""
    told = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason, "error": error}
    return {"body": {"id": "1", "object": "chat.completion", "created": 1, "model": "x", "choices": [told]}}


FILTERED = "the service filtered the answer"


@pytest.mark.parametrize("ear", [None, Ear()], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (choice(content=None, refusal="I will not talk about tea."), "refused to answer: I will not talk about tea"),
        (choice(content="", refusal="Not about tea."), "refused to answer: Not about tea"),
        (choice("content_filter", content=None), FILTERED),
        (choice("content_filter", content=""), FILTERED),
        (choice("content_filter", content='{"answer": "te'), rf'{FILTERED} .*: {{"answer": "te'),
    ],
)
def test_a_refusal_is_reported_in_the_service_s_words_and_not_asked_again(remote, reply, message, ear):
    lm, server = remote(reply, store=open_store())
    with pytest.raises(LMRefusedError, match=message):
        ask(lm, ear=ear)
    assert [body.get("stream") for body in server.bodies] == [None] if ear is None else [True, None]
    assert (cost_of(lm).retries, cost_of(lm).repairs, cost_of(lm).failures) == (0, 0, 1)
    assert open_store().count("lm") == 0


@pytest.mark.parametrize(
    ("reply", "ear"),
    [
        (choice(content="", reasoning_content="Tea?"), None),
        (choice(content="<think>Tea?"), None),
        ({"chunks": [event("", reasoning_content="Tea?"), *ENDING]}, Ear()),
    ],
)
def test_an_answer_that_is_only_thinking_is_asked_for_once_more_and_then_unreadable(remote, reply, ear):
    lm, server = remote(reply, store=open_store())
    with pytest.raises(AdapterParseError):
        ask(lm, ear=ear)
    total = cost_of(lm)
    assert (server.count, total.calls, total.retries, total.repairs, total.unreadable) == (2, 2, 0, 1, 1)
    assert open_store().count("lm") == 0


@pytest.mark.parametrize("call", ["__call__", "acall"])
def test_an_answer_of_the_wrong_type_is_asked_for_again_in_the_next_run_and_a_read_one_is_not(remote, call):
    wrong, good = '{"chosen": ["the first passage"]}', '{"chosen": [1]}'
    _, server = remote(wrong, wrong, good)
    runs = []
    for _ in range(3):
        lm, _ = remote(api_base=server.url, store=open_store())
        with dspy.context(lm=lm, adapter=PromptAdapter()):
            try:
                made = getattr(dspy.Predict("question -> chosen: list[int]"), call)(question="Which?")
                made = (asyncio.run(made) if call == "acall" else made).chosen
            except AdapterParseError:
                made = None
        runs.append((made, cost_of(lm).calls, cost_of(lm).saved))
    assert runs == [(None, 2, 0), ([1], 1, 0), ([1], 0, 1)]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (choice("error", {"code": 502, "message": "upstream is down"}, content='{"answer": "te'), "upstream is down"),
        (choice("error", content=GOOD), "finish_reason error"),
        (choice("abort", content='{"answer": "te'), "finish_reason abort"),
    ],
)
def test_an_answer_that_the_service_did_not_finish_is_its_failure_and_asked_for_again(remote, reply, message):
    lm, server = remote(reply, limits={"max_attempts": 2})
    with pytest.raises(LMServerError, match=message):
        ask(lm)
    assert (server.count, cost_of(lm).retries, cost_of(lm).unreadable) == (2, 1, 0)
    lm, server = remote(reply, GOOD)
    assert (ask(lm), server.count) == ("tea", 2)


def test_a_wrong_key_stops_at_once_and_is_shown_nowhere(remote, caplog, working_folder):
    caplog.set_level(logging.DEBUG)
    echo = {"status": 401, "body": {"error": {"message": f"Incorrect API key provided: {KEY}"}}}
    lm, server = remote(echo, store=open_store())
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


def test_the_address_is_part_of_what_an_answer_is_stored_under(remote):
    first, _ = remote(GOOD, store=open_store())
    other, server = remote('{"answer": "coffee"}', store=open_store())
    assert (ask(first), ask(other), server.count) == ("tea", "coffee", 1)


def test_an_answer_is_heard_as_it_is_written_stored_and_counted_like_any_other(remote):
    lm, server = remote({"pieces": PIECES}, store=open_store())
    ear, again = Ear(), Ear()
    assert ask(lm, ear=ear) == HEARD
    assert ear == ["", *PIECES]
    assert (cost_of(lm).calls, cost_of(lm).input_tokens, cost_of(lm).output_tokens) == (1, 11, 7)
    assert server.bodies[0]["stream"] is True
    assert ask(lm, ear=again) == HEARD == ask(lm)
    assert again == []
    assert (cost_of(lm).saved, server.count) == (2, 1)


@pytest.mark.parametrize(
    ("first", "heard", "counted"),
    [
        (ENDS_EARLY, [PIECES[0]], "retries"),
        (BREAKS_OFF, [PIECES[0]], "retries"),
        (BROKEN, [], "retries"),
        ({"drop": True}, [], "retries"),
        ({"pieces": ["no", " json"]}, ["no", " json"], "repairs"),
    ],
    ids=["ends early", "breaks off", "500", "drop", "repair"],
)
def test_a_stream_that_breaks_or_cannot_be_read_is_begun_again(remote, first, heard, counted):
    lm, server = remote(first, {"pieces": PIECES}, store=open_store())
    ear = Ear()
    assert ask(lm, ear=ear) == HEARD
    assert ear == ["", *heard, "", *PIECES]
    assert (getattr(cost_of(lm), counted), cost_of(lm).failures, server.count) == (1, 0, 2)


def test_an_error_inside_a_stream_is_one_without_the_key(remote):
    said = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    lm, server = remote({"chunks": [event(PIECES[0]), b"data: " + json.dumps(said).encode() + b"\n\n"]})
    with pytest.raises(LMAuthError) as caught:
        ask(lm, ear=Ear())
    assert KEY not in repr(caught.value) + str(caught.value.__cause__) + str(caught.value.__context__)
    assert server.count == 1


def test_a_server_that_cannot_stream_is_asked_for_the_whole(remote):
    lm, server = remote("".join(PIECES), limits={"max_attempts": 1})
    assert {ask(lm, f"{number}?", Ear()) for number in range(5)} == {HEARD}
    # After three attempts, no stream is requested any more.
    assert [body.get("stream") for body in server.bodies] == [True, None] * 3 + [None] * 2
    assert (cost_of(lm).calls, cost_of(lm).failures) == (5, 0)


@pytest.mark.parametrize(
    "answer",
    [
        '{"answer": "tea"}',
        '{"reasoning": "they say \\"answer\\": \\"no\\"", "answer": "caf\u00e9 \U0001f600 na\u00efve"}',
        '{"answer": " \\n two  words\\t\\" and \\\\ a slash \\/ \\n ", "passage_numbers": [1, 2]}',
        '{"answer": "\\u0063af\\u00e9 \\ud83d\\ude00!", "passages_hold_the_answer": "yes"}',
        'Sure! Here it is:\n```json\n{"passage_numbers": [1, {"answer": "not this"}], "answer": "this"}\n```',
        '{"a": {"answer": "inner"}, "b": [["answer", "x"], "]"], "c": true, "n": -1.5e3, "answer": "outer"}',
        '{"other": "ends with a backslash \\\\", "answer": ""}',
        '{"\\u0061nswer": "the key in escapes"}',
        '{"answer": "a new\\nunder line \\\\frac \\\\nu"}',
    ],
)
def test_a_field_s_text_is_the_same_wherever_the_answer_is_cut(answer):
    wanted = json.JSONDecoder().raw_decode(answer[answer.index("{") :])[0]["answer"].strip()
    for cut in range(len(answer) + 1):
        reader = FieldText("answer")
        assert reader.feed(answer[:cut]) + reader.feed(answer[cut:]) == wanted
    assert "".join(map(FieldText("answer").feed, answer)) == wanted


@pytest.mark.parametrize(
    ("answer", "heard"),
    [
        ('<think>Perhaps {"answer": "coffee"}.</think>{"answer": "tea"}', "tea"),
        (r'{"answer": "E = h\nu and \frac{1}{2}\nu"}', r"E = h\nu and \frac{1}{2}\nu"),
    ],
)
def test_no_thinking_and_no_half_of_a_command_is_given(answer, heard):
    given = list(map(FieldText("answer").feed, answer))
    assert "".join(given) == heard


@pytest.mark.parametrize(
    "answer",
    ["It is tea.", '{"answer": ["tea"]}', '{"answers": "tea"}', '{"inner": {"answer": "tea"}}', '{"answer" "tea"}', ""],
)
def test_what_is_no_text_of_that_field_is_not_given(answer):
    assert FieldText("answer").feed(answer) == ""


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": "12", "completion_tokens": "3", "total_tokens": "15"}, (12, 3)),
        ({"prompt_tokens": 12.0, "completion_tokens": 3.5, "total_tokens": 15.5}, (12, 3)),
        ({"prompt_tokens": "12.0", "completion_tokens": None}, (12, 0)),
        ({"prompt_tokens": "n/a", "completion_tokens": {"text": 3}}, (0, 0)),
        ({"prompt_tokens": 12, "completion_tokens": 3, "completion_tokens_details": "none"}, (12, 3)),
        ({"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": "4"}}, (12, 3)),
        ({}, (0, 0)),
        ([12, 3], (0, 0)),
    ],
)
def test_an_answer_is_kept_whatever_the_server_says_about_tokens(remote, usage, counted, streamed):
    last = json.dumps({"model": "x", "choices": [], "usage": usage})
    stream = {"chunks": [*map(event, PIECES), ENDING[0], f"data: {last}\n\n".encode(), ENDING[2]]}
    lm, _ = remote(stream if streamed else {"answer": GOOD, "usage": usage}, store=open_store())
    ear = Ear() if streamed else None
    assert ask(lm, ear=ear) == (HEARD if streamed else "tea")
    assert (cost_of(lm).calls, cost_of(lm).input_tokens, cost_of(lm).output_tokens) == (1, *counted)
    assert open_store().count("lm") == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_without_an_end_is_refused_and_not_asked_for_again(remote, streamed):
    long = "word " * 100_000
    stream = {"chunks": [event(long[:50_000])] * 400}
    lm, server = remote(stream if streamed else {"answer": long * 40})
    with pytest.raises(LMError, match=r"larger than 16 MiB, so the server seems to ignore the token limit"):
        ask(lm, ear=Ear() if streamed else None)
    assert (server.count, cost_of(lm).failures) == (1, 1)
