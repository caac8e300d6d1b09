"""Results by slice: by a column of the questions, and by whether the LM answers a question without passages."""

from __future__ import annotations

import pytest

import querywright as qw
from querywright.data.types import Question
from querywright.errors import DataError, InputError
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.significance import against
from querywright.optimize.slices import slice_results, slice_rows

RECORDED = {
    "lm": "recording:handbook",
    "reader": "multiple_choice",
    "metrics": ["accuracy"],
    "references": False,
}


def test_recorded_answers_by_a_column_and_by_what_the_lm_knows(tmp_path):
    questions = "handbook"
    found = qw.compare(["closed_book"], questions, **RECORDED, slices=["known", "jointly"], home=tmp_path)
    told = {(one.column, one.value): (one.n, one.arms[0].average("accuracy")) for one in found.slices}
    assert told == {
        ("known", "yes"): (74, 1.0),
        ("known", "no"): (126, 0.0),
        ("jointly", "False"): (140, pytest.approx(55 / 140)),
        ("jointly", "True"): (60, pytest.approx(19 / 60)),
    }
    assert found.to_json()["slices"][3]["arms"][0]["metrics"]["accuracy"]["n"] == 60
    with pytest.raises(DataError, match="no column 'topic' to slice by; the columns are"):
        qw.compare(["closed_book"], questions, **RECORDED, slices=["topic"], home=tmp_path)


def scored(name, values):
    return Evaluation(name, tuple(Row(f"q{n}", {"accuracy": float(one)}) for n, one in enumerate(values)), 0.0)


def compared(gained, slices=("known",)):
    """Compare ``hyde`` with ``plain`` on 40 questions, of which the LM knows the first 20; ``hyde`` gains some."""
    closed = scored("closed book", [n < 20 for n in range(40)])
    arms = (scored("plain", [0] * 40), scored("hyde", [n in gained for n in range(40)]))
    questions = [Question(f"q{n}", f"What of {n}?", slices={"half": "ab"[n % 2]}) for n in range(40)]
    found = slice_results(arms, questions, slices, baseline="plain", closed_book=closed)
    return Comparison(arms, "plain", tuple(against(arms, "plain")), slices=found)


def test_the_verdict_says_if_a_gain_is_only_on_what_the_lm_knows():
    known = compared(range(12))
    assert known.verdict == (
        "better than plain: hyde (accuracy); hyde is better in accuracy only on questions that the LM answers without "
        "passages (12 won, 0 lost of 20; on the others 0 won, 0 lost of 20)"
    )
    assert compared(range(14, 26)).verdict == "better than plain: hyde (accuracy)"
    assert compared(range(20, 40)).verdict == "better than plain: hyde (accuracy)"
    assert "passages" not in compared(range(3)).verdict


def test_accuracy_of_open_questions_is_explained_and_can_be_shown_separately(tmp_path):
    options = {"question": "Which color is Mars?", "options": ["Red", "Blue"], "answer": "Red"}
    asked = {"question": "What color is the sky?", "answer": "blue"}

    def told(question):
        return "Red" if "Mars" in question else "The sky is blue."

    def found(*questions, **more):
        return qw.compare([told], [*questions], references=False, home=tmp_path, **more)

    both = found(options, asked, slices=["options"], metrics=["accuracy", "contains_answer"])
    means = {one.value: [one.arms[0].average(name) for name in both.arms[0].metrics] for one in both.slices}
    assert means == {"yes": [1.0, 1.0], "no": [0.0, 1.0]}
    note = (
        "accuracy means exact_match for questions without options, so a sentence that contains the right answer scores "
        "0; contains_answer and token_f1 are more lenient"
    )
    assert note in both.remarks
    hint = f"{note}; to show questions with and without options separately, use the slice 'options'"
    assert hint in found(options, asked).remarks
    assert note in found(asked).remarks
    assert not any("accuracy" in line for line in found(options).remarks)


def test_p_values_are_corrected_over_the_slices_of_a_column():
    found = compared(range(12), ["half", "known"]).slices
    assert [one["slice"] for one in slice_rows(found)[::2]] == [
        "half = a (20)", "half = b (20)", "known = yes (20)", "known = no (20)",
    ]  # fmt: skip
    half, _, known, unknown = (one.comparisons[0].test.p_two_sided for one in found)
    assert half == pytest.approx(2 * 2 * 0.5**6)  # 6 won, 0 lost, twice
    assert known == pytest.approx(2 * 2 * 0.5**12)
    assert unknown == 1.0


def test_slices_that_cannot_be_made_are_refused():
    with pytest.raises(InputError, match="without passages; add closed_book"):
        qw.compare(["plain"], [{"question": "What?", "answer": "x"}], retriever=lambda query, k: [], reader=None,
                   slices=["known"], metrics=["hit"])  # fmt: skip
    each = [Question(f"q{n}", f"What of {n}?", slices={"name": str(n)}) for n in range(40)]
    with pytest.raises(InputError, match="at most 20 different values, but the column 'name' has 40 in 40"):
        slice_results([scored("plain", [0] * 40)], each, ["name"], baseline="plain")
    with pytest.raises(InputError, match=r"pass slices=\['topic'\]"):
        qw.compare(["plain"], each, slices="topic")


@pytest.mark.filterwarnings("ignore:.*too few to show", "ignore:the baseline has .* 100 on dev")
def test_a_compilation_and_a_study_show_their_test_by_slice(tmp_path):
    rows = [{"question": f"What of {n}?", "evidence": [f"p{n}"], "half": "ab"[n % 2]} for n in range(40)]

    def search(query, k):
        number = "".join(one for one in query if one.isdigit())
        return [{"id": f"p{number}" if int(number) % 2 else "other", "text": f"About {number}."}]

    given = {
        "retriever": search,
        "reader": None,
        "sizes": (6, 10, 16),
        "slices": ["half"],
        "home": tmp_path,
        "trials": 2,
    }
    made = qw.compile("plain", rows, **given, demo_sizes=())
    study = qw.study("plain", rows, **given)
    for told in (made.to_json()["slices"], [one.to_json() for one in study.compared.slices]):
        values = {one["value"]: one["arms"][0]["metrics"]["decision_useful"]["value"] for one in told}
        assert (values, sum(one["n"] for one in told)) == ({"a": 0.0, "b": 1.0}, 16)
    assert "half = b (" in made.report(tmp_path / "compiled.html").read_text("utf-8")
    assert "half = b (" in study.report(tmp_path / "study.html").read_text("utf-8")
    for run in (qw.compile, qw.study):
        with pytest.raises(InputError, match="the slice 'known' requires a program that answers without passages"):
            run("plain", rows, **given | {"slices": ["known"]})
