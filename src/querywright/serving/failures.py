"""What goes wrong with a request, as a status, a kind and a message that tells no secret."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dspy.utils.exceptions import AdapterParseError, LMError

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
from querywright.serving.wire import as_json

STATUSES: Mapping[int, str] = {
    400: "The request is not JSON, or not for this server.",
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another site.",
    404: "There is no such address or artifact.",
    405: "The address has no such method.",
    408: "The body did not arrive in time.",
    409: "The artifact could not be loaded again; the old one goes on.",
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
NOT_RELOADED = "nothing was replaced; the server's log says why"
CLIENT_GONE = 499
"""What is logged of a request whose client went away; nobody is answered."""


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
        status: One of ``STATUSES``.
        kind: A word for programs.
        message: A sentence for people.
        retry_after: Seconds after which another try may succeed.
        headers: Further headers.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    def body(self) -> dict[str, Any]:
        """What is sent."""
        return {"error": {"kind": self.kind, "message": self.message}}

    def encoded(self) -> bytes:
        """The same as JSON."""
        return as_json(self.body())


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


def failure_of(error: BaseException) -> RequestError | None:
    """What a failure of a program is to the one who asked; None for one that nobody expected.

    The texts of LM errors and of broken collections name services and folders, so they are not passed on to who asks a
    question. Why a reload failed is told to who runs the server: with the token, or on the same machine.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, PromptTooLongError):
        return RequestError(422, "prompt_too_long", "the question and its passages do not fit the LM's context")
    if isinstance(error, OutageError):
        text = "the LM is down and is not asked for a while"
        return RequestError(503, "lm_outage", text, retry_after=OUTAGE_SECONDS)
    if isinstance(error, BudgetError):
        return RequestError(503, "budget", "the limit of LM calls is reached", retry_after=OUTAGE_SECONDS)
    if isinstance(error, CollectionError):
        return RequestError(503, "collection", "the collection cannot be searched", retry_after=OUTAGE_SECONDS)
    if isinstance(error, (ModelError, ArtifactError)):
        return RequestError(503, "model", "a model of the program cannot be used", retry_after=OUTAGE_SECONDS)
    if isinstance(error, InputError):
        return RequestError(422, "input", str(error))
    if isinstance(error, (LMError, AdapterParseError)):
        return RequestError(502, "lm", f"the LM failed ({type(error).__name__})")
    if isinstance(error, QuerywrightError):
        return RequestError(503, "unavailable", "the program cannot answer now", retry_after=OUTAGE_SECONDS)
    return None


def unexpected() -> RequestError:
    """What is answered when nothing more is known."""
    return RequestError(500, "internal", "an unexpected failure; the server's log has it under this request's id")
