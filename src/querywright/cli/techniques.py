"""``querywright techniques``: what there is."""

from __future__ import annotations

import sys
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from querywright.cli import options as opt
from querywright.cli.show import out, print_json, say


def techniques(*, as_json: opt.Json = False, markdown: opt.Flag = False) -> None:
    """List the techniques with source, LM stages, searches and knobs.

    Example: querywright techniques

    Args:
        markdown: Print the table of the README.
    """
    rows = technique_rows()
    if as_json:
        print_json(rows)
    elif markdown:
        sys.stdout.write(markdown_table(rows))
    else:
        for row in rows:
            _show(row)


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
            "engine": technique.ENGINE,
            "knobs": [
                {"name": knob.name, "default": knob.default, "range": knob.range, "help": knob.help}
                for knob in technique.KNOBS
            ],
        }
        for name, technique in TECHNIQUES.items()
    ]


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """The techniques as a Markdown table; the gate, which is the same in every row, stands below it."""
    from querywright.programs.gate import GATE

    of_the_gate = {knob.name for knob in GATE}
    lines = ["| technique | what | source | LM stages | searches | knobs (default) |", "| --- " * 6 + "|"]
    for row in rows:
        own = [knob for knob in row["knobs"] if knob["name"] not in of_the_gate]
        knobs = ", ".join(f"`{knob['name']}` ({knob['default']})" for knob in own) or "-"
        facts = f"{row['title']} | {row['source']} | {row['LM stages']} | {row['searches']}"
        lines.append(f"| `{row['technique']}` | {facts} | {knobs} |")
    shared = ", ".join(f"`{knob.name}` ({knob.default})" for knob in GATE)
    lines += ["", f"Every technique with LM stages has the gate as well: {shared}."]
    return "\n".join(lines) + "\n"


def _show(row: dict[str, Any]) -> None:
    """A technique on a line, what it costs on the next, then a line a knob."""
    say(f"{row['technique']}  {row['title']}", style="bold")
    engine = f"; engine: {row['engine']}" if row["engine"] else ""
    say(f"{row['source']}; LM stages: {row['LM stages']}; searches: {row['searches']}{engine}", indent=2, style="dim")
    knobs = Table.grid(padding=(0, 2, 0, 0))
    knobs.add_column(no_wrap=True)
    knobs.add_column(ratio=1)
    for knob in row["knobs"]:
        knobs.add_row(Text(f"{knob['name']} = {knob['default']}"), Text(f"{knob['help']} ({knob['range']})"))
    if row["knobs"]:
        out.print(Padding(knobs, (0, 0, 0, 2), expand=False))
    out.print()
