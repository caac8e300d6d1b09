"""What a program asked and searched on the way to its answer, for a person to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from querywright.cli.show import say

if TYPE_CHECKING:
    from querywright.programs import Record

SHOWN_PASSAGES = 5


def steps_data(steps: Iterable[Record]) -> list[dict[str, Any]]:
    """The steps as plain data."""
    return [
        {"kind": s.kind, "name": s.name, "stage": s.stage, "given": dict(s.given), "made": s.made, "lm": s.lm}
        for s in steps
    ]  # fmt: skip


def show_steps(steps: Iterable[Record]) -> None:
    """Print the steps, one number a stage; steps side by side share it."""
    for step in steps:
        asked = "" if step.lm is None else f" ({step.lm})"
        say(f"{step.stage}. {step.kind}: {step.name}{asked}", style="dim")
        for line in _lines(step):
            say(line, indent=3)


def _lines(step: Record) -> list[str]:
    if step.kind == "search":
        through = list(step.given.get("through", {}).items())[:SHOWN_PASSAGES]
        found = [f"{text} -> {_few(ids)}" for text, ids in step.made.items()]
        return [*found, *(f"{id} through: {question}" for id, question in through)]
    if step.kind == "gate":
        return [*(f"{key}: {value}" for key, value in step.given.items()), f"verdict: {step.made}"]
    if step.made is None:
        return ["the answer could not be read"]
    if isinstance(step.made, Mapping):
        return [f"{key}: {_text(value)}" for key, value in step.made.items()]
    return [_text(step.made)]


def _few(found: list[str]) -> str:
    more = len(found) - SHOWN_PASSAGES
    return ", ".join(found[:SHOWN_PASSAGES]) + (f" and {more} more" if more > 0 else "") or "nothing"


def _text(value: Any) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
