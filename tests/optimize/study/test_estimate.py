from __future__ import annotations

import json

import pytest

from querywright.errors import DataError, InputError
from querywright.optimize.search.space import build_space
from querywright.optimize.study.estimate import most_calls
from querywright.studies import check_study, read_data

ONLY = {"search": "named"}


@pytest.fixture
def counted(study_of):
    """Counts the calls of a study on the sample."""

    def count(techniques, **changes):
        spec = study_of(techniques, sizes=[4, 5, 6], **changes)
        data = read_data(spec)
        return most_calls(spec, build_space(spec, data.reader), data.splits)

    return count


@pytest.mark.parametrize(
    ("techniques", "calls"),
    [
        ({"hcqr": {}}, 2),
        ({"rerank": {**ONLY, "knobs": {"pool": 4}}}, 4),
        ({"ircot": {**ONLY, "knobs": {"top_k": [1, 2], "max_steps": 3}}}, 3),
        ({"hyde": {"knobs": {"n_documents": [1, 2]}}, "hcqr": ONLY}, 2),  # its largest value; the costliest technique
    ],
)
def test_calls_are_trials_times_questions_times_calls_per_question(counted, techniques, calls):
    found = counted(techniques, trials=9)
    assert (found["calls_per_question"]["plain"], found["trials"]) == (0, 9 * 5 * calls)
    assert found["test"] == 6 * 6 * (calls + 1)
    assert found["calls"] == found["trials"] + found["test"]


def test_readings_and_the_front_are_counted(counted):
    found = counted({"hcqr": ONLY}, objectives=["accuracy", "lm_calls"], trials=7)
    assert (found["trials"], found["test"]) == (7 * 5 * 3, 10 * 6 * 3)


def test_a_study_is_opened_with_its_data_and_techniques_that_compare_options_need_them(study_of, tmp_path):
    with pytest.raises(InputError, match="1 problem"):
        check_study({**study_of().to_json(), "trials": 0}, tmp_path, tell=print)
    with pytest.raises(InputError, match=r"reader_check is 1000, but sizes leaves only \d+ unique questions over"):
        read_data(study_of({"hyde": {}}, sizes=[4, 5, 6], reader_check=1000))
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": f"Who {n}?", "answer": "x"}) + "\n" for n in range(9)))
    with pytest.raises(DataError, match=r"options .required for the 'multiple_choice' reader"):
        read_data(study_of({"hcqr": {}}, questions=str(file), reader="multiple_choice", objectives=["accuracy"]))
    with pytest.raises(InputError, match="labeled evidence"):
        read_data(study_of({"hyde": {}}, questions=str(file)))
    data = read_data(study_of({"hyde": {}}, questions=str(file), objectives=["accuracy"]))
    assert (data.reader, sum(map(len, data.splits))) == ("short_answer", 9)
