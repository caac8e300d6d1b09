"""``querywright compare``: results question by question, and a report."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest


@pytest.fixture
def compared(cli, collection, questions, server):
    """Runs ``compare`` on the tiny collection."""

    def call(*arguments, out="results", **options):
        given = ("--data", questions, "--collection", collection, "--out", out, *server.lm)
        return cli("compare", *arguments, *given, **options)

    return call


def told(path="results/results.parquet"):
    """The table but for what a clock says."""
    return pq.read_table(path).drop_columns(["seconds"]).to_pylist()


def test_arms_are_compared_and_everything_is_written(compared, server):
    done = compared("plain@bm25", "multi_query:n_queries=2", "--limit", "6", "--threads", "2", width=200)
    assert done.status == 0, done.err
    rows, arms = told(), ["plain", "plain@bm25", "multi_query:n_queries=2", "closed book", "oracle evidence"]
    assert Counter(row["arm"] for row in rows) == dict.fromkeys(arms, 6)
    assert all(len(row["queries"]) <= 3 for row in rows)
    assert rows[0]["passages"][0] == rows[0]["found"][0]
    summary = json.loads(Path("results/comparison.json").read_text())
    assert summary["baseline"] == "plain"
    assert [one["arm"] for one in summary["arms"]] == arms[:3]
    assert {(one["arm"], one["other"]) for one in summary["comparisons"]} == {(arm, "plain") for arm in arms[1:3]}
    assert sum(summary["diagnosis"]["arms"]["plain"].values()) == 6
    assert "Where answers are lost" in done.out
    assert "LM calls: " in done.out
    assert "report: results/report.html" in done.err
    report = Path("results/report.html").read_text("utf-8")
    assert summary["comparisons"][0]["sentence"] in report
    assert "sk-never" not in done.out + done.err + report

    calls = len(server.requests)
    again = compared("plain@bm25", "multi_query:n_queries=2", "--limit", "6", "--json")
    assert again.data["comparisons"] == summary["comparisons"]
    assert (len(server.requests), told()) == (calls, rows)


def test_arms_have_equal_budgets_unless_one_is_named_and_then_it_is_said(compared):
    arms = ("plain", "multi_query", "ircot", "--reader", "none", "--metric", "recall", "--limit", "3")
    for options, budgets in (((), [5, 5, 5]), (("--max-passages", "2"), [2, 2, 2])):
        done = compared(*arms, *options, out=f"results {len(options)}")
        assert done.status == 0, done.err
        rows = told(f"results {len(options)}/results.parquet")
        assert max(len(row["passages"]) for row in rows) == budgets[0]
        report = Path(f"results {len(options)}/report.html").read_text("utf-8")
        assert "UNEQUAL" not in done.out + report
        assert f"at most {budgets[0]} passages per arm" in " ".join(done.out.split())
        assert f"at most {budgets[0]} passages per arm" in report
    done = compared("plain", "multi_query:max_passages=3", *arms[3:], "--max-passages", "2")
    line = "UNEQUAL BUDGETS (maximum number of passages): plain 2, multi_query:max_passages=3 3"
    assert line in " ".join(done.out.split())
    assert "per arm" not in done.out
    assert line in Path("results/report.html").read_text("utf-8")
    assert {row["arm"]: len(row["passages"]) for row in told()} == {"plain": 2, "multi_query:max_passages=3": 3}


def test_an_artifact_searches_its_own_collection_and_is_diagnosed_by_it(ok, cli, artifact, questions, server, write):
    assert cli("index", "other", write("other.jsonl", [{"id": "x", "text": "Nothing to the point."}])).status == 0
    done = ok("compare", "plain", artifact, "--data", questions, "--collection", "other", "--out", "results",
               "--limit", "6", "--json", *server.lm)  # fmt: skip
    found = {name: {id for row in told() if row["arm"] == name for id in row["passages"]} for name in ("plain", "made")}
    assert found["plain"] == {"x"}
    assert found["made"]
    assert all(id.startswith("p-") for id in found["made"])
    lost = done.data["diagnosis"]["arms"]
    assert set(lost["plain"]) <= {"not indexed", "right"}
    assert "not indexed" not in lost["made"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("closed_book@bm25",), "closed_book does not search, so the arm cannot have an engine; use closed_book"),
        (("hyde@bm25",), "hyde searches with vectors"),
        (("plain", "--baseline", "no_such"), "no_such"),
        (("hyde", "plain", "hyde"), "the arm 'hyde' was passed twice"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_is_asked(compared, server, arguments, message):
    done = compared(*arguments)
    assert (done.status, message in done.err, server.requests) == (2, True, []), done.err
    assert not Path("results").exists()


def test_other_arms_join_those_of_the_folder_and_all_are_corrected_together(compared, server):
    given = ("--limit", "6", "--metric", "accuracy", "--metric", "decision_useful")
    assert compared("plain@bm25", *given).status == 0
    calls = Counter(json.dumps(one, sort_keys=True) for one in server.requests)
    done = compared("plain@hybrid", *given, "--json")
    assert done.status == 0, done.err
    arms = ["plain", "plain@bm25", "plain@hybrid"]
    assert [one["arm"] for one in done.data["arms"]] == arms
    asked = Counter(json.dumps(one, sort_keys=True) for one in server.requests)
    assert asked >= calls
    assert max(asked.values()) == max(calls.values())  # nothing was asked twice
    made = json.loads(Path("results/comparison.json").read_text())["made"]
    assert [*made["arms"].values()] == arms
    report = Path("results/report.html").read_text("utf-8")
    assert "querywright compare plain plain@bm25 plain@hybrid" in report
    assert "127.0.0.1" not in report


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--limit", "6", "--max-passages", "2"), "different settings (max_passages 5 instead of 2)"),
        (("--limit", "6"), "a comparison on different questions or labels"),
        (("--limit", "6"), "has no valid settings"),
    ],
)
def test_a_folder_is_never_overwritten_by_another_comparison(compared, server, questions, more, said):
    assert compared("plain", "--limit", "6", "--reader", "none").status == 0
    if "questions" in said:
        questions.write_text("\n".join(reversed(questions.read_text().splitlines())) + "\n")
    elif "no valid" in said:
        Path("results/comparison.json").write_text("{}")
    before = {one.name: one.read_bytes() for one in Path("results").iterdir()}
    done = compared("plain@hybrid", *more, "--reader", "none")
    assert (done.status, said in " ".join(done.err.split())) == (2, True), done.err
    assert "use a different folder with --out, or delete this folder" in " ".join(done.err.split())
    assert {one.name: one.read_bytes() for one in Path("results").iterdir()} == before


def test_what_lies_under_a_folder_is_listed(compared, ok, cli, artifact):
    assert compared("plain@bm25", "--limit", "6", "--reader", "none").status == 0
    found = {one["place"]: one for one in ok("view", ".", "--json").data}
    assert (found["results"]["kind"], [one["name"] for one in found["results"]["arms"]]) == (
        "comparison",
        ["plain", "plain@bm25"],
    )
    assert found[str(artifact)]["kind"] == "artifact"
    assert "no such folder: 'no_such'" in cli("view", "no_such").err


def test_the_artifact_that_was_named_is_the_baseline(compared, artifact):
    other = Path("other") / artifact.name
    shutil.copytree(artifact, other)
    done = compared("plain", f"{artifact}/", other, "--baseline", other, "--limit", "3", "--json")
    assert done.status == 0, done.err
    assert [one["arm"] for one in done.data["arms"]] == ["plain", "made", str(other)]
    assert {(one["arm"], one["other"]) for one in done.data["comparisons"]} == {
        ("plain", str(other)), ("made", str(other)),
    }  # fmt: skip


def test_without_a_reader_an_artifact_does_not_read_either(compared, artifact, server):
    assert json.loads((artifact / "manifest.json").read_text())["reader"] == "multiple_choice"
    done = compared("plain", artifact, "--reader", "none", "--limit", "6", "--json")
    assert [one["arm"] for one in done.data["arms"]] == ["plain", artifact.name], done.err
    assert all("accuracy" not in one["metrics"] for one in done.data["arms"])
    calls = len(server.requests)
    compared("plain", artifact, "--limit", "6", "--json", out="read")
    assert len(server.requests) > calls


def test_without_a_reader_or_a_metric_of_what_is_right_there_is_no_diagnosis(compared, server):
    done = compared("plain@bm25", "--reader", "none", "--metric", "recall@5", "--limit", "6", "--json")
    assert (done.data["references"], done.data["diagnosis"], server.requests) == ([], None, [])
    assert not any("no diagnosis" in note for note in done.data["notes"])
    done = compared("plain", "--metric", "decision_useful", "--limit", "2", "--json", out="other")
    assert done.data["diagnosis"] is None, done.err
    assert any("no diagnosis: add the metric accuracy or exact_match" in note for note in done.data["notes"])


def test_what_is_printed_fits_the_terminal_and_is_one_table_of_verdicts_and_a_sentence(compared):
    done = compared("hyde", "multi_query:n_queries=2", "--limit", "12", "--threads", "2", width=80)
    assert done.status == 0, done.err
    assert all(len(line) <= 80 or " " not in line.strip() for line in done.out.splitlines())  # a path stays whole
    assert done.out.count("compared with plain") == 1
    assert "no difference shown in 6 of 6 comparisons with plain" in done.out
    assert done.out.count("oracle evidence") == 1  # no table is split
    assert not any(name in done.out for name in ("0 wins", "fallbacks", "failed"))
    told = " ".join(compared("hyde", "--limit", "12", "--verbose", width=80).out.split())
    assert "accuracy: no difference shown between hyde and plain: " in told
    assert "LM answers were cached" in told


def test_where_no_metric_needs_an_answer_nothing_is_read_and_no_lm_is_named(cli, collection, questions, server):
    given = ("--data", questions, "--collection", collection, "--limit", "6", *server.lm)
    done = cli("evaluate", "plain", *given, "--metric", "recall", width=80)
    assert (done.status, server.requests) == (0, [])
    assert "no arm calls an LM for these metrics" in " ".join(done.out.split())
    assert "LM calls" not in done.out
    cli("evaluate", "plain", *given, "--metric", "recall", "--reader", "multiple_choice", width=80)
    assert len(server.requests) == 6
