from __future__ import annotations

import asyncio
import copy
import json

import pytest

from querywright.errors import TechniqueError
from querywright.programs import Ensemble, make_program


@pytest.fixture
def members(retriever):
    made = []
    for number in range(3):
        program = make_program("multi_query", retriever, reader="short_answer", n_queries=1, max_passages=4)
        predictor = program.technique.paraphrase
        predictor.signature = predictor.signature.with_instructions(f"Member {number}.")
        reader = program.reader.predict
        reader.signature = reader.signature.with_instructions(f"Member {number}.")
        made.append(program)
    return made


def answers(*texts):
    """A step that answers as each member's reader is to, and searches for other words in each member."""

    def step(asked):
        number = int(asked.text.split("Member ")[1][0])
        if "queries" in asked.properties:
            return json.dumps({"queries": [f"words of {number}"]})
        return json.dumps({"answer": texts[number]})

    return step


def test_the_answer_is_that_of_most_members(members, scripted, asking):
    with asking(scripted(answers("a", "B.", " b"))):
        made = Ensemble(members)(question="What?")
    assert made.answer == "B."
    assert len(made.queries) == 6


def test_of_equals_the_first_members_answer_is_taken(members, scripted, asking):
    with asking(scripted(answers("a", "b", "c"))):
        assert Ensemble(members)(question="What?").answer == "a"


def test_passages_are_fused_and_cut(members, scripted, asking):
    with asking(scripted(answers("a", "a", "a"))):
        alone = [{p.id for p in member(question="What?").passages} for member in members]
        made = Ensemble(members)(question="What?")
    ids = [passage.id for passage in made.passages]
    assert len(ids) == len(set(ids)) == 4
    common = set.intersection(*alone)
    assert set(ids) <= set.union(*alone)
    assert set(ids[: len(common)]) == common  # what all found stands first


def test_it_is_the_same_in_an_event_loop(members, scripted, asking):
    program = Ensemble(members)
    with asking(scripted(answers("a", "b", "b"))):
        one, other = program(question="What?"), asyncio.run(program.acall(question="What?"))
    assert one.answer == other.answer == "b"
    assert [p.id for p in one.passages] == [p.id for p in other.passages]


def test_a_program_without_a_reader_gives_no_answer(retriever, scripted, asking):
    program = Ensemble([make_program("multi_query", retriever) for _ in range(2)])
    with asking(scripted()):
        made = program(question="What?")
    assert made.answer is None
    assert made.passages


def test_a_copy_is_an_ensemble_of_its_own(members):
    program = Ensemble(members)
    names = [name for name, _ in program.named_predictors()]
    assert names[:2] == ["technique.paraphrase", "reader.predict"]
    assert names[2:] == [
        f"members[{number}].{name}" for number in (1, 2) for name in ("technique.paraphrase", "reader.predict")
    ]
    other = copy.deepcopy(program)
    other.technique.paraphrase.demos = [{"question": "x", "queries": ["y"]}]
    assert other.members[0].technique.paraphrase.demos
    assert not program.technique.paraphrase.demos


def test_what_cannot_be_together_is_refused(members, retriever):
    with pytest.raises(TechniqueError, match="2 to 20"):
        Ensemble(members[:1])
    with pytest.raises(TechniqueError, match="one technique and one reader"):
        Ensemble([members[0], make_program("hyde", retriever, reader="short_answer")])
    with pytest.raises(TechniqueError, match="one technique and one reader"):
        Ensemble([members[0], make_program("multi_query", retriever)])
    with pytest.raises(TechniqueError, match="give its members"):
        Ensemble([Ensemble(members), members[0]])
