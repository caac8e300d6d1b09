"""Failures of a request: a status, a kind and a message that holds no secret."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

from dspy.utils.exceptions import AdapterParseError, LMError
from starlette.exceptions import HTTPException

from querywright import errors
from querywright.files import jsonable

STATUSES = (400, 401, 403, 404, 405, 413, 415, 422, 500, 502, 503, 504)
CLIENT_GONE = 499
OUTAGE_SECONDS = 30
_RULES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int, str, str], ...] = (
    (errors.PromptTooLongError, 422, "prompt_too_long", "the question and its passages do not fit the LM's context"),
    (errors.OutageError, 503, "lm_outage", "the LM is down and is not asked for a while"),
    (errors.BudgetError, 503, "budget", "the limit of LM calls is reached"),
    (errors.CollectionError, 503, "collection", "the collection cannot be searched"),
    ((errors.ModelError, errors.ArtifactError), 503, "model", "a model of the program cannot be used"),
    (errors.InputError, 422, "input", ""),
    ((LMError, AdapterParseError), 502, "lm", "the LM failed ({name})"),
    (errors.QuerywrightError, 503, "unavailable", "the program cannot answer now"),
)
"""The answer to each error, the first rule that fits; without a text the error's message is sent."""


class RequestError(Exception):
    """A request that is answered with an error: a word for programs, a sentence for people."""

    def __init__(
        self, status: int, kind: str, message: str, *, retry_after: float = 0, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        retry = {"Retry-After": str(math.ceil(retry_after))} if retry_after else {}
        self.status, self.kind, self.headers = status, kind, {**(headers or {}), **retry}

    def body(self) -> dict[str, Any]:
        """Return the JSON body of the answer."""
        return {"error": {"kind": self.kind, "message": str(self)}}


def failure_of(error: BaseException) -> RequestError | None:
    """Return the answer to an error; None if it is unexpected.

    Messages of LM errors and of broken collections name services and folders, so clients do not get them.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return RequestError(503, "stopping", "the server stopped before it could answer", retry_after=1)
    if isinstance(error, HTTPException):  # raised by the framework
        kind = {404: "address", 405: "method"}.get(error.status_code, "not_json")
        return RequestError(error.status_code, kind, error.detail, headers=error.headers)
    for kinds, status, name, text in _RULES:
        if isinstance(error, kinds):
            message = text.format(name=type(error).__name__) or str(error)
            return RequestError(status, name, message, retry_after=OUTAGE_SECONDS if status == 503 else 0)
    return None


def as_json(data: Any) -> bytes:
    """Return data as JSON; NaN becomes null, and a lone surrogate stays escaped."""
    return json.dumps(jsonable(data), allow_nan=False, separators=(",", ":")).encode()
