"""The demo as it is shipped: a change in a recorded prompt, or in the passages that are found, shows here."""

from __future__ import annotations

import json
import re

import pytest

import querywright as qw
from querywright.cli.main import run
from querywright.models.recording import PACKAGED, packaged_recording, read_recording
from querywright.optimize.artifacts.load import load

pytestmark = pytest.mark.slow
MOST_BYTES = 4_000_000


def test_it_shows_a_gain_on_the_handbook_then_compiles_and_asks_with_recorded_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--out", "artifacts/shown"]) == 0
    out = capsys.readouterr().out
    table = out.split("about a handbook that no LM has read")[1]
    rows = re.findall(
        r"^(closed book|baseline|hcqr|rrs)\b[^\d\n]*([\d.]+) \[\d+, \d+\] +([\d.]+) \[", table, re.MULTILINE
    )
    accuracy = {name: float(value) for name, value, _ in rows[:4]}
    recall = {name: float(value) for name, _, value in rows[:4]}
    assert accuracy["closed book"] < accuracy["baseline"] < accuracy["hcqr"] < accuracy["rrs"]
    assert recall["baseline"] < recall["hcqr"] < recall["rrs"]
    assert "next steps with your data:\n  querywright index mine passages.jsonl\n" in out
    assert load("artifacts/shown", verify=True).manifest.lm == "recording:sample"


@pytest.mark.parametrize("name", PACKAGED)
def test_a_recording_is_small_and_names_its_model_and_day(name):
    path = packaged_recording(name)
    head, answers = read_recording(path)
    assert path.stat().st_size < MOST_BYTES
    assert "recorded" in head.model
    assert str(head.made).startswith("20")
    assert all(json.loads(one.text) for one in list(answers.values())[:20])


def test_it_does_not_replace_a_collection_of_the_user(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    qw.ChromaRetriever.build("handbook", [{"id": "mine", "text": "Our handbook."}])
    assert run(["demo"]) != 0
    assert "your collection 'handbook' has passages that the demo would remove (1)" in capsys.readouterr().err
    assert "mine" in qw.ChromaRetriever("handbook")
