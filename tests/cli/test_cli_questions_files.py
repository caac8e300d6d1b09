"""Questions of a collection out to a file and in again, as the commands say it."""

from __future__ import annotations

import pandas as pd


def test_questions_written_by_people_are_imported_and_exported(cli, collection, tmp_path):
    def done(*arguments):
        found = cli("questions", *arguments)
        assert found.status == 0, found.err
        return found

    rows = {"passage": ["p-juice", "p-feet"], "question": ["What first?", "What each evening?"], "mine": [1, 2]}
    pd.DataFrame(rows).to_parquet(tmp_path / "in.parquet")
    made = done("import", collection, tmp_path / "in.parquet")
    assert "tiny: 2 questions added, 0 changed, 0 removed, of 2 passages; 2 in the index" in " ".join(made.out.split())
    assert "columns that were not read: mine" in made.err

    assert "tiny: 2 questions written to out.parquet" in done("export", collection, "--out", "out.parquet").out
    assert list(pd.read_parquet("out.parquet")["label"]) == ["complete", "complete"]
    assert done("import", collection, "out.parquet", "--json").data == {
        "added": 0, "changed": 0, "removed": 0, "passages": 0, "absent": 0, "pruned": False, "kept": 2,
        "ignored": [],
    }  # fmt: skip

    pd.read_parquet("out.parquet")[:1].to_parquet("part.parquet")
    said = " ".join(done("import", collection, "part.parquet").err.split())
    assert "the questions of 1 passages that have no row in the file stay; --prune removes them" in said
    said = " ".join(done("import", collection, "part.parquet", "--prune").err.split())
    assert "1 passages that have no row in the file are removed; the next build writes them anew" in said


def test_a_file_of_another_kind_is_refused(cli, collection):
    done = cli("questions", "export", collection, "--out", "out.csv")
    assert done.status == 2
    assert "ends in .parquet" in done.err
