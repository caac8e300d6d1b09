"""Spans and metrics, read with the SDK's own in-memory exporters."""

from __future__ import annotations

import json
import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from querywright.errors import InputError
from querywright.watching import OpenTelemetry


class Telemetry:
    """Providers of a test's own, and what came out of them."""

    def __init__(self):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)

    def watcher(self, **options):
        return OpenTelemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    @property
    def spans(self):
        return self.exporter.get_finished_spans()

    @property
    def points(self):
        """By metric, each point's own attributes and its sum."""
        found = {}
        for resource in self.reader.get_metrics_data().resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        value = point.sum if hasattr(point, "sum") else point.value
                        own = set(point.attributes.items()) - {
                            ("gen_ai.workflow.name", "querywright"), ("querywright.artifact", "0123456789ab"),
                        }  # fmt: skip
                        found.setdefault(metric.name, []).append((dict(own), value))
        return found


@pytest.fixture
def telemetry():
    made = Telemetry()
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


def test_a_question_is_a_span_below_the_caller_s(telemetry, exchange):
    watch = telemetry.watcher()
    with telemetry.tracers.get_tracer("app").start_as_current_span("request") as request:
        watch(exchange(fallbacks=("hypothesis",)))
    span = next(span for span in telemetry.spans if span.name == "invoke_workflow querywright")
    assert span.parent.span_id == request.get_span_context().span_id
    assert span.end_time - span.start_time == 500_000_000
    assert span.start_time == 1_772_600_767_250_000_000  # 2026-03-04T05:06:07.25Z
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "querywright",
        "querywright.exchange": "0" * 32,
        "querywright.artifact": "0123456789ab",
        "querywright.outcome": "answered",
        "querywright.queries": 2,
        "querywright.passages": 2,
        "querywright.fallbacks": ("hypothesis",),
        "querywright.lm.calls.made": 2,
        "querywright.lm.calls.saved": 1,
        "querywright.top_score": 0.75,
    }
    assert span.status.status_code == StatusCode.UNSET


def test_no_text_unless_asked_for(telemetry, exchange):
    telemetry.watcher()(exchange())
    assert not any(word in telemetry.spans[0].to_json() for word in ("number", "Heparin", "thinner", "p1"))
    telemetry.watcher(texts=True, name="pharmacy")(exchange())
    span = telemetry.spans[1]
    assert span.name == "invoke_workflow pharmacy"
    (asked,) = json.loads(span.attributes["gen_ai.input.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": "What of number 0?"}]}
    (said,) = json.loads(span.attributes["gen_ai.output.messages"])
    assert said["parts"][0]["content"] == "Heparin"
    assert json.loads(span.attributes["gen_ai.retrieval.documents"]) == [{"id": "p1"}, {"id": "p2"}]


def test_metrics_add_up(telemetry, exchange):
    watch = telemetry.watcher()
    watch(exchange(0))
    watch(exchange(1, lm_calls=0, fallbacks=("query:support", "query:verify")))
    watch(exchange(2, declined=True, passages=()))
    watch(exchange(3, answer=None, lm_saved=0))
    points = telemetry.points
    by_outcome = {own["querywright.outcome"]: value for own, value in points["querywright.question.duration"]}
    assert by_outcome == {"answered": 1.0, "declined": 0.5, "retrieved": 0.5}
    assert points["querywright.question.top_score"] == [({}, 3.0)]
    assert points["querywright.question.passages"] == [({}, 6)]
    assert {own["querywright.lm.call"]: value for own, value in points["querywright.lm.calls"]} == {
        "made": 6, "saved": 3,
    }  # fmt: skip
    assert points["querywright.fallbacks"] == [({"querywright.step": "query"}, 2)]


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InputError, match=r"extra otel: pip install 'querywright\[otel\]'"):
        OpenTelemetry()
