from __future__ import annotations

import json

import pytest

from querywright.data.types import Passage
from querywright.errors import DataError, InputError
from querywright.models.lm import resolve_lm
from querywright.optimize.search.space import build_space
from querywright.optimize.study.estimate import estimate
from querywright.optimize.study.opening import checked_study, data_of

PASSAGES = [Passage(f"p{number}", "word " * 100, f"Title {number}") for number in range(5)]
ONLY = {"search": "named"}


@pytest.fixture
def estimated(study_of, make_lm):
    """The estimate of a study on the sample, with its stages by name."""

    def make(techniques, lm=None, passages=PASSAGES, **changes):
        spec = study_of(techniques, sizes=[4, 5, 6], **changes)
        splits, reader, _ = data_of(spec)
        found = estimate(spec, build_space(spec, reader), splits, lm or make_lm(), passages=passages)
        return found, {stage["name"]: stage for stage in found["stages"]}

    return make


@pytest.mark.parametrize(
    ("techniques", "calls"),
    [
        ({"hcqr": {}}, 2),
        ({"rerank": {**ONLY, "knobs": {"pool": 4}}}, 4),
        ({"ircot": {**ONLY, "knobs": {"top_k": [1, 2], "max_steps": 3}}}, 3),
        ({"hyde": {"knobs": {"n_documents": [1, 2]}}, "hcqr": ONLY}, 2),  # its largest value; the costliest technique
    ],
)
def test_trials_times_questions_times_calls_a_question(estimated, techniques, calls):
    found, stages = estimated(techniques, trials=9)
    assert stages["trials, on dev"]["calls"] == 9 * 5 * calls
    assert "upper bound" in found["assumptions"][0]


def test_readings_are_counted_and_test_by_its_programs(estimated):
    found, stages = estimated({"hcqr": ONLY}, objectives=["accuracy"], trials=7)
    assert stages["trials, on dev"]["calls"] == 7 * 5 * 3
    assert stages["test"]["calls"] == 6 * 6 * (2 + 1) + 2 * 3, (
        "six programs, and golden questions of two that are saved"
    )
    parts = found["stages"]
    assert found["calls"] == sum(stage["calls"] for stage in parts)
    assert all(stage["tokens"] >= 1000 * stage["calls"] for stage in parts)
    _, several = estimated({"hcqr": ONLY}, objectives=["accuracy", "lm_calls"], trials=7)
    assert several["test"]["calls"] == 10 * 6 * (2 + 1) + 6 * 3, "the front meets test and is saved as well"
    _, longer = estimated({"hcqr": ONLY}, objectives=["accuracy"], trials=7, passages=[Passage("p", "word " * 400)])
    assert longer["trials, on dev"]["tokens"] > stages["trials, on dev"]["tokens"] + 7 * 300


def test_prompts_by_what_their_optimizers_take(estimated, optimizers):
    prompts = {"few": {"optimizer": "cheap"}, "again": {"optimizer": "cheap"}, "best": {"optimizer": "dear"}}
    _, stages = estimated({"hcqr": ONLY, "multi_query": ONLY}, prompts=prompts, trials=20, survivors=1)
    assert stages["prompts"]["calls"] == 2 * (4 * 2) + 2 * (4 * 1) + 4 * 2  # the dearest survivor's alone
    last = {"shown": {"optimizer": "cheap", "part": "reader", "last": True}}
    _, few = estimated({"hcqr": ONLY}, trials=9)
    _, more = estimated({"hcqr": ONLY}, trials=9, prompts=last, reader_check=3)
    added = {name: more[name]["calls"] - few[name]["calls"] for name in few}
    assert added == {"trials, on dev": 2 * 5, "prompts": 4 * 3, "test": 2 * 3}


def test_dollars_by_the_price_of_the_lm(estimated):
    lm = resolve_lm("openai/gpt-4o-mini", api_key="k" * 12)
    assert estimated({"hcqr": {}}, lm)[0]["dollars"] > 0
    assert estimated({"hcqr": {}})[0]["dollars"] is None
    assert estimated({"hcqr": {}}, resolve_lm("embedded"))[0]["dollars"] == 0.0


def test_a_study_is_opened_with_its_data_and_techniques_that_compare_options_need_them(study_of, tmp_path):
    with pytest.raises(InputError, match="1 problem"):
        checked_study({**study_of().to_json(), "trials": 0}, tmp_path)
    with pytest.raises(InputError, match="asks for 1000 further questions"):
        data_of(study_of({"hyde": {}}, sizes=[4, 5, 6], reader_check=1000))
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": f"Who {n}?", "answer": "x"}) + "\n" for n in range(9)))
    with pytest.raises(DataError, match="options, needed for hcqr and the reader multiple_choice"):
        data_of(study_of({"hcqr": {}}, questions=str(file), reader="multiple_choice", objectives=["accuracy"]))
    with pytest.raises(InputError, match="labelled evidence"):
        data_of(study_of({"hyde": {}}, questions=str(file)))
    splits, reader, _ = data_of(study_of({"hyde": {}}, questions=str(file), objectives=["accuracy"]))
    assert (reader, sum(map(len, splits))) == ("short_answer", 9)
