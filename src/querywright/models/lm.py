"""Any LM by name."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import dspy
from dspy.utils.exceptions import DSPyError, LMConfigurationError, LMError

from querywright.errors import ModelError
from querywright.models.budget import Budget
from querywright.models.circuit_breaker import Limits
from querywright.models.embedded import EMBEDDED_ID, EmbeddedEngine, EmbeddedSettings
from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.models.engine_errors import redact
from querywright.models.rewriters import read_rewriter
from querywright.models.store import Store
from querywright.models.transformers_engine import rewriter_engine
from querywright.models.usage import Ledger

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")  # no look-up over the network at first use

_MAX_TOKENS = 1000
_MAX_TOKENS_REASONING = 16_000  # the least that DSPy allows a model that reasons before it answers
_KEY_NAME = re.compile(r"(?i)(_key|apikey|token|secret|password)$")
_SHORTEST_KEY = 8

_LARGER_MODEL = EmbeddedSettings(max_chars=400, max_items=5)
"""For a GGUF file of the user's own. The short texts of the default are for the smallest model, which only rambles."""


def resolve_lm(
    name: str = "embedded",
    *,
    store: Store | None = None,
    ledger: Ledger | None = None,
    limits: Limits | None = None,
    budget: Budget | None = None,
    settings: EmbeddedSettings | None = None,
    api_base: str | None = None,
    api_key: str | None = None,
    timeout: float = 60.0,
    temperature: float | None = None,
    max_tokens: int | None = None,
) -> dspy.LM:
    """An LM ready for use: answers stored, calls counted, failures retried.

    Args:
        name: ``embedded`` (SmolLM2-135M in this process), ``gguf:PATH`` (another GGUF file in this process),
            ``rewriter:PATH`` (a trained rewriter in this process) or any DSPy model string such as
            ``openai/gpt-4o-mini``, ``anthropic/...`` or ``ollama_chat/...``.
        store: Where answers are kept, or None to keep none.
        ledger: Where cost is entered; a new one when not given.
        limits: Attempts, waits, and when the model counts as down.
        budget: What its calls are paid from, with all other LMs that were given it; None for no limit.
        settings: How a model in this process runs. Default: ``EmbeddedSettings()``, with room for longer texts where
            the model is a file of one's own, and with a rewriter's own limits where it is a rewriter.
        api_base: Address of an OpenAI-compatible server; otherwise the one in the provider's environment
            variable (``OPENAI_API_BASE`` or ``OPENAI_BASE_URL``), or the provider's own.
        api_key: Key of the service; otherwise DSPy reads the service's environment variable. Never written
            anywhere.
        timeout: Seconds that one attempt may wait for the next bytes of a remote model, more than 0.
            Default 60.
        temperature: From 0. Default 0; for models that allow none, their own.
        max_tokens: Tokens of an answer at most. Default 1000; 16000 for models that reason first.

    Returns:
        A ``dspy.LM`` whose ``engine`` is an ``LMEngine``.

    Raises:
        ModelError: The model is unknown, or its file or package is missing.
        ArtifactError: The rewriter is missing, or was changed.
    """
    common: dict[str, Any] = {"store": store, "ledger": ledger, "limits": limits, "budget": budget}
    if name.startswith("rewriter:"):
        engine: Any = rewriter_engine(read_rewriter(name.removeprefix("rewriter:")), settings)
        ours = LMEngine(engine, identity=engine.answers_identity, **common)
        model = engine.identity
    elif name == "embedded" or name.startswith("gguf:"):
        path = None if name == "embedded" else Path(name.removeprefix("gguf:")).expanduser()
        engine = EmbeddedEngine(path, settings or (EmbeddedSettings() if path is None else _LARGER_MODEL))
        ours = LMEngine(engine, identity=engine.answers_identity, **common)
        model = EMBEDDED_ID if path is None else engine.identity
    else:
        ours = _remote(name, api_base, api_key, timeout, **common)
        model = name
    options = {"engine": ours, "async_engine": AsyncLMEngine(ours), **_ONCE}
    try:
        return dspy.LM(model, temperature=temperature or 0.0, max_tokens=max_tokens or _MAX_TOKENS, **options)
    except LMConfigurationError as error:
        if temperature is not None or max_tokens is not None:
            raise ModelError(str(error)) from error
        return dspy.LM(model, max_tokens=_MAX_TOKENS_REASONING, **options)


