"""Engines for remote models, given by name or as a user's ``dspy.LM``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, TypeGuard
from urllib.parse import urlsplit

import dspy
from dspy.clients.backend_selection import select_backend
from dspy.clients.costs import estimate_cost
from dspy.clients.engines import LiteLLMEngine, LM15Engine
from dspy.clients.model_metadata import model_info
from dspy.lm15 import (
    MissingCredentialError,
    OpenAIChatLM,
    Request,
    Response,
    RouterConfig,
    UnknownModelError,
    UnsupportedFeatureError,
    registered_providers,
)
from dspy.utils.exceptions import DSPyError, LMConfigurationError, LMError, LMInvalidRequestError

from querywright.errors import ModelError
from querywright.models.attempt import left
from querywright.models.circuit_breaker import Structured
from querywright.models.engine_errors import redact
from querywright.models.unsupported import STATUSES, complaints, unsupported_name

_KEY_NAME = re.compile(r"(?i)(_key|apikey|token|secret|password)$")
_SHORTEST_KEY = 8
_LARGEST = 2**24
"""Maximum size of an answer, in bytes."""
_LATER = 1.0
"""Seconds that LiteLLM's client keeps waiting after an attempt has timed out. Nothing waits for the client by then."""


class Transport:
    """DSPy's HTTP transport with the attempt's deadline, a size limit, and no redirects.

    Args:
        timeout: Maximum wait for the next bytes, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._inner: Any = OpenAIChatLM(api_key="none").transport  # the only public way to get a transport
        self._timeout = timeout

    def stream(self, request: Any) -> Any:
        """Send a request, and return a response that can be read piece by piece."""
        seconds = min(left(), self._timeout)
        request = replace(request, read_timeout=seconds, write_timeout=seconds)
        response = self._inner.stream(request)
        chunks = _bounded(response)
        if response.status == 200:
            chunks = _counted(chunks, is_stream="stream" in (response.header("Content-Type") or ""))
        else:
            body = b"".join(chunks)
            _check_status(response.status, body, request.body)
            chunks = iter([body])
        return type(response)(
            status=response.status, reason=response.reason, headers=response.headers,
            http_version=response.http_version, chunks=chunks, release=lambda _: response.close(),
        )  # fmt: skip

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


def _bounded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks; raise an error if the attempt times out or the answer is too large."""
    size = 0
    for chunk in chunks:
        left()
        size += len(chunk)
        if size > _LARGEST:
            raise LMError(
                f"the answer is larger than {_LARGEST // 2**20} MiB, so the server seems to ignore the token limit; "
                "set a limit in the server's configuration"
            )
        yield chunk


def _check_status(status: int, body: bytes, sent: bytes) -> None:
    """Raise for error responses that DSPy does not recognize.

    These are redirects, and unsupported-parameter errors that are not in OpenAI's format.
    """
    if 300 <= status < 400:
        raise LMConfigurationError(
            f"the service returned HTTP {status}, a redirect to a different URL. querywright does not follow "
            "redirects, to protect your question and your API key; if you trust that URL, pass it as api_base="
        )
    if status in STATUSES:
        text = "\n".join(complaints(body.decode(errors="replace")))
        if unsupported_name(text, json.loads(sent)):
            raise LMInvalidRequestError(text, status=status)


def _counted(chunks: Iterator[bytes], *, is_stream: bool) -> Iterator[bytes]:
    """Yield a response with integer token counts, because DSPy rejects an answer with any other counts."""
    rest = [b""]
    for chunk in chunks:
        rest.append(chunk)
        if is_stream and b"\n" in chunk:
            *lines, last = b"".join(rest).splitlines(keepends=True)
            whole = last.endswith(b"\n")
            yield from map(_with_whole_counts, [*lines, *[last] * whole])
            rest = [] if whole else [last]
    yield _with_whole_counts(b"".join(rest))


def _with_whole_counts(data: bytes) -> bytes:
    head, brace, rest = data.partition(b"{")
    with suppress(ValueError):
        found = json.loads(brace + rest) if b'"usage"' in rest else {}
        usage = _whole(found.get("usage"))
        if usage != found.get("usage"):
            return head + json.dumps({**found, "usage": usage}).encode() + b"\n" * data.endswith(b"\n")
    return data


