"""The last word: what test says of a program that was chosen on dev."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from querywright.metrics.statistics import PairedTest, p_value
from querywright.optimize.significance import ALPHA

Verdict = Literal["gain", "no gain shown", "loss", "no rewriting", "too few questions"]

READER_CHECK = ("oracle evidence", "closed book")
"""The two arms that say what the reader makes of perfect evidence and of none; they say nothing of a technique."""


def verdict_on(tests: Mapping[str, PairedTest]) -> tuple[Verdict, str]:
    """What test says of a program that was chosen on dev, as a word and as one plain sentence with figures.

    Args:
        tests: It against no rewriting, by metric; the p values are corrected.
    """
    shown = {test.difference > 0 for test in tests.values() if test.p_two_sided < ALPHA}
    word: Verdict = "loss" if False in shown else "gain" if True in shown else "no gain shown"
    said = {
        "gain": "; test shows a gain over",
        "no gain shown": "; test does not show a gain over",
        "loss": ", but test shows a loss against",
    }[word]
    figures = "; ".join(f"{metric}: {_figures(test)}" for metric, test in tests.items())
    return word, f"Chosen on dev{said} no rewriting ({figures or 'no question could be scored'})"


def _figures(test: PairedTest) -> str:
    return f"{test.wins} won, {test.losses} lost of {test.n}, {p_value(test.p_two_sided, ALPHA)}"
