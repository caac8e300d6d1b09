"""The commands' output: lines, tables, and JSON on standard output; progress and errors on standard error."""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from querywright.files import jsonable

if TYPE_CHECKING:
    from querywright.progress import Bar

out = Console()
err = Console(stderr=True)

Rows = Sequence[Mapping[str, str]]

TEXT_COLUMNS = ("slice", "arm", "technique", "knobs", "collection", "embedder", "metric", "place", "kind")
"""Columns of words, which are left-aligned and may wrap at spaces. All other columns contain numbers."""

NAMING = ("metric", "arm")
"""Columns that identify a row, besides the first."""

NARROWEST_TEXT = 18
"""Minimum width of a column of words, or of a line, in terminal columns."""

WHOLE_HEAD = 10
"""Maximum width, in characters, at which the header of a numeric column stays on one line."""

GAP = 2  # the padding and the divider
NOTHING = {"", "-", "0", "0%", "0.0", "- / -", "0.0 / 0.0"}
"""A column with only these values is left out."""
LONGEST_VALUE = 2000
"""Maximum number of characters of one value that ``show_facts`` prints."""
HANG = 8
"""Indentation of a value's continuation lines, relative to its name."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_RAW_IN_JSON = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Return a string without control characters, so that it cannot control a terminal. Tabs and line breaks stay."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return a string on one line, so that nothing in it looks like a line of the command's output."""
    return " ".join(clean(text).split())