def as_lm(
    lm: Any,
    *,
    store: Store | None = None,
    ledger: Ledger | None = None,
    limits: Limits | None = None,
    budget: Budget | None = None,
) -> dspy.LM:
    """Any ``dspy.LM`` as ``resolve_lm`` makes them; one that it made is given back as it is.

    Args:
        lm: The LM; its model, address, key, temperature and limits of length stay.
        store: Where answers are kept, or None to keep none.
        ledger: Where cost is entered; a new one when not given.
        limits: Attempts, waits, and when the model counts as down.
        budget: What its calls are paid from; None for no limit.

    Raises:
        ModelError: It is no ``dspy.LM``.
    """
    if isinstance(getattr(lm, "engine", None), LMEngine):
        return cast(dspy.LM, lm)
    if not isinstance(lm, dspy.LM):
        raise ModelError(f"lm must be a dspy.LM or the name of one, such as openai/gpt-4o-mini, but got {lm!r:.80}")
    api_base, key = (lm.kwargs.get(name) for name in ("api_base", "api_key"))
    secrets = _secrets(api_base, key)
    inner = _GivenEngine(lm)
    ours = LMEngine(
        inner,
        identity=f"{lm.model} at {_where(api_base or _from_environment(lm.model.partition('/')[0]))}",
        price=inner.price,
        secrets=secrets,
        store=store,
        ledger=ledger,
        limits=limits,
        budget=budget,
    )
    asked = {key: value for key, value in lm.kwargs.items() if key not in _OF_THE_CLIENT}
    return dspy.LM(
        lm.model, lm.model_type, engine=ours, async_engine=AsyncLMEngine(ours), callbacks=lm.callbacks, **_ONCE, **asked
    )


_OF_THE_CLIENT = frozenset({"api_base", "base_url", "api_key", "api_version", "timeout", "headers", "extra_headers"})
"""What the LM that was given keeps to itself: where it is asked, and by whom."""

# Answers are stored and failures retried by the engine of ours, where a bad answer is never kept.
_ONCE: dict[str, Any] = {"cache": False, "num_retries": 0}


def engine_of(lm: Any) -> LMEngine:
    """The engine of an LM made by ``resolve_lm``.

    Raises:
        ModelError: The LM was made otherwise.
    """
    engine = getattr(lm, "engine", None)
    if not isinstance(engine, LMEngine):
        raise ModelError(
            f"the LM {getattr(lm, 'model', lm)!r} was not made by querywright.resolve_lm, so its cost cannot be counted"
        )
    return engine


def lm_digest(lm: Any) -> str:
    """SHA-256, as hex, of the model and of where it is asked: tells LMs apart without telling an address.

    Raises:
        ModelError: The LM was not made by ``resolve_lm``.
    """
    return hashlib.sha256(engine_of(lm).identity.encode()).hexdigest()


def _remote(name: str, api_base: str | None, api_key: str | None, timeout: float, **common: Any) -> LMEngine:
    if timeout <= 0:
        raise ModelError(f"timeout must be more than 0 seconds, but got {timeout}")
    provider, _, model = name.partition("/")
    if not provider or not model:
        raise ModelError(
            f"unknown LM {name!r}: give embedded, gguf:PATH, rewriter:PATH or a DSPy model string with its provider, "
            f"such as openai/{model or provider or 'gpt-4o-mini'}"
        )
    api_base = api_base or _from_environment(provider)
    client = {"timeout": timeout, "api_base": api_base, "api_key": api_key}
    secrets = _secrets(api_base, api_key)
    inner = _RemoteEngine(name, {key: value for key, value in client.items() if value}, secrets)
    return LMEngine(
        inner,
        identity=f"{name} at {_where(api_base)}",
        price=inner.price,
        secrets=secrets,
        **common,
    )


