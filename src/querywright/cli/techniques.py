"""``querywright techniques``: what there is."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from querywright.cli.common import JsonOption, out, print_json, show_table


def techniques(
    as_json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of the README.")] = False,
) -> None:
    """List the techniques with paper, LM stages, searches and knobs.

    Example: querywright techniques --json
    """
    rows = technique_rows()
    if as_json:
        print_json(rows)
    elif markdown:
        out.print(markdown_table(rows), end="", highlight=False, markup=False, soft_wrap=True)
    else:
        shown = [{**row, "knobs": "\n".join(_knob(knob) for knob in row["knobs"])} for row in rows]
        show_table("techniques", [{key: str(value) for key, value in row.items()} for row in shown])


def technique_rows() -> list[dict[str, Any]]:
    """Every technique as plain data."""
    from querywright.programs import TECHNIQUES

    return [
        {
            "technique": name,
            "title": technique.TITLE,
            "source": technique.PAPER,
            "LM stages": technique.LM_STAGES,
            "searches": technique.SEARCHES,
            "knobs": [
                {"name": knob.name, "default": knob.default, "range": knob.range, "help": knob.help}
                for knob in technique.KNOBS
            ],
        }
        for name, technique in TECHNIQUES.items()
    ]


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """The techniques as a Markdown table."""
    lines = ["| technique | what | source | LM stages | searches | knobs (default) |", "| --- " * 6 + "|"]
    for row in rows:
        knobs = ", ".join(f"`{knob['name']}` ({knob['default']})" for knob in row["knobs"]) or "-"
        lines.append(
            f"| `{row['technique']}` | {row['title']} | {row['source']} | {row['LM stages']} | {row['searches']} | {knobs} |"
        )
    return "\n".join(lines) + "\n"


def _knob(knob: dict[str, Any]) -> str:
    return f"{knob['name']} = {knob['default']} ({knob['range']}): {knob['help']}"
