from __future__ import annotations

import json

import pytest

from querywright.data.types import Passage
from querywright.errors import DataError, InputError
from querywright.models.lm import resolve_lm
from querywright.optimize.study.data import checked_study, data_of
from querywright.optimize.study.estimate import estimate, measure
from querywright.optimize.study.space import build_space

PASSAGES = [Passage(f"p{number}", "word " * 100, f"Title {number}") for number in range(5)]
ONLY = {"search": "named"}
SEES = {"rewriter_sees_options": True}


@pytest.fixture
def estimated(study_of, make_lm):
    """The estimate of a study on the sample, with its stages by name."""

    def make(techniques, lm=None, passages=PASSAGES, seconds_per_call=None, **changes):
        spec = study_of(techniques, sizes=[4, 5, 6], **changes)
        splits, readers, _ = data_of(spec)
        given = {"passages": passages, "seconds_per_call": seconds_per_call}
        found = estimate(spec, build_space(spec, readers), splits, lm or make_lm(), **given)
        return found, {stage.name: stage for stage in found.stages}

    return make


@pytest.mark.parametrize(
    ("techniques", "trials", "calls"),
    [
        ({"hcqr": {"knobs": SEES}}, 20, 2),  # a step is asked once a question
        ({"hcqr": {}}, 20, 2 * 2),  # unless a knob changes its prompt
        ({"hcqr": {"engines": ["dense", "bm25"], "knobs": SEES}}, 20, 2),
        ({"rerank": {**ONLY, "knobs": {"pool": 4}, "engines": ["dense", "bm25"]}}, 20, 4 * 2),  # it reads its finds
        ({"ircot": {**ONLY, "knobs": {"top_k": [1, 2], "max_steps": 3}}}, 20, 3 * 2),
        ({"hyde": {"knobs": {"n_documents": 2}}}, 3, 2 * 2),  # as written and one more, at other temperatures
    ],
)
def test_a_step_is_asked_as_often_as_its_prompt_may_differ(estimated, techniques, trials, calls):
    _, stages = estimated(techniques, trials=trials)
    assert stages["techniques, on dev"].calls == calls * 5
    assert stages["reader, on dev"].calls == 0


def test_readings_are_bounded_by_trials_and_test_by_its_programs(estimated):
    found, stages = estimated({"hcqr": ONLY}, objectives=["accuracy"], trials=7)
    assert stages["reader, on dev"].calls == 7 * 5
    assert stages["test"].calls == 6 * 6 * (2 + 1) + 2 * 3, "six programs, and golden questions of two that are saved"
    *parts, total = found.stages
    assert total.calls == sum(stage.calls for stage in parts)
    assert all(stage.tokens >= 1000 * stage.calls for stage in parts)
    _, several = estimated({"hcqr": ONLY}, objectives=["accuracy", "lm_calls"], trials=7)
    assert several["test"].calls == 10 * 6 * (2 + 1) + 6 * 3, "the front meets test and is saved as well"
    _, longer = estimated({"hcqr": ONLY}, objectives=["accuracy"], trials=7, passages=[Passage("p", "word " * 400)])
    assert longer["reader, on dev"].tokens > stages["reader, on dev"].tokens + 7 * 300


def test_prompts_by_what_their_optimizers_take(estimated, optimizers):
    prompts = {"few": {"optimizer": "cheap", "sets": 2}, "best": {"optimizer": "dear"}}
    found, stages = estimated({"hcqr": ONLY, "multi_query": ONLY}, prompts=prompts, trials=20, survivors=1)
    assert stages["prompts"].calls == 2 * (4 * 2) + 2 * (4 * 1) + 4 * 2  # the dearest survivor's alone
    assert json.loads(json.dumps(found.to_json()))["calls"] == found.stages[-1].calls
    last = {"shown": {"optimizer": "cheap", "part": "reader", "last": True}}
    _, few = estimated({"hcqr": ONLY}, trials=9)
    _, more = estimated({"hcqr": ONLY}, trials=9, prompts=last, reader_check=3)
    added = {name: more[name].calls - few[name].calls for name in few if name != "in all, at most"}
    assert added == {"techniques, on dev": 0, "reader, on dev": 2 * 5, "prompts": 4 * 3, "test": 2 * 3}


def test_dollars_by_the_price_of_the_lm_and_minutes_by_a_measured_call(estimated):
    lm = resolve_lm("openai/gpt-4o-mini", api_key="k" * 12)
    paid = estimated({"hcqr": {}}, lm, seconds_per_call=2.0)[0].to_json()
    assert paid["dollars"] > 0
    assert paid["minutes"] == pytest.approx(paid["calls"] * 2.0 / 60)
    assert estimated({"hcqr": {}})[0].to_json()["dollars"] is None
    unmeasured = estimated({"hcqr": {}}, resolve_lm("embedded"))[0]
    assert (unmeasured.stages[-1].dollars, unmeasured.stages[-1].minutes) == (0.0, None)
    assert any("--measure" in line for line in unmeasured.assumptions)


def test_one_real_call_is_measured_and_a_stored_one_is_not(world, make_lm, store):
    lm = make_lm(store=store)
    assert measure(lm, world.program(), world.questions[0]) > 0
    assert len(lm.engine.inner.asked) == 3
    assert measure(lm, world.program(), world.questions[0]) is None


def test_a_study_is_opened_with_its_data_and_techniques_that_compare_options_need_them(study_of, tmp_path):
    with pytest.raises(InputError, match="1 problem"):
        checked_study({**study_of().to_json(), "trials": 0}, tmp_path)
    with pytest.raises(InputError, match="asks for 1000 further questions"):
        data_of(study_of({"hyde": {}}, sizes=[4, 5, 6], reader_check=1000))
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": f"Who {n}?", "answer": "x"}) + "\n" for n in range(9)))
    with pytest.raises(DataError, match="hcqr, the reader multiple_choice: every question needs options"):
        data_of(study_of({"hcqr": {}}, questions=str(file), reader="multiple_choice", objectives=["accuracy"]))
    with pytest.raises(InputError, match="labelled evidence"):
        data_of(study_of({"hyde": {}}, questions=str(file)))
    splits, readers, _ = data_of(study_of({"hyde": {}}, questions=str(file), objectives=["accuracy"]))
    assert (readers, sum(map(len, splits))) == (["short_answer"], 9)
