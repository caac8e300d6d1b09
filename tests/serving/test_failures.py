from __future__ import annotations

from typing import Any

import pytest
from dspy.utils.exceptions import LMRateLimitError, LMTimeoutError

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
from querywright.serving.failures import STATUSES, failure_of


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
def test_every_failure_of_a_program_has_a_documented_status(error: Exception, status: int) -> None:
    failure = failure_of(error)
    assert failure is not None
    assert failure.status_code == status
    assert failure.status_code in STATUSES
    assert "secret" not in failure.detail
    assert (status == 503) == ("Retry-After" in failure.headers)


def test_an_lm_that_fails_is_answered_502_and_named_in_the_log(run: Any, make: Any, scripted: Any) -> None:
    def fail(number: int) -> None:
        raise LMRateLimitError("quota of key sk-abcdefgh12345678 is spent")

    scripted.before = fail
    server = run(make(scripted))
    answer = server.ask(7)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (502, "lm")
    assert "quota" not in answer.text
    line = server.lines()[0]
    assert (line["status"], line["kind"], line["error"]) == (502, "lm", "LMRateLimitError")


def test_what_nobody_expects_is_answered_without_a_word_of_it(
    run: Any, make: Any, scripted: Any, retriever: Any
) -> None:
    def fail() -> None:
        raise RuntimeError("the secret of What of 7?")

    retriever.before = fail
    server = run(make(scripted, retriever))
    answer = server.ask(7)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (500, "internal")
    assert "secret" not in answer.text
    streamed = server.ask(7, stream=True)
    assert streamed.status_code == 500  # nothing was sent before
    told = server.unexpected()
    server.expected = told
    assert [line["id"] for line in told] == [answer.headers["x-request-id"], streamed.headers["x-request-id"]]
    assert "fail" in told[0]["traceback"][0]["at"][-1]
    assert "secret" not in server.logs.getvalue()


def test_a_failure_after_the_first_event_is_an_event(run: Any, make: Any, scripted: Any) -> None:
    def fail(number: int) -> None:
        raise LMTimeoutError("slow")

    scripted.before = fail
    server = run(make(scripted))
    answer = server.ask(7, stream=True)
    assert answer.status_code == 200
    assert 'event: error\ndata: {"error":{"kind":"lm"' in answer.text
    server.wait_for(lambda: bool(server.lines()))
    assert server.lines()[0]["status"] == 502
