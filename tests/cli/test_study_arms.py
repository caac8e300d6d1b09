"""While a study runs, every trial has a score so far, whichever worker runs it."""

from __future__ import annotations

from querywright.optimize.search import worker as module


def test_how_a_trial_stands_is_told_while_it_runs(ok, study_file, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    seen = []
    real = module.Worker._met

    def met(worker, trial, record, rows):
        real(worker, trial, record, rows)
        seen.append(next(one for one in worker.records() if one.number == record.number).met)

    monkeypatch.setattr(module.Worker, "_met", met)
    ok("study", "run", study_file(threads=1), "--out", tmp_path / "out")
    first = seen[:8]
    assert [one["done"] for one in first] == [*range(1, 9)]
    assert {one["total"] for one in first} == {8}
    assert all(one["low"] <= one["mean"] <= one["high"] for one in first[1:])
