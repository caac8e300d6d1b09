from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from querywright.serving.logging import write_logs

QUESTION = "What of 7, Mrs Planted?"


def test_a_request_is_one_line_without_what_was_asked(run: Any, make: Any, scripted: Any, token: str) -> None:
    server = run(make(scripted), token=token)
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
def told() -> Any:
    """Formats records, and puts the process's logs back at the end."""
    logging.getLogger("uvicorn")
    known = [one for one in logging.Logger.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    loggers = [logging.getLogger(), *known]
    before = [(one, list(one.handlers), one.level, one.propagate) for one in loggers]
    yield io.StringIO()
    logging.raiseExceptions = True
    for one, handlers, level, propagate in before:
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


@pytest.mark.parametrize("questions", [False, True])
def test_what_other_libraries_say_is_told_by_its_place(told: Any, questions: bool) -> None:
    write_logs(told, questions=questions)
    logging.getLogger("dspy.predict").warning("could not parse: %s", QUESTION)
    logging.getLogger("uvicorn.error").info("Invalid HTTP request received.")
    foreign, own = [json.loads(line) for line in told.getvalue().splitlines()]
    assert (foreign["logger"], foreign["level"]) == ("dspy.predict", "warning")
    assert foreign["where"].startswith("test_logs:")
    assert ("message" in foreign) == questions
    assert own["message"] == "Invalid HTTP request received."
