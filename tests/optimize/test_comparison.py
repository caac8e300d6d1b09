from __future__ import annotations

import gzip
import json
import threading
import time
from dataclasses import replace

import pytest
from dspy.utils.exceptions import LMInvalidRequestError

from querywright.data.types import Passage, Question
from querywright.errors import InputError
from querywright.optimize.comparison import References, compare
from querywright.optimize.diagnosis import Stage
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.judging import judged_metrics
from querywright.optimize.report import packed_prompts, score_rows
from querywright.programs import make_program
from querywright.retrieval.callable import CallableRetriever


def arms(world):
    return {"plain": world.program("plain"), "hcqr": world.program()}


def asked(lm):
    return len(lm.engine.inner.asked)


def test_every_arm_is_held_against_the_baseline(world, make_lm):
    compared = compare(arms(world), world.questions, lm=make_lm())

    assert [one.name for one in compared.arms] == ["plain", "hcqr"]
    assert [(one.metric, one.arm, one.other) for one in compared.comparisons] == [
        ("accuracy", "hcqr", "plain"),
        ("decision_useful", "hcqr", "plain"),
    ]
    assert compared.comparisons[0].test.wins == 18
    assert compared.to_json()["comparisons"][1]["losses"] == 0
    swapped = compare(arms(world), world.questions, lm=make_lm(), references=False, baseline="hcqr")
    assert swapped.baseline == "hcqr"
    assert swapped.comparisons[0].sentence.startswith("accuracy: plain is worse than hcqr: 0 wins, 18 losses")


def test_question_and_options_is_a_second_baseline_and_arms_that_see_options_without_it_are_noted(world, make_lm):
    second = "add the second baseline plain:query_with_options=true"
    note = f"hcqr used the options to search, but the baseline did not; {second}"
    alone = compare(arms(world), world.questions, lm=make_lm())
    assert note in alone.notes
    assert alone.to_json()["sees_options"] == {"plain": False, "hcqr": True}

    programs = {"plain": world.program("plain"), "both": world.program("plain", query_with_options=True)}
    compared = compare({**programs, "hcqr": world.program()}, world.questions, lm=make_lm())
    assert (compared.baseline, compared.second, compared.notes) == ("plain", "both", ())
    pairs = [(one.arm, one.other) for one in compared.comparisons if one.metric == "accuracy"]
    assert pairs == [("both", "plain"), ("hcqr", "plain"), ("hcqr", "both")]
    assert compared.comparisons[-1].sentence.startswith("against both, decision_useful: hcqr beats both")
    assert [(row["arm"], row["options"]) for row in score_rows(compared)[:3]] == [
        ("1 plain (baseline)", "no"), ("2 both (second baseline)", "yes"), ("3 hcqr", "yes")
    ]  # fmt: skip


def test_closed_book_and_oracle_evidence_stand_beside_the_arms_and_tell_where_answers_are_lost(world, make_lm):
    compared = compare(arms(world), world.questions, lm=make_lm())
    assert [one.name for one in compared.references] == ["closed book", "oracle evidence"]
    assert compared.reference("closed book").mean("accuracy").value == 0.0
    assert compared.reference("oracle evidence").mean("accuracy").value == 1.0
    assert compared.reference("other") is None
    assert compared.diagnosis.counts("plain") == {Stage.NOT_FOUND: 18}
    assert compared.diagnosis.counts("hcqr") == {Stage.RIGHT: 18}
    assert [one.arm for one in compared.decisions] == ["plain", "hcqr"]
    assert compared.passages["decides-3"].text == "Decides 3."

    alone = compare(arms(world), world.questions, lm=make_lm(), references=False)
    assert alone.references == ()
    assert alone.diagnosis.counts("plain") == {Stage.NOT_FOUND: 18}


