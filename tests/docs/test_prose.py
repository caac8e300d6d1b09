"""The check of phrases reports a bad line and passes a good one."""

from __future__ import annotations

import runpy
from pathlib import Path

CHECK = runpy.run_path(str(Path(__file__).parents[1] / "prose.py"))["main"]


def test_a_bad_line_is_reported_and_a_good_one_passes(tmp_path, capsys):
    bad, good = tmp_path / "bad.md", tmp_path / "good.md"
    bad.write_text("# Arms\n\nEvery arm is held\nagainst the baseline.\n", encoding="utf-8")
    good.write_text("Every arm is compared with the baseline; `held against` is code.\n", encoding="utf-8")

    assert CHECK([str(good)]) == 0
    assert capsys.readouterr().out == ""
    assert CHECK([str(bad), str(good)]) == 1
    assert capsys.readouterr().out == f'{bad}:3: "held against": write compared with\n'


def test_in_python_only_texts_are_checked(tmp_path, capsys):
    module = tmp_path / "module.py"
    module.write_text('beside = 1\n\n\ndef run():\n    """Run.\n\n    Beside it, wait.\n    """\n', encoding="utf-8")

    assert CHECK([str(module)]) == 1
    assert capsys.readouterr().out == f'{module}:7: "Beside": write next to\n'
