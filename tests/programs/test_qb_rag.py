from __future__ import annotations

import asyncio

import pytest

from querywright.errors import InputError, TechniqueError
from querywright.programs import QBRAG, HyDE, PlainRetrieval
from querywright.retrieval.types import Matching

QUESTION = "Which drug is the right one?"


@pytest.fixture
def index(indexes):
    indexes["full"].searches = []
    return indexes["full"]


def test_it_gives_what_the_index_matches_with_its_knobs_and_asks_no_lm(index):
    out = QBRAG(index, max_passages=3)(question=QUESTION)
    assert out.passages == [hit.passage for hit in index.search([QUESTION], 3)[0]]
    assert [(query.text, query.role) for query in out.queries] == [(QUESTION, "original")]
    technique = QBRAG(index, match="hybrid", coverage=8, keep_partial=True, weight=0.25, depth=20, max_passages=4)
    matching = Matching("hybrid", coverage=8, keep_partial=True, weight=0.25, depth=20)
    assert technique.matching == matching
    assert technique(question=QUESTION).passages == [one.passage for one in index.match([QUESTION], 4, matching)[0]]


def test_the_record_names_the_question_that_led_to_each_passage(index):
    matched = index.match([QUESTION], 5)[0]
    for out in (QBRAG(index)(question=QUESTION), asyncio.run(QBRAG(index).acall(question=QUESTION))):
        (record,) = out.steps
        assert (record.kind, record.name, record.stage) == ("search", "questions", 1)
        assert record.made == {QUESTION: [passage.id for passage in out.passages]}
        assert record.given["through"] == {one.passage.id: one.question for one in matched}
        assert all(f"of Title {int(id[1:])}?" in text for id, text in record.given["through"].items())


def searched_choices(technique):
    """The ways of matching that a study searches."""
    return next(knob.choices for knob in technique.searched_knobs if knob.name == "match")


def test_what_cannot_be_searched_is_refused_with_the_remedy(index, monkeypatch):
    for other in (index.plain, lambda query, k: []):
        with pytest.raises(TechniqueError, match=r"the engine 'questions'.* first run query"):
            QBRAG(other)
    with pytest.raises(TechniqueError, match=r"questions build full$"):
        QBRAG(index.plain)
    assert "filled" in searched_choices(QBRAG(index))
    monkeypatch.setattr(index, "_answers", None)
    with pytest.raises(InputError, match="run querywright questions fill full"):
        QBRAG(index, match="filled")
    with pytest.raises(InputError, match="match=filled"):
        QBRAG(index).with_knobs(match="filled")
    assert searched_choices(QBRAG(index)) == ("nearest", "hybrid", "prototypes")
    assert searched_choices(QBRAG()) == ("nearest", "hybrid", "filled", "prototypes")
    assert [knob.name for knob in QBRAG().searched_knobs] == ["match", "keep_partial", "weight", "depth"]


def test_other_techniques_and_the_gate_search_through_questions(index, scripted, asking):
    assert PlainRetrieval(index)(question=QUESTION).passages == QBRAG(index)(question=QUESTION).passages
    with asking(scripted({"passage": "A drug."})):
        hyde = HyDE(index, n_documents=1, search_question=False)(question=QUESTION)
    assert hyde.passages == [hit.passage for hit in index.search(["A drug."], 5)[0]]
    best = index.search([QUESTION], 1)[0][0].score
    for least, verdict in ((best - 0.01, "use plain search"), (best + 0.01, "run the technique")):
        with asking(scripted()):
            out = HyDE(index, gate="score", gate_score=least)(question=QUESTION)
        assert next(step.made for step in out.steps if step.kind == "gate") == verdict
