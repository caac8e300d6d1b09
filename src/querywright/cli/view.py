"""``querywright view``: all runs, studies, and artifacts under a folder, as one local page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from querywright.cli import options as opt
from querywright.cli.show import emit, note, show_table
from querywright.errors import InputError


def view(
    folder: Path = Path(),
    /,
    *,
    port: Annotated[int, Parameter(metavar="N", validator=Number(gte=0, lte=65_535))] = 0,
    no_browser: opt.Flag = False,
    as_json: opt.Json = False,
) -> None:
    """Show a folder's comparisons, studies, and artifacts in the browser.

    You can compare two runs side by side, and open reports and cards. The page is available only on this machine, until
    you press Ctrl-C.

    Example: querywright view results

    Args:
        folder: The folder. Default: the current folder.
        port: Port on 127.0.0.1; 0 for any free port.
        no_browser: Do not open a browser.
    """
    from querywright.serving.viewer import Viewer, runs_under

    if not folder.is_dir():
        raise InputError(f"no such folder: {str(folder)!r}; pass an output folder from compare, study, or compile")
    found = runs_under(folder.resolve())
    rows = [{name: str(one[name]) for name in ("place", "kind", "metric")} for one in found]
    emit(as_json, found, lambda: show_table(f"{folder.resolve().name}: results found: {len(found)}", rows))
    if as_json:
        return
    with Viewer(folder, port) as viewer:
        note(f"the page is at {viewer.url} (press Ctrl-C to stop)")
        if not no_browser:
            webbrowser.open(viewer.url)
        viewer.serve_forever()
