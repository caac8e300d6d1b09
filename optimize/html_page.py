"""The frame of a report: one HTML page that opens anywhere, and asks no host for anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import resources

from querywright.optimize.html_text import box, text

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""What the page may do: run what it holds, and ask no host for anything."""


def page(
    title: str, facts: Mapping[str, str], notes: Sequence[str], parts: Mapping[str, str], blocks: Sequence[str]
) -> str:
    """The whole page, with all scripts and styles inside.

    Args:
        title: Heads the page.
        facts: What it is about, by name.
        notes: What a reader should know before believing a number.
        parts: HTML by heading.
        blocks: Data of the page, made by ``json_block``: ``report-data`` and ``report-figures``.
    """
    from plotly.offline import get_plotlyjs

    files = resources.files("querywright.optimize")
    style, script = ((files / name).read_text(encoding="utf-8") for name in ("html.css", "html.js"))
    links = "".join(f'<li><a href="#part-{n}">{text(name)}</a></li>' for n, name in enumerate(parts))
    sections = "\n".join(
        f'<section id="part-{n}"><h2>{text(name)}</h2>\n{part}</section>'
        for n, (name, part) in enumerate(parts.items())
    )
    known = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items())
    said = "".join(f"<li>{text(note)}</li>" for note in notes)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{text(title)}</h1>
{f'<dl class="facts">{known}</dl>' if known else ""}
{f'<ul class="notes">{said}</ul>' if said else ""}
<noscript><p>Figures, and what stands behind a question, need JavaScript; verdicts and tables do not.</p></noscript>
<nav aria-label="Parts"><ul>{links}</ul></nav>
</header>
<main>
{sections}
</main>
{"".join(blocks)}
<script>{get_plotlyjs()}</script>
<script>
{script}</script>
</body>
</html>
"""


def table(
    name: str,
    rows: Sequence[Mapping[str, str]],
    *,
    heads: Collection[str] = ("arm",),
    prose: Collection[str] = (),
) -> str:
    """A table, one mapping a row, its columns in the order of the first.

    Args:
        name: What the table is called.
        rows: Texts by column, one row or more.
        heads: Columns that head their row. Default ``arm``.
        prose: Columns of words, which are wrapped. Default none.
    """
    kinds = {column: ' class="prose"' if column in prose else "" for column in rows[0]}
    titles = "".join(f'<th scope="col"{kinds[column]}>{text(column)}</th>' for column in rows[0])
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{text(value)}</th>' if column in heads else f"<td{kinds[column]}>{text(value)}</td>"
            for column, value in row.items()
        )
        + "</tr>"
        for row in rows
    )
    return box(name, f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>")
