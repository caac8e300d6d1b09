"""Filling the matrix of answers: what is judged, what is stored, what a completion is worth."""

from __future__ import annotations

import json
import math
import re

import dspy
import numpy as np
import pytest

from querywright.cli.main import run as run_command
from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.models.embedder import Embedder
from querywright.models.store import open_store
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.question_fill import fill
from querywright.retrieval.generated_questions import (
    ANSWERS,
    COMPLETE,
    PARTIAL,
    PassageRecord,
    WrittenQuestion,
    question_id,
    questions_folder,
    read_pairs,
    write_records,
)
from querywright.retrieval.index import build_collection

TOPICS, PASSAGES, WRITTEN = 3, 30, 4
PLACES = np.linalg.qr(np.random.default_rng(0).normal(size=(24, TOPICS)))[0].T


class Model:
    """A vector near that of the topic, with noise that differs from text to text."""

    def encode(self, texts, **options):
        topics = [int(re.findall(r"topic of (\d+)", text)[-1]) for text in texts]
        noise = [np.random.default_rng(list(text.encode())).normal(size=24) for text in texts]
        rows = [PLACES[n] + 0.6 * own for n, own in zip(topics, noise, strict=True)]
        return np.stack([row / np.linalg.norm(row) for row in rows]).astype(np.float32)


def passage(n):
    return Passage(f"p{n:02}", f"Fact {n}, topic of {n % TOPICS}.")


def question(n, place):
    return f"Asked {place} about {n}, topic of {n % TOPICS}"


def record(n, *labels):
    one = passage(n)
    questions = tuple(WrittenQuestion(question(n, place), label) for place, label in enumerate(labels))
    return PassageRecord(one.id, one.text_digest(), "s", questions)


OWN = {question_id(f"p{n:02}", question(n, place)): n for n in range(PASSAGES) for place in range(WRITTEN)}
TEXTS = {
    question_id(f"p{n:02}", text): text for n in range(PASSAGES) for text in (question(n, k) for k in range(WRITTEN))
}


@pytest.fixture
def embedder(tmp_path):
    store = open_store(tmp_path)
    yield Embedder("topics", Model, dimension=24, store=store)
    store.close()


@pytest.fixture
def folder(tmp_path, embedder):
    """Each passage answers all questions of its topic: a matrix of rank 3, a third of it answers."""
    build_collection("facts", [passage(n) for n in range(PASSAGES)], embedder=embedder, home=tmp_path)
    found = questions_folder("facts", tmp_path)
    found.mkdir(parents=True)
    write_records(found, [record(n, *[COMPLETE] * WRITTEN, PARTIAL, "") for n in range(PASSAGES)])
    return found


def labelled(asked, chosen):
    """A judgement in the words of either scale."""
    labels = asked.properties["label"]["enum"]
    reasons = {name: "r" for name in asked.properties if name != "label"}
    return json.dumps({**reasons, "label": labels[0] if chosen else labels[-1]})


def answered(asked):
    """Whether question and passage in a prompt have the same topic."""
    last = asked.prompt.rpartition("[[ ## passage ## ]]")[2]
    labels = asked.properties["label"]["enum"]
    same = len(set(re.findall(r"topic of (\d+)", last))) == 1
    return labelled(asked, same is (labels[0] in ("complete", "yes")))


@pytest.fixture
def lm_that(make_engine, make_lm):
    return lambda write=answered, **options: make_lm(make_engine(write=write), **options)


@pytest.fixture
def filled(folder, embedder, tmp_path, lm_that):
    """Fills the collection; gives the report and the LM."""

    def call(lm=None, **options):
        lm = lm or lm_that()
        return fill("facts", lm=lm, embedder=embedder, home=tmp_path, **options), lm

    return call


def asked_of(lm):
    return lm.engine.inner.asked


def test_the_most_similar_pairs_are_judged_and_stored_with_their_judgments(filled, folder):
    report, lm = filled(most=500, complete=False)
    vectors = dict(zip(OWN, Model().encode([TEXTS[id] for id in OWN]), strict=True))
    others = Model().encode([passage(n).content for n in range(PASSAGES)])
    similar = {(id, n): vectors[id] @ others[n] for id, own in OWN.items() for n in range(PASSAGES) if own != n}
    expected = {
        (id, f"p{n:02}"): float(OWN[id] % TOPICS == n % TOPICS)
        for id, n in sorted(similar, key=similar.get, reverse=True)[:500]
    }
    pairs = read_pairs(folder)
    assert {(pair.question, pair.passage): pair.value for pair in pairs} == expected
    assert all(pair.judged and pair.digest == passage(int(pair.passage[1:])).digest() for pair in pairs)
    assert (report.questions, report.passages) == (PASSAGES * WRITTEN, PASSAGES)
    assert report.near == len(asked_of(lm)) == 500
    assert (report.far, report.completed, report.validation, report.unreadable) == (0, 0, None, 0)
    assert math.isnan(report.far_answered)


