"""``querywright judge label``: what arms find, labelled by a judge, corrected by a person, and given back."""

from __future__ import annotations

import json

import pandas
import pytest

import querywright as qw

JUDGE = "usefulness:openai/scripted"


@pytest.fixture
def bare(write, rows):
    """The questions without a label."""
    return write("bare.jsonl", [{key: value for key, value in row.items() if key != "evidence"} for row in rows])


@pytest.fixture
def label(cli, collection, bare, server):
    """Runs ``judge label`` with a judge that finds nothing useful."""
    server.reply = lambda body: json.dumps({"reason": "It is beside the point.", "label": "NOT_USEFUL"})

    def call(*given, out="labels.jsonl"):
        return cli("judge", "label", "--data", bare, "--collection", collection, "--out", out, *given, *server.lm)

    return call


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_labels_are_corrected_by_hand_and_a_further_run_adds_what_is_missing(
    cli, label, server, bare, collection, rows, tmp_path, write
):
    done = label("plain", "plain@bm25:max_passages=1,max_query_words=8", "--depth", "1", "--json")
    assert done.status == 2
    assert "max_query_words" in done.err
    done = label("plain", "plain@bm25:max_passages=1", "--depth", "2", "--json")
    assert done.status == 0, done.err
    made = read(tmp_path / "labels.jsonl")
    assert len(made) == len(server.requests) == done.data["asked"] == done.data["passages"]
    assert {(one["label"], one["judged"], one["by"]) for one in made} == {("NOT_USEFUL", "NOT_USEFUL", JUDGE)}
    assert made[0]["reason"] == "It is beside the point."
    assert {"question", "options", "answer", "title", "text"} <= made[0].keys()
    assert done.data["labels"]["NOT_USEFUL"] == {JUDGE: len(made)}
    right = {row["id"]: f"p-{row['answer']}" for row in rows}
    corrected = [one for one in made if one["passage_id"] == right[one["question_id"]]][:3]
    for one in corrected:
        one["label"] = "ENTAILED"
    write("labels.jsonl", made)
    again = label("plain", "--depth", "3")
    assert again.status == 0, again.err
    more = read(tmp_path / "labels.jsonl")
    assert len(more) == len(server.requests) > len(made)
    assert {one["question_id"] for one in more if one["by"] == "person"} == {one["question_id"] for one in corrected}
    assert [one["label"] for one in more if one["by"] == "person"] == ["ENTAILED"] * 3
    assert " ".join(again.out.split()).endswith("pass the file with --labels labels.jsonl")

    held = cli("judge", "calibrate", "--data", "labels.jsonl", "--json", *server.lm)
    assert (held.data["n"], held.data["labels"], held.data["table"]) == (
        3, ["NOT_USEFUL", "USEFUL", "ENTAILED"], [[0, 0, 0], [0, 0, 0], [3, 0, 0]]
    )  # fmt: skip
    asked = len(server.requests)
    assert asked == len(more)  # the judge says of these cases what it said before
    given = ("plain", "--data", bare, "--collection", collection, "--reader", "none", "--labels", "labels.jsonl")
    known = cli("evaluate", *given, "--max-passages", "3", "--json", *server.lm).data
    assert known["arms"][0]["metrics"]["decision_useful"]["value"] == 3 / 18
    assert known["arms"][0]["unjudged"] == 0
    assert f"usefulness from labelled evidence, by person (3), {JUDGE} ({len(more) - 3})" in known["notes"]
    found = cli("evaluate", *given, "--max-passages", "5", "--json", *server.lm).data
    deep = found["arms"][0]
    hang = "plain: 15 of 18 questions depend on unjudged passages"
    assert [note.partition("; label")[0] for note in found["notes"] if "depend on" in note] == [
        f"{hang}, so decision_useful over all of these questions is between 16.7 and 100.0"
    ]
    assert deep["unjudged"] == pytest.approx(2 / 5)
    assert (deep["metrics"]["decision_useful"]["n"], deep["metrics"]["decision_useful"]["unscored"]) == (3, 15)
    assert len(server.requests) == asked


