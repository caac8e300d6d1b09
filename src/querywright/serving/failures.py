"""What goes wrong with a request, as a status, a kind and a message that tells no secret."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

from dspy.utils.exceptions import AdapterParseError, LMError
from starlette.exceptions import HTTPException

from querywright.errors import (
    ArtifactError,
    BudgetError,
    CollectionError,
    InputError,
    ModelError,
    OutageError,
    PromptTooLongError,
    QuerywrightError,
)
from querywright.files import jsonable

STATUSES: Mapping[int, str] = {
    400: "The request is not JSON, or not for this server.",
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another site.",
    404: "There is no such address.",
    405: "The address has no such method.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    422: "The question or its options cannot be asked.",
    429: "Too many requests from this client; Retry-After says when to come back.",
    500: "An unexpected failure; the log of the server has it under the request's id.",
    502: "The LM failed.",
    503: "Too busy, stopping, or the LM or the collection is down; Retry-After says when to come back.",
    504: "The deadline passed.",
}
OUTAGE_SECONDS = 30
CLIENT_GONE = 499
"""What is logged of a request whose client went away; nobody is answered."""

_KINDS = {400: "not_json", 404: "address", 405: "method", 422: "invalid"}


_RULES: tuple[tuple[type[Exception], int, str, str], ...] = (
    (PromptTooLongError, 422, "prompt_too_long", "the question and its passages do not fit the LM's context"),
    (OutageError, 503, "lm_outage", "the LM is down and is not asked for a while"),
    (BudgetError, 503, "budget", "the limit of LM calls is reached"),
    (CollectionError, 503, "collection", "the collection cannot be searched"),
    (ModelError, 503, "model", "a model of the program cannot be used"),
    (ArtifactError, 503, "model", "a model of the program cannot be used"),
    (InputError, 422, "input", ""),
    (LMError, 502, "lm", "the LM failed ({name})"),
    (AdapterParseError, 502, "lm", "the LM failed ({name})"),
    (QuerywrightError, 503, "unavailable", "the program cannot answer now"),
)
"""What a failure of a program is answered with, the first that fits; without a text its own is told."""


class RequestError(HTTPException):
    """A request that is answered with an error: a word for programs, a sentence for people."""

    def __init__(
        self, status: int, kind: str, message: str, *, retry_after: float = 0, headers: Mapping[str, str] | None = None
    ) -> None:
        retry = {"Retry-After": str(math.ceil(retry_after))} if retry_after else {}
        super().__init__(status, message, headers={**(headers or {}), **retry})
        self.kind = kind

    def body(self) -> dict[str, Any]:
        """What is sent."""
        return {"error": {"kind": self.kind, "message": self.detail}}


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


def failure_of(error: BaseException) -> RequestError | None:
    """What a failure of a program is to the one who asked; None for one that nobody expected.

    The texts of LM errors and of broken collections name services and folders, so they are not passed on to who asks a
    question.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return RequestError(503, "stopping", "the server stopped before the answer was there", retry_after=1)
    if isinstance(error, HTTPException):  # of the framework
        word = _KINDS.get(error.status_code, "request")
        return RequestError(error.status_code, word, STATUSES.get(error.status_code, "refused"), headers=error.headers)
    for kind, status, name, text in _RULES:
        if isinstance(error, kind):
            said = text.format(name=type(error).__name__) if text else str(error)
            return RequestError(status, name, said, retry_after=OUTAGE_SECONDS if status == 503 else 0)
    return None


def as_json(data: Any) -> bytes:
    """Data as JSON; a number that is none becomes null, and half a character pair stays escaped."""
    return json.dumps(jsonable(data), allow_nan=False, separators=(",", ":")).encode()
