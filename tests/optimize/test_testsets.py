"""Test questions for an index of questions: which are asked for, which are left, and what is said of them."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from querywright.data import read_questions
from querywright.data.types import Label, Passage
from querywright.errors import CollectionError, InputError
from querywright.models.embedder import Embedder
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.testsets import (
    make_testset,
    write_question_set,
)
from querywright.retrieval.generated_questions import (
    COMPLETE,
    NONE,
    PARTIAL,
    PassageRecord,
    WrittenQuestion,
    publish_questions,
    question_id,
)
from querywright.retrieval.index import build_collection

PASSAGES = [Passage(f"p{n}", f"Fact of {n}.") for n in range(6)]


class HashModel:
    def encode(self, texts, **_):
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) for text in texts]
        return np.array([np.random.default_rng(seed).normal(size=8) for seed in seeds], dtype=np.float32)


def record(passage, *questions):
    return PassageRecord(passage.id, passage.text_digest(), "s", tuple(WrittenQuestion(*pair) for pair in questions))


def records():
    """Passages 0 to 3 have two whole questions each, 4 none that is kept, 5 only a partial one."""
    whole = [
        record(p, (f"What is said of {n}?", COMPLETE), (f"What more of {n}?", COMPLETE), (f"Odd of {n}?", NONE))
        for n, p in enumerate(PASSAGES[:4])
    ]
    return [*whole, record(PASSAGES[4], ("Nothing of 4?", NONE)), record(PASSAGES[5], ("Part of 5?", PARTIAL))]


@pytest.fixture
def publish(tmp_path):
    """Publishes passages and the records of their questions; gives the working folder."""

    def make(passages=PASSAGES, given=None):
        embedder = Embedder("hash:8", HashModel, dimension=8)
        build_collection("facts", passages, embedder=embedder, home=tmp_path, prune=True)
        publish_questions("facts", records() if given is None else given, embedder=embedder, home=tmp_path)
        return tmp_path

    return make


def reworded(asked):
    """The question of the prompt with its first word changed."""
    last = asked.prompt.rpartition("question: ")[2]
    return json.dumps({"rephrased_question": f"Tell me, w{last[1:]}"})


def about(asked):
    """A new question about the passage; the judge says yes or complete but to that of passage 2."""
    n = asked.number
    if "new_question" in asked.properties:
        return json.dumps({"new_question": f"Why is it a fact of {n}?"})
    labels = asked.properties["label"]["enum"]
    n = int(re.findall(r"Fact of (\d)", asked.prompt)[-1])
    whole = "complete" if "complete" in labels else "yes"
    other = "partial" if "partial" in labels else "no"
    values = {"label": other if n == 2 else whole}
    return json.dumps({name: values.get(name, "r") for name in asked.properties})


@pytest.fixture
def answering(make_lm, make_engine):
    return lambda write, **limits: make_lm(make_engine(write=write), **limits)


def test_every_whole_question_is_reworded_with_its_passage_as_evidence(publish, answering):
    made = make_testset("rephrase", "facts", lm=answering(reworded), home=publish())
    assert (made.available, made.asked, made.wanted, made.dropped, made.skipped) == (8, 8, None, {}, {})
    by_passage = {(next(iter(q.evidence)), q.question) for q in made.questions}
    assert by_passage == {(f"p{n}", f"Tell me, what {rest} of {n}?") for n in range(4) for rest in ("is said", "more")}
    assert all(set(q.evidence.values()) == {Label.ENTAILED} for q in made.questions)
    assert [q.id for q in made.questions] == sorted(q.id for q in made.questions)
    for question in made.questions:
        (passage,) = question.evidence
        parent = question.question.removeprefix("Tell me, w")
        assert made.parents[question.id] == question_id(passage, f"W{parent}")


def test_what_is_dropped_is_made_up_for_until_the_number_is_reached(publish, answering):
    def half(asked):
        said = "said" in asked.prompt.rpartition("question: ")[2]
        return reworded(asked) if said else '{"rephrased_question": "none"}'

    home = publish()
    made = make_testset("rephrase", "facts", lm=answering(half), number=3, home=home)
    assert len(made.questions) == 3
    assert made.asked == 3 + made.dropped["empty"]
    short = make_testset("rephrase", "facts", lm=answering(half), number=7, home=home)
    assert (len(short.questions), short.asked, short.wanted) == (4, 8, 7)


def test_the_same_seed_gives_the_same_set_with_any_threads_and_a_smaller_set_is_inside(publish, answering):
    home = publish()

    def made(number=4, **options):
        return make_testset("rephrase", "facts", lm=answering(reworded), number=number, home=home, **options)

    assert made(threads=1) == made(threads=5)
    assert set(made(2).parents.items()) < set(made().parents.items())
    assert len({tuple(made(seed=seed).parents) for seed in range(6)}) > 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("What is it?", "no_words"),
        ("How can the roots of roses be kept from freezing?", "copied"),
    ],
)
def test_what_nobody_could_be_asked_and_what_is_copied_is_dropped_unjudged(publish, answering, text, why):
    home, judge = publish(), answering(about)
    reply = answering(lambda asked: json.dumps(dict.fromkeys(asked.properties, text)))
    made = make_testset("rephrase", "facts", lm=reply, home=home)
    assert (made.questions, made.dropped) == ((), {why: 8})
    made = make_testset("out-of-distribution", "facts", lm=reply, judge_lm=judge, home=home)
    assert (made.questions, made.dropped) == ((), {why: 6})
    assert judge.engine.inner.asked == []


def test_an_unreadable_answer_is_counted_and_a_failure_is_limited(publish, answering, make_lm, make_engine):
    home = publish()

    def mute(asked):
        return "hm" if asked.number == 1 else reworded(asked)

    made = make_testset("rephrase", "facts", lm=answering(mute), home=home)
    assert made.dropped == {"unreadable": 2}
    assert len(made.questions) == 6

    def broken(n, asked):
        if asked.number == 1:
            raise ValueError("broken")

    failing = make_lm(make_engine(write=reworded, before=broken))
    with pytest.raises(TooManyFailuresError, match="2 of 8 questions failed in 'rephrase'"):
        make_testset("rephrase", "facts", lm=failing, home=home)
    assert make_testset("rephrase", "facts", lm=failing, home=home, max_failures=0.5).dropped == {"failed": 2}


def test_questions_of_passages_that_changed_or_went_are_skipped(publish, answering):
    changed = [replace(PASSAGES[0], text="Another fact of 0."), *PASSAGES[2:]]
    home = publish(changed)
    made = make_testset("rephrase", "facts", lm=answering(reworded), home=home)
    assert made.skipped == {"stale": 4}
    assert {next(iter(q.evidence)) for q in made.questions} == {"p2", "p3"}
    new = make_testset("out-of-distribution", "facts", lm=answering(about), home=home)
    assert new.skipped == {"stale": 1}
    assert {next(iter(q.evidence)) for q in new.questions} == {"p3", "p4", "p5"}


def test_a_passage_is_asked_of_once_and_its_question_kept_where_the_judge_agrees(publish, answering):
    home, writer, judge = publish(), answering(about), answering(about)
    made = make_testset("out-of-distribution", "facts", lm=writer, judge_lm=judge, home=home)
    assert (made.available, made.asked, made.wanted) == (6, 6, None)
    assert {(next(iter(q.evidence)), q.question) for q in made.questions} == {
        (f"p{n}", f"Why is it a fact of {n}?") for n in (0, 1, 3, 4, 5)
    }
    assert made.dropped == {"unanswerable": 1}
    prompts = [asked.prompt for asked in writer.engine.inner.asked]
    assert len(prompts) == 6
    (of_0,) = [prompt for prompt in prompts if "Fact of 0." in prompt]
    assert "- What is said of 0?\n- What more of 0?" in of_0 or "- What more of 0?\n- What is said of 0?" in of_0
    assert "Odd of 0?" not in of_0
    assert len(judge.engine.inner.asked) == 6


def test_a_stored_question_is_not_asked_again_and_not_judged(publish, answering):
    def parrot(asked):
        if "new_question" in asked.properties:
            return json.dumps({"new_question": f"what is said of {asked.number}" if asked.number < 4 else "hm?"})
        return about(asked)

    judge = answering(about)
    made = make_testset("out-of-distribution", "facts", lm=answering(parrot), judge_lm=judge, home=publish())
    assert made.dropped == {"indexed": 4, "repeated": 1}
    assert [q.question for q in made.questions] == ["hm?"]
    assert len(judge.engine.inner.asked) == 2


def test_where_nothing_can_be_asked_the_command_that_writes_questions_is_named(tmp_path, publish, answering):
    lm = answering(reworded)
    publish(given=records()[5:])
    with pytest.raises(CollectionError, match=r"no question in 'facts' can be used: 0 of 1 questions are stale"):
        make_testset("rephrase", "facts", lm=lm, home=tmp_path)
    publish([replace(PASSAGES[5], text="New of 5.")], given=records()[5:])
    with pytest.raises(CollectionError, match=r"no passage in .facts. can be used: 1 of 1 questions are stale"):
        make_testset("out-of-distribution", "facts", lm=lm, home=tmp_path)
    with pytest.raises(InputError, match="number must be 1 or more, but got 0"):
        make_testset("rephrase", "facts", lm=lm, number=0, home=tmp_path)
    assert lm.engine.inner.asked == []


def test_the_file_is_read_as_questions_and_the_card_says_how_it_came(publish, answering, tmp_path):
    home = publish()
    made = make_testset("rephrase", "facts", lm=answering(reworded), number=3, seed=5, home=home)
    card = write_question_set(tmp_path / "sets" / "a.jsonl", replace(made, index={"writer": "scripted/model"}))
    data = (tmp_path / "sets" / "a.jsonl").read_bytes()
    assert read_questions(tmp_path / "sets" / "a.jsonl") == list(made.questions)
    assert [json.loads(line)["parent"] for line in data.splitlines()] == [made.parents[q.id] for q in made.questions]
    assert card == json.loads((tmp_path / "sets" / "a.card.json").read_text())
    assert card["sha256"] == hashlib.sha256(data).hexdigest()
    assert (card["kind"], card["seed"], card["kept"], card["lm"]) == ("rephrase", 5, 3, "scripted/model")
    assert card["cautions"] == [
        "circular: scripted/model wrote both the index and this set, which favors the index; use a different LM"
    ]
    with pytest.raises(InputError, match=r"must end in \.jsonl, but got 'a\.csv'"):
        write_question_set(tmp_path / "a.csv", made)
    with pytest.raises(InputError, match="all 3 requested questions were dropped"):
        write_question_set(tmp_path / "b.jsonl", replace(made, questions=()))
    assert not (tmp_path / "b.jsonl").exists()


FACTS = [Passage(f"f{n}", f"The lake of number {n} is {n}00 metres deep.", f"Lake {n}") for n in range(7)]


@pytest.fixture
def asked_of(tmp_path, answering):
    """Makes a set of FACTS, from what is written of a passage or two and what the reader says when shown some."""

    def make(written, read, *, number=7, two=0.0, seed=0):
        def write(asked):
            shown = re.findall(r"Lake (\d): The", asked.prompt)  # but the examples, which are of no lake
            if "question" in asked.properties:
                return json.dumps(dict(zip(("question", "answer"), written(*shown), strict=True)))
            return json.dumps({"answer": read(asked.prompt.rpartition("question: ")[2], *shown)})

        embedder = Embedder("hash:8", HashModel, dimension=8)
        build_collection("facts", FACTS, embedder=embedder, home=tmp_path)
        lm = answering(write)
        made = make_testset(
            "make", "facts", lm=lm, number=number, two_passage=two, seed=seed, home=tmp_path, embedder=embedder
        )
        return made, lm

    return make


def depth(number):
    return f"How deep is the lake of number {number}?", f"{number}00 metres"


def test_a_made_question_is_kept_where_its_passage_gives_the_answer_and_nothing_else_does(asked_of):
    def written(n):
        return {
            "1": ("How deep is the lake of number 1?", "9 fathoms"),
            "2": ("Is the lake of number 2 that is 200 metres deep a lake?", "200 metres"),
            "5": ("", "x"),
            "6": ("What does the passage say of the lake?", "600 metres"),
        }.get(n, depth(n))

    def read(question, *shown):
        if not shown:
            return "it is 300 metres" if "number 3" in question else "unknown"
        return "no idea" if shown == ("4",) else f"{shown[0]}00 metres"

    made, lm = asked_of(written, read)
    assert [(q.answer, dict(q.evidence), q.jointly) for q in made.questions] == [
        ("000 metres", {"f0": Label.ENTAILED}, False)
    ]
    assert made.dropped == {
        "answer_not_found": 1, "answer_told": 1, "closed_book": 1, "unanswerable": 1, "empty": 1, "points_at_text": 1,
    }  # fmt: skip
    assert len(lm.engine.inner.asked) == 7 + 3 + 2, "no reader is asked where the text says it"
    assert (made.lm, made.judge) == ("scripted/model", "scripted/model")
    assert "synthetic: scripted/model wrote the questions and answers" in made.cautions[0]


def test_of_two_passages_neither_alone_may_give_the_answer(asked_of):
    def written(first, second):
        return f"How deep is the other lake beside that of number {first}?", f"{second}00 metres"

    def read(question, *shown):
        if len(shown) == 2:
            return f"{shown[1]}00 metres"
        lazy = shown and re.search(r"number ([0-3])", question)
        return f"{shown[0]}00 metres" if lazy else "unknown"

    made, _ = asked_of(written, read, number=4, two=1.0)
    assert made.questions
    for question in made.questions:
        first, second = question.evidence
        assert question.jointly
        assert set(question.evidence.values()) == {Label.USEFUL}
        assert (question.answer, question.question[-2]) == (f"{second[1]}00 metres", first[1])
        assert first[1] in "456"
    assert made.dropped["one_is_enough"] >= 1
    assert len({frozenset(q.evidence) for q in made.questions}) == len(made.questions)


def test_a_made_set_mixes_both_and_its_card_says_that_it_is_synthetic(asked_of, tmp_path):
    def written(*shown):
        return depth(shown[0]) if len(shown) == 1 else (f"What lies by lake {shown[0]}?", f"{shown[1]}00 metres")

    def read(question, *shown):
        number = re.search(r"\d", question)[0]
        if "lies" in question:
            return f"{shown[1]}00 metres" if len(shown) == 2 else "?"
        return f"{number}00 metres" if shown else "?"

    made, _ = asked_of(written, read, number=4, two=0.5)
    assert made == asked_of(written, read, number=4, two=0.5)[0]
    card = write_question_set(tmp_path / "q.jsonl", made)
    assert (card["kept"], card["jointly"], card["synthetic"]) == (4, 2, True)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", card["date"])
    assert re.fullmatch(r"[0-9a-f]{16}", card["prompts"])
    assert read_questions(tmp_path / "q.jsonl") == list(made.questions)
    with pytest.raises(InputError, match=r"two_passage must be between 0 and 1, but got 2"):
        asked_of(written, read, two=2)
