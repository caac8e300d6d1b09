"""``querywright techniques``: list the techniques."""

from __future__ import annotations

from typing import Any

from querywright.cli import options as opt
from querywright.cli.show import emit, show_facts


def techniques(*, as_json: opt.Json = False) -> None:
    """List the techniques with sources, LM stages, searches, and knobs.

    Example: querywright techniques
    """
    rows = technique_rows()
    emit(as_json, rows, lambda: show_facts({f"{row['technique']}: {row['title']}": _told(row) for row in rows}))


def technique_rows() -> list[dict[str, Any]]:
    """Return all techniques as plain data."""
    from querywright.programs import TECHNIQUES

    return [
        {
            "technique": name,
            "title": technique.TITLE,
            "source": technique.PAPER,
            "LM stages": technique.LM_STAGES,
            "searches": technique.SEARCHES,
            "engine": technique.ENGINE,
            "knobs": [
                {"name": knob.name, "default": knob.default, "range": knob.range, "help": knob.help}
                for knob in technique.KNOBS
            ],
        }
        for name, technique in TECHNIQUES.items()
    ]


def _told(row: dict[str, Any]) -> dict[str, str]:
    facts = {name: row[name] for name in ("source", "LM stages", "searches", "engine") if row[name]}
    return facts | {f"{knob['name']} = {knob['default']}": f"{knob['help']} ({knob['range']})" for knob in row["knobs"]}
