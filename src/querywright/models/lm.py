"""Any LM by name, and any LM of the user's own, with stored answers, counted calls and retried failures."""

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

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")  # no look-up over the network at first use

_MAX_TOKENS = 1000
_MAX_TOKENS_REASONING = 16_000  # the least that DSPy allows a model that reasons before it answers
_OWN_TIMEOUT = 600.0  # seconds, what DSPy's own clients wait where nothing is said
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
    timeout: float | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
) -> dspy.LM:
    """An LM ready for use: answers stored, calls counted, failures retried.

    Args:
        name: ``embedded`` (SmolLM2-135M in this process), ``gguf:PATH`` (another GGUF file in this process),
            the folder of a trained rewriter or ``rewriter:PATH`` (in this process), ``recording:FILE`` (recorded
            answers; ``recording:sample`` for the demo's) or any DSPy model string such as ``openai/gpt-4o-mini``,
            ``anthropic/...`` or ``ollama_chat/...``.
        store: Where answers are kept, or None to keep none.
        ledger: Where cost is entered; a new one when not given.
        limits: Attempts, their time and waits, when the model counts as down, and how much of what it says may be
            unreadable in a run.
        budget: What its calls are paid from, with all other LMs that were given it; None for no limit.
        settings: How a model in this process runs. Default: ``EmbeddedSettings()``, with room for longer texts where
            the model is a file of one's own, and with a rewriter's own limits where it is a rewriter.
        api_base: Address of an OpenAI-compatible server; otherwise the one in the provider's environment
            variable (``OPENAI_API_BASE`` or ``OPENAI_BASE_URL``), or the provider's own.
        api_key: Key of the service; otherwise DSPy reads the service's environment variable. Never written
            anywhere.
        timeout: Seconds that one attempt at a remote model may take, to the end of its answer; more than 0 and at
            most a week. Default: that of ``limits``, 60.
        temperature: From 0. Default 0; for models that allow none, their own.
        max_tokens: Tokens of an answer at most, thinking included. Default: that of ``limits`` for a remote model;
            else 1000, and 16000 for models that are known to reason first.

    Returns:
        A ``dspy.LM`` whose ``engine`` is an ``LMEngine``.

    Raises:
        ModelError: The model is unknown, or its file or package is missing.
        ArtifactError: The rewriter is missing, or was changed.
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
        remote = named_engine(name, api_base, api_key, limits.timeout)
        model, engine, max_tokens = name, _remote(remote, common), max_tokens or limits.max_tokens
    else:
        model, engine = local.identity, LMEngine(local, identity=local.answers_identity, **common)
    try:
        made = _lm(model, engine, temperature=temperature or 0.0, max_tokens=max_tokens or _MAX_TOKENS)
    except LMConfigurationError as error:
        if temperature is not None or max_tokens is not None:
            raise ModelError(str(error)) from error
        return _lm(model, engine, max_tokens=_MAX_TOKENS_REASONING)
    reasons = "max_completion_tokens" in made.kwargs  # and takes no temperature but its own
    return _lm(model, engine, max_tokens=max_tokens) if reasons and temperature is None else made


def as_lm(
    lm: Any,
    *,
    store: Store | None = None,
    ledger: Ledger | None = None,
    limits: Limits | None = None,
    budget: Budget | None = None,
) -> dspy.LM:
    """An LM of the user's own, ready for use as one of ``resolve_lm`` is; it writes with the same settings.

    Args:
        lm: Any DSPy LM; it is not changed. One that is ready already is given back, with the
            store where it has none, and with what an event loop needs.
        store: Where answers are kept, or None to keep none.
        ledger: Where cost is entered; a new one when not given.
        limits: Attempts, their time and waits, when the model counts as down, and how much of what it says may be
            unreadable in a run. Default: an attempt may take what the LM's own ``timeout`` says, else 600 seconds.
        budget: What its calls are paid from, with all other LMs that were given it; None for no limit.

    Raises:
        ModelError: It is no DSPy LM.
    """
    if not isinstance(lm, dspy.BaseLM):
        raise ModelError(f"an LM must be a dspy.LM or the name of one, such as openai/gpt-4o-mini, but got {lm!r:.80}")
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
    remote = RemoteEngine(lm, client_of(lm, limits.timeout))
    return _lm(lm.model, _remote(remote, common), callbacks=list(lm.callbacks), **options)


def writer_beside(
    lm: dspy.BaseLM, writer: dspy.BaseLM | str | Path | None, *, store: Store | None = None
) -> dspy.LM | None:
    """The LM that writes, its answers kept and its calls counted and paid where those of the LM that reads are.

    Args:
        lm: The LM that reads.
        writer: Any LM, or its name, or the folder of a trained rewriter.
        store: Where answers are kept where the LM that reads keeps none. Default None: nowhere.

    Returns:
        None where no writer is given, or it is the LM that reads.

    Raises:
        ModelError: It is no LM, or cannot be used.
        ArtifactError: The folder is no rewriter, or was changed.
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
    """Answers are stored and failures retried by the engine, where a bad answer is never kept."""
    return dspy.LM(model, engine=engine, async_engine=AsyncLMEngine(engine), cache=False, num_retries=0, **options)


def engine_of(lm: Any) -> LMEngine:
    """The engine of an LM made by ``resolve_lm`` or ``as_lm``.

    Raises:
        ModelError: The LM was made otherwise.
    """
    engine = getattr(lm, "engine", None)
    if not isinstance(engine, LMEngine):
        raise ModelError(
            f"the LM {getattr(lm, 'model', lm)!r} was not made by querywright.resolve_lm, so its cost cannot be "
            "counted; make it ready with querywright.models.lm.as_lm"
        )
    return engine


def with_key(lm: dspy.LM) -> dspy.LM:
    """The LM, whose service has its key, or of which the store has answers, for these need none.

    Raises:
        ModelError: It has none; the variable is named.
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
    """SHA-256, as hex, of the model and of where it is asked: tells LMs apart without telling an address.

    Raises:
        ModelError: The LM was not made by ``resolve_lm`` or ``as_lm``.
    """
    return hashlib.sha256(engine_of(lm).identity.encode()).hexdigest()
