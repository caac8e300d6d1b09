"""Watching a program in use: what was asked, found and answered, and whether it still is what it was compiled for."""

from __future__ import annotations

from querywright.watching.drift import Drift, drift
from querywright.watching.otel import OpenTelemetry
from querywright.watching.record import JsonLines
from querywright.watching.traffic import Recorded, read_traffic

__all__ = ["Drift", "JsonLines", "OpenTelemetry", "Recorded", "drift", "read_traffic"]
