from __future__ import annotations

import json
import math
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from dspy.utils.exceptions import LMServerError

from querywright.data.types import Label, Passage
from querywright.errors import InputError, OutageError
from querywright.metrics.dspy_metrics import METRICS
from querywright.models.usage import Cost
from querywright.optimize.comparison import JOURNAL, compare
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.rows_table import write_rows
from querywright.programs import RAG, OracleEvidence, make_program, make_reader
from querywright.retrieval.callable import CallableRetriever


def arms(world):
    return {"plain": world.program("plain"), "hcqr": world.program()}


def asked(lm):
    return len(lm.engine.inner.asked)


def told(compared):
    """Every row but for what a clock says."""
    return [
        {key: value for key, value in row.to_json().items() if key not in {"seconds", "cost"}}
        | {"calls": row.cost.asked}
        for one in (*compared.arms, *compared.references)
        for row in one.rows
    ]


def test_every_arm_is_held_against_the_baseline(world, make_lm, tmp_path):
    compared = compare(arms(world), world.questions, lm=make_lm(), folder=tmp_path / "out", baseline="plain")

    assert [one.name for one in compared.arms] == ["plain", "hcqr"]
    assert [(one.metric, one.arm, one.other) for one in compared.comparisons] == [
        ("accuracy", "hcqr", "plain"),
        ("decision_useful", "hcqr", "plain"),
    ]
    assert compared.comparisons[0].test.wins == 18
    assert compared.to_json()["comparisons"][1]["losses"] == 0


def test_a_loss_is_told_as_plainly_as_a_gain(make_world, make_lm, tmp_path):
    world = make_world("plain")
    compared = compare(arms(world), world.questions, lm=make_lm(), folder=tmp_path, baseline="plain")
    assert compared.comparisons[0].sentence.startswith("accuracy: hcqr is worse than plain: 0 wins, 18 losses")


def test_references_are_evaluated_and_held_against_nothing(world, make_lm, tmp_path):
    compared = compare(
        {"plain": world.program("plain")},
        world.questions,
        lm=make_lm(),
        folder=tmp_path,
        baseline="plain",
        references={"closed book": world.program("hcqr")},
    )
    assert compared.comparisons == ()
    assert compared.reference("closed book").mean("accuracy").value == 1.0
    assert compared.reference("oracle") is None


@pytest.mark.parametrize("ended_at", [0, 1, 17, 18, 31, 50])
def test_a_run_that_ended_goes_on_and_asks_nothing_twice(
    make_world, make_engine, make_lm, scripted, tmp_path, ended_at
):
    def fail(n, asked):
        if n == ended_at:
            raise KeyboardInterrupt

    world = make_world()
    whole = compare(arms(world), world.questions, lm=make_lm(), folder=tmp_path / "whole", baseline="plain", threads=1)
    first = make_lm(make_engine(before=fail))
    with pytest.raises(KeyboardInterrupt):
        compare(arms(world), world.questions, lm=first, folder=tmp_path / "ended", baseline="plain", threads=1)
    second = make_lm()
    again = compare(arms(world), world.questions, lm=second, folder=tmp_path / "ended", baseline="plain", threads=1)

    assert told(again) == told(whole)
    needed = sum(row.cost.asked for one in whole.arms for row in one.rows)
    lost = asked(first) + asked(second) - needed  # of the one question that was under way; a store would have kept them
    assert 0 < lost <= 3
    third = make_lm()
    assert told(compare(arms(world), world.questions, lm=third, folder=tmp_path / "ended", baseline="plain")) == told(
        whole
    )
    assert asked(third) == 0


def test_a_line_that_was_torn_is_asked_again_and_the_file_goes_on_behind_it(world, make_lm, tmp_path):
    compare(arms(world), world.questions, lm=make_lm(), folder=tmp_path, baseline="plain")
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    assert len(lines) == 36
    (tmp_path / JOURNAL).write_bytes(b"".join(lines[:4]) + lines[4][:70])

    lm = make_lm()
    compare(arms(world), world.questions, lm=lm, folder=tmp_path, baseline="plain")
    assert asked(lm) == 14 + 3 * 18
    kept = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    assert kept[:4] == lines[:4]
    assert len([json.loads(line) for line in kept]) == 36


