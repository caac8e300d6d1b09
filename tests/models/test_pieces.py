"""Answers that are heard while they are written, over a real connection and in this process."""

from __future__ import annotations

import asyncio
import json
import runpy
from pathlib import Path

import dspy
import pytest
from dspy import lm15
from dspy.utils.exceptions import LMAuthError, LMServerError, LMStreamAssemblyError, LMTransportError

from querywright.models.adapter import PromptAdapter
from querywright.models.circuit_breaker import Limits
from querywright.models.embedded import EmbeddedEngine
from querywright.models.lm import engine_of, resolve_lm
from querywright.models.pieces import heard_by
from querywright.models.store import open_store

SERVER = runpy.run_path(str(Path(__file__).parents[1] / "scripted_server.py"))
event, ENDING = SERVER["event"], SERVER["ENDING"]

KEY = "sk-canary-0123456789abcdef"
GOOD = ['{"answer": "hot', " caf\u00e9 ", '\U0001f600"}']
ANSWER = "hot caf\u00e9 \U0001f600"
BROKEN = {"status": 500, "body": {"error": {"message": "boom"}}}


class Ear:
    """Keeps what was heard, an empty text for each beginning."""

    def __init__(self):
        self.heard = []

    def begin(self):
        self.heard.append("")

    def hear(self, text):
        self.heard.append(text)

    @property
    def last(self):
        """What was heard since the last beginning."""
        begins = max(place for place, text in enumerate(self.heard) if text == "")
        return "".join(self.heard[begins:])


@pytest.fixture
def remote(chat_server):
    opened = []

    def make(*steps, **options):
        server = chat_server(*steps)
        lm = resolve_lm("openai/x", **{"api_base": server.url, "api_key": KEY, "timeout": 5.0, **options})
        engine_of(lm).retrying.sleep = lambda seconds: None
        opened.append(lm)
        return lm, server

    yield make
    for lm in opened:
        engine_of(lm).close()


def ask(lm, ear, question="What is drunk hot?"):
    with dspy.context(lm=lm, adapter=PromptAdapter()), heard_by(ear):
        return dspy.Predict("question -> answer")(question=question).answer


def test_an_answer_is_heard_as_it_is_written_stored_and_counted_like_any_other(remote):
    lm, server = remote({"pieces": GOOD}, store=open_store())
    ear = Ear()
    assert ask(lm, ear) == ANSWER
    assert ear.heard == ["", *GOOD]
    cost = engine_of(lm).ledger.total
    assert (cost.calls, cost.saved, cost.input_tokens, cost.output_tokens) == (1, 0, 11, 7)
    assert server.bodies[0]["stream"] is True
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"

    again = Ear()
    assert ask(lm, again) == ANSWER == ask(lm, None)
    assert again.heard == []
    assert (engine_of(lm).ledger.total.saved, server.count) == (2, 1)


def test_a_stream_byte_for_byte_says_the_same(remote):
    said = b"".join([*map(event, GOOD), *ENDING])
    lm, _ = remote({"chunks": [bytes([byte]) for byte in said]})
    ear = Ear()
    assert ask(lm, ear) == ANSWER
    assert ear.heard == ["", *GOOD]


def test_thoughts_are_not_heard(remote):
    thought = event("", reasoning_content="first I think")
    lm, _ = remote({"chunks": [thought, *map(event, GOOD), *ENDING]})
    ear = Ear()
    assert ask(lm, ear) == ANSWER
    assert ear.heard == ["", *GOOD]


@pytest.mark.parametrize(
    "broken",
    [{"chunks": [event(GOOD[0])]}, {"chunks": [event(GOOD[0])], "promised": 500}, BROKEN, {"drop": True}],
    ids=["ends early", "breaks off", "500", "drop"],
)
def test_a_stream_that_breaks_is_begun_again(remote, broken):
    lm, server = remote(broken, {"pieces": GOOD}, store=open_store())
    ear = Ear()
    assert ask(lm, ear) == ANSWER
    partial = [GOOD[0]] if "chunks" in broken else []
    assert ear.heard == ["", *partial, "", *GOOD]
    cost = engine_of(lm).ledger.total
    assert (cost.calls, cost.retries, cost.failures, server.count) == (1, 1, 0, 2)


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ({"chunks": [event(GOOD[0])]}, LMStreamAssemblyError),
        ({"chunks": [event(GOOD[0])], "promised": 500}, LMTransportError),
        (BROKEN, LMServerError),
    ],
    ids=["ends early", "breaks off", "500"],
)
def test_a_stream_that_goes_on_breaking_fails_and_keeps_nothing(remote, broken, error):
    lm, server = remote(broken, store=open_store(), limits=Limits(max_attempts=3))
    with pytest.raises(error):
        ask(lm, Ear())
    cost = engine_of(lm).ledger.total
    assert (cost.calls, cost.retries, cost.failures, server.count) == (0, 2, 1, 3)
    assert open_store().count("lm") == 0


def test_an_error_inside_a_stream_is_one_without_the_key(remote):
    said = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    lm, server = remote({"chunks": [event(GOOD[0]), b"data: " + json.dumps(said).encode() + b"\n\n"]})
    with pytest.raises(LMAuthError) as caught:
        ask(lm, Ear())
    assert KEY not in repr(caught.value) + str(caught.value.__cause__) + str(caught.value.__context__)
    assert server.count == 1


def test_a_server_that_cannot_stream_is_asked_for_the_whole(remote):
    lm, server = remote("".join(GOOD), limits=Limits(max_attempts=1))
    for number in range(5):
        assert ask(lm, Ear(), f"{number}?") == ANSWER
    # Three times it is found out, and then no longer asked for.
    assert [body.get("stream") for body in server.bodies] == [True, None] * 3 + [None] * 2
    cost = engine_of(lm).ledger.total
    assert (cost.calls, cost.failures) == (5, 0)


def test_a_repair_begins_again(remote):
    lm, _ = remote({"pieces": ["no", " json"]}, {"pieces": GOOD})
    ear = Ear()
    assert ask(lm, ear) == ANSWER
    assert ear.heard == ["", "no", " json", "", *GOOD]


def test_answers_are_heard_from_an_event_loop(remote):
    lm, _ = remote({"pieces": GOOD})
    ear = Ear()

    async def main():
        with dspy.context(lm=lm, adapter=PromptAdapter()), heard_by(ear):
            return (await dspy.Predict("question -> answer").acall(question="hot?")).answer

    assert asyncio.run(main()) == ANSWER
    assert ear.heard == ["", *GOOD]


def test_the_embedded_lm_tells_each_field_when_it_is_whole():
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
    }
    request = lm15.Request(
        model="embedded",
        messages=(lm15.Message.user("Name a colour."),),
        config=lm15.Config(response_format={"type": "json_schema", "schema": schema}, temperature=0.0),
    )
    engine = EmbeddedEngine()
    events = list(engine.stream(request))
    texts = [one.delta.text for one in events if one.type == "delta"]
    whole = engine.complete(request)
    assert "".join(texts) == whole.text
    assert [json.loads(text.lstrip(", ").join("{}")) for text in texts[1:-1]] == [
        {"answer": json.loads(whole.text)["answer"]}, {"sure": json.loads(whole.text)["sure"]},
    ]  # fmt: skip
    end = events[-1]
    assert (end.finish_reason, end.usage.output_tokens) == (whole.finish_reason, whole.usage.output_tokens)
