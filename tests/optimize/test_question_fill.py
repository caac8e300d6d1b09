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


def topic(text):
    return int(re.findall(r"topic of (\d+)", text)[-1])


class Model:
    """A vector near that of the topic, with noise that differs from text to text."""

    def encode(self, texts, **options):
        rows = [PLACES[topic(t)] + 0.6 * np.random.default_rng(list(t.encode())).normal(size=24) for t in texts]
        return np.stack([row / np.linalg.norm(row) for row in rows]).astype(np.float32)


def passage(n):
    return Passage(f"p{n:02}", f"Fact {n}, topic of {n % TOPICS}.")


def question(n, place):
    return f"Asked {place} about {n}, topic of {n % TOPICS}"


def record(one, *labels):
    n = int(one.id[1:])
    questions = tuple(WrittenQuestion(question(n, place), label) for place, label in enumerate(labels))
    return PassageRecord(one.id, one.text_digest(), "s", questions)


def build(home, embedder):
    """Each passage answers all questions of its topic: a matrix of rank 3, a third of it answers."""
    passages = [passage(n) for n in range(PASSAGES)]
    build_collection("facts", passages, embedder=embedder, home=home)
    write_records(folder(home), [record(one, *[COMPLETE] * WRITTEN, PARTIAL, "") for one in passages])
    return home


def embedder_in(home):
    return Embedder("topics", Model, dimension=24, store=open_store(home))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A collection that no test changes; each fill replaces what the one before stored."""
    place = tmp_path_factory.mktemp("facts")
    yield build(place, embedder_in(place))
    open_store(place).close()


@pytest.fixture(scope="module")
def embedder(home):
    return embedder_in(home)


@pytest.fixture
def changing(tmp_path):
    """A collection of its own for a test that changes it."""
    place = tmp_path / "changing"
    yield build(place, embedder_in(place))
    open_store(place).close()


def folder(home):
    found = questions_folder("facts", home)
    found.mkdir(parents=True, exist_ok=True)
    return found


def answered(asked):
    """Whether question and passage in a prompt have the same topic; in the words of either scale."""
    labels = asked.properties["label"]["enum"]
    yes, no = ("complete", "none") if "complete" in labels else ("yes", "no")
    last = asked.prompt.rpartition("[[ ## passage ## ]]")[2]
    same = len(set(re.findall(r"topic of (\d+)", last))) == 1
    reasons = {name: "r" for name in asked.properties if name != "label"}
    return json.dumps({**reasons, "label": yes if same else no})


@pytest.fixture
def lm_that(make_engine, make_lm):
    return lambda write=answered, **options: make_lm(make_engine(write=write), **options)


def asked_of(lm):
    return lm.engine.inner.asked


def written(n):
    """Ids of the complete questions of a topic's passages, by passage."""
    return {question_id(f"p{n:02}", question(n, place)): n for place in range(WRITTEN)}


QUESTIONS = {id: n for passage in range(PASSAGES) for id, n in written(passage).items()}


def test_similar_pairs_are_judged_and_stored_as_they_were_judged(home, embedder, lm_that):
    lm = lm_that()
    report = fill("facts", lm=lm, embedder=embedder, home=home, threshold=0.35, complete=False)
    pairs = read_pairs(folder(home))
    vectors = {id: Model().encode([question_text(id)])[0] for id in QUESTIONS}
    others = Model().encode([passage(n).content for n in range(PASSAGES)])
    expected = {
        (id, f"p{n:02}"): float(QUESTIONS[id] % TOPICS == n % TOPICS)
        for id in QUESTIONS
        for n in range(PASSAGES)
        if QUESTIONS[id] != n and vectors[id] @ others[n] >= 0.35
    }
    assert {(pair.question, pair.passage): pair.value for pair in pairs} == expected
    assert all(pair.judged and pair.digest == passage(int(pair.passage[1:])).digest() for pair in pairs)
    assert (report.questions, report.passages, report.stale) == (PASSAGES * WRITTEN, PASSAGES, 0)
    assert report.near == report.eligible == len(expected) == len(asked_of(lm))
    assert report.near_answered == pytest.approx(sum(expected.values()) / len(expected))
    assert (report.far, report.completed, report.validation, report.unreadable) == (0, 0, None, 0)
    assert math.isnan(report.far_answered)


def question_text(id):
    n = QUESTIONS[id]
    return next(question(n, place) for place in range(WRITTEN) if question_id(f"p{n:02}", question(n, place)) == id)


def test_a_completion_that_holds_fills_in_what_nobody_judged(home, embedder, lm_that):
    lm = lm_that()
    report = fill("facts", lm=lm, embedder=embedder, home=home, most=700)
    assert len(asked_of(lm)) == report.near + report.far == 700
    assert report.far == 140
    assert report.validation.used
    assert report.validation.rmse < 0.6 * report.validation.base_rmse
    assert report.validation.auc > 0.95
    completed = [pair for pair in read_pairs(folder(home)) if not pair.judged]
    right = [QUESTIONS[pair.question] % TOPICS == int(pair.passage[1:]) % TOPICS for pair in completed]
    assert len(completed) == report.completed > 0
    assert all(0.5 <= pair.value <= 1 for pair in completed)
    assert np.mean(right) > 0.8
    assert not any(QUESTIONS[pair.question] == int(pair.passage[1:]) for pair in read_pairs(folder(home)))