def test_the_questions_of_all_arms_and_references_are_asked_side_by_side(world, make_lm, make_engine):
    together = threading.Barrier(8, timeout=30)  # passes once eight calls are under way at a time
    programs = {"plain": world.program("plain"), "plain:max_passages=1": world.program("plain", max_passages=1)}
    lm = make_lm(make_engine(before=lambda n, asked: together.wait()), at_once=8)
    compared = compare(programs, world.questions[:2], lm=lm, threads=8)
    assert [len(one.rows) for one in (*compared.arms, *compared.references)] == [2, 2, 2, 2]


def test_a_parameter_that_the_server_does_not_support_is_among_the_notes(remote):
    def step(sent):
        refusal = {"error": {"message": "Unsupported parameter: 'temperature'"}}
        return {"status": 400, "body": refusal} if "temperature" in sent else '{"answer": "tea"}'

    programs = {"closed": make_program("closed_book", None, reader="short_answer")}
    compared = compare(programs, [Question("a", "What is drunk hot?", answer="tea")], lm=remote(step)[0])
    note = "the LM server does not support temperature; requests omit it"
    assert note in compared.to_json()["notes"]


def test_results_do_not_depend_on_how_many_are_asked_side_by_side(world, make_lm):
    def results(threads):
        compared = compare(arms(world), world.questions, lm=make_lm(), threads=threads)
        rows = [(one.name, row) for one in (*compared.arms, *compared.references) for row in one.rows]
        return [(name, row.id, row.scores, row.answer, row.passages, row.queries, row.cost.asked) for name, row in rows]

    assert results(1) == results(64)


def test_each_arm_has_failures_and_seconds_of_its_own(world, make_lm, make_engine):
    def refused(*what):
        def before(n, asked):
            if asked.number in what or asked.step in what:
                raise LMInvalidRequestError("refused")

        return make_lm(make_engine(before))

    began = time.monotonic()
    compared = compare(arms(world), world.questions, lm=refused(3), threads=8)  # one of 18 may fail in each arm
    wall, found = time.monotonic() - began, (*compared.arms, *compared.references)
    assert [dict(one.failures) for one in found] == [{"lm": 1}] * 4
    assert 0 < sum(one.seconds for one in found) <= wall
    with pytest.raises(TooManyFailuresError, match="2 of 18 questions failed in 'hcqr'"):
        compare(arms(world), world.questions, lm=refused("hypothesis"), threads=8)


def test_what_a_judge_says_of_passages_is_evidence_that_the_oracle_shows(world, make_lm, make_engine):
    questions = [replace(one, evidence={}) for one in world.questions[:3]]

    def write(asked):
        label = "ENTAILED" if f"Decides {asked.number}." in asked.prompt else "NOT_USEFUL"
        return json.dumps({"reason": "It says so.", "label": label})

    metrics = judged_metrics(["accuracy", "judged_useful"], lm=make_lm(make_engine(write=write)))
    compared = compare({"hcqr": world.program()}, questions, lm=make_lm(), metrics=metrics)
    assert [one.name for one in compared.references] == ["closed book", "oracle evidence"]
    assert [dict(one.evidence)[f"decides-{n}"] for n, one in enumerate(compared.questions)] == ["ENTAILED"] * 3
    assert [row.passages for row in compared.reference("oracle evidence").rows] == [(f"decides-{n}",) for n in range(3)]


def test_a_retriever_that_cannot_tell_what_it_holds_is_diagnosed_by_what_it_finds(world, make_lm):
    found = {"f": Passage("decides-0", "Decides 0."), "g": Passage("other-0", "Text.")}
    programs = {
        name: make_program("plain", CallableRetriever(lambda query, k, one=one: [one]), reader="multiple_choice")
        for name, one in found.items()
    }
    compared = compare(programs, world.questions[:1], lm=make_lm())
    assert [one.values("decision_useful") for one in compared.arms] == [[1.0], [0.0]]
    assert [one.name for one in compared.references] == ["closed book"]
    assert compared.diagnosis.counts("g") == {Stage.NOT_FOUND: 1}
    assert compared.passages == {}


