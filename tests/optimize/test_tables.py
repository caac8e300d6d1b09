from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from querywright.data.splits import Splits, split_questions
from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.hints import ceiling, hints, repeats
from querywright.optimize.objectives import objective_named
from querywright.optimize.significance import against, verdict_rows, verdict_sentence
from querywright.optimize.tables import question_rows, table_rows, write_table

NAN = math.nan


def test_a_table_has_a_row_an_arm_and_the_columns_that_some_arm_has_a_value_for():
    scores = ({"accuracy": 1.0, "f1": NAN}, {"accuracy": 0.0, "f1": NAN})
    rows = tuple(Row(f"q{n}", one, answer="x", cost=Cost(1, 2)) for n, one in enumerate(scores))
    failed = Row("q1", {"decision_useful": NAN}, failure="lm")
    found = Evaluation("found", (Row("q0", {"decision_useful": 1.0}, fallbacks=("hypothesis",)), failed), 0.0)
    nothing = Evaluation("x", (failed,), 0.0)
    one, other, none = table_rows([Evaluation("plain", rows, 1.24), found, nothing])
    assert one == {
        "arm": "plain",
        "n": "2",
        "accuracy": "50.0 [9, 91]",
        "decision_useful": "-",
        "calls per question": "3.0",
        "p50 / p95 s": "- / -",  # answers from the store take no time
        "fallbacks": "0%",
        "invalid": "0%",
        "failed": "0",
    }
    assert list(other) == list(one)
    assert other["accuracy"] == "-"
    assert other["decision_useful"].endswith("(1 of 2 unscored)")
    assert (other["fallbacks"], other["invalid"], other["failed"]) == ("100%", "-", "lm 1")
    assert (none["fallbacks"], none["invalid"], none["failed"], none["p50 / p95 s"]) == ("-", "-", "lm 1", "- / -")
    assert table_rows([]) == []


