"""Exchanges of a made program, with what a test wants to be different."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from querywright.optimize.artifacts.watchers import Exchange

ARTIFACT = "0123456789ab"


def made_exchange(number: int = 0, **changes: Any) -> Exchange:
    fields: dict[str, Any] = {
        "id": f"{number:032x}",
        "at": "2026-03-04T05:06:07.250000+00:00",
        "artifact": ARTIFACT,
        "question": f"What of number {number}?",
        "options": ("Heparin", "Aspirin"),
        "queries": (
            {"role": "original", "text": f"What of number {number}?"},
            {"role": "support", "text": "blood thinner"},
        ),
        "passages": ("p1", "p2"),
        "format": 1,
        "support": None,
        "answer": "Heparin",
        "declined": False,
        "fallbacks": (),
        "top_scores": (0.75, 0.5),
        "seconds": 0.5,
        "lm_calls": 2,
        "lm_saved": 1,
        "error": None,
        "metadata": {"request": f"r{number}"},
    }
    fields |= changes
    return Exchange(**({"n_passages": len(fields["passages"])} | fields))


@pytest.fixture(scope="session")
def exchange() -> Callable[..., Exchange]:
    """Makes an exchange; its number is in its id and its question."""
    return made_exchange
