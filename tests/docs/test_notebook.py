"""The notebook runs, in a kernel of its own, and what it keeps names no machine."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
pytestmark = pytest.mark.skipif(not NOTEBOOK.is_file(), reason="the package was installed without its repository")


def read():
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.mark.slow
def test_it_runs_and_gives_what_it_shows(docs, workshop):
    (workshop / "tutorial").mkdir()
    for path in (docs / "tutorial").glob("*.jsonl"):
        (workshop / "tutorial" / path.name).write_bytes(path.read_bytes())
    kept, run = read(), read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the client's own, of the way it talks to the kernel
        from nbclient import NotebookClient

        NotebookClient(
            run, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(workshop)}}
        ).execute()

    for one, other in zip(kept.cells, run.cells, strict=True):
        if one.cell_type == "code":
            assert results(one) == results(other), one.source


def results(cell):
    """What a cell gave, as text."""
    return [output["data"]["text/plain"] for output in cell.outputs if "data" in output]


def test_what_it_keeps_are_results_that_name_no_machine():
    assert sum(bool(cell.outputs) for cell in read().cells if cell.cell_type == "code") >= 6
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"/(tmp|home|root|work|Users)/|localhost|127\.0\.0\.1", text)
    for cell in read().cells:
        if cell.cell_type == "code":
            assert cell.execution_count is None
            assert all(output.output_type == "execute_result" for output in cell.outputs)
