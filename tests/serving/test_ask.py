"""Questions over HTTP: answers, streams, failures, and what the log and the counters tell of them."""

from __future__ import annotations

import io
import json
import logging

import pytest
from dspy.utils.exceptions import LMRateLimitError, LMTimeoutError

from querywright.data.declined import DECLINED
from querywright.data.types import Passage
from querywright.errors import (
    ArtifactError,
    BudgetError,
    CollectionError,
    InputError,
    OutageError,
    PromptTooLongError,
    QuerywrightError,
)
from querywright.models.engine_errors import LMBudgetError, LMOutageError, LMPromptTooLongError
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.engines import open_retriever
from querywright.serving.middleware import STATUSES, failure_of
from querywright.serving.server import write_logs
from querywright.serving.shapes import has_declined

QUESTION = "What of 7, Mrs Planted?"


def events(text):
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def test_a_question_is_answered_with_what_it_came_from_and_counted(run):
    server = run()
    answer = server.ask(7)
    told = answer.json()
    assert told.pop("seconds") > 0
    assert told.pop("id") == answer.headers["x-request-id"]
    passages = told.pop("passages")
    assert told == {
        "answer": "answer 7", "support": None, "queries": [{"role": "original", "text": "What of 7?"}],
        "fallbacks": [], "declined": False, "trace": None, "artifact": "sample", "version": "a" * 12,
    }  # fmt: skip
    assert passages[0] == {"id": "p7-1", "title": "Title 1", "text": "Text 1 on 7.", "metadata": {}}
    server.client.get("/no/such/place")
    assert server.metric("requests_total", route="/ask", status="200") == 1
    assert server.metric("requests_total", route="other", status="404") == 1
    assert server.metric("lm_calls_total", how="made") == 1
    assert server.metric("request_seconds_count", route="/ask") == 1
    server.wait_for(lambda: server.metric("in_flight") == 1)  # the one that asks for it


def test_options_are_chosen_from(run, make, scripted):
    server = run(make(scripted, reader="multiple_choice"))
    assert server.ask(7, options=["first", "second"]).json()["answer"] == "first"
    missing = server.ask(7)
    assert (missing.status_code, "options" in missing.json()["error"]["message"]) == (422, True)


def test_options_and_short_answers_are_asked_of_one_program(run, make, scripted):
    server = run(make(scripted, reader="auto"))
    assert server.ask(7, options=["first", "second"], stream=True).text.count("event: text") == 1
    assert server.ask(7, options=["first", "second"]).json()["answer"] == "first"
    assert server.ask(7).json()["answer"] == "answer 7"


def test_health_names_the_artifact(run):
    assert run().client.get("/health").json() == {
        "artifact": "sample", "version": "a" * 12, "technique": "plain", "reader": "short_answer", "token": False,
        "rebuilt": False,
    }  # fmt: skip


@pytest.mark.parametrize("engine", ["bm25", "hybrid"])
def test_health_says_that_the_collection_was_rebuilt_while_the_server_searches_what_it_opened(
    run, make, scripted, tmp_path, engine
):
    def index(text):
        ChromaRetriever.build("mine", [Passage("p", text)], home=tmp_path)

    index("An old fact.")
    retriever = open_retriever("mine", engine=engine, home=tmp_path)
    server = run(make(scripted, retriever=retriever))
    for text, is_rebuilt in (("An old fact.", False), ("A new fact.", True)):
        index(text)
        assert server.client.get("/health").json()["rebuilt"] is is_rebuilt
        assert server.ask(7).status_code == 200
        assert [one.text for one in retriever.get(["p"])] == ["An old fact."]


def test_an_answer_is_streamed(run):
    answer = run().ask(7, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.text)
    names = [name for name, _ in found]
    assert (names[:2], names[-1], set(names[2:-1])) == (["queries", "passages"], "done", {"text"})
    assert "".join(data["text"] for name, data in found if name == "text") == "answer 7"
    assert found[0][1]["queries"][0]["text"] == "What of 7?"
    assert found[1][1]["passages"][0]["id"] == "p7-1"
    assert (found[-1][1]["answer"], found[-1][1]["id"]) == ("answer 7", answer.headers["x-request-id"])


def test_whatever_a_program_gives_is_valid_json(run, scripted, retriever):
    odd = Passage("p", "half a pair \ud83d and </script>", metadata={"score": float("nan")})
    retriever._hits = lambda query: [type("H", (), {"passage": odd, "score": 1.0, "rank": 1})()]
    scripted.answer = lambda number: "\ud83d"
    server = run()
    streamed = events(server.ask(stream=True).text)[-1][1]
    for told in (server.ask().json(), streamed):
        assert told["passages"][0]["text"] == odd.text
        assert told["passages"][0]["metadata"] == {"score": None}


