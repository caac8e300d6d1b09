"""Metrics for answers, retrieval, and decision usefulness, with intervals and tests.

Each family of metrics has a module with pure functions, which do not use DSPy. This package exports the same metrics in
the form that DSPy calls, and checks to run before measuring.
"""

from __future__ import annotations

from querywright.metrics.dspy_metrics import METRICS, metric_named, scorable
from querywright.metrics.statistics import minimum_detectable, questions_needed

__all__ = ["METRICS", "metric_named", "minimum_detectable", "questions_needed", "scorable"]
