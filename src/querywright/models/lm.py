"""Prepare any LM, given its name or a DSPy LM: add a cache, call counts, and retries."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
from dspy.clients.backend_selection import CLIENT_KEYS
from dspy.utils.exceptions import LMConfigurationError

from querywright.errors import ModelError
from querywright.models.budget import Budget
from querywright.models.circuit_breaker import Limits
from querywright.models.embedded import EmbeddedEngine, EmbeddedSettings
from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.models.recording import KIND, PREFIX, RecordingEngine
from querywright.models.remote import RemoteEngine, client_of, named_engine
from querywright.models.rewriters import read_rewriter, rewriter_engine
from querywright.models.store import Store
from querywright.models.usage import Ledger

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")  # use the packaged prices instead of downloading them

_MAX_TOKENS = 1000
_MAX_TOKENS_REASONING = 16_000  # the minimum that DSPy requires for a reasoning model
_OWN_TIMEOUT = 600.0  # seconds; the default in DSPy's clients
_LARGER_MODEL = EmbeddedSettings(max_chars=400, max_items=5)
"""Settings for a GGUF file that the user provides. The limits for the embedded models are lower because the
smallest one rambles."""


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
    timeout: float | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
) -> dspy.LM:
    """Return an LM that caches answers, counts calls, and retries failures.

    Args:
        name: ``embedded`` (SmolLM2-135M in this process), ``gguf:PATH`` (a different GGUF file in this process), the
            folder of a trained rewriter or ``rewriter:PATH`` (in this process), ``recording:FILE`` (recorded answers;
            ``recording:sample`` for the demo's recording), or a DSPy model string such as ``openai/gpt-4o-mini``,
            ``anthropic/...``, or ``ollama_chat/...``. Default ``embedded``.
        store: Store for answers, or None to store none. Default None.
        ledger: Records the cost of calls. Default: a new ledger.
        limits: Limits on attempts, waits, failures, and unreadable answers. Default: ``Limits()``.
        budget: Budget for calls. Several LMs may share it. None for no limit. Default None.
        settings: Settings for a model in this process. Default: ``EmbeddedSettings()``, with longer strings and lists
            for a GGUF file, and with the rewriter's limits for a rewriter.
        api_base: Base URL of an OpenAI-compatible server. Default: the URL in the provider's environment variable
            (``OPENAI_API_BASE`` or ``OPENAI_BASE_URL``), or the provider's URL.
        api_key: API key for the service. Default: DSPy reads the service's environment variable. The key is never
            written to disk.
        timeout: Timeout for one attempt to call a remote model, in seconds: more than 0 and at most one week. Default:
            the timeout in ``limits`` (60 unless changed).
        temperature: Sampling temperature, 0 or more. Default 0, or the model's default if the model does not allow 0.
        max_tokens: Maximum number of tokens in an answer, including thinking. Default: the maximum in ``limits`` for a
            remote model; otherwise 1000, or 16000 for models known to reason first.

    Returns:
        A ``dspy.LM`` whose ``engine`` is an ``LMEngine``.

    Raises:
        ModelError: The model is unknown, its file or package is missing, or its URL cannot be used.
        ArtifactError: The rewriter is missing or was changed.
        InputError: The timeout is out of range.
    """
    limits = limits or Limits()
    limits = limits if timeout is None else replace(limits, timeout=timeout)
    common: dict[str, Any] = {"store": store, "ledger": ledger, "limits": limits, "budget": budget}
    kind, _, path = name.partition(":")
    local: Any = None
    if name == "embedded":
        local = EmbeddedEngine(None, settings)
    elif kind == "gguf":
        local = EmbeddedEngine(Path(path).expanduser(), settings or _LARGER_MODEL)
    elif name.startswith(PREFIX):
        local = RecordingEngine(Path(path).expanduser())
    elif (kind == "rewriter" and path) or (name and os.path.isdir(name)):
        local = rewriter_engine(read_rewriter(path if kind == "rewriter" else name), settings)
    if local is None:
        remote = named_engine(name, api_base, api_key, limits.timeout, limits.structured)
        model, engine, max_tokens = name, _remote(remote, common), max_tokens or limits.max_tokens
    else:
        model, engine = local.identity, LMEngine(local, identity=local.answers_identity, **common)
    try:
        made = _lm(model, engine, temperature=temperature or 0.0, max_tokens=max_tokens or _MAX_TOKENS)
    except LMConfigurationError as error:
        if temperature is not None or max_tokens is not None:
            raise ModelError(str(error)) from error
        return _lm(model, engine, max_tokens=_MAX_TOKENS_REASONING)
    reasons = "max_completion_tokens" in made.kwargs  # such a model's temperature is fixed
    return _lm(model, engine, max_tokens=max_tokens) if reasons and temperature is None else made


def as_lm(
    lm: Any,
    *,
    store: Store | None = None,
    ledger: Ledger | None = None,
    limits: Limits | None = None,
    budget: Budget | None = None,
) -> dspy.LM:
    """Return an LM that has a DSPy LM's settings, caches answers, counts calls, and retries failures.

    Args:
        lm: Any DSPy LM; it is not changed. An LM from ``resolve_lm`` or ``as_lm`` is returned unchanged, except that it
            gets the store if it has none.
        store: Store for answers, or None to store none. Default None.
        ledger: Records the cost of calls. Default: a new ledger.
        limits: Limits on attempts, waits, failures, and unreadable answers. Default: ``Limits()`` with the LM's
            ``timeout``, or 600 seconds if it has none.
        budget: Budget for calls. Several LMs may share it. None for no limit. Default None.

    Raises:
        ModelError: ``lm`` is not a DSPy LM.
    """
    if not isinstance(lm, dspy.BaseLM):
        raise ModelError(f"an LM must be a dspy.LM or a name such as openai/gpt-4o-mini, but got {lm!r:.80}")
    ready: Any = lm
    engine = getattr(ready, "engine", None)
    if isinstance(engine, LMEngine):
        if store is not None and engine.store is None:
            engine = engine.with_shared(store, engine.ledger, engine.budget)
        elif not isinstance(lm, dspy.LM) or ready._async_engine_spec is not None:
            return ready
        return ready.copy(engine=engine, async_engine=AsyncLMEngine(engine))
    options = {key: value for key, value in lm.kwargs.items() if value is not None and key not in CLIENT_KEYS}
    options["max_tokens"] = options.pop("max_completion_tokens", options.pop("max_tokens", None))
    own = lm.kwargs.get("timeout")
    limits = limits or Limits(timeout=own if isinstance(own, int | float) else _OWN_TIMEOUT)
    common = {"store": store, "ledger": ledger, "limits": limits, "budget": budget}
    remote = RemoteEngine(lm, client_of(lm, limits.timeout), limits.structured)
    return _lm(lm.model, _remote(remote, common), callbacks=list(lm.callbacks), **options)


def writer_beside(
    lm: dspy.BaseLM, writer: dspy.BaseLM | str | Path | None, *, store: Store | None = None
) -> dspy.LM | None:
    """Return the writer LM, which shares the reader LM's store, ledger, and budget.

    Args:
        lm: The reader LM.
        writer: Any LM, its name, or the folder of a trained rewriter; None for no writer.
        store: Store for answers if the reader LM has no store. Default None.

    Returns:
        The writer LM; None if ``writer`` is None or the same as the reader LM.

    Raises:
        ModelError: ``writer`` is not an LM, or cannot be used.
        ArtifactError: The folder is not a rewriter, or was changed.
    """
    if writer is None or writer is lm or writer == lm.model:
        return None
    own = getattr(lm, "engine", None)
    shared: dict[str, Any] = {"store": store}
    limits = None
    if isinstance(own, LMEngine):
        shared = {"store": store if own.store is None else own.store, "ledger": own.ledger, "budget": own.budget}
        limits = own.limits
    if isinstance(writer, str | Path):
        name = f"rewriter:{writer}" if isinstance(writer, Path) else writer
        writer = with_key(resolve_lm(name, limits=limits, **shared))
    found = as_lm(writer, **shared)
    if not isinstance(own, LMEngine):
        return found
    engine = engine_of(found)
    if (engine.identity, found.kwargs) == (own.identity, lm.kwargs):
        return None
    joined = engine.with_shared(**shared, at_once=own.limits.at_once)
    return found if joined is engine else found.copy(engine=joined, async_engine=AsyncLMEngine(joined))


def _remote(inner: RemoteEngine, common: dict[str, Any]) -> LMEngine:
    return LMEngine(inner, identity=inner.identity, price=inner.price, secrets=inner.secrets, **common)


def _lm(model: str, engine: LMEngine, **options: Any) -> dspy.LM:
    """Return a ``dspy.LM`` that leaves caching and retries to the engine, which does not cache unreadable answers."""
    return dspy.LM(model, engine=engine, async_engine=AsyncLMEngine(engine), cache=False, num_retries=0, **options)


def engine_of(lm: Any) -> LMEngine:
    """Return the engine of an LM from ``resolve_lm`` or ``as_lm``.

    Raises:
        ModelError: The LM was not made by either function.
    """
    engine = getattr(lm, "engine", None)
    if not isinstance(engine, LMEngine):
        raise ModelError(
            f"cannot count the cost of the LM {getattr(lm, 'model', lm)!r}, because querywright.resolve_lm did not "
            "create it; convert it with querywright.models.lm.as_lm"
        )
    return engine


def with_key(lm: dspy.LM) -> dspy.LM:
    """Return the LM if its service has an API key, or if the store has that LM's answers, which need no key.

    Raises:
        ModelError: The API key is missing; the message names its environment variable.
    """
    engine = engine_of(lm)
    if isinstance(engine.inner, RemoteEngine):
        try:
            engine.inner.check_key()
        except ModelError:
            known = () if engine.store is None else engine.store.values(KIND)
            if not any(lm.model.partition("/")[2] in str(json.loads(one).get("model")) for one in known):
                raise
    return lm


def lm_digest(lm: Any) -> str:
    """Return the SHA-256, as hex, of the model and its URL. It distinguishes LMs without revealing the URL.

    Raises:
        ModelError: The LM was not made by ``resolve_lm`` or ``as_lm``.
    """
    return hashlib.sha256(engine_of(lm).identity.encode()).hexdigest()
