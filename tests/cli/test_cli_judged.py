"""compile and study without labels: who is asked to judge, what it costs, and what is said where nobody is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml


@pytest.fixture
def judge(server):
    """A second server, which judges: a passage is useful where it has a word of the question's that is not rare."""
    other = type(server)()
    other.reply = lambda body: json.dumps({"reason": "it says so", "label": "USEFUL"})
    yield other
    other.close()


@pytest.fixture
def unlabelled(write, rows_of_questions):
    return write(
        "unlabelled.jsonl", [{k: v for k, v in one.items() if k != "evidence"} for one in rows_of_questions(8)]
    )


def labels(requests):
    return [body for body in requests if '"label"' in json.dumps(body.get("response_format", ""))]


@pytest.fixture
def compile_in(cli, unlabelled, collection, server):
    def call(*more, reader="none"):
        return cli(
            "compile", "hcqr", "--data", unlabelled, "--collection", collection, "--out", "made", "--sizes", "2,6,6",
            "--trials", "2", "--threads", "2", "--replace", "--json", "--reader", reader, *server.lm, *more,
        )  # fmt: skip

    return call


def of_judge(judge):
    return ["--judge-lm", "openai/strong", "--judge-api-base", judge.address, "--judge-api-key-env", "SCRIPTED_KEY"]


def test_from_nothing_to_an_artifact_by_a_judge_of_its_own_and_nothing_twice(compile_in, judge, server):
    done = compile_in(*of_judge(judge), "--objective", "auto", "--objective", "lm_calls")
    assert done.status == 0, done.err
    found = done.data
    assert (found["objective"], found["further_objectives"]) == ("judged_useful", ["lm_calls"])
    assert [(one["judge"], one["lm"]) for one in found["judges"]] == [("usefulness", "openai/strong")]
    assert found["cost"]["judges"]["calls"] == len(judge.requests) > 0
    asked = [json.dumps(body["messages"]) for body in judge.requests]
    assert len(asked) == len(set(asked))
    assert not labels(server.requests)
    manifest = json.loads(Path("made/manifest.json").read_text(encoding="utf-8"))
    assert manifest["made"]["judges"] == found["judges"]
    assert "by judge usefulness (openai/strong)" in Path("made/README.md").read_text(encoding="utf-8")

    both = len(judge.requests), len(server.requests)
    again = compile_in(*of_judge(judge), "--objective", "judged_entailed")
    assert again.status == 0, again.err
    assert again.data["cost"]["judges"]["saved"] > 0
    asked = [json.dumps(body["messages"]) for body in judge.requests]
    assert len(asked) == len(set(asked)), "another objective of the same judge asks nothing again"
    assert both[0] <= len(judge.requests)


def test_a_limit_of_calls_binds_what_writes_and_what_judges_together(compile_in, judge, server):
    done = compile_in(*of_judge(judge), "--max-calls", "9")
    assert done.status != 0
    assert "9" in done.err
    assert len(judge.requests) + len(server.requests) == 9
    assert not Path("made").exists()


def test_the_lm_that_writes_judges_too_where_it_is_named_twice(compile_in, server):
    done = compile_in("--judge-lm", server.lm[server.lm.index("--lm") + 1])
    assert (done.status, done.data["objective"]) == (0, "judged_useful"), done.err
    assert any("right_answer: " in json.dumps(body["messages"]) for body in server.requests)


def test_where_nobody_judges_and_nothing_is_labelled_it_is_said(compile_in):
    done = compile_in(reader="multiple_choice")
    assert (done.status, done.data["objective"]) == (0, "accuracy"), done.err
    assert "no passage is labeled as helpful and no judge is set, so the objective is accuracy" in " ".join(
        done.err.split()
    )


def test_an_outage_of_the_judge_alone_says_who_and_keeps_what_was_answered(compile_in, judge, server):
    judge.status = 401
    done = compile_in(*of_judge(judge))
    said = " ".join(done.err.split())
    assert done.status != 0
    assert "error in the judge 'usefulness' (openai/strong), not in the program" in said
    assert not Path("made").exists()
    judge.status, before = 200, len(server.requests)
    done = compile_in(*of_judge(judge))
    assert done.status == 0, done.err
    assert len({json.dumps(body) for body in server.requests}) == len(server.requests), before


def test_a_function_of_ones_own_is_an_objective_and_one_that_raises_is_named(compile_in):
    Path("mine_j2.py").write_text(
        "def short(example, prediction, trace=None):\n    return 1.0 / (1 + len(prediction.passages))\n\n"
        "def broken(example, prediction, trace=None):\n    raise ValueError('not today')\n",
        encoding="utf-8",
    )
    done = compile_in("--objective", "mine_j2:short")
    assert (done.status, done.data["objective"]) == (0, "mine_j2:short"), done.err
    done = compile_in("--objective", "mine_j2:broken")
    assert done.status != 0
    assert "mine_j2:broken" in done.err
    assert "not today" in done.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--objective", "judged_guideline"], "judged_guideline requires guidelines"),
        (["--objective", "accuracy", "--judge", "usefulness"], "no objective uses the judge usefulness"),
        (["--objective", "judges/mine"], "pass its name or file with --judge"),
        (["--judge-api-base", "http://127.0.0.1:1"], "add --judge-lm"),
        (["--teleprompter", "mipro", "--argument", "num_trials=0"], "num_trials must be a whole number"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_asked(given, said, compile_in, server):
    done = compile_in(*given)
    assert (done.status, server.requests) == (2, []), done.err
    assert said in " ".join(done.err.split())


def test_a_study_is_decided_by_a_judge_and_says_so(ok, study_file, unlabelled, judge, server, tmp_path):
    file = study_file("judged", questions=str(unlabelled), sizes=[3, 6, 6], objectives=["judged_useful"], trials=4)
    spec = yaml.safe_load(file.read_text())
    spec |= {"judge_lm": "openai/strong", "judge_api_base": judge.address, "judge_api_key_env": "SCRIPTED_KEY"}
    file.write_text(yaml.safe_dump(spec))
    done = ok("study", "run", file, "--out", "studies/judged", "--json")
    assert judge.requests
    assert done.data["costs"]["judges"]["calls"] == len(judge.requests)
    assert done.data["spent"]["calls"]["made"] == len(judge.requests) + len(server.requests)
    assert not labels(server.requests)
    assert done.data["judges"][0]["lm"] == "openai/strong"
    assert "by judge usefulness (openai/strong)" in done.data["sentence"]
    page = Path("studies/judged/report.html").read_text(encoding="utf-8")
    assert "Study judged, by judge usefulness (openai/strong)" in page
    assert page.count(done.data["judges"][0]["standing"]) == 1
    assert "test, which was evaluated once." in page