# Failures.


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("odd"), 422),
        (PromptTooLongError(9, 8, 1), 422),
        (LMPromptTooLongError(9, 8, 1), 422),
        (OutageError("down at http://secret"), 503),
        (LMOutageError("down at http://secret"), 503),
        (BudgetError("no more"), 503),
        (LMBudgetError("no more"), 503),
        (CollectionError("/secret/place"), 503),
        (ArtifactError("/secret/place"), 503),
        (QuerywrightError("/secret/place"), 503),
        (LMTimeoutError("http://secret"), 502),
        (LMRateLimitError("http://secret"), 502),
    ],
)
def test_every_failure_of_a_program_has_a_documented_status(error, status):
    failure = failure_of(error)
    assert failure.status == status
    assert status in STATUSES
    assert "secret" not in str(failure)
    assert (status == 503) == ("Retry-After" in failure.headers)


def test_an_lm_that_fails_is_answered_502_or_told_as_an_event_and_named_in_the_log(run, scripted):
    def fail(number):
        raise LMRateLimitError("quota of key sk-abcdefgh12345678 is spent")

    scripted.before = fail
    server = run()
    answer, streamed = server.ask(7), server.ask(7, stream=True)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (502, "lm")
    assert streamed.status_code == 200  # what was found was sent before
    assert 'event: error\ndata: {"error":{"kind":"lm"' in streamed.text
    assert "quota" not in answer.text + streamed.text
    server.wait_for(lambda: len(server.lines()) == 2)
    for line in server.lines():
        assert (line["status"], line["kind"], line["error"]) == (502, "lm", "LMRateLimitError")


def test_what_nobody_expects_is_answered_without_a_word_of_it(run, retriever):
    def fail():
        raise RuntimeError("the secret of What of 7?")

    retriever.before = fail
    server = run()
    answer, streamed = server.ask(7), server.ask(7, stream=True)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (500, "internal")
    assert "secret" not in answer.text
    assert streamed.status_code == 500  # nothing was sent before
    told = server.unexpected()
    server.expected = told
    assert [line["id"] for line in told] == [answer.headers["x-request-id"], streamed.headers["x-request-id"]]
    assert "fail" in told[0]["at"][-1]
    assert "secret" not in server.logs.getvalue()


# Logs.


def test_a_request_is_one_line_without_what_was_asked(run, token):
    server = run(token=token)
    body = {"question": QUESTION, "options": ["Planted one", "Planted two"]}
    answer = server.client.post("/ask", json=body)
    server.client.post("/ask", json=body | {"stream": True})
    server.client.post("/ask?question=Planted", json={"question": QUESTION, "else": "Planted"})
    server.client.get("/Planted")
    server.wait_for(lambda: len(server.lines()) == 4)
    text = server.logs.getvalue()
    assert not any(word in text for word in ("Planted", "Text 1", "Title", "answer 7", token))
    line = server.lines()[0]
    assert line["id"] == answer.headers["x-request-id"]
    assert (line["route"], line["method"], line["status"], line["level"]) == ("/ask", "POST", 200, "info")
    assert (line["artifact"], line["version"], line["lm_calls"], line["lm_saved"]) == ("sample", "a" * 12, 1, 0)
    assert line["fallbacks"] == []
    assert line["seconds"] > 0
    assert sorted(one["status"] for one in server.lines()) == [200, 200, 404, 422]


@pytest.fixture
def told():
    """Formats records, and puts the process's logs back at the end."""
    logging.getLogger("uvicorn")
    known = [one for one in logging.Logger.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    before = [(one, list(one.handlers), one.level, one.propagate) for one in (logging.getLogger(), *known)]
    yield io.StringIO()
    logging.raiseExceptions = True
    for one, handlers, level, propagate in before:
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


def test_what_other_libraries_say_is_told_by_its_place(told):
    write_logs(told)
    logging.getLogger("dspy.predict").warning("could not parse: %s", QUESTION)
    logging.getLogger("uvicorn.error").info("Invalid HTTP request received.")
    foreign, own = [json.loads(line) for line in told.getvalue().splitlines()]
    assert (foreign["logger"], foreign["level"]) == ("dspy.predict", "warning")
    assert foreign["where"].startswith("test_ask:")
    assert "message" not in foreign
    assert own["message"] == "Invalid HTTP request received."


@pytest.mark.parametrize(
    ("answer", "options", "declined"),
    [
        (DECLINED, (), True),
        ("I don't know", ("I know", " I don't know "), False),
        ("I don't know", ("I know", "I don't"), True),
        ("tea", (), False),
        (None, (), False),
    ],
)
def test_a_reader_declines_unless_its_answer_is_an_option(answer, options, declined):
    assert has_declined(answer, options) is declined
