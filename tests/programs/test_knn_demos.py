from __future__ import annotations

import asyncio
import threading

import dspy
import numpy as np
import pytest

from querywright.errors import TechniqueError
from querywright.programs import RAG, make_program, make_reader
from querywright.programs.knn_demos import NearestDemos

QUESTIONS = ("red apples", "green apples", "blue sea", "deep blue sea")


def with_pool(program, predictor, **outputs):
    predictor.demos = [dspy.Example(question=text, **outputs) for text in QUESTIONS]
    return program


@pytest.fixture
def paraphrasing(retriever):
    program = make_program("multi_query", retriever)
    return with_pool(RAG(program.technique, None, nearest=2), program.technique.paraphrase, queries=["x"])


def shown(lm, place=-1):
    return [text for role, text in lm.engine.asked[place].messages[:-1] if role == "user"]


def demos_of(predictor):
    return [demo["question"] for demo in predictor.demos]


def test_without_an_embedder_they_are_nearest_by_words():
    predictor = dspy.Predict("question -> answer")
    with_pool(None, predictor, answer="x")
    nearest = NearestDemos()
    chosen = nearest.choose(predictor, {"question": "the blue sea"}, 2)
    assert [demo["question"] for demo in chosen] == ["blue sea", "deep blue sea"]
    chosen = nearest.choose(predictor, {"question": "nothing alike"}, 3)
    assert [demo["question"] for demo in chosen] == list(QUESTIONS[:3])  # of equals, the first
    assert nearest.choose(predictor, {"question": "x"}, 4) == predictor.demos


def test_with_an_embedder_they_are_nearest_by_their_vectors_and_embedded_once():
    embedded = []

    def embed(texts):
        embedded.extend(texts)
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)

    predictor = dspy.Predict("question -> answer")
    with_pool(None, predictor, answer="x")
    nearest = NearestDemos(embed)
    chosen = nearest.choose(predictor, {"question": "x" * 13}, 1)
    assert [demo["question"] for demo in chosen] == ["deep blue sea"]
    nearest.choose(predictor, {"question": "x" * 8}, 1)
    assert sorted(embedded) == sorted([*QUESTIONS, "x" * 13, "x" * 8])


def test_an_input_of_another_name_is_compared_where_there_is_no_question():
    predictor = dspy.Predict("claim -> answer")
    predictor.demos = [dspy.Example(claim=text, answer="x") for text in QUESTIONS]
    (demo,) = NearestDemos().choose(predictor, {"claim": "green"}, 1)
    assert demo["claim"] == "green apples"


def test_only_the_nearest_stand_in_the_prompt_and_the_program_stays(paraphrasing, scripted, asking):
    paraphrasing._nearest = NearestDemos()
    before, lm = list(demos_of(paraphrasing.technique.paraphrase)), scripted()
    with asking(lm):
        paraphrasing(question="a green apple, red apples")
    assert [text.partition("\n")[0] for text in shown(lm)] == ["question: red apples", "question: green apples"]
    assert demos_of(paraphrasing.technique.paraphrase) == before


def test_it_is_the_same_in_an_event_loop(paraphrasing, scripted, asking):
    lm = scripted()
    with asking(lm):
        paraphrasing(question="deep water")
        asyncio.run(paraphrasing.acall(question="deep water"))
    assert len(shown(lm)) == 2
    assert shown(lm, 0) == shown(lm, 1)


def test_a_reader_is_shown_the_nearest_too(retriever, scripted, asking):
    program = make_program("plain", retriever, reader="short_answer")
    other = RAG(program.technique, make_reader("short_answer"), nearest=1)
    with_pool(other, other.reader.predict, passages="p", answer="x", sub_answers=[])
    other._nearest, lm = NearestDemos(), scripted()
    with asking(lm):
        other(question="the deep sea")
    (one,) = shown(lm)
    assert "deep blue sea" in one


def test_each_of_many_threads_gets_its_own(paraphrasing, scripted, asking):
    paraphrasing._nearest, lm = NearestDemos(), scripted()
    paraphrasing.showing.update({"nearest": 1})

    def ask(text):
        with asking(lm):
            paraphrasing(question=text)

    threads = [threading.Thread(target=ask, args=(f"{text}?",)) for text in QUESTIONS * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pairs = [[text for role, text in asked.messages if role == "user"] for asked in lm.engine.asked]
    assert len(pairs) == 20
    for demo, asked in pairs:
        assert demo.splitlines()[0] == asked.splitlines()[0].rstrip("?")


def test_a_program_shows_all_by_default_also_inside_one_that_does_not(paraphrasing, scripted, asking):
    lm = scripted()
    paraphrasing.showing.update({"nearest": 0})
    with asking(lm):
        paraphrasing(question="red")
    assert len(shown(lm)) == 4


def test_a_number_below_none_is_refused(retriever):
    with pytest.raises(TechniqueError, match="nearest must be 0"):
        RAG(make_program("plain", retriever).technique, None, nearest=-1)
