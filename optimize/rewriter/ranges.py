"""Ranges of the numbers that a training is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from querywright.errors import InputError


def check_least(settings: Any, least: Mapping[str, int], of: str = "") -> None:
    """Raise where a number is too small.

    Args:
        settings: What has the numbers.
        least: The smallest of each that will do, by name.
        of: Whose they are, for the message, such as `` of the warm-up``.

    Raises:
        InputError: One is smaller; the message has it.
    """
    for name, smallest in least.items():
        if getattr(settings, name) < smallest:
            raise InputError(f"{name}{of} must be {smallest} or more, but got {getattr(settings, name)}")
