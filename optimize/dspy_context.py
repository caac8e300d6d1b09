"""The DSPy settings under which programs are run here."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import dspy

from querywright.models.adapter import PromptAdapter


def asking(lm: dspy.BaseLM) -> AbstractContextManager[Any]:
    """The DSPy settings under which programs are run here: this LM, our adapter, nothing recorded."""
    settings: AbstractContextManager[Any] = dspy.context(
        lm=lm, adapter=PromptAdapter(), disable_history=True, trace=None
    )
    return settings