def say(text: str, *, style: str = "", indent: int = 0, hang: int = 0) -> None:
    """Print text without markup, wrapped at spaces; ids and paths stay whole, even if they are wider.

    Continuation lines are indented by ``hang``. Text with wide characters, such as Chinese, is wrapped anywhere.
    """
    width = max(NARROWEST_TEXT, out.width - indent - hang)
    is_wide = any(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    wrapper = textwrap.TextWrapper(width, break_long_words=is_wide, break_on_hyphens=False)
    lines = [line for part in clean(text).split("\n") for line in wrapper.wrap(part) or [""]]
    for number, line in enumerate(lines):
        room = indent + (hang if number else 0)
        out.print(Text(line and " " * room + line, style=style), soft_wrap=True)


def note(text: str, *, style: str = "") -> None:
    """Print a line on standard error, without wrapping or markup."""
    err.print(Text(clean(text), style=style), soft_wrap=True)


def show_facts(facts: Mapping[str, Any], indent: int = 0, *, lines: bool = False) -> None:
    """Print values by name, one per line. A mapping, or a list of mappings, is indented below its name.

    A value's continuation lines are indented more than its name, so that they do not look like lines of the command's
    output. Unless ``lines`` is true, line breaks in a value become spaces.
    """
    for name, value in facts.items():
        inner = value if isinstance(value, (list, tuple)) else [value]
        if inner and all(isinstance(one, Mapping) for one in inner):
            for number, one in enumerate(inner, 1):
                head = name if one is value else f"{name} {number}"
                say(one_line(head), style="bold" if one is value else "italic", indent=indent)
                show_facts(one, indent + 2, lines=lines)
        else:
            text = written(value)
            if len(text) > LONGEST_VALUE:
                text = f"{text[:LONGEST_VALUE]} ... ({len(text)} characters; use --json to see all)"
            say(f"{one_line(name)}: {text if lines else one_line(text)}", indent=indent, hang=HANG)


def written(value: Any) -> str:
    """Return a value as human-readable text."""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "-"
    if isinstance(value, (list, tuple)) and all(isinstance(one, (str, int, float)) for one in value):
        return ", ".join(map(written, value)) or "none"
    if value is None or value == "":
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def show_table(title: str, rows: Rows, *, notes: Sequence[str] = ()) -> None:
    """Print a table with one mapping per row, and the columns in the order of the first row.

    A column that is empty or zero in all rows is left out. If the table is wider than the terminal, it is split into
    several tables that repeat the columns that identify a row. Numbers are never truncated or wrapped, even if a table
    becomes wider than the terminal.
    """
    say(title, style="bold")
    rows = _filled(rows)
    for columns in fit(rows, out.width):
        out.print(_table(rows, columns, out.width), crop=False)
        out.print()
    for line in notes:
        say(line)


def show_scores(
    title: str, arms: Sequence[Any], workspace: Any = None, *, verbose: bool, notes: Sequence[str] = ()
) -> None:
    """Print a table of scores. Unless ``verbose`` is true, leave out detail columns that do not fit."""
    from querywright.optimize.tables import replayed, table_rows

    recorded = workspace is not None and workspace.lm.model.startswith("recording:")
    said = ["answers are replayed from the recording, so no latency is shown"] if recorded else [replayed(arms)]
    asked = any(one.cost.asked for one in arms)
    rows: Rows = _filled(table_rows(arms, timed=not recorded))
    for name in () if verbose else ("p50 / p95 s", "calls per question", "invalid", "fallbacks", "unjudged"):
        if len(fit(rows, out.width)) > 1:
            rows = [{other: text for other, text in row.items() if other != name} for row in rows]
    show_table(title, rows, notes=[*notes, *filter(None, said if asked else [])])


def show_verdicts(comparisons: Sequence[Any], *, verbose: bool, programs: Mapping[str, str] | None = None) -> None:
    """Print a table of comparisons and, if ``verbose`` is true, a sentence for each comparison.

    If the programs' engines and knobs are given, also print the verdict.
    """
    from querywright.optimize.results import in_words
    from querywright.optimize.significance import verdict_rows, verdict_sentence

    if not comparisons:
        return
    title = f"compared with {in_words(comparisons[0].other)}: difference in points with 95% interval, Holm-corrected p"
    show_table(title, verdict_rows(comparisons))
    for line in (one.sentence for one in comparisons) if verbose else ():
        say(line)
    if programs is not None:
        say(verdict_sentence(comparisons, programs), style="bold")


def show_slices(comparisons: Sequence[Any], slices: Sequence[Any]) -> None:
    """Print the results by slice, and name the gains that are shown only on questions that the LM knows."""
    from querywright.optimize.slices import known_sentence, slice_rows

    if not slices:
        return
    rows = slice_rows(slices)
    for metric in dict.fromkeys(row["metric"] for row in rows):  # one table for all would be too wide
        show_table(
            f"{metric} by slice (number of questions): mean in percent with 95% interval, Holm-corrected p",
            [{name: text for name, text in row.items() if name != "metric"} for row in rows if row["metric"] == metric],
        )
    if sentence := known_sentence(comparisons, slices):
        say(sentence, style="bold")


def _filled(rows: Rows) -> Rows:
    """Return the rows without columns that are empty or zero in all rows."""
    kept = [name for name in (rows[0] if rows else ()) if any(row[name] not in NOTHING for row in rows)]
    return [{name: row[name] for name in kept} for row in rows]


def fit(rows: Rows, width: int) -> list[list[str]]:
    """Return each table's columns, so that each table fits ``width`` and has the columns that identify a row."""
    sizes = _sizes(rows)
    naming = [name for place, name in enumerate(sizes) if place == 0 or name in NAMING]
    tables: list[list[str]] = [[]] if sizes else []
    for name in sizes:
        if name in tables[-1]:
            continue
        is_full = sum(sizes[one] + GAP for one in tables[-1]) + sizes[name] > width
        if is_full and not set(tables[-1]) <= set(naming):
            tables.append([*naming])
        tables[-1].append(name)
    return tables


def _sizes(rows: Rows) -> dict[str, int]:
    """Return each column's minimum width. Words may wrap, but numbers may not."""
    sizes: dict[str, int] = {}
    for name in rows[0] if rows else ():
        widest = max(cell_len(clean(row[name])) for row in rows)
        is_text = name in TEXT_COLUMNS
        head = len(name) if is_text else max(min(len(name), WHOLE_HEAD), *map(len, name.split()))
        sizes[name] = max(head, min(widest, NARROWEST_TEXT) if is_text else widest)
    return sizes


def _table(rows: Rows, columns: Sequence[str], width: int) -> Table:
    sizes = _sizes(rows)
    least = sum(sizes[name] + GAP for name in columns) - GAP
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, width=least if least > width else None
    )
    for name in columns:
        if name in TEXT_COLUMNS:
            table.add_column(Text(name), overflow="fold", min_width=sizes[name])
        else:
            table.add_column(Text(name), justify="right", width=sizes[name])
    for row in rows:
        table.add_row(*(Text(clean(row[name])) for name in columns))
    return table


def emit(as_json: bool, data: Any, shown: Callable[[], object] | None = None, *, cost: str = "") -> None:
    """Print data as JSON if ``as_json`` is true; otherwise, call ``shown`` or print the values by name."""
    if as_json:
        print_json(data)
        return
    if shown is None:
        show_facts(data)
    else:
        shown()
    if cost:
        say(cost)


def print_json(data: Any) -> None:
    """Print data as JSON on standard output. NaN and infinity become null."""
    data = jsonable(data)
    text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    text = _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # json escapes other control characters
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    sys.stdout.write(text)


def progress(what: str) -> Bar:
    """Return a command's progress bar, whose first step is ``what``."""
    from querywright.progress import Bar

    return Bar(what, console=err)
