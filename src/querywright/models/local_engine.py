"""Models in this process: loaded at the first request, asked one request at a time, freed when closed."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from dspy.clients.engines.base import validate_request
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import LMInvalidRequestError

from querywright.models.constrained_decoding import Schema
from querywright.models.engine_errors import LMModelError
from querywright.models.response_parsing import system_text
from querywright.models.usage import loading, waiting
from querywright.shared import Shared

MAX_TOKENS = 512
"""Tokens of an answer, where a request does not say."""
LEAST_ROOM = 16
"""Tokens for a value, or for an answer, however much was written before it; with fewer no JSON ends."""
_LAST_WAIT = 30.0  # seconds that the end of the process waits for a request under way


class LocalEngine(Shared, ABC):
    """A DSPy engine for a model in this process. A subclass says how it is loaded, and how it answers."""

    deterministic = True
    # A model that was taught writes the value of a choice too, but its prompts are those of one that was not.
    decides_by_likelihood = True
    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed", "stop", "top_p"})

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self._model: Any = None
        self._pid = 0
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def answers_identity(self) -> str:
        """Names all that an answer depends on beside its request."""

    @abstractmethod
    def _load(self) -> Any:
        """The model, ready to be asked."""

    @abstractmethod
    def _answer(self, model: Any, request: Request, schema: Schema | None) -> Response:
        """The model's answer; with a schema, an object of its fields."""

    def complete(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            LMPromptTooLongError: The prompt and its answer exceed the context; an answer is never cut for that.
            LMInvalidRequestError: The response format is not that of a JSON object with named properties.
            LMModelError: The model cannot be loaded, or was loaded before this process was forked.
        """
        validate_request(request)
        schema = schema_of(request.config.response_format)
        if self._model is not None and self._pid != os.getpid():
            raise LMModelError(
                f"the model {self.identity} was loaded before this process was forked and cannot be used in it; "
                "start processes with the method 'spawn', or make the LM in each process"
            )
        if self._model is None:
            with loading(self.identity), self._lock:
                self._loaded()
        with ExitStack() as turn:
            with waiting():
                turn.enter_context(self._lock)
            turn.enter_context(waiting(ended=True))
            return self._answer(self._loaded(), request, schema)

    def _loaded(self) -> Any:
        """The model; the lock is held."""
        if self._model is None:
            self._model = self._load()
            if not self._pid:  # once: who waits keeps the lock
                atexit.register(_drain, weakref.ref(self))
            self._pid = os.getpid()
        return self._model

    def close(self) -> None:
        """Free the model; the next request loads it again."""
        with self._lock:
            self._model = None


def messages_of(request: Request) -> list[dict[str, str]]:
    """The messages of a request as role and content, the system's first."""
    system = [] if request.system is None else [{"role": "system", "content": system_text(request)}]
    return system + [{"role": m.role, "content": m.text or ""} for m in request.messages]


def schema_of(response_format: Mapping[str, Any] | None) -> Schema | None:
    """The object schema of a response format, or None when any text or any JSON object will do."""
    if not response_format or response_format.get("type") in {"json_object", "text"}:
        return None
    inner = response_format.get("json_schema", response_format)
    schema = inner.get("schema", inner)
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        raise LMInvalidRequestError(
            f"a model in this process fills JSON objects with named properties, but got {response_format!r}"
        )
    return schema


def _drain(reference: weakref.ref[LocalEngine]) -> None:
    """Wait for the request under way when the process ends: to free a model in use would crash it."""
    engine = reference()
    if engine is not None and engine._pid == os.getpid():
        engine._lock.acquire(timeout=_LAST_WAIT)
