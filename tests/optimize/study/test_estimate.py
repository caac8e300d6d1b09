from __future__ import annotations

import json

import pytest

from querywright.data.types import Passage
from querywright.errors import DataError, InputError
from querywright.models.lm import resolve_lm
from querywright.optimize.evaluate import asking
from querywright.optimize.study.building import build_space
from querywright.optimize.study.data import checked_study, data_of
from querywright.optimize.study.estimate import DryRetriever, dry_run, estimate, measure
from querywright.programs import make_program

PASSAGES = [Passage(f"p{number}", "word " * 100, f"Title {number}") for number in range(5)]


@pytest.fixture
def estimated(study_of, make_lm):
    """The estimate of a study on the sample, with its stages by name."""

    def make(techniques, lm=None, passages=PASSAGES, **changes):
        given = {key: changes.pop(key) for key in ("seconds_per_call",) if key in changes}
        spec = study_of(techniques, sizes=[4, 5, 6], **changes)
        splits, readers, _ = data_of(spec)
        found = estimate(spec, build_space(spec, readers), splits, lm or make_lm(), passages=passages, **given)
        return found, {stage.name: stage for stage in found.stages}

    return make


def test_an_lm_step_is_asked_once_a_question_unless_a_knob_changes_its_prompt(estimated):
    _, stages = estimated({"hcqr": {"knobs": {"rewriter_sees_options": True}}}, trials=20)
    assert stages["techniques, on dev"].calls == 2 * 5
    _, stages = estimated({"hcqr": {}}, trials=20)
    assert stages["techniques, on dev"].calls == 2 * 5 * 2
    _, stages = estimated({"hcqr": {"engines": ["dense", "bm25"], "knobs": {"rewriter_sees_options": True}}}, trials=20)
    assert stages["techniques, on dev"].calls == 2 * 5
    assert stages["reader, on dev"].calls == 0


def test_a_technique_that_reads_what_it_finds_asks_anew_for_other_finds(estimated):
    only = {"search": "named"}
    _, stages = estimated({"rerank": {**only, "knobs": {"pool": 4}, "engines": ["dense", "bm25"]}}, trials=20)
    assert stages["techniques, on dev"].calls == 4 * 5 * 2
    _, stages = estimated({"ircot": {**only, "knobs": {"top_k": [1, 2], "max_steps": 3}}}, trials=20)
    assert stages["techniques, on dev"].calls == 3 * 5 * 2


def test_never_more_than_the_trials_can_ask(estimated):
    _, stages = estimated({"hyde": {"knobs": {"n_documents": 2}}}, trials=3)
    assert stages["techniques, on dev"].calls == 2 * 5 * 2  # as written and one more, at other temperatures


def test_readings_are_bounded_by_trials_and_test_by_its_programs(estimated):
    found, stages = estimated({"hcqr": {"search": "named"}}, objectives=["accuracy"], trials=7)
    assert stages["reader, on dev"].calls == 7 * 5
    assert stages["test"].calls == 6 * 6 * (2 + 1) + 2 * 3, "six programs, and golden questions of two that are saved"
    *parts, total = found.stages
    assert total.calls == sum(stage.calls for stage in parts)
    assert all(stage.tokens >= 1000 * stage.calls for stage in parts)
    _, several = estimated({"hcqr": {"search": "named"}}, objectives=["accuracy", "lm_calls"], trials=7)
    assert several["test"].calls == 10 * 6 * (2 + 1) + 6 * 3, "the front meets test and is saved as well"


def test_prompts_by_what_their_optimizers_take(estimated, optimizers):
    prompts = {"few": {"optimizer": "cheap", "sets": 2}, "best": {"optimizer": "dear"}}
    techniques = {"hcqr": {"search": "named"}, "multi_query": {"search": "named"}}
    found, stages = estimated(techniques, prompts=prompts, trials=20, survivors=1)
    assert stages["prompts"].calls == 2 * (4 * 2) + 2 * (4 * 1) + 4 * 2  # the dearest survivor's alone
    assert json.loads(json.dumps(found.to_json()))["calls"] == found.stages[-1].calls


def test_dollars_by_the_price_of_the_lm_and_minutes_by_a_measured_call(estimated, make_lm):
    paid = estimated({"hcqr": {}}, resolve_lm("openai/gpt-4o-mini", api_key="k" * 12), seconds_per_call=2.0)[
        0
    ].to_json()
    assert paid["dollars"] > 0
    assert paid["minutes"] == pytest.approx(paid["calls"] * 2.0 / 60)
    assert estimated({"hcqr": {}})[0].to_json()["dollars"] is None
    unmeasured = estimated({"hcqr": {}}, resolve_lm("embedded"))[0]
    assert (unmeasured.stages[-1].dollars, unmeasured.stages[-1].minutes) == (0.0, None)
    assert any("--measure" in line for line in unmeasured.assumptions)


def test_longer_passages_cost_more_tokens(estimated):
    long = [Passage("p", "word " * 400)]
    _, short = estimated({"hcqr": {}}, objectives=["accuracy"])
    _, longer = estimated({"hcqr": {}}, objectives=["accuracy"], passages=long)
    assert longer["reader, on dev"].tokens > short["reader, on dev"].tokens + 5 * 300


def test_a_dry_run_renders_the_prompts_that_are_sent(world, make_lm):
    question = world.questions[1]
    program = make_program("hcqr", DryRetriever("dense", PASSAGES), reader="multiple_choice", max_passages=3)
    run = dry_run(program, question, decides_by_likelihood=False)
    technique, reader = run
    assert len(technique) == 2
    assert len(reader) == 1
    assert reader[0].count("word word") > 0
    lm = make_lm()
    real = world.program()
    with asking(lm):
        real(question=question.question, options=list(question.options))
    assert technique[0].startswith(lm.engine.inner.asked[0].prompt)


def test_one_real_call_is_measured_and_a_stored_one_is_not(world, make_lm, store):
    lm = make_lm(store=store)
    assert measure(lm, world.program(), world.questions[0]) > 0
    assert len(lm.engine.inner.asked) == 3
    assert measure(lm, world.program(), world.questions[0]) is None
    assert measure(lm, world.program("plain", reader=None), world.questions[0]) is None


def test_a_study_is_opened_with_its_data_and_without_its_models(tmp_path, study_of):
    with pytest.raises(InputError):
        checked_study(study_of().to_json(), tmp_path)
    with pytest.raises(InputError, match="1 problem"):
        checked_study({**study_of().to_json(), "trials": 0}, tmp_path)


def test_techniques_that_compare_options_need_them(study_of, tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": f"Who {n}?", "answer": "x"}) + "\n" for n in range(9)))
    with pytest.raises(DataError, match="hcqr, the reader multiple_choice: every question needs options"):
        data_of(study_of({"hcqr": {}}, questions=str(file), reader="multiple_choice", objectives=["accuracy"]))
    with pytest.raises(InputError, match="labelled evidence"):
        data_of(study_of({"hyde": {}}, questions=str(file)))
    splits, readers, _ = data_of(study_of({"hyde": {}}, questions=str(file), objectives=["accuracy"]))
    assert readers == ["short_answer"]
    assert sum(map(len, splits)) == 9
