"""Programs and metrics under DSPy alone: saved, pickled, evaluated and compiled by it."""

from __future__ import annotations

import copy
import pickle

import cloudpickle
import dspy
import pytest

from querywright import ChromaRetriever, build_collection, resolve_embedder
from querywright.data.types import Label, Passage, Question
from querywright.errors import InputError, TechniqueError
from querywright.metrics import metric_named, scorable
from querywright.metrics.feedback import feedback_metric
from querywright.programs import HCQR, RAG, make_program, make_reader

FOUND = metric_named("decision_useful")
PASSAGES = [{"id": "a", "text": "Pads wear first."}, {"id": "b", "text": "A rotor lasts."}]


def search(query, k):
    return PASSAGES[:k]


@pytest.fixture
def examples():
    """Six questions, of which the last two have no labelled evidence."""
    asked = [Question(f"q{n}", f"What of {n}?", evidence={"a": Label.ENTAILED} if n < 4 else {}) for n in range(6)]
    return [question.to_example() for question in asked]


def test_an_unlabelled_question_is_left_out_of_dspys_mean_and_said(examples):
    program = make_program("plain", search, reader=None)
    with pytest.warns(UserWarning, match=r"2 of 6 examples cannot be scored.*labelled evidence"):
        kept = scorable("decision_useful", examples)
    assert [example.id for example in kept] == ["q0", "q1", "q2", "q3"]
    assert dspy.Evaluate(devset=kept, metric=FOUND, display_progress=False)(program).score == 100.0
    with pytest.raises(InputError, match="none of the 2 examples can be scored: recall@5 needs labelled evidence"):
        scorable("recall@5", examples[4:])
    with pytest.raises(InputError, match="accuracy needs a right answer"):
        scorable("accuracy", examples)


def test_a_technique_alone_has_feedback(examples):
    told = feedback_metric(FOUND)(examples[0], make_program("plain", search, reader=None).technique(question="What?"))
    assert told.score == 1.0
    assert "decides the question" in told.feedback


def program_with_demos(retriever=search):
    program = RAG(HCQR(retriever, max_passages=1), make_reader("short_answer"), nearest=1)
    program.reader.predict.demos = [dspy.Example(question=f"q{n}", answer=f"a{n}") for n in range(3)]
    return program


def test_nearest_demonstrations_are_saved_by_dspy(tmp_path):
    program_with_demos().save(tmp_path / "program.json")
    other = RAG(HCQR(search), make_reader("short_answer"))
    other.load(tmp_path / "program.json")
    assert (other.nearest, other.technique.max_passages, len(other.reader.predict.demos)) == (1, 1, 3)
    assert other.reset_copy().nearest == 1


def test_whole_programs_are_copied_pickled_and_saved(tmp_path):
    program = program_with_demos()
    program.save(tmp_path / "program", save_program=True)
    for other in (
        copy.deepcopy(program),
        program.deepcopy(),
        program.reset_copy(),
        pickle.loads(pickle.dumps(program)),
        cloudpickle.loads(cloudpickle.dumps(program)),
        dspy.load(tmp_path / "program", allow_pickle=True),
    ):
        assert other.nearest == 1
        assert other.technique.knobs == program.technique.knobs
        assert [hit.passage.id for hit in other.technique.searched.search(["x"], 1)[0]] == ["a"]


def test_a_collection_is_opened_anew_by_a_pickle(tmp_path):
    embedder = resolve_embedder()
    build_collection("pads", [Passage(one["id"], one["text"]) for one in PASSAGES], embedder=embedder, home=tmp_path)
    retriever = ChromaRetriever("pads", embedder=embedder, home=tmp_path)
    other = pickle.loads(pickle.dumps(make_program("plain", retriever, reader=None)))
    assert other.technique.searched.fingerprint == retriever.fingerprint


def test_an_lm_of_its_own_is_never_pickled():
    technique = make_program("rrr", search).technique
    technique.own_lm = dspy.LM("openai/x", api_key="secret")
    with pytest.raises(TechniqueError, match="own_lm to None"):
        cloudpickle.dumps(technique)
