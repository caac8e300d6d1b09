from __future__ import annotations

import asyncio
import json
import threading

import pytest

from querywright.data.types import Passage
from querywright.programs import Rerank

QUESTION = "Which planet has the shortest day?"
TEXTS = {
    "a": "Mars has two moons.",
    "b": "A day on Jupiter takes ten hours, the shortest of all.",
    "c": "Saturn has rings.",
    "d": "Days on Saturn are short too.",
    "e": "Tea is grown in Assam.",
    "f": "A day on Venus is longer than its year.",
}
GRADES = {"a": "irrelevant", "b": "relevant", "c": "irrelevant", "d": "related", "e": "irrelevant", "f": "related"}


class FixedReranker:
    """Scores by a table, and remembers what it was asked and where."""

    id = "fixed"

    def __init__(self, scores):
        self.scores = scores
        self.asked = []
        self.threads = []

    def score(self, query, passages):
        self.asked.append((query, [passage.id for passage in passages]))
        self.threads.append(threading.current_thread())
        return [self.scores[passage.id] for passage in passages]


@pytest.fixture
def searched():
    return []


@pytest.fixture
def planets(searched):
    """A retriever that finds all texts in their order."""

    def search(query, k):
        searched.append((query, k))
        return [Passage(key, text, "Sky" if key == "b" else "") for key, text in TEXTS.items()][:k]

    return search


def grading(grades):
    """An LM that grades a text by a table; a grade that is no grade is sent as it is."""

    def answer(asked):
        (key,) = [key for key, text in TEXTS.items() if text in asked.text]
        return json.dumps({"passage_is": grades[key]})

    return answer


@pytest.fixture
def run(planets, scripted, asking):
    def run(grades=GRADES, *, reranker=None, **knobs):
        lm = scripted(grading(grades))
        with asking(lm):
            out = Rerank(planets, reranker=reranker, **knobs)(question=QUESTION)
        return "".join(p.id for p in out.passages), out, lm.engine.asked

    return run


def test_the_pool_is_sorted_by_grade_and_equals_stay_in_their_order(run, searched):
    found, out, asked = run(max_passages=5)

    assert found == "bdfac"
    assert searched == [(QUESTION, 20)]
    assert [(q.text, q.role) for q in out.queries] == [(QUESTION, "original")]
    assert out.fallbacks == []
    assert len(asked) == 6
    assert [(step.kind, step.stage) for step in out.steps] == [("search", 1)] + [("lm", 2)] * 6


def test_each_prompt_holds_the_question_and_one_passage(run):
    _, _, asked = run()

    assert all(f"question: {QUESTION}" in one.text for one in asked)
    shown = sorted(one.text.partition("passage: ")[2].partition("\n")[0] for one in asked)
    assert shown == sorted(f"[1] {'Sky: ' if key == 'b' else ''}{text}" for key, text in TEXTS.items())
    assert all(one.properties["passage_is"]["enum"] == ["relevant", "related", "irrelevant"] for one in asked)


def test_only_the_pool_is_graded_and_the_best_are_kept(run, searched):
    found, _, asked = run(pool=4, max_passages=2)

    assert found == "bd"
    assert searched == [(QUESTION, 4)]
    assert len(asked) == 4


def test_a_grade_that_cannot_be_read_is_the_middle_one(run):
    found, out, asked = run({**GRADES, "a": "splendid", "b": "irrelevant"}, max_passages=6)

    assert found == "adfbce"
    assert out.fallbacks == ["grade"]
    assert len(asked) == 7  # one of them was asked for again
    assert [step.made for step in out.steps[1:]].count(None) == 1


def test_a_cross_encoder_takes_the_place_of_the_lm(run):
    reranker = FixedReranker({"a": 0.5, "b": -1.25, "c": 7.0, "d": 0.5, "e": -9.0, "f": 0.25})
    found, out, asked = run(reranker=reranker, max_passages=4)

    assert found == "cadf"
    assert reranker.asked == [(QUESTION, list("abcdef"))]
    assert asked == []
    assert out.fallbacks == []
    record = out.steps[1]
    assert (record.kind, record.name, record.stage, record.given) == ("rerank", "passages", 2, {"question": QUESTION})
    assert record.made == reranker.scores


def test_a_passage_that_is_found_twice_is_judged_once(scripted, asking):
    twins = [Passage("a", TEXTS["a"]), Passage("a2", "  mars has two MOONS."), Passage("b", TEXTS["b"])]
    reranker = FixedReranker({"a": 0, "b": 1})
    with asking(scripted()):
        out = Rerank(lambda query, k: twins, reranker=reranker)(question=QUESTION)

    assert [p.id for p in out.passages] == ["b", "a"]


def test_in_an_event_loop_the_same_is_found_and_the_cross_encoder_runs_beside_it(run, planets, scripted, asking):
    scores = {key: float(ord(key)) for key in TEXTS}

    async def later(reranker):
        return await Rerank(planets, reranker=reranker).acall(question=QUESTION)

    for reranker in (None, FixedReranker(scores)):
        _, expected, _ = run(reranker=reranker)
        with asking(scripted(grading(GRADES))):
            out = asyncio.run(later(reranker))
        assert (out.passages, out.steps) == (expected.passages, expected.steps)
    assert reranker.threads[0] is threading.main_thread()
    assert reranker.threads[1] is not threading.main_thread()
