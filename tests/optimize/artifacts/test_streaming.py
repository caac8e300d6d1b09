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
from querywright.optimize.artifacts.files import ArtifactManifest
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.optimize.artifacts.watchers import flush
from querywright.programs import make_program

PASSAGES = [Passage("p1", "Tea is drunk hot."), Passage("p2", "Beer is drunk cold.")]
ANSWER = "Caf\u00e9 \U0001f600 \u201cna\u00efve\u201d tea"
SHORT = json.dumps({"answer": f" {ANSWER}  "})
GROUNDED = json.dumps({"answer": ANSWER, "passage_numbers": [1], "passages_hold_the_answer": "yes"}, ensure_ascii=False)
ANSWERS = {"short_answer": SHORT, "grounded": GROUNDED}
BROKEN = {"status": 500, "body": {"error": {"message": "boom"}}}


def manifest(technique="plain", reader="short_answer"):
    return ArtifactManifest(
        format=5, technique=technique, reader=reader, lm="openai/x", embedder=None, collection=None, engine=None,
        reranker=None, fingerprint=None, created="2026-01-02", versions={}, made={},
    )  # fmt: skip


@pytest.fixture
def streaming(chat_server):
    """A program whose LM is a server that answers from a script, and that server."""
    opened = []

    def make(*steps, reader="short_answer", program=None, watchers=(), **options):
        server = chat_server(*steps)
        given = {"api_base": server.url, "api_key": "none", "timeout": 5.0, "limits": Limits(backoff=0), **options}
        lm = resolve_lm("openai/x", **given)
        opened.append(engine_of(lm))
        program = program or make_program("plain", lambda query, k: PASSAGES, reader=reader)
        return LoadedProgram(program, lm, manifest(reader=reader), watchers), server

    yield make
    for engine in opened:
        engine.close()


def collected(program, *asked):
    """Events from an event loop."""

    async def main():
        return [event async for event in program.astream(*asked)]

    return asyncio.run(main())


def said(events):
    """The text that stands when all is said."""
    kinds = [event.kind for event in events]
    since = len(kinds) - kinds[::-1].index("restart") if "restart" in kinds else 0
    return "".join(event.data for event in events[since:] if event.kind == "text")


def in_pieces(text, size):
    return {"pieces": [text[start : start + size] for start in range(0, len(text), size)]}


@pytest.mark.parametrize("reader", ["short_answer", "grounded"])
@pytest.mark.parametrize("how", ["stream", "astream"])
def test_the_pieces_of_the_answer_make_the_answer(streaming, reader, how):
    program, server = streaming(in_pieces(ANSWERS[reader], 5), reader=reader)
    events = list(program.stream("What is hot?")) if how == "stream" else collected(program, "What is hot?")
    kinds = [event.kind for event in events]
    assert kinds[:2] == ["queries", "passages"]
    assert kinds[-1] == "prediction"
    assert set(kinds[2:-1]) == {"text"}
    assert len(kinds) > 6
    assert events[0].data == [{"text": "What is hot?", "role": "original"}]
    assert events[1].data == PASSAGES
    prediction = events[-1].data
    assert said(events) == prediction.answer == ANSWER
    assert prediction.support == (["p1"] if reader == "grounded" else None)
    assert server.count == 1


def test_a_stored_answer_is_one_piece(streaming):
    program, server = streaming(in_pieces(SHORT, 5), store=open_store())
    first = list(program.stream("What is hot?"))
    for again in (list(program.stream("What is hot?")), collected(program, "What is hot?")):
        assert [event.kind for event in again] == ["queries", "passages", "text", "prediction"]
        assert said(again) == said(first) == ANSWER
    assert program("What is hot?").answer == ANSWER
    assert server.count == 1
    assert engine_of(program.lm).ledger.total.calls == 1


def test_a_choice_is_one_piece_and_never_taken_back(streaming):
    program, server = streaming(in_pieces('{"answer": "HOT."}', 3), reader="multiple_choice")
    events = list(program.stream("How is tea?", ["cold", "hot"]))
    assert [event.kind for event in events] == ["queries", "passages", "text", "prediction"]
    assert said(events) == events[-1].data.answer == "hot"
    assert "stream" not in server.bodies[0]


def test_a_stream_that_breaks_is_taken_back(streaming):
    program, server = streaming({"pieces": ['{"answer": "Cold', " tea"], "promised": 99}, in_pieces(SHORT, 9))
    events = list(program.stream("What is hot?"))
    kinds = [event.kind for event in events]
    assert kinds.count("restart") == 1
    assert "".join(event.data for event in events[: kinds.index("restart")] if event.kind == "text") == "Cold tea"
    assert said(events) == events[-1].data.answer == ANSWER
    assert server.count == 2


def test_only_the_reader_is_heard(streaming):
    """A technique that asks the LM for a field of that very name says nothing."""
    written = json.dumps({"sub_question": "Is tea hot?", "sub_answer": "s", "answer": "Not this", "queries": ["tea"]})
    program = make_program("multi_query", lambda query, k: PASSAGES, reader="short_answer")
    program_, server = streaming(
        lambda body: in_pieces(SHORT if "Tea is drunk" in str(body["messages"]) else written, 6), program=program
    )
    events = list(program_.stream("What is hot?"))
    assert said(events) == ANSWER
    assert "restart" not in [event.kind for event in events]
    assert [body.get("stream") for body in server.bodies] == [None, True]
    assert any(query["text"] == "tea" for query in events[0].data)


@pytest.mark.parametrize("how", ["stream", "astream"])
def test_a_failure_comes_out_where_the_events_are_read(streaming, how):
    seen = []
    program, _ = streaming(BROKEN, limits=Limits(max_attempts=2, backoff=0), watchers=[seen.append])
    events = []

    async def main():
        async for event in program.astream("What is hot?"):
            events.append(event)

    def read():
        for event in program.stream("What is hot?"):
            events.append(event)

    with pytest.raises(LMServerError):
        read() if how == "stream" else asyncio.run(main())
    assert [event.kind for event in events] == ["queries", "passages"]
    assert flush()
    assert [(one.error, one.answer) for one in seen] == [("LMServerError", None)]
    with pytest.raises(TechniqueError):
        list(program.stream(" "))


def test_who_stops_listening_loses_no_answer(streaming):
    program, server = streaming(in_pieces(SHORT, 1), store=open_store())
    events = program.stream("What is hot?")
    assert next(events).kind == "queries"
    events.close()

    async def main():
        async for _ in program.astream("What is cold?"):
            break
        gc.collect()

    asyncio.run(main())
    ended = time.monotonic() + 10
    while open_store().count("lm") < 1 and time.monotonic() < ended:
        time.sleep(0.01)
    count = server.count
    assert program("What is hot?").answer == ANSWER
    assert server.count == count
