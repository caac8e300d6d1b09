from __future__ import annotations

import asyncio

import dspy
import numpy as np
import pytest

from querywright.data import Question
from querywright.errors import TechniqueError
from querywright.optimize.labels import pool_passages
from querywright.programs import RAG, make_program, make_reader
from querywright.programs.knn_demos import NearestDemos

QUESTIONS = ("red apples", "green apples", "blue sea", "deep blue sea")


def pool(predictor, **outputs):
    predictor.demos = [dspy.Example(question=text, **outputs) for text in QUESTIONS]
    return predictor


@pytest.fixture
def paraphrasing(retriever):
    program = RAG(make_program("multi_query", retriever).technique, None, nearest=2)
    pool(program.technique.paraphrase, queries=["x"])
    program._nearest = NearestDemos()
    return program


def shown(lm, place=-1):
    return [text.partition("\n")[0] for role, text in lm.engine.asked[place].messages[:-1] if role == "user"]


def test_without_an_embedder_they_are_nearest_by_words():
    predictor, nearest = pool(dspy.Predict("question -> answer"), answer="x"), NearestDemos()
    for asked, count, expected in (
        ("the blue sea", 2, ["blue sea", "deep blue sea"]),
        ("nothing alike", 3, list(QUESTIONS[:3])),  # of equals, the first
        ("x", 4, list(QUESTIONS)),
    ):
        assert [demo["question"] for demo in nearest.choose(predictor, {"question": asked}, count)] == expected
    other = dspy.Predict("claim -> answer")  # its first input is compared, where there is no question
    other.demos = [dspy.Example(claim=text, answer="x") for text in QUESTIONS]
    assert [demo["claim"] for demo in nearest.choose(other, {"claim": "green"}, 1)] == ["green apples"]


def test_with_an_embedder_they_are_nearest_by_their_vectors_and_embedded_once():
    embedded = []

    def embed(texts):
        embedded.extend(texts)
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)

    predictor, nearest = pool(dspy.Predict("question -> answer"), answer="x"), NearestDemos(embed)
    for asked, expected in (("x" * 13, "deep blue sea"), ("x" * 8, "blue sea")):
        assert [demo["question"] for demo in nearest.choose(predictor, {"question": asked}, 1)] == [expected]
    assert sorted(embedded) == sorted([*QUESTIONS, "x" * 13, "x" * 8])


def test_only_the_nearest_stand_in_the_prompt_also_in_an_event_loop_and_the_program_stays(
    paraphrasing, scripted, asking
):
    lm = scripted()
    with asking(lm):
        paraphrasing(question="a green apple, red apples")
        asyncio.run(paraphrasing.acall(question="a green apple, red apples"))
    assert shown(lm, 0) == shown(lm, 1) == ["question: red apples", "question: green apples"]
    assert [demo["question"] for demo in paraphrasing.technique.paraphrase.demos] == list(QUESTIONS)
    paraphrasing.showing.update({"nearest": 0})
    with asking(lm):
        paraphrasing(question="red")
    assert len(shown(lm)) == 4  # a program shows all by default


def test_a_reader_is_shown_the_nearest_too(retriever, scripted, asking):
    program = RAG(make_program("plain", retriever).technique, make_reader("short_answer"), nearest=1)
    pool(program.reader.predict, passages="p", answer="x", sub_answers=[])
    program._nearest, lm = NearestDemos(), scripted()
    with asking(lm):
        program(question="the deep sea")
    ((_, one), *_) = lm.engine.asked[-1].messages
    assert "deep blue sea" in one
    with pytest.raises(TechniqueError, match="nearest must be 0"):
        RAG(program.technique, None, nearest=-1)


def test_what_is_pooled_for_labels_is_searched_as_the_program_searches(paraphrasing, scripted):
    lm = scripted()
    question = Question("q", "a green apple, red apples", history=("I ate blue fruit.",))
    pooled, failed = pool_passages({"arm": paraphrasing}, [question], lm=lm, depth=5)
    assert (len(pooled["q"]), failed) == (5, {})
    assert "I ate blue fruit." in str(lm.engine.asked[0].messages)
    assert len(shown(lm)) == 2
