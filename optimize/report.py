"""What a run found, as plain data and as the card that travels with an artifact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from querywright.metrics.statistics import Mean
from querywright.optimize.evaluate import Evaluation, finite
from querywright.optimize.results import Compiled, objective_value


def compiled_json(compiled: Compiled) -> dict[str, Any]:
    """Everything that a compilation found, without single questions, as a JSON object."""
    settings = compiled.settings
    return {
        "technique": compiled.technique,
        "recommended": compiled.recommended,
        "verdict": compiled.verdict,
        "verdict_sentence": compiled.sentence,
        "objective": settings.objective,
        "seed": settings.seed,
        "n_trials": settings.n_trials,
        "demonstration_sets": compiled.n_demo_sets,
        "reader_demonstrations": compiled.reader_demos,
        "arms": [
            {
                "arm": arm.name,
                "knobs": dict(arm.knobs),
                "prompt": arm.prompt,
                "objective": finite(objective_value(arm.dev, settings.objective)),
                "dev": arm.dev.to_json(),
            }
            for arm in compiled.arms
        ],
        "failed_arms": dict(compiled.failed),
        "failed_prompts": dict(compiled.nothing),
        "dead_knobs": list(compiled.dead_knobs),
        "corrected": None
        if compiled.corrected is None
        else {"dev": compiled.corrected[0], "corrected": compiled.corrected[1]},
        "compiled": compiled.compiled.name,
        "reader_check": len(compiled.reader_check),
        "test": [evaluation.to_json() for evaluation in compiled.test],
        "comparisons": [one.to_json() for one in compiled.comparisons],
        "cost": {stage: cost.to_json() for stage, cost in compiled.costs.items()},
    }


def today() -> str:
    """The day, ISO 8601."""
    return datetime.now(UTC).date().isoformat()


def percent(mean: Mean) -> str:
    """A mean in per cent with its interval; ``-`` where nothing was scored."""
    if math.isnan(mean.value):
        return "-"
    text = f"{100 * mean.value:.1f}"
    if not math.isnan(mean.low):
        text += f" [{100 * mean.low:.0f}, {100 * mean.high:.0f}]"
    return text + (f" ({mean.unscored} unscored)" if mean.unscored else "")


def table_rows(evaluations: Sequence[Evaluation]) -> list[dict[str, str]]:
    """One row an arm for people to read; the columns are those that some arm has a value for."""
    metrics = list(dict.fromkeys(name for one in evaluations for name in one.metrics))
    rows = []
    for one in evaluations:
        n = max(1, len(one.rows))
        row = {"arm": one.name, "n": str(len(one.rows))}
        row.update({metric: percent(one.mean(metric)) if metric in one.metrics else "-" for metric in metrics})
        row["LM calls / question"] = f"{one.cost.asked / n:.1f}"
        row["LM calls made"] = str(one.cost.calls)
        row["seconds"] = f"{one.seconds:.1f}"
        row["p50 / p95 s"] = " / ".join(_seconds(one.latency(quantile)) for quantile in (0.5, 0.95))
        row["fallbacks"] = _share(one.fallback_rate)
        row["invalid"] = _share(one.invalid_rate)
        failures = sum(one.failures.values())
        row["failed"] = str(failures) if not failures else ", ".join(f"{k} {v}" for k, v in one.failures.items())
        rows.append(row)
    return rows


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.0f} %"
