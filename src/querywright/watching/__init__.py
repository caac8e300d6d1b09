"""Watching a program in use: what was asked, found and answered, and whether it still is what it was compiled for."""

from __future__ import annotations

from querywright.watching.drift import Drift, find_drift
from querywright.watching.labelled import Labelled, labelled_questions, write_questions
from querywright.watching.otel import OpenTelemetry
from querywright.watching.traffic import JsonLines, read_traffic

__all__ = [
    "Drift",
    "JsonLines",
    "Labelled",
    "OpenTelemetry",
    "find_drift",
    "labelled_questions",
    "read_traffic",
    "write_questions",
]