def test_a_program_is_compiled_on_labels_that_a_person_corrected(ok, label, server, bare, collection, tmp_path, write):
    assert label("--depth", "2").status == 0
    made = read(tmp_path / "labels.jsonl")
    write("labels.jsonl", [one | {"label": "USEFUL"} if n % 4 == 0 else one for n, one in enumerate(made)])
    del server.reply
    server.reply = type(server)().reply
    given = (
        "compile", "rag_fusion", "--data", bare, "--collection", collection, "--out", "made", "--labels",
        "labels.jsonl", "--sizes", "3,4,4", "--trials", "2", "--knob", "max_passages=3", *server.lm,
    )  # fmt: skip
    assert ok(*given, "--json").data["objective"] == "decision_useful"
    dev = " ".join(ok(*given).out.partition("test, 4 questions")[0].split())
    assert "unscored)" in dev  # beside a share of so few questions stands how many it leaves out
    assert "questions depend on unjudged passages" in dev


def test_what_a_judge_said_that_cannot_be_read_is_counted_and_asked_for_again(label, server, tmp_path):
    said = json.dumps({"reason": "It says so.", "label": "USEFUL"})
    server.reply = lambda body: said if len(server.requests) <= 3 else "I like turtles."
    done = label("--depth", "1", "--threads", "1", "--max-unreadable", "0.9")
    assert "answers from the judge that could not be read: 15" in " ".join(done.out.split())
    assert [one["label"] for one in read(tmp_path / "labels.jsonl")].count(None) == 15
    server.reply = lambda body: said
    done = label("--depth", "1", "--json")
    assert (done.data["asked"], done.data["unreadable"], done.data["labels"]["USEFUL"]) == (15, 0, {JUDGE: 18})


def test_what_cannot_be_labelled_is_said_before_anything_is_asked(cli, label, wrong, write, server, bare, collection):
    given = ("judge", "label", "--data", bare, "--collection", collection, *server.lm)
    assert "must end in .jsonl or .csv" in wrong(*given, "--out", "labels.xlsx")
    said = wrong(*given, "--out", "labels.jsonl", "--judge", "answerability", "hyde")
    assert "use the judge 'usefulness'" in said
    assert server.requests == []  # nor the arm's LM
    assert label("--judge", "none", "--depth", "1", out="mine.csv").status == 0
    assert server.requests == []
    frame = pandas.read_csv("mine.csv")
    assert frame.label.isna().all()
    frame.assign(label=2).to_csv("mine.csv", index=False)
    found = qw.read_questions(bare, labels="mine.csv")
    assert {name for one in found for by in one.assessors.values() for name in by} == {"person"}
    assert cli("index", "other", write("others.jsonl", [{"id": "x", "text": "Else."}])).status == 0
    said = wrong("evaluate", "plain", "--data", bare, "--collection", "other", "--labels", "mine.csv", *server.lm)
    assert "the labels are for a different collection" in said
    assert found[0].id in said


def test_in_python_it_is_a_table_that_is_given_back(home, collection, bare, rows):
    table = qw.label(["plain"], str(bare), retriever=collection, judge=None, depth=1).to_pandas()
    assert list(table.columns[-2:]) == ["question_id", "passage_id"]
    table["label"] = ["USEFUL" if n % 2 else "NOT_USEFUL" for n in range(len(table))]
    half = f"for {len(rows) // 2} of {len(rows)} questions"
    with pytest.warns(UserWarning, match=f"{half}, no passage is labeled as helpful"):
        found = qw.evaluate("plain", str(bare), retriever=collection, reader=None, max_passages=1, labels=table)
    assert found.mean("decision_useful").value == 0.5
    kept = qw.label(["plain"], str(bare), retriever=collection, judge=None, depth=2, labels=table).to_pandas()
    assert (kept["by"] == "person").sum() == len(rows)
    assert len(kept) == 2 * len(rows)