def test_a_completion_that_holds_fills_in_what_nobody_judged(filled, folder):
    report, lm = filled(most=700)
    assert len(asked_of(lm)) == report.near + report.far == 700
    assert report.far == 140
    assert report.validation.used
    assert report.validation.rmse < 0.6 * report.validation.base_rmse
    pairs = read_pairs(folder)
    completed = [pair for pair in pairs if not pair.judged]
    assert len(completed) == report.completed > 0
    assert all(0.5 <= pair.value <= 1 for pair in completed)
    assert np.mean([OWN[pair.question] % TOPICS == int(pair.passage[1:]) % TOPICS for pair in completed]) > 0.8
    assert not any(OWN[pair.question] == int(pair.passage[1:]) for pair in pairs)


def test_a_completion_that_does_not_hold_is_refused_and_judgements_stay(filled, folder, lm_that):
    def at_random(asked):
        return labelled(asked, np.random.default_rng(list(asked.prompt.encode())).integers(2))

    report, _ = filled(lm_that(at_random), most=200)
    assert (report.validation.used, report.completed) == (False, 0)
    assert report.validation.reason
    assert sum(pair.judged for pair in read_pairs(folder)) == 200


def test_the_same_fill_again_asks_nothing_and_writes_the_same(filled, folder, lm_that, store):
    first, one = filled(lm_that(store=store), most=100, threads=3)
    content = (folder / ANSWERS).read_bytes()
    second, again = filled(lm_that(store=store), most=100)
    assert json.dumps(second.to_json()) == json.dumps(first.to_json())
    assert (folder / ANSWERS).read_bytes() == content
    assert (len(asked_of(one)), asked_of(again)) == (100, [])
    _, wider = filled(lm_that(store=store), most=125, complete=False)
    assert len(asked_of(wider)) <= 125 - 80  # of the 125 most similar pairs 80 were judged


def test_unreadable_and_failed_judgements_are_counted_and_not_stored(filled, folder, make_engine, make_lm):
    def before(n, asked):
        if n == 3:
            raise dspy.LMError("down")

    def down(n, asked):
        raise dspy.LMError("down")

    engine = make_engine(before, lambda asked: "so so" if "Fact 1" in asked.prompt else answered(asked))
    lm = make_lm(engine, max_unreadable=0.9)
    report, _ = filled(lm, most=150, complete=False, threads=1)
    stored = read_pairs(folder)
    assert report.failed == 1
    assert report.unreadable > 0
    assert len(stored) == 150 - report.unreadable - report.failed
    assert not any(pair.passage.startswith("p1") or pair.passage == "p01" for pair in stored)
    with pytest.raises(TooManyFailuresError, match="judgments failed in 'answerability'"):
        filled(make_lm(make_engine(down), outage_after=10_000), most=150)
    assert read_pairs(folder) == stored


def test_questions_of_a_passage_that_changed_take_no_part(filled, folder, embedder, tmp_path):
    changed = Passage("p03", "Another fact, topic of 0.")
    build_collection("facts", [changed], embedder=embedder, home=tmp_path)
    report, _ = filled(most=1500, complete=False)
    assert report.questions == (PASSAGES - 1) * WRITTEN
    stored = read_pairs(folder)
    assert 3 not in {OWN[pair.question] for pair in stored}
    assert any(pair.passage == "p03" for pair in stored)


def test_where_nothing_is_to_fill_the_remedy_is_named(filled, folder, embedder, lm_that, tmp_path):
    write_records(folder, [record(n, PARTIAL) for n in range(PASSAGES)])
    with pytest.raises(CollectionError, match="querywright questions build facts"):
        filled()
    with pytest.raises(CollectionError, match="there is no collection 'other'"):
        fill("other", lm=lm_that(), embedder=embedder, home=tmp_path)


@pytest.mark.parametrize("settings", [{"cut": 0.0}, {"cut": 1.5}, {"most": 0}])
def test_numbers_out_of_range_are_refused_before_anything_is_asked(filled, lm_that, settings):
    lm = lm_that()
    with pytest.raises(InputError):
        filled(lm, **settings)
    assert asked_of(lm) == []


def test_the_command_says_what_was_judged_and_what_the_completion_is_worth(
    folder, embedder, lm_that, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("querywright.workspace._lm", lambda *rest, **shared: lm_that())
    monkeypatch.setattr("querywright.models.embedder.resolve_embedder", lambda name, *, store: embedder)

    def run(*options):
        assert run_command(["questions", "fill", "facts", "--home", str(tmp_path), *options]) == 0
        printed = capsys.readouterr()
        return " ".join(printed.out.split())

    text = run("--most", "700")
    for said in ("questions: 120", "passages: 30", "near: 560", "far: 140", "base_rmse: "):
        assert said in text
    assert "stored: 40 " in run("--most", "40", "--no-complete")
