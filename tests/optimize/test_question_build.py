"""Questions built for a collection: calls, failures, what is written anew and what never is."""

from __future__ import annotations

import json
import re
import shutil

import dspy
import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.question_build import MADE, build_questions, question_stats
from querywright.programs.question_writer import QuestionWriter
from querywright.retrieval.collection import published_passages
from querywright.retrieval.generated_questions import (
    RECORDS,
    PassageRecord,
    WrittenQuestion,
    questions_folder,
    read_records,
    write_records,
)
from querywright.retrieval.index import build_collection

NAMES = ("apple", "bread", "cheese", "dates")
NUMBERS = ("one", "two", "three")


class Words:
    """Texts as bags of letters."""

    id = "letters"
    dimension = 27

    def encode(self, texts, /):
        rows = np.array([[1.0, *(text.lower().count(chr(97 + n)) for n in range(26))] for text in texts])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def judging(asked):
    return "label" in asked.properties


def answer(asked):
    """Three questions a passage; the second is answered in part."""
    name = re.findall(r"(\w+) is good, of", asked.prompt)[-1]
    if not judging(asked):
        return json.dumps({"questions": [f"What is {name} {number} good for?" for number in NUMBERS]})
    label = "partial" if f"{name} two" in asked.prompt else "complete"
    return json.dumps({"reason": f"It is of {name}.", "label": label})


@pytest.fixture
def engine(make_engine):
    """An engine that answers as ``answer`` does, or as is given where that gives something."""

    def make(given=lambda asked: None):
        return make_engine(write=lambda asked: given(asked) or answer(asked))

    return make


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    index(folder)
    return folder


def index(home, *names, **texts):
    passages = [Passage(name, texts.get(name, f"{name} is good, of {NAMES.index(name)}.")) for name in names or NAMES]
    build_collection("foods", passages, embedder=Words(), home=home, prune=True)


@pytest.fixture
def lm(make_lm, engine, store):
    return make_lm(engine(), store=store)


@pytest.fixture
def build(home):
    """Builds the questions of the four passages, three each, in one call."""

    def call(lm, *, writer=None, **options):
        writer = writer or QuestionWriter(3, 3)
        return build_questions("foods", lm=lm, embedder=Words(), writer=writer, home=home, **options)

    return call


@pytest.fixture
def folder(home):
    return questions_folder("foods", home)


def test_the_records_are_the_same_however_many_calls_are_under_way(build, folder, lm, make_lm, engine):
    report = build(lm, threads=1)
    assert (report.passages, report.written, report.current, report.failed) == (4, 4, 0, {})
    one = (folder / RECORDS).read_bytes()
    shutil.rmtree(folder)
    build(make_lm(engine()), threads=7)
    assert (folder / RECORDS).read_bytes() == one


@pytest.mark.parametrize("reply", ["?", '{"label": "complete"}', '{"reason": "r", "label": "all"}'])
def test_a_question_whose_judgement_cannot_be_read_has_no_label_and_is_not_published(
    build, folder, make_lm, reply, engine
):
    report = build(make_lm(engine(lambda asked: reply if judging(asked) and "bread one" in asked.prompt else None)))
    assert report.failed == {}
    assert [question.label for question in read_records(folder)["bread"].questions] == ["", "partial", "complete"]
    _, kept = published_passages(folder)
    assert len(kept) == 11
    assert not any("bread one" in passage.text for passage in kept.values())


@pytest.mark.parametrize("broken", ["write", "judge"])
def test_a_passage_that_fails_is_counted_and_tried_again(build, folder, make_lm, store, broken, engine):
    def before(asked):
        if "bread" in asked.prompt and judging(asked) is (broken == "judge"):
            raise dspy.LMError("no")

    report = build(make_lm(engine(before), store=store))
    assert (report.written, report.failed) == (3, {"lm": 1})
    assert sorted(read_records(folder)) == ["apple", "cheese", "dates"]
    again = engine()
    report = build(make_lm(again, store=store))
    assert (report.written, report.current, report.failed) == (1, 3, {})
    assert len(again.asked) == (4 if broken == "write" else 3)


def test_more_failures_than_allowed_stop_the_build_and_what_was_answered_is_not_asked_again(
    build, folder, make_lm, store, engine
):
    def before(asked):
        if "apple is good" not in asked.prompt:
            raise dspy.LMError("no")

    with pytest.raises(TooManyFailuresError, match="2 of 4 passages failed in 'questions'"):
        build(make_lm(engine(before), store=store), threads=1)
    assert read_records(folder) == {}
    again = engine()
    assert build(make_lm(again, store=store)).written == 4
    assert not any("apple is good" in asked.prompt for asked in again.asked)


def test_the_same_settings_ask_nothing_and_other_ones_write_or_judge_anew(build, folder, lm, make_lm, engine):
    build(lm)
    made = (folder / MADE).read_bytes()
    assert build(lm).written == 0
    assert (folder / MADE).read_bytes() == made
    judge = make_lm(engine())
    judge.engine.identity = "another"
    report = build(lm, judge_lm=judge)
    assert report.written == 4
    assert len(lm.engine.inner.asked) == 4 * (1 + 3)  # the questions were stored
    assert len(judge.engine.inner.asked) == 4 * 3
    assert (report.cost["calls"], report.cost["saved"]) == (4 * 3, 4)
    assert build(lm, writer=QuestionWriter(2, 2)).written == 4
    assert {len(record.questions) for record in read_records(folder).values()} == {2}


def test_records_that_people_edited_are_published_and_stay_until_their_passage_changes(build, home, folder, lm):
    build(lm)
    records = folder / RECORDS
    records.write_text(records.read_text().replace("What is bread one good for?", "Who should eat bread?"))
    report = build(lm)
    assert (report.written, report.current) == (0, 4)
    assert "Who should eat bread?" in {one.text for one in published_passages(folder)[1].values()}
    index(home, bread="bread is good, of 1. For ever.")
    report = build(lm)
    assert (report.written, report.current) == (1, 3)
    assert read_records(folder)["bread"].questions[0].text == "What is bread one good for?"


def test_stats_count_the_questions_of_passages_as_they_are_now(home, folder):
    with pytest.raises(CollectionError, match="has no questions; run querywright questions build foods"):
        question_stats("foods", home)

    def record(name, *questions, digest="", repeated=0, unfit=None):
        digest = digest or Passage(name, f"{name} is good, of {NAMES.index(name)}.").text_digest()
        written = tuple(WrittenQuestion(*pair) for pair in questions)
        return PassageRecord(name, digest, "s", written, repeated, unfit or {})

    write_records(folder, [
        record("apple", ("a?", "complete"), ("b?", "complete"), ("x?", "partial"), repeated=2, unfit={"no_words": 1}),
        record("bread", ("y?", "none"), ("z?", ""), repeated=1),
        record("cheese", ("v?", "complete"), digest="of another text"),
        record("none", ("w?", "complete"), digest="of a passage that was removed"),
    ])  # fmt: skip
    assert question_stats("foods", home) == {
        "collection": "foods", "passages": 4, "recorded": 2, "stale": 1, "unwritten": 1, "written": 5,
        "labels": {"complete": 2, "partial": 1, "none": 1, "unreadable": 1}, "per_passage": (1.0, 0, 2),
        "bare": ["bread"], "coverage": 1 / 4, "dropped": {"no_words": 1, "repeated": 3}, "made": None,
    }  # fmt: skip
