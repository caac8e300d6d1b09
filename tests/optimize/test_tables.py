from __future__ import annotations

import csv
import json
import math

import pyarrow.parquet as pq
import pytest

from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.hints import ceiling, hints
from querywright.optimize.objectives import objective_named
from querywright.optimize.significance import against, verdict_rows, verdict_sentence
from querywright.optimize.tables import write_table

NAN = math.nan


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
        "no lead of less than 7:0"
    )
    assert verdict_sentence(against([scored("a", 20), scored("b", 0)], "a")) == "worse than a: b (recall)"
    assert verdict_sentence([]) == ""


def test_what_cannot_mean_anything_is_told():
    several = [Question(str(n), "?", evidence={"a": Label.ENTAILED, "b": Label.ENTAILED}) for n in range(20)]
    (line,) = hints(several, ["accuracy", "decision_useful"])
    assert line.startswith("20 of 20 questions have several deciding passages, and decision_useful asks for one of ")
    assert "full_recall@5" in line
    assert list(hints(several, ["decision_useful", "full_recall@3"])) == []
    together = [Question(one.id, "?", evidence=one.evidence, jointly=True) for one in several]
    assert list(hints(together, ["decision_useful"])) == []
    assert next(hints(several, ["accuracy"], asked=5)).startswith(
        "5 questions are too few to show any lead: it takes 6"
    )
    assert list(hints(several[:5], ["accuracy"], tests=0)) == []
    aim = objective_named("recall")
    assert ceiling(scored("plain", 20), aim).startswith("no rewriting has recall 100 on dev")
    assert ceiling(scored("plain", 19), aim) == ""
    assert ceiling(scored("plain", 20), objective_named("tokens")) == ""
