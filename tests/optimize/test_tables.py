from __future__ import annotations

import csv
import json
import math

import pyarrow.parquet as pq
import pytest

from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row
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
        "LM calls / question": "3.0",
        "LM calls made": "2",
        "seconds": "1.2",
        "p50 / p95 s": "- / -",  # answers from the store take no time
        "fallbacks": "0 %",
        "invalid": "0 %",
        "failed": "0",
    }
    assert list(other) == list(one)
    assert other["accuracy"] == "-"
    assert other["decision_useful"].endswith("(1 unscored)")
    assert (other["fallbacks"], other["invalid"], other["failed"]) == ("100 %", "-", "lm 1")
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
    assert "50.0 [9, 91] (1 unscored)" in arm._repr_html_()


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
    with pytest.raises(InputError, match=r"'trials.xlsx' says no form of table; end it in \.parquet, \.csv"):
        write_table(tmp_path / "trials.xlsx", [])
    with pytest.raises(InputError, match=r"there is no folder .*gone"):
        write_table(tmp_path / "gone" / "trials.csv", [])
    assert list(tmp_path.iterdir()) == []
