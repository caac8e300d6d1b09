"""Metrics of answers, retrieval, and usefulness for the decision, with intervals and tests.

The pure functions are in one module per family and do not use DSPy. This package exports the metrics by name as DSPy
calls them, and the checks before a measurement.
"""

from __future__ import annotations

from querywright.metrics.dspy_metrics import METRICS, metric_named, scorable
from querywright.metrics.statistics import minimum_detectable, questions_needed

__all__ = ["METRICS", "metric_named", "minimum_detectable", "questions_needed", "scorable"]