def _whole(usage: Any) -> dict[str, Any] | None:
    """Return the token counts as integers, without values that are not counts."""
    if not isinstance(usage, dict):
        return None
    counts = dict(usage)
    for name, value in usage.items():
        if name.endswith("_details"):
            counts[name] = _whole(value)
        elif name.endswith("_tokens"):
            counts[name] = None
            with suppress(ValueError, TypeError, OverflowError):
                counts[name] = max(int(float(value)), 0)
    return counts


class RemoteEngine:
    """Makes a single attempt to call a remote model.

    Args:
        lm: Any LM. It is not changed, and its cache and retries are not used.
        client: DSPy engine for the same model, to call instead of ``lm``. Default None.
        structured: Whether requests contain a JSON schema, see `Limits`. Default ``auto``.
    """

    def __init__(self, lm: dspy.BaseLM, client: Any = None, structured: Structured = "auto") -> None:
        api_base = lm.kwargs.get("api_base") or lm.kwargs.get("base_url")
        api_base = api_base or _from_environment(lm.model.partition("/")[0])
        self.identity = f"{lm.model} at {place_of(api_base)}"
        self.secrets = secrets_of(lm.kwargs.get("api_key"))
        params, is_supported = frozenset(lm.supported_params), bool(lm.supports_response_schema)
        is_unlisted = not (is_supported or _is_listed(*lm.model.partition("/")[::2]))
        self._tries_schema = structured == "auto" and is_unlisted and _is_chat_model(lm)
        self._untried_format = {"type": "json_object"} if "response_format" in params else None
        self.supports_response_schema = structured != "off" and is_supported
        if params and (structured == "on" or self._tries_schema):  # a model without any parameters is unknown
            self.supports_response_schema, params = True, params | {"response_format"}
        self.supported_params = params - {"response_format"} if structured == "off" else params
        self._lm: Any = lm.copy(num_retries=0)
        self._client = client
        engine: Any = client or getattr(lm, "engine", None)
        if callable(getattr(engine, "stream", None)):
            self.stream = engine.stream

    def complete(self, request: Request) -> Response:
        """Call the model once. DSPy's recording is off here, because the LM that wraps this engine records the call."""
        response: Response
        if self._client is not None:
            response = self._client.complete(request)
            return response
        with dspy.context(usage_tracker=None, disable_history=True, send_stream=None, callbacks=[]):
            response = self._lm(request, cache=False)
            return response

    def keyed(self, request: Request) -> Request:
        """Return the request that identifies a stored answer, without a schema that the server may refuse."""
        if not self._tries_schema or request.config.response_format is None:
            return request
        return replace(request, config=replace(request.config, response_format=self._untried_format))

    def price(self, request: Request, response: Response) -> float | None:
        """Return the estimated price of a response in US dollars, or None if it is not known."""
        provider, _, model = self._lm.model.partition("/")
        if not (_is_listed(provider, response.model) or _is_listed(provider, model)):
            return None
        dollars: float | None = estimate_cost(response, provider=provider, requested_model=model, request=request)[0]
        return dollars

    def check_key(self) -> None:
        """Check before the first question that the service's API key is available.

        Raises:
            ModelError: The service needs an API key, which was neither passed nor set in the environment.
        """
        client, name = self._client, self._lm.model
        try:
            if isinstance(client, LM15Engine):
                found = client.resolve(name)
                client.router.lm(f"{found.provider}:{found.model}")
                return
        except MissingCredentialError as error:
            lacking = list(error.env_keys)
        else:
            import litellm

            given = client is None or client.client_options.get("api_key")
            lacking = [] if given else litellm.validate_environment(name)["missing_keys"]
        if lacking:
            raise ModelError(
                f"the LM {name!r} needs an API key: set {' or '.join(lacking)} in the environment, or pass api_key= "
                "(no request was sent)"
            )

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            transport = getattr(getattr(self._client, "config", None), "transport", None)
            if transport is not None:  # DSPy's client does not close our transport
                transport.close()


@cache
def _is_listed(provider: str, model: str) -> bool:
    """Return whether DSPy lists a price for a model. The result is cached, because DSPy searches its whole list."""
    return bool(model_info(provider, model))


