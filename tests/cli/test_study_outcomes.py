"""What comes of a study: a real gain, several objectives, arms that fail."""

from __future__ import annotations

import json

import pytest

from querywright.optimize.study.engine import snapshot

RIDDLES = {"juice": "zork", "feet": "blam", "cuff": "quix", "salt": "vree", "walk": "plon", "lenses": "drab"}
"""Words that stand in no passage, so that plain search cannot tell what is asked for."""

FUSION = {
    "rag_fusion": {
        "knobs": {
            "n_queries": {"low": 1, "high": 3},
            "top_k": [1, 2],
            "rrf_k": [10, 60],
            "search_question": [True, False],
        },
        "search": "named",
    }
}


@pytest.fixture
def riddles(study_file, write, rows_of_questions, passages, server):
    """Writes a study of riddles, which the LM solves where it is asked for several queries and nowhere else."""
    rows = rows_of_questions(8)
    for number, row in enumerate(rows):
        row["question"] = f"Riddle {number}: what of {RIDDLES[row['answer']]}?"
    questions = write("riddles.jsonl", rows)
    texts = {row["title"]: row["text"] for row in map(json.loads, passages.read_text().splitlines())}
    usual = server.reply

    def reply(body):
        filled = json.loads(usual(body))
        asked = json.dumps(body["messages"][-1])
        topic = next((topic for topic, word in RIDDLES.items() if word in asked), None)
        if "queries" in filled and topic is not None:
            filled["queries"] = [texts[topic], f"{texts[topic]} please", f"{texts[topic]} again"]
        return json.dumps(filled)

    server.reply = reply
    usual_study = {"questions": str(questions), "sizes": [6, 10, 10], "techniques": FUSION, "trials": 8}
    return lambda **changes: study_file(**{**usual_study, **changes})


def test_an_arm_that_is_really_better_is_recommended_with_figures_and_saved(cli, riddles, tmp_path):
    out = tmp_path / "out"
    assert cli("study", "run", riddles(), "--out", out).status == 0
    found = snapshot(out)
    values = {one.arm.technique: one.values["decision_useful"] for one in found.trials[:2]}
    assert values["rag_fusion"] == 1.0
    assert values["plain"] < 0.7
    assert found.outcome["recommended"] == "rag_fusion compiled"
    assert found.outcome["verdict"] == "gain"
    test = {one["arm"]: one["metrics"]["decision_useful"]["value"] for one in found.outcome["test"]}
    assert test["rag_fusion compiled"] == 1.0
    assert test["baseline"] < 0.7
    manifest = json.loads((out / "artifacts" / "recommended" / "manifest.json").read_text())
    assert manifest["technique"] == "rag_fusion"
    assert manifest["made"]["verdict"] == "gain"


@pytest.mark.slow
def test_a_technique_that_is_shown_to_be_worse_ends_early_and_is_never_the_best(ok, study_file, server, tmp_path):
    def misled(body):
        filled = json.loads(usual(body))
        if "queries" in filled:
            filled["queries"] = ["nothing of the kind", "something else", "neither"]
        return json.dumps(filled)

    usual, server.reply = server.reply, misled
    worse = {"rag_fusion": {"knobs": {"search_question": False, "top_k": [1, 2]}, "search": "named"}}
    out = tmp_path / "out"
    ok("study", "run", study_file(techniques=worse, trials=4, sizes=[4, 16, 6]), "--out", out)
    found = snapshot(out)
    pruned = [one for one in found.trials if one.state == "pruned"]
    assert pruned
    assert all(len(one.dev.rows) < 16 for one in pruned)
    assert found.outcome["recommended"] == "baseline"


def test_with_two_objectives_the_front_is_kept(ok, riddles, tmp_path):
    out = tmp_path / "out"
    ok("study", "run", riddles(objectives=["decision_useful", "lm_calls"]), "--out", out)
    found = snapshot(out)
    front = [found.trials[number].arm.technique for number in found.outcome["front"]]
    assert set(front) == {"plain", "rag_fusion"}  # the one finds more, the other asks no LM
    assert found.outcome["recommended"] == "rag_fusion compiled"
    told = ok("study", "status", out, "--json").data
    assert told["cheapest"]["number"] in told["front"]
    said = f"cheapest trial within a point of the best on dev: trial {told['cheapest']['number']}, rag_fusion@dense"
    assert said in " ".join(ok("study", "status", out, width=200).out.split())
    assert said[1:] in (out / "report.html").read_text()


@pytest.mark.slow
def test_a_baseline_that_failed_is_tried_again(ok, cli, riddles, server, tmp_path):
    out = tmp_path / "out"
    server.refuses = lambda body: True
    assert cli("study", "run", riddles(objectives=["accuracy"]), "--out", out).status == 3
    server.refuses = lambda body: False
    ok("study", "resume", out)
    assert snapshot(out).trials[0].state == "complete"


def test_questions_that_changed_are_refused(cli, riddles, write, rows_of_questions, tmp_path):
    out = tmp_path / "out"
    file = riddles(budget={"calls": 4})
    assert cli("study", "run", file, "--out", out).status == 3
    rows = rows_of_questions(8)
    write("riddles.jsonl", [{**row, "question": f"{row['question']} Now?"} for row in rows])
    changed = cli("study", "run", riddles(budget={"calls": 500}), "--out", out)
    assert changed.status == 2
    assert "dev" in changed.err
    assert "changed" in changed.err