def test_each_reader_has_references_of_its_own():
    def program(instructions=""):
        made = make_program("plain", lambda queries, k: [], reader="short_answer")
        if instructions:
            made.reader.predict.signature = made.reader.predict.signature.with_instructions(instructions)
        return made

    programs = {"plain": program(), "again": program(), "tuned": program("Answer in one word.")}
    references = References.of(programs, [Question("q", "What?", answer="this")])
    assert references.closed_book["plain"] == references.closed_book["again"] == "closed book"
    tuned = references.closed_book["tuned"]
    assert tuned == "closed book, reader of tuned"
    assert references.programs[tuned].reader.predict.signature.instructions == "Answer in one word."
    assert references.programs["closed book"].reader.predict.signature.instructions != "Answer in one word."


def test_oracle_evidence_comes_from_the_first_arm_whose_retriever_gives_passages_by_id(world):
    bare = make_program("plain", lambda queries, k: [], reader="short_answer")
    programs = {
        "bare": bare,
        "held": make_program("plain", arms(world)["plain"].technique.retriever, reader="short_answer"),
    }
    references = References.of(programs, world.questions)
    assert references.oracle == {"bare": "oracle evidence", "held": "oracle evidence"}


def test_a_report_has_prompt_and_answer_of_every_call_of_an_arm_also_of_one_that_is_stored(
    world, make_lm, store, tmp_path, read_page
):
    evil = "</script><b>"
    world.others = [replace(one, text=f"{one.text} {evil}") for one in world.others]
    programs = {**arms(world), "bare": world.program("plain", reader=None)}
    for folder in ("first", "again"):  # then every answer is in the store
        lm = make_lm(store=store)
        compared = compare(programs, world.questions, lm=lm)
        page = read_page(compared.report(tmp_path / folder / "report.html").read_text("utf-8"))
        assert [path.name for path in (tmp_path / folder).iterdir()] == ["report.html"]
        page.check()
        found = {one["question"]: one["arms"] for one in page.prompts()}
        assert found.keys() == {one.id for one in world.questions}
        for n, question in enumerate(world.questions):
            told = found[question.id]
            assert [[call["predictor"] for call in told[name]] for name in programs] == [
                ["reader.predict"], ["technique.form_hypothesis", "technique.write_queries", "reader.predict"], [],
            ]  # fmt: skip
            (read,) = told["plain"]
            assert [one["role"] for one in read["messages"]] == ["system", "user"]
            assert evil in read["messages"][1]["content"]
            assert f"What of number {n}?" in read["messages"][1]["content"]
            assert json.loads(read["answer"])["answer"] in question.options
    assert asked(lm) == 0
    assert not any(row.exchanges for one in compared.references for row in one.rows)
    assert "exchanges" not in compared.arms[0].rows[0].to_json()


def test_a_failed_question_keeps_what_was_asked_until_then(world, make_lm, make_engine):
    def before(n, request):
        if request.step == "reader" and request.number == 2:
            raise LMInvalidRequestError("too long")

    compared = compare(
        arms(world), world.questions[:4], lm=make_lm(make_engine(before)), references=False, max_failures=1
    )
    row = compared.arm("hcqr").rows[2]
    assert row.failure == "lm"
    assert [bool(one.answer) for one in row.exchanges] == [True, True, False]
    assert row.exchanges[2].answer is None
    first, *_ = gzip.decompress(packed_prompts(compared)).splitlines()
    assert json.loads(first)["question"] == "q2"  # first comes what failed


def test_what_cannot_be_compared_is_refused_before_anything_is_asked(world, make_lm):
    lm = make_lm()
    with pytest.raises(InputError, match="must be one of the programs plain, hcqr, but got 'bm25'"):
        compare(arms(world), world.questions, lm=lm, baseline="bm25")
    with pytest.raises(InputError, match="'closed book' is the name of both a program and a reference"):
        compare({"closed book": world.program("plain")}, world.questions, lm=lm)
    with pytest.raises(InputError, match="there is nothing to compare"):
        compare({}, world.questions, lm=lm)
    assert asked(lm) == 0
