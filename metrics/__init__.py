"""What is measured: answers, retrieval, usefulness for the decision, and how sure the numbers are.

The pure functions stand in a module for each family and know nothing of DSPy; here are the metrics by name, as DSPy
takes them, and what is asked before anything is measured.
"""

from __future__ import annotations

from querywright.metrics.dspy_metrics import METRICS, metric_named, scorable
from querywright.metrics.statistics import minimum_detectable, questions_needed

__all__ = ["METRICS", "metric_named", "minimum_detectable", "questions_needed", "scorable"]
