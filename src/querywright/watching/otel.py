"""Traffic as OpenTelemetry spans and metrics.

A question is one span ``invoke_workflow``, by the semantic conventions for generative AI, with what they have no name
for under ``querywright.``. A span says no word of a question unless it is asked to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from querywright import __version__
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.optimize.artifacts.watchers import Exchange

OPERATION = "invoke_workflow"
SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
SCORES = tuple(round(0.05 * step, 2) for step in range(21))
PASSAGES = (0, 1, 2, 3, 5, 10, 20, 50)


class OpenTelemetry:
    """A watcher that makes a span and metrics of each question.

    The span stands where the question was asked: below the caller's span, from when it was asked to when it was
    answered. The metrics are ``querywright.question.duration`` (s), ``querywright.question.top_score``,
    ``querywright.question.passages``, ``querywright.lm.calls`` (made or saved) and ``querywright.fallbacks`` (by step);
    each has the artifact's id, and the first the outcome: answered, declined, retrieved or failed.

    Args:
        tracer_provider: Makes the spans. Default: the global one.
        meter_provider: Makes the metrics. Default: the global one.
        name: Of the program, in spans and metrics.
        texts: Whether spans hold question, options, queries, answer and ids of passages.

    Raises:
        InputError: The package of OpenTelemetry is missing.
    """

    def __init__(
        self, *, tracer_provider: Any = None, meter_provider: Any = None, name: str = "querywright", texts: bool = False
    ) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError as error:
            raise InputError("OpenTelemetry needs the extra otel: pip install 'querywright[otel]'") from error
        self._error, self._name, self._texts = trace.StatusCode.ERROR, name, texts
        self._tracer = trace.get_tracer("querywright", __version__, tracer_provider=tracer_provider)
        meter = metrics.get_meter("querywright", __version__, meter_provider=meter_provider)

        def histogram(what: str, unit: str, said: str, bounds: Sequence[float]) -> Any:
            return meter.create_histogram(
                f"querywright.question.{what}", unit, said, explicit_bucket_boundaries_advisory=bounds
            )

        self._duration = histogram("duration", "s", "From question to answer", SECONDS)
        self._score = histogram("top_score", "1", "Best retrieval score", SCORES)
        self._passages = histogram("passages", "{passage}", "Passages found", PASSAGES)
        self._calls = meter.create_counter("querywright.lm.calls", "{call}", "LM calls, made or saved by the store")
        self._fallbacks = meter.create_counter("querywright.fallbacks", "{fallback}", "Steps that fell back")

    def __call__(self, exchange: Exchange) -> None:
        """Make a span and metrics of what came of one question."""
        failed = {} if exchange.error is None else {"error.type": exchange.error}
        begin = round(datetime.fromisoformat(exchange.at).timestamp() * 1e6) * 1_000
        span = self._tracer.start_span(
            f"{OPERATION} {self._name}", start_time=begin, attributes=self._attributes(exchange) | failed
        )
        if failed:
            span.set_status(self._error)
        span.end(begin + round(exchange.seconds * 1e9))
        of = {"gen_ai.workflow.name": self._name, "querywright.artifact": exchange.artifact}
        self._duration.record(exchange.seconds, {**of, "querywright.outcome": outcome(exchange), **failed})
        if not failed:
            self._passages.record(exchange.n_passages, of)
        if exchange.top_scores:
            self._score.record(max(exchange.top_scores), of)
        for kind, calls in (("made", exchange.lm_calls), ("saved", exchange.lm_saved)):
            if calls:
                self._calls.add(calls, {**of, "querywright.lm.call": kind})
        for step in exchange.fallbacks:
            self._fallbacks.add(1, {**of, "querywright.step": step.partition(":")[0]})

    def _attributes(self, exchange: Exchange) -> dict[str, Any]:
        found: dict[str, Any] = {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.workflow.name": self._name,
            "querywright.exchange": exchange.id,
            "querywright.artifact": exchange.artifact,
            "querywright.outcome": outcome(exchange),
            "querywright.queries": len(exchange.queries),
            "querywright.passages": exchange.n_passages,
            "querywright.fallbacks": list(exchange.fallbacks),
            "querywright.lm.calls.made": exchange.lm_calls,
            "querywright.lm.calls.saved": exchange.lm_saved,
        }
        if exchange.top_scores:
            found["querywright.top_score"] = max(exchange.top_scores)
        if not self._texts:
            return found
        found |= {
            "gen_ai.input.messages": _message("user", exchange.question),
            "gen_ai.retrieval.documents": json.dumps([{"id": passage} for passage in exchange.passages or ()]),
            "querywright.query.texts": [query.text for query in exchange.queries],
            "querywright.query.roles": [query.role for query in exchange.queries],
        }
        if exchange.options:
            found["querywright.options"] = list(exchange.options)
        if exchange.answer is not None:
            found["gen_ai.output.messages"] = _message("assistant", exchange.answer, finish_reason="stop")
        return found


def outcome(exchange: Exchange) -> str:
    """What came of a question: ``answered``, ``declined``, ``retrieved`` (nothing reads the passages) or ``failed``."""
    if exchange.error is not None:
        return "failed"
    if exchange.answer is None:
        return "retrieved"
    return "declined" if exchange.declined else "answered"


def _message(role: str, text: str, **more: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}], **more}], ensure_ascii=False)
