"""The demo as it is shipped: a change of a prompt that was recorded, or of what is found, shows here."""

from __future__ import annotations

import json

import pytest

from querywright.cli.main import run
from querywright.models.recording import PACKAGED, packaged_recording, read_recording
from querywright.optimize.artifacts.load import load

pytestmark = pytest.mark.slow
MOST_BYTES = 4_000_000


def test_it_is_compiled_from_the_recording_and_asks_the_embedded_model_at_the_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--out", "artifacts/shown"]) == 0
    out = capsys.readouterr().out
    tables = out.split("test, the same 40 questions")[1]
    rows = {line.split()[0]: line.split() for line in tables.splitlines() if line[:1].isalpha() and "[" in line}
    assert float(rows["rrs"][1]) > float(rows["rrr"][1]) > float(rows["plain"][1])
    assert "answered by embedded:SmolLM2-135M-Instruct now" in out
    assert "next, your data:\n  querywright index mine passages.jsonl\n" in out
    assert load("artifacts/shown", verify=True).manifest.lm == PACKAGED


def test_the_recording_is_small_and_names_its_model_and_day():
    path = packaged_recording()
    head, answers = read_recording(path)
    assert path.stat().st_size < MOST_BYTES
    assert "recorded" in head.model
    assert str(head.made).startswith("20")
    assert all(json.loads(one.text) for one in list(answers.values())[:20])
