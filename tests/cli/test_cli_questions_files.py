"""Questions of a collection out to a file and in again, as the commands say it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from querywright.cli.questions_files import export, import_
from querywright.errors import InputError


def test_questions_written_by_people_are_imported_and_exported(collection, home, tmp_path, capsys):
    rows = {"passage": ["p-juice", "p-feet"], "question": ["What first?", "What each evening?"], "mine": [1, 2]}
    pd.DataFrame(rows).to_parquet(tmp_path / "in.parquet")
    import_(collection, tmp_path / "in.parquet", home=home)
    printed = capsys.readouterr()
    assert "tiny: 2 questions added, 0 changed, 0 removed, of 2 passages; 2 in the index" in " ".join(
        printed.out.split()
    )
    assert "columns that were not read: mine" in printed.err

    export(collection, Path("out.parquet"), home=home)
    assert "tiny: 2 questions written to out.parquet" in capsys.readouterr().out
    assert list(pd.read_parquet("out.parquet")["label"]) == ["complete", "complete"]
    import_(collection, Path("out.parquet"), home=home, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "added": 0, "changed": 0, "removed": 0, "passages": 0, "absent": 0, "pruned": False, "kept": 2,
        "ignored": [],
    }  # fmt: skip

    pd.read_parquet("out.parquet")[:1].to_parquet("part.parquet")
    import_(collection, Path("part.parquet"), home=home)
    assert "the questions of 1 passages that have no row in the file stay; --prune removes them" in said(capsys)
    import_(collection, Path("part.parquet"), prune=True, home=home)
    assert "1 passages that have no row in the file are removed; the next build writes them anew" in said(capsys)


def said(capsys):
    return " ".join(capsys.readouterr().err.split())


def test_a_file_of_another_kind_is_refused(collection, home):
    with pytest.raises(InputError, match=r"ends in \.parquet"):
        export(collection, Path("out.csv"), home=home)
