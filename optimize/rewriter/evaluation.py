"""What a training reports: how the rewriter compares with the baseline, and the card as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from querywright.optimize.comparison import Compared
from querywright.optimize.report import render
from querywright.optimize.significance import verdict_on
from querywright.optimize.tables import percent

UNTRAINED, TRAINED = "untrained", "trained"
"""The technique with the embedded model, and with the rewriter."""

METRICS = ("exact_recovery@1", "recall@5", "ndcg@10", "decision_useful")
"""Metrics of every rewriter if evidence is labelled."""

DEEPEST = 10
"""Passages that the deepest of these metrics looks at."""

_WARNINGS = {
    "loss": "WORSE than the question as it is written: do not use this rewriter",
    "no gain shown": "no gain over the question as it is written was shown",
}


def standing(found: Compared, metric: str) -> dict[str, str | None]:
    """Return how the rewriter compares with the baseline in a metric.

    Returns:
        ``verdict`` (``gain``, ``no gain shown``, ``loss``, or ``not measured`` if no question could be scored), the
        ``sentence`` of the paired test, and ``warning``, a sentence unless the verdict is a gain.
    """
    one = next((one for one in found.comparisons if (one.metric, one.arm) == (metric, TRAINED)), None)
    if one is None or not one.test.n:
        sentence = f"{metric}: no question was scored"
        return {"verdict": "not measured", "sentence": sentence, "warning": _WARNINGS["no gain shown"]}
    word, _ = verdict_on({metric: one.test})
    lower = "; its mean is below" if word == "no gain shown" and one.test.difference < 0 else ""
    warning = _WARNINGS[word] + lower if word in _WARNINGS else None
    return {"verdict": word, "sentence": one.sentence, "warning": warning}


def rewriter_card(name: str, card: Mapping[str, Any], measured: Mapping[str, Compared]) -> str:
    """Return the README.md of a rewriter, from its folder's name, its ``card.json`` and its arms on dev and test."""
    learned = [f"`{one}`" for one in card["techniques"]]
    parts = [
        {
            "name": part,
            "metrics": (metrics := found.arm(found.baseline).metrics),
            "rows": [[one.name, len(one.rows), *(percent(one.mean(name)) for name in metrics)] for one in found.arms],
            "sentences": [one.sentence for one in found.comparisons if one.arm == TRAINED],
        }
        for part, found in measured.items()
    ]
    return render(
        "rewriter.md",
        name=name,
        card=card,
        learned=", ".join(learned),
        chosen=f" (chosen by `{card['technique']}`)" if len(learned) > 1 else "",
        said=[f"**{one['warning']}** ({part})." for part, one in card["standing"].items() if one["warning"]],
        parts=parts,
    )