def named_engine(
    name: str, api_base: str | None, api_key: str | None, timeout: float, structured: Structured = "auto"
) -> RemoteEngine:
    """Return the engine for a service's model: DSPy's client if it supports the provider, otherwise LiteLLM.

    Args:
        name: A DSPy model string.
        api_base: Base URL of the service. Default: the URL in the environment, or the provider's URL.
        api_key: API key for the service. Default: the API key in the environment.
        timeout: Timeout for one attempt, in seconds.
        structured: Whether requests contain a JSON schema, see `Limits`. Default ``auto``.

    Raises:
        ModelError: The model or its URL cannot be used.
    """
    provider, _, model = name.partition("/")
    if not provider or not model:
        raise ModelError(
            f"unknown LM {name!r}; use embedded, gguf:PATH, a rewriter folder, or a DSPy model string with a "
            f"provider, such as openai/{model or provider or 'gpt-4o-mini'}"
        )
    api_base, patience = api_base or _from_environment(provider), timeout + _LATER
    place_of(api_base)  # raises an error for a URL that cannot be used
    given: dict[str, Any] = {key: value for key, value in {"api_base": api_base, "api_key": api_key}.items() if value}
    client: Any
    try:
        try:
            client = _own_client(name, api_base, api_key, Transport(timeout))
            lm = dspy.LM(name, engine="lm15", timeout=patience, **given)
        except (LMError, UnknownModelError, UnsupportedFeatureError):  # DSPy's client does not support the provider
            client = LiteLLMEngine(timeout=patience, **given)
            lm = dspy.LM(name, engine="litellm", timeout=patience, **given)
        engine = RemoteEngine(lm, client, structured)
    except (DSPyError, ImportError, ValueError) as error:
        raise ModelError(f"cannot use the LM {name!r}: {redact(str(error), secrets_of(api_key))}") from None
    if not engine.supported_params:
        raise ModelError(
            f"unknown LM {name!r}: {provider!r} is not a known provider, and no rewriter folder has that name; for an "
            "OpenAI-compatible server, use openai/MODEL with api_base"
        )
    return engine


def client_of(lm: dspy.BaseLM, timeout: float) -> LM15Engine | None:
    """Return our client for an LM, to replace the one that DSPy would create; None if DSPy would not create one.

    Args:
        lm: Any LM.
        timeout: Timeout for one attempt, in seconds.
    """
    if not _is_chat_model(lm):
        return None
    found = select_backend(lm)
    if not found.native or not set(found.clients) <= {"api_key", "api_base", "base_url", "timeout"}:
        return None
    address = found.clients.get("api_base") or found.clients.get("base_url")
    return _own_client(lm.model, address, found.clients.get("api_key"), Transport(timeout))


def _is_chat_model(lm: dspy.BaseLM) -> TypeGuard[dspy.LM]:
    """Return whether DSPy itself calls the model: the LM has neither a custom class nor a custom engine."""
    return type(lm) is dspy.LM and lm.model_type == "chat" and isinstance(lm._engine_spec, str)


def place_of(api_base: str | None) -> str:
    """Return a URL's host and path, without its query, which may contain an API key.

    Raises:
        ModelError: The URL is not valid, or contains a user or a password.
    """
    if not api_base:
        return "its provider"
    try:
        parts = urlsplit(api_base)
        _ = parts.port
    except ValueError as error:  # its message may contain a password
        raise ModelError(
            f"the LM URL is not valid ({str(error).partition(':')[0]}); pass a URL such as "
            "http://127.0.0.1:8000/v1 or http://[::1]:8000/v1"
        ) from None
    if "@" in parts.netloc:
        raise ModelError(
            f"the LM URL for {parts.netloc.rpartition('@')[2]} must not contain a user name or password; remove them, "
            "and pass the API key with api_key= instead"
        )
    return parts.netloc + parts.path.rstrip("/")


def secrets_of(api_key: Any) -> tuple[str, ...]:
    """Return the strings that must not be shown: the API key, and every key in the environment."""
    found = {api_key} if isinstance(api_key, str) and api_key else set()
    found |= {value for name, value in os.environ.items() if _KEY_NAME.search(name) and len(value) >= _SHORTEST_KEY}
    return tuple(sorted(found, key=len, reverse=True))


def _own_client(name: str, api_base: str | None, api_key: str | None, transport: Transport) -> LM15Engine:
    providers = tuple(one.definition for one in registered_providers())
    provider = LM15Engine(RouterConfig(env={}, providers=providers)).resolve(name).provider
    return LM15Engine(
        RouterConfig(
            api_keys={provider: api_key} if api_key else None,
            base_urls={provider: api_base} if api_base else None,
            transport=transport,
            providers=providers,
        )
    )


def _from_environment(provider: str) -> str | None:
    names = (f"{provider.upper()}_{ending}" for ending in ("API_BASE", "BASE_URL"))
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
