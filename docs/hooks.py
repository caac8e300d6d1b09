"""What the pages take from the code: ``<!-- generated: NAME -->`` in a page becomes a table that is made from it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_name("notebook.ipynb")

MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put what is generated in the place of its mark; MkDocs calls this for every page."""
    return MARK.sub(lambda mark: GENERATED[mark[1]](), markdown)


def techniques() -> str:
    """Return the table of techniques, without their knobs, which have tables below."""
    from querywright.cli.techniques import technique_rows

    columns = ("technique", "title", "source", "LM stages", "searches")
    lines = ["| technique | what | source | LM stages | searches |", "| --- " * len(columns) + "|"]
    rows = [{**row, "technique": f"`{row['technique']}`"} for row in technique_rows()]
    return "\n".join([*lines, *(f"| {' | '.join(str(row[name]) for name in columns)} |" for row in rows)])


def knobs() -> str:
    """Every technique with what its module says, and a table of its knobs."""
    from querywright.cli.techniques import technique_rows
    from querywright.programs import TECHNIQUES
    from querywright.programs.base import SHARED_KNOBS

    parts = []
    of_all = {(knob.name, knob.default) for knob in SHARED_KNOBS}
    for row in technique_rows():
        technique = TECHNIQUES[row["technique"]]
        engine = f"; searches with the engine `{row['engine']}`" if row["engine"] else ""
        facts = f"{row['source']}; LM stages: {row['LM stages']}; searches: {row['searches']}{engine}"
        parts += [f"## `{row['technique']}`: {row['title']}", f"*{facts}*", _said(technique)]
        own = [knob for knob in row["knobs"] if (knob["name"], knob["default"]) not in of_all]
        parts += [_knob_table(own)]
    shared = [{"name": one.name, "default": one.default, "range": one.range, "help": one.help} for one in SHARED_KNOBS]
    parts += ["## Shared knobs", "Every technique with LM stages has these as well.", _knob_table(shared)]
    return "\n\n".join(part for part in parts if part)


def metrics() -> str:
    """Every metric with what it says of itself and what it needs."""
    from querywright.metrics.dspy_metrics import METRICS, RANKED, needs

    rows = [(name, metric.__doc__ or "", needs(name)) for name, metric in METRICS.items()]
    rows += [(f"{name}@K", measure.__doc__ or "", needs(name)) for name, measure in RANKED.items()]
    lines = ["| metric | what | needs |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {_cell(_first(text))} | {', '.join(sorted(wanted))} |" for name, text, wanted in rows]
    return "\n".join(lines)


def judges() -> str:
    """Every judge with its labels and what they count."""
    from querywright.metrics.judges import JUDGES

    lines = ["| judge | metric | labels (score) |", "| --- | --- | --- |"]
    for name, judge in JUDGES.items():
        labels = ", ".join(f"{label} ({score:g})" for label, score in judge.SCALE.items())
        lines.append(f"| `{name}` | `{judge.METRIC}` | {labels} |")
    return "\n".join(lines)


def commands() -> str:
    """Every command with its arguments and options."""
    from querywright.cli.main import every_command

    return "\n\n".join(_command(path, command) for path, command in every_command())


def notebook() -> str:
    """``notebook.ipynb`` as a page: its texts, its code, and the results that are kept in it."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _cell_parts(cell))


APPLICATIONS: dict[str, tuple[str, ...]] = {
    "Results of a loaded program": (
        "optimize.artifacts.loaded.Event",
        "optimize.artifacts.loaded.BatchAnswer",
    ),
    "Verification": ("optimize.artifacts.verify.verify",),
    "Serving": ("serving.settings.ServeSettings", "serving.server.serve", "serving.app.make_app"),
    "Other frameworks": (
        "adapters.dspy.as_module",
        "adapters.dspy.save_module",
        "adapters.langchain.QuerywrightRetriever",
        "adapters.langchain.as_runnable",
        "adapters.llama_index.QuerywrightRetriever",
        "adapters.llama_index.QuerywrightQueryEngine",
        "adapters.haystack.QuerywrightRetriever",
        "adapters.haystack.QuerywrightProgram",
        "adapters.mcp.server",
        "adapters.mlflow.log",
    ),
}


def applications() -> str:
    """What applications use besides ``load``."""
    parts = []
    for heading, objects in APPLICATIONS.items():
        parts += [f"## {heading}", *(f"::: querywright.{one}" for one in objects)]
    return "\n\n".join(parts)


GENERATED: dict[str, Callable[[], str]] = {
    "applications": applications,
    "techniques": techniques,
    "knobs": knobs,
    "metrics": metrics,
    "judges": judges,
    "commands": commands,
    "notebook": notebook,
}


def _cell_parts(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        html, plain = "".join(data.get("text/html", ())), "".join(data.get("text/plain", ()))
        yield html.replace(' border="1" class="dataframe"', "") if html else f"```text\n{plain}\n```"


def _said(technique: type[Any]) -> str:
    """A technique's docstring, one line a paragraph, as Markdown."""
    paragraphs = (technique.__doc__ or "").split("\n\n")
    shown = [" ".join(one.split()) for one in paragraphs if not one.lstrip().startswith(("Args:", "Raises:"))]
    return "\n\n".join(shown).replace("``", "`")


def _knob_table(knobs: list[dict[str, Any]]) -> str:
    if not knobs:
        return ""
    lines = ["| knob | default | allowed | what |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{one['name']}` | `{one['default']}` | {_cell(one['range'])} | {_cell(one['help'])} |" for one in knobs
    ]
    return "\n".join(lines)


def _command(path: str, command: Any) -> str:
    from querywright.cli.options import DEFAULTS

    lines = [f"## `{path}`", _paragraphs(re.split(r"\n\s*Args:\n", command.help)[0])]
    arguments = command.assemble_argument_collection(default_parameter=DEFAULTS, parse_docstring=True)
    rows = [_parameter(one) for one in arguments if one.show and one.name != "*"]
    return "\n\n".join([*lines, "\n".join(["| parameter | what | default |", "| --- | --- | --- |", *rows])])


def _parameter(one: Any) -> str:
    is_flag, default = one.hint is bool, one.field_info.default
    shown = "/".join(name for name in one.names if name.startswith("-")) or one.name
    shown += f" {one.parameter.metavar}" if one.parameter.metavar and not is_flag else ""
    is_plain = default not in (None, "", (), inspect.Parameter.empty) and not is_flag
    default = "required" if one.required else f"`{default}`" if is_plain else ""
    return f"| `{shown}` | {_cell(one.parameter.help or '')} | {default} |"


def _paragraphs(text: str) -> str:
    """Help as Markdown; the line with an example becomes a block of code."""
    said = []
    for part in text.split("\n\n"):
        line = " ".join(part.split())
        example = re.fullmatch(r"Example: (querywright .*)", line)
        said.append(f"```sh\n{example[1]}\n```" if example else line.replace("<", "&lt;"))
    return "\n\n".join(said)


def _first(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("``", "`").replace("<", "&lt;")
