"""Record, compare, label, compile again: the commands about traffic, over a program that was loaded and asked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import querywright
from querywright.cli.options import LMOptions
from querywright.watching import JsonLines, read_traffic


@pytest.fixture
def ask(artifact, server, rows_of_questions):
    """Asks the artifact's program questions that a watcher records."""

    def call(path, rows, **options):
        lm = LMOptions("openai/scripted", server.address, "SCRIPTED_KEY").open(None).lm
        program = querywright.load(artifact, lm=lm, watchers=[JsonLines(path, **options)])
        done = program.batch([(row["question"], row["options"]) for row in rows], threads=4)
        assert [one.error for one in done] == [None] * len(rows)
        return read_traffic(path)

    return call


@pytest.fixture
def drift(cli, artifact, server, more_questions):
    """Runs ``drift`` on a file of traffic, against 48 questions like those of training."""

    def call(path, *arguments, against=more_questions):
        lm = server.lm if str(against).endswith("more.jsonl") else ()
        return cli("drift", artifact, path, "--data", against, *lm, *arguments, width=160)

    return call


def test_traffic_like_the_questions_shows_nothing_and_other_traffic_does(ask, drift, server, rows_of_questions):
    rows = [row for row in rows_of_questions(14) if int(row["id"].rsplit("-")[-1]) >= 8]
    found = ask("traffic.jsonl", rows)
    assert all(0 < max(one.top_scores) <= 1.001 for one in found)
    assert all(one.answer in one.options and one.n_passages > 0 and one.queries for one in found)
    done = drift("traffic.jsonl", "--json")
    assert (done.status, done.data["verdict"]) == (0, "none"), done.out
    assert (done.data["requests"], done.data["questions"], done.data["reference_questions"]) == (36, 36, 48)
    names = {one["name"] for one in done.data["measures"]}
    assert {"best score", "far questions", "passages", "fell back", "declined", "failed"} <= names
    calls = len(server.requests)
    assert calls > 0
    shown = drift("traffic.jsonl")
    assert "nothing shown: 36 distinct questions of traffic, 48 of the reference" in shown.out
    assert "the reference was asked now: LM calls: 0 made" in shown.err

    words = ["quasar", "nebula", "comet", "orbit", "lunar", "pulsar", "galaxy", "meteor", "zenith", "aurora", "parsec"]
    asked = (" ".join(words[(n * step + step) % 11] + str(n % 7) for step in range(1, 7)) for n in range(36))
    ask("others.jsonl", [row | {"question": text} for row, text in zip(rows, asked, strict=True)])
    calls = len(server.requests)
    done = drift("others.jsonl", "--json")
    assert (done.status, done.data["verdict"]) == (1, "drift"), done.out
    shown = {one["name"]: one for one in done.data["measures"] if (one["p_holm"] or 1) < 0.05}
    assert shown["best score"]["high"] < 0
    assert shown["far questions"]["low"] > 0.5
    assert "compile again" in done.data["sentence"]
    table = drift("others.jsonl").out
    assert re.search(r"\bp\b", table)
    assert "p_holm" not in table
    assert "method" not in table
    # against earlier traffic nothing is asked
    done = drift("others.jsonl", "--json", against="traffic.jsonl")
    assert (done.status, done.data["reference_questions"]) == (1, 36)
    assert "asked now" not in done.err
    done = drift("others.jsonl", "--limit", "3", against="traffic.jsonl")
    assert (done.status, "--limit" in done.err) == (2, True)
    assert len(server.requests) == calls


def test_too_few_questions_cost_nothing_and_wrong_input_is_status_2(ask, drift, cli, artifact, server, rows, write):
    ask("traffic.jsonl", [*rows[:2], *rows[:2]])
    asked, done = len(server.requests), drift("traffic.jsonl", "--json")
    told = "too few distinct questions to tell: the traffic has 2, and 30 are needed"
    assert (done.status, done.data) == (0, {"verdict": "too_few", "sentence": told})
    assert told in " ".join(drift("traffic.jsonl").out.split())
    for path, said in (("none.jsonl", "none.jsonl"), (write("empty.jsonl", []), "empty")):
        done = drift(path)
        assert (done.status, said in done.err) == (2, True), done.err
    line = json.loads(Path("traffic.jsonl").read_text().splitlines()[0])
    done = drift(write("other.jsonl", [line | {"artifact": "another"}, {"no": "line"}]))
    assert done.status == 2
    assert "1 lines cannot be read" in done.err
    assert "the traffic is of another" in done.err
    for at, against in ((artifact, "nothing.jsonl"), ("nothing", "traffic.jsonl")):
        assert cli("drift", at, "traffic.jsonl", "--data", against).status == 2
    assert len(server.requests) == asked


def test_labelled_traffic_is_compiled_and_evaluated_as_it_is(ask, ok, collection, server, rows, write):
    right = {row["question"]: row for row in rows}
    labels = [
        {"id": one.id, "answer": right[one.question]["answer"], "evidence": list(right[one.question]["evidence"])}
        for one in ask("traffic.jsonl", [*rows, rows[0]])
    ]
    file = write("labels.jsonl", [*labels, {"id": "unknown", "feedback": "up"}])
    done = ok("traffic", "questions", "traffic.jsonl", "--labels", file, "--out", "new.jsonl")
    said = "new.jsonl: 18 questions from 20 labels (1 of a question that had one), 18 with an answer, 18 with"
    assert said in " ".join(done.out.split())
    assert "left out: labels.jsonl line 20: there is no exchange 'unknown'" in done.err
    given = ("--collection", collection, "--json", *server.lm)
    ok("compile", "plain", "--data", "new.jsonl", "--out", "again", "--sizes", "4,4,4", "--trials", "2", *given)
    ok("evaluate", "plain", "--data", "new.jsonl", *given)