@pytest.mark.parametrize(
    "text", [b"my notes, without an end of line", b"my notes\n", b'{"key": "a", "question": 1}\n', b'{"key": "a", \n']
)
def test_a_file_of_another_kind_is_refused_and_left_as_it_is(world, make_lm, tmp_path, text):
    (tmp_path / JOURNAL).write_bytes(text)
    lm = make_lm()
    with pytest.raises(InputError, match=r"line 1 of 'journal\.jsonl' in .* is no row of a comparison; give another"):
        compare(arms(world), world.questions, lm=lm, folder=tmp_path, baseline="plain")
    assert (tmp_path / JOURNAL).read_bytes() == text
    assert asked(lm) == 0


def test_a_row_of_another_shape_is_asked_again(world, make_lm, tmp_path):
    compare(arms(world), world.questions, lm=make_lm(), folder=tmp_path, baseline="plain")
    first, *others = (tmp_path / JOURNAL).read_text().splitlines(keepends=True)
    changed = json.loads(first)
    changed["row"]["scores"] = []
    (tmp_path / JOURNAL).write_text(json.dumps(changed) + "\n" + "".join(others))
    lm = make_lm()
    compare(arms(world), world.questions, lm=lm, folder=tmp_path, baseline="plain")
    assert asked(lm) == 1


def test_retrievers_of_ones_own_are_not_taken_for_each_other(world, make_lm, tmp_path):
    def searching(found, **given):
        return make_program("plain", CallableRetriever(lambda query, k: [found], **given), max_passages=1)

    good, bad = (Passage(f"{key}-0", "Text.") for key in ("decides", "other"))
    for given in ({}, {"fingerprint": "1"}):
        programs = {"f": searching(good, **given), "g": searching(bad, **({"fingerprint": "2"} if given else {}))}
        for _ in range(2):
            compared = compare(programs, world.questions[:1], lm=make_lm(), folder=tmp_path, baseline="f")
            assert [one.values("decision_useful") for one in compared.arms] == [[1.0], [0.0]]
    assert len((tmp_path / JOURNAL).read_text().splitlines()) == 2  # only what has a fingerprint of its own is kept


def test_oracle_evidence_that_was_changed_is_asked_again(world, make_lm, tmp_path):
    def calls(text):
        held = {f"decides-{n}": Passage(f"decides-{n}", text) for n in range(18)}
        oracle = RAG(OracleEvidence(held, world.questions), make_reader("multiple_choice"))
        lm = make_lm()
        compare({"oracle": oracle}, world.questions, lm=lm, folder=tmp_path, baseline="oracle")
        return asked(lm)

    assert [calls("old"), calls("old"), calls("new")] == [18, 0, 18]


def test_a_row_counts_for_the_same_program_question_lm_and_metrics_only(make_world, make_lm, tmp_path):
    world = make_world()
    plain = {"plain": world.program("plain")}

    def calls(programs, questions=world.questions, **changes):
        lm = make_lm()
        compare(programs, questions, lm=lm, folder=tmp_path, baseline="plain", **changes)
        return asked(lm)

    assert calls(plain) == 18
    assert calls(plain) == 0
    assert calls(plain, world.questions[:5]) == 0
    assert calls({"plain": world.program("plain", max_passages=2)}) == 18
    assert calls({"plain": make_world("plain").program("plain")}) == 18
    assert calls(plain, metrics={"exact_match": METRICS["exact_match"]}) == 18
    assert calls(plain, scoring="judge 2") == 18
    assert calls(plain, make_world(size=20).questions) == 2
    assert calls(plain) == 0


def test_a_failed_question_is_asked_again_by_the_next_run(world, make_engine, make_lm, tmp_path):
    def fail(n, asked):
        if asked.number == 7:
            raise LMServerError("broken", provider="x", model="x")

    def run(lm):
        return compare(
            {"plain": world.program("plain")},
            world.questions,
            lm=lm,
            folder=tmp_path,
            baseline="plain",
            max_failures=0.1,
        )

    failed = run(make_lm(make_engine(before=fail)))
    assert failed.arms[0].failures == {"lm": 1}
    lm = make_lm()
    mended = run(lm)
    assert asked(lm) == 1
    assert not mended.arms[0].failures


