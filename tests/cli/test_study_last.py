"""What a study chooses last, and the further questions that check its reader."""

from __future__ import annotations

import json

import pytest

import querywright
from querywright.optimize.study.engine import snapshot

SHOWN = {"optimizer": "bootstrap_few_shot", "arguments": {"max_bootstrapped_demos": 1}, "metric": "accuracy"}
LAST = {"shown": {**SHOWN, "part": "reader", "last": True}}


@pytest.fixture
def stubborn(server):
    """A reader that answers rightly on dev and test only where a demonstration shows it how."""
    usual = server.reply

    def reply(body):
        filled = json.loads(usual(body))
        if "answer" in filled and len(body["messages"]) < 4 and not server.teaching(body):
            filled["answer"] = "nothing of the kind"
        return json.dumps(filled)

    server.teaching = lambda body: False
    server.reply = reply
    return server


def trained_on(study_file, changes):
    """The questions of train, as the study splits them."""
    from querywright.optimize.study.spec import read_spec
    from querywright.studies import read_data

    file = study_file(**changes)
    return file, [question.question for question in read_data(read_spec(file)).splits.train]


def test_reader_prompts_are_chosen_last_for_every_arm(ok, study_file, stubborn, tmp_path, home):
    file, train = trained_on(study_file, {"prompts": LAST, "reader": "short_answer"})
    stubborn.teaching = lambda body: any(one in json.dumps(body["messages"][-1]) for one in train)
    out = tmp_path / "out"
    done = ok("study", "run", file, "--out", out)
    assert "reader prompts, chosen by accuracy on dev: shown" in " ".join(done.out.split())
    outcome = snapshot(out).outcome
    assert outcome["reader_prompts"]["name"] == "shown"
    tried = outcome["reader_prompts"]["tried"]
    assert tried["untuned"] == 0.0 < tried["shown"]
    test = {one["arm"]: one["metrics"]["accuracy"]["value"] for one in outcome["test"]}
    assert test.pop(f"{outcome['recommended']}, untuned reader") == 0.0
    assert min(value for name, value in test.items() if name != "closed book") > 0.0
    planned = [(one["family"], one["arm"], one["other"]) for one in outcome["comparisons"]]
    assert ("technique", outcome["recommended"], f"{outcome['recommended']}, untuned reader") in planned
    assert outcome["costs"]["reader"]["calls"] > 0
    for name in ("recommended", "runner-up"):
        saved = json.loads((out / "artifacts" / name / "program.json").read_text())
        assert len(saved["predictors"]["reader.predict"]["demos"]) == 1
    lm = querywright.resolve_lm("openai/scripted", api_base=stubborn.address, api_key="sk-never-to-be-printed")
    loaded = querywright.load(out / "artifacts" / "recommended", lm=lm)
    assert loaded("What about feet?").answer != "nothing of the kind"


def test_further_questions_check_the_reader_alone(ok, study_file, tmp_path):
    out = tmp_path / "out"
    done = ok("study", "run", study_file(reader_check=3), "--out", out)
    outcome = snapshot(out).outcome
    printed, page = (" ".join(text.split()) for text in (done.out, (out / "report.html").read_text()))
    for told in (printed, page):
        assert "additional questions for closed book and oracle evidence: 3" in told
        assert "LM openai/scripted; mean in percent with 95% interval; at most" in told
        assert "usefulness from labelled evidence" in told
        assert "evaluated once" in told
    n = {one["arm"]: one["n"] for one in outcome["test"]}
    assert n["closed book"] == n["oracle evidence"] == 9
    assert n["baseline"] == 6
    assert outcome["data"]["reader_check"]["n"] == 3
    assert len(outcome["questions"]) == 8 + 6 + 3


@pytest.mark.slow
def test_a_study_goes_on_without_an_untuned_reader_that_failed(cli, study_file, server, tmp_path):
    file, train = trained_on(study_file, {"prompts": LAST, "reader": "short_answer"})
    usual = server.reply

    def refuses(body):
        asked = json.dumps(body["messages"][-1])
        shown = len(body["messages"]) > 2 or any(one in asked for one in train)
        return "answer" in json.loads(usual(body)) and not shown

    server.refuses, server.refusal = refuses, 400
    out = tmp_path / "out"
    done = cli("study", "run", file, "--out", out)
    outcome = snapshot(out).outcome
    assert done.status == 0, done.err
    assert outcome["reader_prompts"]["name"] == "shown"
    assert list(outcome["reader_prompts"]["failed"]) == ["untuned"]
    assert "because too many dev questions failed: untuned" in " ".join(done.out.split())
    assert f"{outcome['recommended']}, untuned reader" in outcome["failed_on_test"]


def test_each_prompt_is_tried_with_default_knobs(ok, study_file, tmp_path):
    prompts = {"one": SHOWN, "other": {**SHOWN, "arguments": {"max_bootstrapped_demos": 2}}}
    out = tmp_path / "out"
    ok("study", "run", study_file(prompts=prompts, each_prompt=True), "--out", out)
    trials = snapshot(out).trials
    first = [(one.arm.technique, one.arm.prompt) for one in trials[3:7]]
    assert first == [(name, prompt) for name in ("rag_fusion", "step_back") for prompt in ("one", "other")]
    assert [one.arm.knobs for one in trials[3:7]] == [trials[place].arm.knobs for place in (1, 1, 2, 2)]
