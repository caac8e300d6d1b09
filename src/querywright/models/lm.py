"""Any LM by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dspy

from querywright.errors import ModelError
from querywright.models.embedded import EMBEDDED_ID, EmbeddedEngine, EmbeddedSettings
from querywright.models.guard import AsyncGuardedEngine, GuardedEngine, Limits
from querywright.models.ledger import Ledger
from querywright.models.store import Store

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")  # no look-up over the network at first use


def resolve_lm(
    name: str = "embedded",
    *,
    store: Store | None = None,
    ledger: Ledger | None = None,
    limits: Limits | None = None,
    settings: EmbeddedSettings | None = None,
    api_base: str | None = None,
    api_key: str | None = None,
    timeout: float = 60.0,
    temperature: float = 0.0,
    max_tokens: int = 1000,
) -> dspy.LM:
    """An LM ready for use: answers stored, calls counted, failures retried.

    Args:
        name: ``embedded`` (SmolLM2-135M in this process), ``gguf:PATH`` (another GGUF file in this process) or any
            DSPy model string such as ``openai/gpt-4o-mini``, ``anthropic/...`` or ``ollama_chat/...``.
        store: Where answers are kept, or None to keep none.
        ledger: Where cost is entered; a new one when not given.
        limits: Attempts, waits and the limit of calls.
        settings: How a model in this process runs.
        api_base: Address of an OpenAI-compatible server.
        api_key: Key of the service; otherwise DSPy reads the service's environment variable. Never written anywhere.
        timeout: Seconds that one attempt may wait for a remote model, more than 0. Default 60.
        temperature: Default 0.
        max_tokens: Tokens of an answer at most. Default 1000.

    Returns:
        A ``dspy.LM`` whose ``engine`` is a ``GuardedEngine``.

    Raises:
        ModelError: The model is unknown, or its file or package is missing.
    """
    if name == "embedded" or name.startswith("gguf:"):
        path = None if name == "embedded" else Path(name.removeprefix("gguf:")).expanduser()
        engine = EmbeddedEngine(path, settings)
        guarded = GuardedEngine(engine, identity=_local_identity(engine), store=store, ledger=ledger, limits=limits)
        model = EMBEDDED_ID if path is None else engine.identity
    else:
        guarded = _remote(name, store, ledger, limits, api_base, api_key, timeout)
        model = name
    return dspy.LM(
        model,
        engine=guarded,
        async_engine=AsyncGuardedEngine(guarded),
        cache=False,  # answers are stored by the engine, where a bad one is never kept
        num_retries=0,
        temperature=temperature,
        max_tokens=max_tokens,
    )


def engine_of(lm: dspy.LM) -> GuardedEngine:
    """The guarded engine of an LM made by ``resolve_lm``.

    Raises:
        ModelError: The LM was made otherwise.
    """
    engine = lm.engine
    if not isinstance(engine, GuardedEngine):
        raise ModelError(f"the LM {lm.model!r} was not made by querywright.resolve_lm, so its cost cannot be counted")
    return engine


def _local_identity(engine: EmbeddedEngine) -> str:
    # What changes an answer belongs into its key; threads and polling do not.
    s = engine.settings
    return f"{engine.identity} context={s.context} seed={s.seed} max_chars={s.max_chars} max_items={s.max_items}"


def _remote(
    name: str,
    store: Store | None,
    ledger: Ledger | None,
    limits: Limits | None,
    api_base: str | None,
    api_key: str | None,
    timeout: float,
) -> GuardedEngine:
    if timeout <= 0:
        raise ModelError(f"timeout must be more than 0 seconds, but got {timeout}")
    if "/" not in name:
        raise ModelError(
            f"unknown LM {name!r}: give embedded, gguf:PATH or a DSPy model string with its provider, "
            f"such as openai/{name}"
        )
    client: dict[str, Any] = {"timeout": timeout}
    if api_base:
        client["api_base"] = api_base
    if api_key:
        client["api_key"] = api_key
    inner = _RemoteEngine(dspy.LM(name, cache=False, num_retries=0, **client))
    where = urlsplit(api_base).netloc.rpartition("@")[2] if api_base else "default"
    return GuardedEngine(
        inner,
        identity=f"{name} at {where}",
        store=store,
        ledger=ledger,
        limits=limits,
        price=inner.price,
        secrets=(api_key,) if api_key else (),
    )


class _RemoteEngine:
    """One attempt at a remote model, through the backend that DSPy chooses for it."""

    def __init__(self, lm: dspy.LM) -> None:
        from dspy.utils.exceptions import DSPyError

        self._lm = lm
        try:
            self.supports_response_schema = bool(lm.supports_response_schema)
            self.supported_params = frozenset(lm.supported_params)
        except (DSPyError, ImportError) as error:
            raise ModelError(f"the LM {lm.model!r} cannot be used: {error}") from error

    def complete(self, request: Any) -> Any:
        """Ask once. What DSPy would record is recorded by the LM around this engine."""
        with dspy.context(usage_tracker=None, disable_history=True, send_stream=None, callbacks=[]):
            return self._lm(request)

    def price(self, request: Any, response: Any) -> float | None:
        """Estimated US dollars of a response, or None when the price is not known."""
        from dspy.clients.costs import estimate_cost

        provider = self._lm.model.partition("/")[0]
        dollars, _ = estimate_cost(response, provider=provider, requested_model=self._lm.model, request=request)
        return None if dollars is None else float(dollars)

    def close(self) -> None:
        """Close the connections."""
        self._lm.close()
