"""What the commands of an artifact print. It was written by whoever made it, so all of it goes through ``say``.

What stands on a line of its own has no line of its own inside: a text cannot pass for a line of ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from querywright.cli.show import clean, say, show_table

FACTS = {
    "technique": "technique", "reader": "reader", "lm": "LM", "collection": "collection", "engine": "engine",
    "embedder": "embedder", "reranker": "reranker", "rewriter": "rewriter",
    "fingerprint": "fingerprint",
    "created": "created", "digest": "digest",
}  # fmt: skip

LONGEST_VALUE = 2000
"""Characters shown of one field of a demonstration, or of one thing that is said of how it was made."""

MARKS = {"equal": ("", ""), "del": ("[-", "-]"), "ins": ("{+", "+}")}

STATE_STYLES = {"ok": "green", "warning": "yellow", "differs": "bold red", "not possible": "bold red"}


def show_card(card: Mapping[str, Any]) -> None:
    """Print the card of an artifact."""
    title = card["title"] or card["technique"]
    source = f" ({card['source']})" if card["source"] else ""
    say(_line(f"{card['artifact']}: {title}{source}"), style="bold")
    if card["verdict"]:
        say(_line(f"{card['verdict'].rstrip('.')}."))
    for key, name in FACTS.items():
        if card[key] is not None:
            say(_line(f"{name}: {card[key]}"), indent=2)
    _show_scores(card["scores"], card["recommended"])
    for sentence in card["comparisons"]:
        say(_line(f"- {sentence}"))
    _head("Knobs that differ from their defaults")
    for name, one in card["knobs_changed"].items():
        say(_line(f"{name}: {_written(one['value'])} (default {_written(one['default'])})"), indent=2)
    if not card["knobs_changed"]:
        say("none", indent=2)
    _show_prompts(card)
    _head("How it was made")
    for name, value in card["made"].items():
        say(_line(f"{name}: {_cut(_written(value))}"), indent=2)
    say(_line(f"versions: {', '.join(f'{name} {one}' for name, one in card['versions'].items())}"), indent=2)
    say(f"golden answers: {len(card['golden'])}", indent=2)


def show_checks(checks: Sequence[Any]) -> None:
    """Print the checks of an artifact, a line each and what to do about it below."""
    for check in checks:
        say(_line(f"{check.state}: {check.name}: {check.said}"), style=STATE_STYLES[check.state])
        if check.remedy and check.state != "ok":
            say(_line(check.remedy), indent=4)


def show_diff(one: str, other: str, found: Mapping[str, Any]) -> None:
    """Print what differs between two artifacts."""
    say(f"A: {one}   B: {other}", style="bold")
    if found["same"]:
        say("They are the same.")
        return
    for key, title in (("facts", "What they are"), ("knobs", "Knobs"), ("versions", "Versions")):
        if found[key]:
            _head(title)
        for row in found[key]:
            say(_line(f"{row['name']}: {_written(row['a'])} -> {_written(row['b'])}"), indent=2)
    if found["prompts"]:
        _head("Prompts: [-only in A-] {+only in B+}")
    for row in found["prompts"]:
        say(_line(row["predictor"]), style="bold", indent=2)
        say("".join(text.join(MARKS[kind]) for kind, text in row["changes"]), indent=4)
    if found["demonstrations"]:
        _head("Demonstrations")
    for row in found["demonstrations"]:
        say(_line(f"{row['predictor']}: {row['both']} in both"), style="bold", indent=2)
        for side in ("a", "b"):
            for demo in row[f"only_{side}"]:
                say(f"only in {side.upper()}", indent=4)
                _show_demo(demo, 6)
    if found["scores"]:
        print_scores = [
            {
                "arm": _line(row["arm"]),
                "metric": _line(row["metric"]),
                "A": percent_of(row["a"]),
                "B": percent_of(row["b"]),
            }
            for row in found["scores"]
        ]
        show_table("On test, mean and 95 % interval", print_scores)
    if found["golden"]:
        _head("Golden answers that differ")
    for row in found["golden"]:
        say(_line(row["question"]), indent=2)
        for side in ("a", "b"):
            golden = row[side]
            said = "not asked" if golden is None else f"{golden['answer']!r} from {', '.join(golden['passages'])}"
            say(_line(f"{side.upper()}: {said}"), indent=4)


def percent_of(score: Mapping[str, Any] | None) -> str:
    """A score as a table has it."""
    from querywright.metrics.statistics import Mean
    from querywright.optimize.tables import percent

    if score is None:
        return "-"
    value, low, high = (math.nan if score[key] is None else score[key] for key in ("value", "low", "high"))
    return percent(Mean(value, low, high, score["n"], score["unscored"])) if math.isfinite(value) else "-"


def _show_scores(scores: Sequence[Mapping[str, Any]], recommended: str | None) -> None:
    metrics = list(dict.fromkeys(name for one in scores for name in one["metrics"]))
    rows = [
        {
            "arm": _line(one["arm"]) + (" (recommended)" if one["arm"] == recommended else ""),
            "n": str(one["n"]),
            **{_line(name): percent_of(one["metrics"].get(name)) for name in metrics},
        }
        for one in scores
    ]
    if rows:
        show_table("On test, met once; mean and 95 % interval", rows)


def _show_prompts(card: Mapping[str, Any]) -> None:
    _head("Prompts")
    for name, prompt in card["prompts"].items():
        say(_line(name), style="bold", indent=2)
        say(prompt["instructions"], indent=4)
        for field, text in prompt["fields"].items():
            say(f"{field}: {text}", indent=4)
        for number, demo in enumerate(prompt["demos"], 1):
            say(f"demonstration {number}", style="italic", indent=4)
            _show_demo(demo, 6)


def _show_demo(demo: Mapping[str, Any], indent: int) -> None:
    for field, value in demo.items():
        say(f"{field}: {_cut(_written(value))}", indent=indent)


def _line(text: str) -> str:
    return " ".join(clean(text).split())


def _head(text: str) -> None:
    say("")
    say(text, style="bold")


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return (
        text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} ... ({len(text)} characters; --json has all)"
    )