def _from_environment(provider: str) -> str | None:
    names = (f"{provider.upper()}_{ending}" for ending in ("API_BASE", "BASE_URL"))
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _where(api_base: str | None) -> str:
    """Host and path of an address, without the user, password and query that it may hold."""
    if not api_base:
        return "its provider"
    parts = urlsplit(api_base)
    return parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")


def _secrets(api_base: str | None, api_key: str | None) -> tuple[str, ...]:
    """What must not be shown: the key, the password of the address, and every key in the environment."""
    found = [api_key or ""]
    if api_base:
        password = urlsplit(api_base).password or ""
        found += [password, unquote(password)]
    found += [value for name, value in os.environ.items() if _KEY_NAME.search(name) and len(value) >= _SHORTEST_KEY]
    return tuple(sorted({secret for secret in found if secret}, key=len, reverse=True))


class _RemoteEngine:
    """One attempt at a remote model, through DSPy's own client or else through LiteLLM."""

    def __init__(self, name: str, client: dict[str, Any], secrets: tuple[str, ...]) -> None:
        self._unpriced: set[str] = set()
        try:
            try:
                self._use(dspy.LM(name, engine="lm15", **_ONCE, **client))
            except LMError:  # a provider that DSPy's own client does not know
                self._use(dspy.LM(name, **_ONCE, **client))
        except (DSPyError, ImportError, ValueError) as error:
            raise ModelError(f"the LM {name!r} cannot be used: {redact(str(error), secrets)}") from None
        if not self.supported_params:
            raise ModelError(
                f"unknown LM {name!r}: no provider is named {name.partition('/')[0]!r}; an OpenAI-compatible server "
                "of your own is openai/MODEL with api_base"
            )

    def _use(self, lm: dspy.LM) -> None:
        self._lm = lm
        self.supports_response_schema = bool(lm.supports_response_schema)
        self.supported_params = frozenset(lm.supported_params)

    def complete(self, request: Any) -> Any:
        """Ask once. What DSPy would record is recorded by the LM around this engine."""
        with dspy.context(usage_tracker=None, disable_history=True, send_stream=None, callbacks=[]):
            return self._lm(request)

    def stream(self, request: Any) -> Iterator[Any]:
        """Ask once for an answer in pieces; by the same connections, and under the same settings."""
        from dspy.clients.engines.stream_guard import checked_stream
        from dspy.clients.execution import _engine, prepare

        backend, routed, provider = _engine(self._lm, prepare(self._lm, None, None, {"request": request}), False)
        yield from checked_stream(backend.stream(routed), provider=provider)

    def price(self, request: Any, response: Any) -> float | None:
        """Estimated US dollars of a response, or None when the price is not known."""
        from dspy.clients.costs import estimate_cost

        if response.model in self._unpriced:  # to look through the whole list of prices again costs milliseconds
            return None
        provider, _, model = self._lm.model.partition("/")
        dollars, _ = estimate_cost(response, provider=provider, requested_model=model, request=request)
        if dollars is not None:
            return float(dollars)
        if response.usage.input_tokens is not None and response.usage.output_tokens is not None:
            self._unpriced.add(response.model)  # the model has no price; it was not this response that lacked usage
        return None

    def close(self) -> None:
        """Close the connections."""
        self._lm.close()


class _GivenEngine(_RemoteEngine):
    """One attempt at an LM that somebody else made."""

    def __init__(self, lm: dspy.LM) -> None:
        self._unpriced: set[str] = set()
        self._use(lm.copy(**_ONCE))