def test_a_completion_that_does_not_hold_is_refused_and_judgements_stay(home, embedder, lm_that):
    def at_random(asked):
        labels = asked.properties["label"]["enum"]
        reasons = {name: "r" for name in asked.properties if name != "label"}
        chosen = np.random.default_rng(list(asked.prompt.encode())).integers(2)
        return json.dumps({**reasons, "label": labels[0] if chosen else labels[-1]})

    report = fill("facts", lm=lm_that(at_random), embedder=embedder, home=home, most=200)
    assert (report.validation.used, report.completed) == (False, 0)
    assert report.validation.reason
    assert sum(pair.judged for pair in read_pairs(folder(home))) == 200


def test_the_same_fill_again_asks_nothing_and_writes_the_same(home, embedder, lm_that, store):
    one, again, wider = (lm_that(store=store) for _ in range(3))
    first = fill("facts", lm=one, embedder=embedder, home=home, most=100, threads=3)
    content = (folder(home) / ANSWERS).read_bytes()
    second = fill("facts", lm=again, embedder=embedder, home=home, most=100)
    assert json.dumps(second.to_json()) == json.dumps(first.to_json() | {"before": first.stored})
    assert (folder(home) / ANSWERS).read_bytes() == content
    assert (len(asked_of(one)), asked_of(again)) == (100, [])
    fill("facts", lm=wider, embedder=embedder, home=home, most=125, complete=False)
    assert len(asked_of(wider)) <= 125 - 80  # of the 125 most similar pairs 80 were judged


def test_unreadable_and_failed_judgements_are_counted_and_not_stored(home, embedder, make_engine, make_lm):
    def before(n, asked):
        if n == 3:
            raise dspy.LMError("down")

    def write(asked):
        return "so so" if "Fact 1" in asked.prompt else answered(asked)

    lm = make_lm(make_engine(before=before, write=write))
    report = fill("facts", lm=lm, embedder=embedder, home=home, most=150, complete=False, threads=1)
    stored = read_pairs(folder(home))
    assert report.failed == 1
    assert report.unreadable > 0
    assert len(stored) == 150 - report.unreadable - report.failed
    assert not any(pair.passage == "p01" or pair.passage.startswith("p1") for pair in stored)

    def down(n, asked):
        raise dspy.LMError("down")

    with pytest.raises(TooManyFailuresError, match="judgements failed in 'answerability'"):
        fill(
            "facts",
            lm=make_lm(make_engine(before=down), outage_after=10_000),
            embedder=embedder,
            home=home,
            most=150,
        )
    assert read_pairs(folder(home)) == stored


def test_questions_of_a_passage_that_changed_take_no_part(changing, lm_that):
    build_collection(
        "facts", [Passage("p03", "Another fact, topic of 0.")], embedder=embedder_in(changing), home=changing
    )
    report = fill("facts", lm=lm_that(), embedder=embedder_in(changing), home=changing, threshold=0.35, complete=False)
    assert (report.questions, report.stale) == ((PASSAGES - 1) * WRITTEN, WRITTEN)
    stored = read_pairs(folder(changing))
    assert not {pair.question for pair in stored} & set(written(3))
    assert any(pair.passage == "p03" for pair in stored)


def test_where_nothing_is_to_fill_the_remedy_is_named(changing, lm_that):
    write_records(folder(changing), [record(passage(one), PARTIAL) for one in range(PASSAGES)])
    with pytest.raises(CollectionError, match="querywright questions build facts"):
        fill("facts", lm=lm_that(), embedder=embedder_in(changing), home=changing)
    with pytest.raises(CollectionError, match="there is no collection 'other'"):
        fill("other", lm=lm_that(), embedder=embedder_in(changing), home=changing)


@pytest.mark.parametrize(
    "settings",
    [
        {"cut": 0.0},
        {"cut": 1.5},
        {"most": 0},
        {"threshold": 2.0},
        {"percentile": 100},
        {"threshold": 0, "percentile": 9},
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_is_asked(home, embedder, lm_that, settings):
    lm = lm_that()
    with pytest.raises(InputError):
        fill("facts", lm=lm, embedder=embedder, home=home, **settings)
    assert asked_of(lm) == []


@pytest.fixture
def run(monkeypatch, home, embedder, lm_that, capsys):
    """The command, with the LM and the embedder of these tests."""
    monkeypatch.setattr("querywright.workspace._lm", lambda *rest: lm_that())
    monkeypatch.setattr("querywright.models.embedder.resolve_embedder", lambda name, *, store: embedder)

    def call(*options):
        status = run_command(["questions", "fill", "facts", "--home", str(home), *options])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return printed

    return call


def test_the_command_says_what_was_judged_and_what_the_completion_is_worth(run):
    told = run("--most", "700")
    text = " ".join(told.out.split())
    assert "facts: 120 questions, 30 passages" in text
    assert "judged 560 similar pairs of 3480" in text
    assert "140 drawn at random" in text
    assert re.search(r"completed \d+ pairs: rank \d", text)
    assert "base rate" in text
    now = re.search(r"stored (\d+) pairs in place of \d+", text)[1]
    told = run("--most", "40", "--no-complete")
    assert f"stored 40 pairs in place of {now}" in " ".join(told.out.split())
    assert "fewer pairs are stored than before" in " ".join(told.err.split())
