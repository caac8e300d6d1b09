"""Studies from end to end: a real collection, a scripted LM, Optuna's own storage."""

from __future__ import annotations

import json
import re

import pyarrow.parquet as pq

import querywright
from querywright.models.lm import resolve_lm
from querywright.optimize.study.engine import snapshot


def test_a_study_tries_all_techniques_chooses_tests_once_and_saves_what_it_recommends(
    ok, cli, study_file, server, tmp_path
):
    out, file = tmp_path / "out", study_file()
    done, found = ok("study", "run", file, "--out", out, width=160), snapshot(out)
    for said in ("dev, best", "test, ", "baseline", "recommended: ", "LM calls: "):
        assert said in done.out
    assert re.search(r": (\d+) of \1\b", done.err)  # which program answers the last question is not determined
    assert f"report: {out / 'report.html'}" in done.err
    assert {one.state for one in found.trials} <= {"complete", "pruned"}
    assert len(found.trials) == 9
    assert [one.arm.technique for one in found.trials[:3]] == ["plain", "rag_fusion", "step_back"]
    assert found.finished
    assert found.outcome["recommended"] in {"baseline", "rag_fusion compiled", "step_back compiled"}
    names = [one["arm"] for one in found.outcome["test"]]
    assert names[0] == "baseline"
    assert {"closed book", "oracle evidence"} < set(names)

    saved = {path.parent.name: json.loads(path.read_text()) for path in (out / "artifacts").glob("*/manifest.json")}
    assert {name: one["made"]["name"] for name, one in saved.items()} == {
        "recommended": found.outcome["recommended"],
        "runner-up": "baseline" if found.outcome["recommended"] != "baseline" else found.outcome["best"]["name"],
    }
    lm = resolve_lm("openai/scripted", api_base=server.address, api_key="sk-never-to-be-printed-1234567890")
    program = querywright.load(out / "artifacts" / "recommended", lm=lm, verify=True)
    assert program("What about feet?", ["juice", "feet"]).answer in {"juice", "feet"}
    for path in out.rglob("*"):
        assert not path.is_file() or b"sk-never" not in path.read_bytes(), path

    asked = len(server.requests)
    for again in (("run", file, "--out", out), ("resume", out)):
        data = ok("study", *again, "--json").data
        assert (data["recommended"], bool(data["verdict"])) == (found.outcome["recommended"], True)
        assert data["files"]["report"] == str(out / "report.html")
        assert ({"arm", "metrics"} <= set(data["test"][0]), "rows" in data["test"][0]) == (True, False)
    assert len(server.requests) == asked
    assert "small: finished; 9 of 9 trials ended" in ok("study", "status", out, width=160).out
    assert ok("study", "status", out, "--json").data["finished"] is True
    page = (out / "report.html").read_text("utf-8")
    ok("study", "report", out, "--out", tmp_path / "mine.html")
    assert "Study small" in page
    assert (tmp_path / "mine.html").read_text("utf-8") == page
    table = tmp_path / "trials.parquet"
    assert ok("study", "export", out, "--out", table).out.startswith("9 rows")
    assert pq.read_table(table).num_rows == 9
    changed = cli("study", "run", study_file(fixed={"max_passages": 3}), "--out", out)
    assert changed.status == 2
    assert 'from {"max_passages": 2} to {"max_passages": 3}' in " ".join(changed.err.split())


def test_queries_are_written_once_a_question_however_many_trials(cli, study_file, server, tmp_path):
    only = {"rag_fusion": {"knobs": {"n_queries": {"low": 1, "high": 3}, "top_k": [1, 2, 4]}, "search": "named"}}
    cli("study", "run", study_file(techniques=only, trials=12), "--out", tmp_path / "out")
    asked = [one for one in server.requests if "queries" in json.dumps(one)]
    dev, test = 8, 6
    assert len(asked) <= dev + test  # one call a question for the largest number of queries
    spent = snapshot(tmp_path / "out").spent
    assert spent.calls == len(server.requests)


def test_a_budget_stops_a_study_and_more_of_it_ends_it_like_an_undisturbed_one(
    ok, cli, study_file, undisturbed, studies, server, tmp_path
):
    whole, part = undisturbed(study_file(name="whole")), tmp_path / "part"
    stopped = cli("study", "run", study_file(name="part", budget={"calls": 7}), "--out", part)
    assert stopped.status == 3
    assert "budget" in stopped.err
    assert len(server.requests) <= 7
    ok("study", "run", study_file(name="part", budget={"calls": 1000}), "--out", part)
    assert studies.table(part) == studies.table(whole)
    assert snapshot(part).spent.calls == len(server.requests) <= snapshot(whole).spent.calls + 2


def test_an_outage_stops_a_study_and_saves_nothing(cli, study_file, server, tmp_path):
    server.status = 401
    out = tmp_path / "out"
    ended = cli("study", "run", study_file(), "--out", out)
    assert ended.status == 3
    assert "sk-never" not in ended.err
    assert not (out / "artifacts").exists()
    assert snapshot(out).outcome is None
    server.status = 200
    assert cli("study", "resume", out).status == 0
