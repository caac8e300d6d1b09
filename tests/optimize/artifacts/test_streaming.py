"""A loaded program as a stream of events."""

from __future__ import annotations

import asyncio
import gc
import json
import time

import pytest
from dspy.utils.exceptions import LMServerError

from querywright.data.types import Passage
from querywright.errors import TechniqueError
from querywright.models.circuit_breaker import Limits
from querywright.models.lm import engine_of, resolve_lm
from querywright.models.store import open_store
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.programs import make_program

PASSAGES = [Passage("p1", "Tea is drunk hot."), Passage("p2", "Beer is drunk cold.")]
ANSWER = "Caf\u00e9 \U0001f600 \u201cna\u00efve\u201d tea"
SHORT = json.dumps({"answer": f" {ANSWER}  "})
GROUNDED = json.dumps({"answer": ANSWER, "passage_numbers": [1], "passages_hold_the_answer": "yes"}, ensure_ascii=False)
ASKED = "What is hot?"


@pytest.fixture
def streaming(chat_server, artifact):
    """A program whose LM is a server that answers from a script, and that server."""
    opened = []

    def make(*steps, reader="short_answer", technique="plain", **options):
        server = chat_server(*steps)
        limits = Limits(backoff=0, max_attempts=2)
        lm = resolve_lm("openai/x", api_base=server.url, api_key="none", timeout=60.0, limits=limits, **options)
        opened.append(engine_of(lm))
        program = make_program(technique, lambda query, k: PASSAGES, reader=reader)
        return LoadedProgram(program, lm, read_artifact(artifact).manifest), server

    yield make
    for engine in opened:
        engine.close()


def ask(program, how, *asked):
    """Events, from a thread or from an event loop."""

    async def main():
        return [event async for event in program.astream(*asked)]

    return list(program.stream(*asked)) if how == "stream" else asyncio.run(main())


def kinds(events):
    return [event.kind for event in events]


def said(events):
    """The text that stands when all is said."""
    since = len(events) - kinds(events)[::-1].index("restart") if "restart" in kinds(events) else 0
    return "".join(event.data for event in events[since:] if event.kind == "text")


def in_pieces(text, size):
    return {"pieces": [text[start : start + size] for start in range(0, len(text), size)]}


both = pytest.mark.parametrize("how", ["stream", "astream"])


@both
@pytest.mark.parametrize(("reader", "written"), [("short_answer", SHORT), ("grounded", GROUNDED)])
def test_the_pieces_of_the_answer_make_the_answer(streaming, reader, written, how):
    program, server = streaming(in_pieces(written, 5), reader=reader)
    events = ask(program, how, ASKED)
    assert (kinds(events)[:2], kinds(events)[-1]) == (["queries", "passages"], "prediction")
    assert set(kinds(events)[2:-1]) == {"text"}
    assert len(events) > 6
    assert events[0].data == [{"text": ASKED, "role": "original"}]
    assert events[1].data == PASSAGES
    prediction = events[-1].data
    assert said(events) == prediction.answer == ANSWER
    assert prediction.support == (["p1"] if reader == "grounded" else None)
    assert server.count == 1


def test_a_stored_answer_and_a_choice_are_one_piece(streaming):
    program, server = streaming(in_pieces(SHORT, 5), store=open_store())
    first = ask(program, "stream", ASKED)
    for again in (ask(program, "stream", ASKED), ask(program, "astream", ASKED)):
        assert kinds(again) == ["queries", "passages", "text", "prediction"]
        assert said(again) == said(first) == program(ASKED).answer == ANSWER
    assert (server.count, engine_of(program.lm).ledger.total.calls) == (1, 1)
    program, server = streaming(in_pieces('{"answer": "HOT."}', 3), reader="multiple_choice")
    events = ask(program, "stream", "How is tea?", ["cold", "hot"])
    assert kinds(events) == ["queries", "passages", "text", "prediction"]
    assert said(events) == events[-1].data.answer == "hot"
    assert "stream" not in server.bodies[0]


def test_a_stream_that_breaks_is_taken_back(streaming):
    program, server = streaming({"pieces": ['{"answer": "Cold', " tea"], "promised": 99}, in_pieces(SHORT, 9))
    events = ask(program, "stream", ASKED)
    before = events[: kinds(events).index("restart")]
    assert kinds(events).count("restart") == 1
    assert "".join(event.data for event in before if event.kind == "text") == "Cold tea"
    assert said(events) == events[-1].data.answer == ANSWER
    assert server.count == 2


def test_only_the_reader_is_heard(streaming):
    """A technique that asks the LM for a field of that very name says nothing."""
    written = json.dumps({"sub_question": "Is tea hot?", "sub_answer": "s", "answer": "Not this", "queries": ["tea"]})
    program, server = streaming(
        lambda body: in_pieces(SHORT if "Tea is drunk" in str(body["messages"]) else written, 6),
        technique="multi_query",
    )
    events = ask(program, "stream", ASKED)
    assert (said(events), "restart" in kinds(events)) == (ANSWER, False)
    assert [body.get("stream") for body in server.bodies] == [None, True]
    assert any(query["text"] == "tea" for query in events[0].data)


@both
def test_a_failure_comes_out_where_the_events_are_read(streaming, how):
    events = []
    broken = {"status": 500, "body": {"error": {"message": "boom"}}}
    program, _ = streaming(broken)

    async def main():
        async for event in program.astream(ASKED):
            events.append(event)

    with pytest.raises(LMServerError):
        events.extend(program.stream(ASKED)) if how == "stream" else asyncio.run(main())
    assert kinds(events) == ["queries", "passages"]
    with pytest.raises(TechniqueError):
        list(program.stream(" "))


def test_who_stops_listening_loses_no_answer(streaming):
    program, server = streaming(in_pieces(SHORT, 1), store=open_store())
    events = program.stream(ASKED)
    assert next(events).kind == "queries"
    events.close()

    async def main():
        async for _ in program.astream("What is cold?"):
            break
        gc.collect()

    asyncio.run(main())
    ended = time.monotonic() + 60
    while open_store().count("lm") < 1 and time.monotonic() < ended:
        time.sleep(0.01)
    count = server.count
    assert program(ASKED).answer == ANSWER
    assert server.count == count
