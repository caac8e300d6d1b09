"""Knobs that change nothing: every value that a study searched finds the same passages for every question."""

from __future__ import annotations

from typing import Any

from querywright.errors import QuerywrightError
from querywright.models.cached import stored_only
from querywright.optimize.domains import Domain
from querywright.optimize.evaluate import evaluate
from querywright.optimize.study.resources import Bench, Variant
from querywright.optimize.study.types import ArmConfig
from querywright.programs.hyperparameters import Value


def dead_knobs(bench: Bench, arm: ArmConfig, variant: Variant | None) -> list[dict[str, Any]]:
    """The searched knobs of an arm that make no difference to any dev question, each tried by itself.

    Nothing is spent: a value that would need a new LM call is left out, and a knob of which only one value could be
    tried is not judged.

    Args:
        bench: What is open.
        arm: The arm whose other knobs stay as they are.
        variant: Its prompts.

    Returns:
        One object a dead knob: ``technique``, ``knob`` and the ``values`` that were tried.
    """
    found = []
    own = bench.space[arm.technique]
    for knob in own.knobs:
        if not knob.acts(dict(arm.knobs)):
            continue
        outcomes = {}
        for value in _values(arm.knobs[knob.name], own.domains[knob.name]):
            passages = _passages(bench, arm, variant, knob.name, value)
            if passages is not None:
                outcomes[value] = passages
        if len(outcomes) > 1 and len(set(outcomes.values())) == 1:
            found.append({"technique": arm.technique, "knob": knob.name, "values": list(outcomes)})
    return found


def _values(now: Value, domain: Domain) -> list[Value]:
    """The value that it has, and others of its space: all choices, or both ends of a range."""
    return list(dict.fromkeys([now, *(domain.choices or (domain.lowest, domain.highest))]))


def _passages(
    bench: Bench, arm: ArmConfig, variant: Variant | None, name: str, value: Value
) -> tuple[tuple[str, ...], ...] | None:
    """What the arm finds with another value; None where that would take a new LM call or is not allowed."""
    other = ArmConfig(arm.technique, arm.engine, {**arm.knobs, name: value}, arm.prompt, arm.reader)
    try:
        program = bench.program(other, variant, reads=False)
        with stored_only():
            met = evaluate(
                program,
                bench.splits.dev,
                lm=bench.lm,
                name=f"{name}={value}",
                metrics={},
                threads=bench.spec.threads,
                max_failures=0.0,
            )
    except QuerywrightError:
        return None
    return tuple(row.passages for row in met.rows)
