"""Watching a program in use: what was asked, found and answered, and whether it still is what it was compiled for."""

from __future__ import annotations

from querywright.watching.otel import OpenTelemetry
from querywright.watching.record import JsonLines
from querywright.watching.traffic import Recorded, read_traffic

__all__ = ["JsonLines", "OpenTelemetry", "Recorded", "read_traffic"]
