"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_NAMESPACE = "querywright"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ServerMetrics:
    """Counters of one server; an address that is none of its routes counts as ``other``: nobody makes up labels."""

    def __init__(self, routes: Iterable[str]) -> None:
        self.registry = CollectorRegistry()
        self._routes = frozenset(routes)
        counter = partial(Counter, registry=self.registry, namespace=_NAMESPACE)
        self._requests = counter("requests", "Requests answered, by address and status.", ("route", "status"))
        self._seconds = Histogram(
            "request_seconds", "Seconds from request to answer.", ("route",), _NAMESPACE, buckets=BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self.in_flight = Gauge("in_flight", "Requests under way.", (), _NAMESPACE, registry=self.registry)
        self._lm_calls = counter("lm_calls", "LM calls, made or saved (taken from the store).", ("how",))
        self._fallbacks = counter("fallbacks", "Steps that fell back to something plainer.", ("step",))
        self._declined = counter("declined", "Questions that the passages did not answer.")
        for value in ("made", "saved"):
            self._lm_calls.labels(value)  # at 0, so that the first one is a rise

    def route(self, path: str) -> str:
        """The label of an address."""
        return path if path in self._routes else "other"

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request that ended."""
        self._requests.labels(self.route(path), str(status)).inc()
        self._seconds.labels(self.route(path)).observe(seconds)

    def asked(self, made: int, saved: int) -> None:
        """Count LM calls."""
        self._lm_calls.labels("made").inc(made)
        self._lm_calls.labels("saved").inc(saved)

    def outcome(self, fallbacks: Iterable[str], declined: bool) -> None:
        """Count what became of a question."""
        for step in fallbacks:
            self._fallbacks.labels(step).inc()
        self._declined.inc(declined)

    def text(self) -> bytes:
        """All of them as Prometheus reads them."""
        return generate_latest(self.registry)