def test_the_table_has_a_row_an_arm_and_question(tmp_path):
    first = Row(
        "q0", {"accuracy": 1.0, "recall": 0.5}, Label.ENTAILED, "hi \ud83d", ("b",), passages=("a", "b"),
        found=("a", "b", "c"), queries=(("original", "What?"),), seconds=0.5,
        cost=Cost(calls=2, input_tokens=7, output_tokens=3),
    )  # fmt: skip
    rows = (
        first,
        Row("q1", {"accuracy": NAN, "recall": NAN}, failure="lm", message="it broke", seconds=9.0),
        Row("q2", {"accuracy": 0.0, "recall": 0.0}, answer="x", seconds=0.1, cost=Cost(saved=2, saved_tokens=11)),
    )
    arm = Evaluation("plain", rows, 1.0)
    questions = [Question(f"q{n}", f"What of {n}?") for n in range(3)]
    write_table(tmp_path / "rows.parquet", question_rows([arm], questions))
    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    columns = {name: [row[name] for row in table] for name in table[0]}
    assert columns["question_id"] == ["q0", "q1", "q2"]
    assert columns["question"] == ["What of 0?", "What of 1?", "What of 2?"]
    assert columns["answer"] == ["hi ?", None, "x"]
    assert columns["found"] == [["a", "b", "c"], [], []]
    assert columns["support"] == [["b"], None, None]
    assert table[0]["queries"] == [{"role": "original", "text": "What?"}]
    assert columns["accuracy"] == [1.0, None, 0.0]
    assert columns["lm_calls"] == [2, 0, 2]
    assert columns["tokens"] == [10, 0, 11]
    assert columns["seconds"] == [0.5, 9.0, None]
    assert (table[1]["failure"], table[1]["message"]) == ("lm", "it broke")

    frame = arm.to_pandas()
    assert list(frame.columns) == [name for name in columns if name != "question"]
    assert frame.groupby("arm")["accuracy"].mean()["plain"] == 0.5
    assert frame["passages"][0] == ["a", "b"]
    assert "50.0 [9, 91] (1 of 3 unscored)" in arm._repr_html_()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_columns_of_several_types_and_tables_of_nothing_are_written(tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    rows = [{"x": 1, "y": 0.5, "z": []}, {"x": "a", "y": 1, "none": None}, {"x": True, "y": NAN, "z": ["p"]}]
    write_table(path, rows)
    found = read(path)
    assert list(found[0]) == ["x", "y", "z", "none"]
    if suffix == "parquet":
        assert [row["x"] for row in found] == ["1", "a", "true"]
        assert [row["y"] for row in found] == [0.5, 1.0, None]
        assert [row["z"] for row in found] == [[], None, ["p"]]
    write_table(path, [])
    assert read(path) == []
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def read(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_another_suffix_or_folder_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match=r"must end in \.parquet, \.csv.*, but got 'trials.xlsx'"):
        write_table(tmp_path / "trials.xlsx", [])
    with pytest.raises(InputError, match=r"there is no folder .*gone"):
        write_table(tmp_path / "gone" / "trials.csv", [])
    assert list(tmp_path.iterdir()) == []


def scored(name, wins, metric="recall", total=20):
    return Evaluation(name, tuple(Row(str(n), {metric: float(n < wins)}) for n in range(total)), 0.0)


def test_verdicts_are_a_table_and_a_sentence():
    held = against([scored("plain", 4), scored("hyde", 16), scored("hcqr", 6)], "plain")
    assert verdict_rows(held) == [
        {
            "arm": "hyde", "metric": "recall", "difference": "+60.0 [+35, +80]", "won : lost": "12 : 0", "p": "< .001",
            "questions needed": "14",
        },
        {
            "arm": "hcqr", "metric": "recall", "difference": "+10.0 [+0, +25]", "won : lost": "2 : 0", "p": ".500",
            "questions needed": "90",
        },
    ]  # fmt: skip
    assert verdict_sentence(held) == (
        "better than plain: hyde (recall); no difference shown in 1 of 2 comparisons with plain: 20 questions can show "
        "only a lead of at least 7:0"
    )
    assert verdict_sentence(against([scored("a", 20), scored("b", 0)], "a")) == "worse than a: b (recall)"
    knobs = {"hyde": "engine dense, n_documents=2", "hcqr": "engine bm25"}
    assert verdict_sentence(held, knobs).startswith("better than plain: hyde (recall; engine dense, n_documents=2);")
    assert verdict_sentence([]) == ""


def test_what_cannot_mean_anything_is_told():
    several = [Question(str(n), "?", evidence={"a": Label.ENTAILED, "b": Label.ENTAILED}) for n in range(20)]
    (line,) = hints(several, ["accuracy", "decision_useful"])
    assert line.startswith("20 of 20 questions have several deciding passages, but decision_useful requires only one")
    assert "full_recall@5" in line
    assert list(hints(several, ["decision_useful", "full_recall@3"])) == []
    together = [Question(one.id, "?", evidence=one.evidence, jointly=True) for one in several]
    assert list(hints(together, ["decision_useful"])) == []
    either = [replace(one, alternatives=(("a", "b"),)) for one in several]
    assert list(hints(either, ["decision_useful"])) == []
    assert next(hints(several, ["accuracy"], asked=5)).startswith(
        "5 questions are too few to show any lead, even if all are won; use at least 6"
    )
    assert list(hints(several[:5], ["accuracy"], tests=0)) == []
    aim = objective_named("recall")
    assert ceiling(scored("plain", 20), aim).startswith("the baseline has a recall score of 100 on dev")
    assert ceiling(scored("plain", 19), aim) == ""
    assert ceiling(scored("plain", 20), objective_named("tokens")) == ""


def test_questions_that_are_asked_twice_are_told_with_their_number():
    some = [Question(f"q{n}", f"How much in {n}?", answer="2 bar") for n in range(12)]
    assert list(repeats(some)) == []
    again = [
        Question("x", "how much  in 3?", answer="2 BAR"),
        Question("y", "How much in 3?"),
        Question("z", "How much in 5?"),
    ]
    (line,) = repeats([*some, *again])
    assert line.startswith("3 of 15 questions are duplicates, such as 'q3' and 'x'. Duplicates are not independent")
    _, line = repeats([*some, Question("x", "How much in 3?", answer="3 bar")])
    assert line.startswith(
        "identical questions must have the same right answers, but the answers differ in 1 pair, such as "
        "'q3' ('2 bar') and 'x'"
    )
    both = Question("x", "How much in 3?", answer="3 bar", aliases=("2 Bar",))
    assert len(list(repeats([*some, both]))) == 1


def test_questions_of_given_splits_that_are_in_two_are_told_with_their_number():
    some = [Question(f"q{n}", f"How much in {n}?", answer="2 bar") for n in range(12)]
    assert list(repeats(Splits(some[:4], some[4:8], some[8:]))) == []
    copies = [Question(f"copy {one.id}", f"{one.question} ", answer="2 bar") for one in some]
    (line,) = repeats(Splits([*some[:4], copies[0]], some[4:8], [*some[8:], copies[0], copies[5]]))
    assert line.startswith("2 of 6 test questions also occur in train or dev, such as 'copy q0' ('q0' in train), so")
    dev, test = repeats(Splits(some[:4], [*some[4:8], copies[1]], [*some[8:], copies[9]]))
    assert dev.startswith("1 of 5 dev questions also occur in train, such as 'copy q1' ('q1' in train)")
    assert test.startswith("1 of 5 test questions are duplicates, such as 'q9' and 'copy q9'")
    assert not any("also occur in" in line for line in repeats(split_questions([*some, *copies])))
