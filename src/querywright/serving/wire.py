"""JSON as it is sent: whatever a program gives, it is valid."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, to_json


def as_json(data: Any) -> bytes:
    """Data as JSON; a number that is none becomes null, and half a character pair stays escaped."""
    try:
        return to_json(data, inf_nan_mode="null")
    except (PydanticSerializationError, UnicodeEncodeError):
        return json.dumps(_plain(data), allow_nan=False, separators=(",", ":")).encode()


def _plain(data: Any) -> Any:
    if data is None or isinstance(data, (str, bool, int)):
        return data
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    return str(data)
