from __future__ import annotations

import json

import pytest

from querywright.data.types import Passage
from querywright.programs import QARAG

QUESTION = "What must a stability study of a drug cover?"
ANSWER = "It must cover storage at 25 and 40 degrees for twelve months."
TRACKS = {QUESTION: "abcdef", ANSWER: "cgahij"}


class FixedReranker:
    """Scores by a table and remembers what it was asked."""

    id = "fixed"

    def __init__(self, scores):
        self.scores = scores
        self.asked = []

    def score(self, query, passages):
        self.asked.append((query, "".join(passage.id for passage in passages)))
        return [self.scores[passage.id] for passage in passages]


REVERSED = {key: float(place) for place, key in enumerate("abcdefghij")}
"""The later in the alphabet, the better: the question's track is fedcba, the answer's jihgca."""


@pytest.fixture
def run(scripted, asking):
    """Runs QA-RAG over two fixed tracks; gives ids, the result, what the LM was asked and what was searched."""

    def run(answer=ANSWER, *, tracks=TRACKS, grades=None, reranker=None, **knobs):
        searched = []

        def search(query, k):
            searched.append((query, k))
            return [Passage(key, f"Text {key}.") for key in tracks[query]][:k]

        def answers(asked):
            if "answer" in asked.properties:
                return answer if answer.startswith("{") else json.dumps({"answer": answer})
            (key,) = [key for key in "abcdefghij" if f"Text {key}." in asked.text]
            return json.dumps({"passage_is": (grades or {}).get(key, "irrelevant")})

        lm = scripted(answers)
        with asking(lm):
            out = QARAG(search, reranker=reranker, **knobs)(question=QUESTION)
        return "".join(p.id for p in out.passages), out, lm.engine.asked, searched

    return run


def test_the_question_and_a_hypothetical_answer_are_searched(run):
    _, out, asked, searched = run()

    assert searched == [(QUESTION, 12), (ANSWER, 12)]
    assert [(q.text, q.role) for q in out.queries] == [(QUESTION, "original"), (ANSWER, "hypothetical_answer")]
    assert out.fallbacks == []
    assert f"question: {QUESTION}" in asked[0].text
    assert list(asked[0].properties) == ["answer"]


def test_the_tracks_go_in_one_search(retriever, scripted, asking):
    with asking(scripted({"answer": ANSWER})):
        QARAG(retriever)(question=QUESTION)

    assert retriever.searches == [((QUESTION, ANSWER), 12)]


def test_each_track_is_reranked_for_the_question_and_gives_half(run):
    reranker = FixedReranker(REVERSED)
    found, out, asked, _ = run(reranker=reranker)

    # f e d from the question's track, j i h from the answer's, in turn.
    assert found == "fjeidh"
    # What both found is judged once; the hypothetical answer has no say.
    assert reranker.asked == [(QUESTION, "abcdefghij")]
    assert len(asked) == 1
    assert [(step.kind, step.stage) for step in out.steps] == [("lm", 1), ("search", 2), ("rerank", 3)]


def test_without_a_cross_encoder_the_lm_grades_both_tracks_side_by_side(run):
    found, out, asked, _ = run(grades={"c": "relevant", "e": "relevant", "h": "related"})

    # Question's track: c e a b d f; the answer's: c h g a i j; c and a are in both.
    assert found == "cehagb"
    grading = asked[1:]
    assert len(grading) == 10
    assert all(QUESTION in one.text and ANSWER not in one.text for one in grading)
    assert {step.stage for step in out.steps if step.name == "grade_passage"} == {3}


def test_a_passage_of_both_tracks_frees_a_place_for_the_next_best(run):
    found, _, _, _ = run(rerank=False)

    # Ranks of both: a c, b g, c a, d h: c and a are there already, so d and h come in.
    assert found == "acbgdh"


def test_what_a_short_track_leaves_over_goes_to_the_other(run):
    found, _, _, _ = run(tracks={QUESTION: "abcdef", ANSWER: "g"}, rerank=False)
    assert found == "agbcde"

    found, _, _, _ = run(tracks={QUESTION: "", ANSWER: "cgahij"}, rerank=False)
    assert found == "cgahij"


def test_an_odd_budget_gives_the_question_one_more(run):
    assert run(tracks={QUESTION: "abc", ANSWER: "def"}, rerank=False, max_passages=3)[0] == "adb"


def test_top_k_is_the_depth_of_each_track(run):
    found, _, asked, searched = run(top_k=2, grades={"b": "relevant"})

    assert searched == [(QUESTION, 2), (ANSWER, 2)]
    assert found == "bcag"
    assert len(asked) == 1 + 4


def test_the_answer_alone_is_searched_and_not_reranked(run):
    reranker = FixedReranker(REVERSED)
    found, out, asked, searched = run(track="answer", reranker=reranker, max_passages=4)

    assert found == "cgah"
    assert searched == [(ANSWER, 12)]
    assert [q.role for q in out.queries] == ["hypothetical_answer"]
    assert reranker.asked == []
    assert len(asked) == 1


@pytest.mark.parametrize("answer", ['{"answer": ""}', '{"thoughts": "many"}', "none"])
@pytest.mark.parametrize("track", ["both", "answer"])
def test_without_an_answer_the_question_has_all_places(run, answer, track):
    found, out, _, searched = run(answer, track=track, max_passages=3, grades={"e": "relevant"})

    assert found == ("eab" if track == "both" else "abc")
    assert searched == [(QUESTION, 12)]
    assert [q.role for q in out.queries] == ["original"]
    assert out.fallbacks == ["answer"]


def test_every_step_that_fell_back_is_named(run):
    _, out, _, _ = run('{"answer": ""}', grades={"a": "splendid"})

    assert out.fallbacks == ["answer", "grade"]