def test_an_outage_stops_the_comparison_and_keeps_what_there_is(world, make_engine, make_lm, tmp_path):
    def fail(n, asked):
        if n >= 9:
            raise LMServerError("down", provider="x", model="x")

    lm = make_lm(make_engine(before=fail), outage_after=3)
    with pytest.raises(OutageError):
        compare(arms(world), world.questions, lm=lm, folder=tmp_path, baseline="plain", threads=1, max_failures=1.0)
    assert len((tmp_path / JOURNAL).read_bytes().splitlines()) == 9


def test_what_cannot_be_compared_is_refused_before_anything_is_asked(world, make_lm, tmp_path):
    lm = make_lm()
    with pytest.raises(InputError, match="the baseline 'bm25' is none of the arms plain, hcqr"):
        compare(arms(world), world.questions, lm=lm, folder=tmp_path, baseline="bm25")
    with pytest.raises(InputError, match="'plain' is an arm and a reference"):
        compare(
            arms(world),
            world.questions,
            lm=lm,
            folder=tmp_path,
            baseline="plain",
            references={"plain": world.program("plain")},
        )
    assert asked(lm) == 0


def test_one_process_at_a_time(world, make_lm, make_engine, tmp_path):
    def inside(n, asked):
        with pytest.raises(InputError, match="another process writes to 'out'; wait for it, or give another folder"):
            compare(arms(world), world.questions, lm=make_lm(), folder=tmp_path / "out", baseline="plain")

    lm = make_lm(make_engine(before=inside))
    compare({"plain": world.program("plain")}, world.questions[:2], lm=lm, folder=tmp_path / "out", baseline="plain")
    assert asked(lm) == 2


def test_a_row_survives_json():
    row = Row(
        "q1",
        {"accuracy": math.nan, "recall": 1 / 3},
        label=Label.USEFUL,
        answer="a",
        support=("r",),
        invalid=True,
        passages=("p", "r"),
        found=("p", "x", "r"),
        queries=(("original", "what?"),),
        fallbacks=("queries",),
        seconds=1.25,
        cost=Cost(calls=2, saved=1, input_tokens=5),
    )
    again = Row.from_json(json.loads(json.dumps(row.to_json())))
    assert math.isnan(again.scores["accuracy"])
    assert again.scores["recall"] == 1 / 3
    assert again.to_json() == row.to_json()
    assert (again.support, Row.from_json(replace(row, support=None).to_json()).support) == (("r",), None)


def test_the_table_has_a_row_an_arm_and_question(world, make_lm, tmp_path):
    rows = (
        Row("q0", {"accuracy": 1.0, "recall": 0.5}, Label.ENTAILED, "right 0", ("b",), passages=("a", "b"),
            found=("a", "b", "c"), queries=(("original", "What?"),), seconds=0.5,
            cost=Cost(calls=2, input_tokens=7, output_tokens=3)),
        Row("q1", {"accuracy": math.nan, "recall": math.nan}, failure="lm", message="it broke", seconds=9.0),
        Row("q2", {"accuracy": 0.0, "recall": 0.0}, answer="x", seconds=0.1, cost=Cost(saved=2, saved_tokens=11)),
    )  # fmt: skip
    broken = replace(rows[0], answer="hi \ud83d")
    write_rows(tmp_path / "rows.parquet", [Evaluation("plain", (broken,), 1.0)], world.questions[:1])
    assert pq.read_table(tmp_path / "rows.parquet").to_pylist()[0]["answer"] == "hi ?"
    write_rows(tmp_path / "rows.parquet", [Evaluation("plain", rows, 1.0)], world.questions[:3])

    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["question_id"] for row in table] == ["q0", "q1", "q2"]
    assert table[0]["found"] == ["a", "b", "c"]
    assert [row["support"] for row in table] == [["b"], None, None]
    assert table[0]["queries"] == [{"role": "original", "text": "What?"}]
    assert [row["accuracy"] for row in table] == [1.0, None, 0.0]
    assert [row["lm_calls"] for row in table] == [2, 0, 2]
    assert [row["tokens"] for row in table] == [10, 0, 11]
    assert [row["seconds"] for row in table] == [0.5, 9.0, None]
    assert (table[1]["failure"], table[1]["message"]) == ("lm", "it broke")
    assert {row["arm"] for row in table} == {"plain"}
