"""The gate: whether the first search looks so certain that a question need not be translated."""

from __future__ import annotations

from collections.abc import Sequence

from querywright.programs.hyperparameters import Knob
from querywright.programs.selection import SELECT, SELECT_MOST, SELECT_POOL
from querywright.retrieval.types import Hit

SHARED_KNOBS = (
    Knob("use_history", True, "whether the LM sees the conversation before the question, where there is one",
         search=False),
    Knob(
        "gate",
        "off",
        "when the question is translated: always (off), or only if the best passage scores low or leads by little",
        choices=("off", "score", "margin"),
        search=False,
    ),
    Knob("gate_score", 0.55, "score from which the first search counts as certain", low=0, high=1,
         when={"gate": ("score",)}),
    Knob("gate_margin", 0.1, "lead of the best score over the mean of the first ten that counts as certain",
         low=0, high=1, when={"gate": ("margin",)}),
    SELECT,
    SELECT_POOL,
    SELECT_MOST,
)  # fmt: skip
"""Knobs of every technique that asks an LM. A study searches a threshold where the gate is given: to search the gate as
well would only find plain retrieval by another name."""

GATE_DEPTH = 10


def certainty(rule: str, hits: Sequence[Hit]) -> float:
    """How certain a search looks: -1.0 when it found nothing.

    Args:
        rule: ``score`` (the best score) or ``margin`` (its lead over the mean of all).
        hits: Best first, with cosine similarities.
    """
    if not hits:
        return -1.0
    best = hits[0].score
    return best if rule == "score" else best - sum(hit.score for hit in hits) / len(hits)
