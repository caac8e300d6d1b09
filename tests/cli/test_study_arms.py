"""A study under way is steered by a file of its folder: trials are stopped, cloned and resumed, by whichever worker."""

from __future__ import annotations

import json
import re

import pytest

from querywright.optimize.study import trial as module
from querywright.optimize.study.engine import snapshot
from querywright.progress import CONTROL, LIVE


@pytest.fixture
def steered(study_file, server, tmp_path, monkeypatch):
    """A study's file and folder; ``at(n, asked)`` writes what is asked of it when the LM is asked for the n-th time."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    out, reply, wishes = tmp_path / "out", server.reply, {}

    def answer(body):
        if (asked := wishes.pop(len(server.requests), None)) is not None:
            (out / CONTROL).write_text(asked if isinstance(asked, str) else json.dumps(asked))
        return reply(body)

    server.reply = answer
    return study_file(threads=1), out, wishes.__setitem__


def test_a_trial_that_is_stopped_is_pruned_and_clones_come_on_top(ok, steered, studies, server):
    file, out, at = steered
    wrong = ["trial 1:n_queries=9", "trial 1:rrf_k=3", "trial 1:engine=bm25", "trial 77:", "hyde"]
    add = ["trial 1:", "trial 1:n_queries=1, top_k=4", *wrong]
    at(3, {"stop": ["trial 1", "trial 0"], "add": add})
    done = ok("study", "run", file, "--out", out, width=200)
    found, told = snapshot(out), " ".join(done.err.split())
    stopped, asked = found.trials[1], {one.asked: one for one in found.trials if one.asked}
    resumed, cloned = asked["trial 1:"], asked["trial 1:n_queries=1, top_k=4"]
    assert (stopped.state, stopped.stopped) == ("pruned", True)
    met = int(re.fullmatch(r"stopped by a person after ([23]) of 8 questions", stopped.message)[1])
    assert len(stopped.dev.rows) in (met, met + 1)  # what was under way by then is kept
    assert (resumed.arm, resumed.state, len(resumed.dev.rows)) == (stopped.arm, "complete", 8)
    assert (cloned.state, cloned.arm.knobs["n_queries"], cloned.arm.knobs["top_k"]) == ("complete", 1, 4)
    assert cloned.params == {**resumed.params, "rag_fusion.n_queries": 1, "rag_fusion.top_k": 4}
    assert {one.number for one in (resumed, cloned)} == {2, 3}
    assert studies.asked_twice(server.requests) == 0
    own = [one.arm.technique for one in found.trials if not one.asked]
    assert (own[:3], len(own), found.finished) == (["plain", "rag_fusion", "step_back"], 9, True)
    assert "11 of 11 trials ended" in ok("study", "status", out, width=200).out
    live = json.loads((out / LIVE).read_text())
    assert [one["state"] for one in live["arms"][:4]] == ["done", "stopped", "done", "done"]
    assert live["arms"][1]["clone"] == "trial 1:n_queries=3,top_k=4"
    for said in (
        "stops 'trial 0', which the others are held against; it goes on",
        "adds 'trial 1:n_queries=9': n_queries is 1 to 3 in this study, but got '9'",
        "adds 'trial 1:rrf_k=3': unknown value of rag_fusion 'rrf_k'",
        "adds 'trial 1:engine=bm25': engine is dense in this study, but got 'bm25'",
        "adds 'trial 77:': give the values in which it differs from a trial",
        "adds 'hyde': give the values",
    ):
        assert told.count(said) == 1, said
        assert sum(said in " ".join(note.split()) for note in live["notes"]) == 1
    assert not (out / CONTROL).exists()
