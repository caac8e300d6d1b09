"""Prompts that copy training text: found in instructions and demonstrations, left out of a search, and reported."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from querywright.data import read_passages, read_questions
from querywright.data.splits import Splits
from querywright.optimize.artifacts.save import card
from querywright.optimize.copies import find_copies
from querywright.optimize.program_state import PredictorState
from querywright.optimize.results import CompileSettings
from querywright.optimize.search.compile import compile_program

UNTUNED = "Write queries that find the passages that decide the question."


@pytest.fixture(scope="module")
def handbook():
    """Forty questions of the handbook, and its passages by id."""
    passages = {one.id: one for one in read_passages("handbook")}
    return read_questions("handbook", limit=40), passages


def prompt(instructions, *demos):
    return {"technique.write_queries": PredictorState(instructions=instructions, fields={}, demos=list(demos))}


def test_copies_of_questions_options_and_passages_are_found_and_nothing_else_is(handbook):
    (first, second, *others), passages = handbook
    evidence = passages[next(iter(first.evidence))]

    def sources(instructions, *demos):
        found = find_copies(
            prompt(instructions, *demos), [UNTUNED], [first, second], held_out=others, passages=[evidence]
        )
        return [one.source for one in found]

    general = "Name the vehicle, the route, and the fare class. Search for the tariff of each leg, and for surcharges."
    assert sources(f"{UNTUNED} {general}") == []
    words = first.question.split()
    assert sources(f"{general} Such as: {' '.join(words[3:11]).upper()}") == [f"question {first.id}"]
    assert sources(f"{general} {' '.join(words[3:10])}") == []  # seven words repeat by chance
    assert sources(f"{general} {evidence.text[:200]}") == [f"passage {evidence.id}"]
    assert sources(general, {"question": first.question}) == []
    assert sources(general, {"question": f"{others[0].question} "}) == [
        f"held-out question {others[0].id} in a demonstration"
    ]
    again = find_copies(prompt(f"{UNTUNED} {first.question}"), [f"{UNTUNED} {first.question}"], [first])
    assert again == []  # the untuned prompt has it


@pytest.mark.parametrize("allowed", [False, True])
def test_prompts_that_copy_are_left_out_unless_they_are_allowed(allowed, world, make_lm, make_engine, scripted):
    ask = "Which of the two passages of the archive is about it? What of number {}?"
    parts = ([replace(one, question=ask.format(one.id[1:])) for one in part] for part in world.splits)
    copied = ask.format(world.splits.train[0].id[1:])

    def write(asked):
        names = set(asked.properties)
        return json.dumps(dict.fromkeys(names, f"For example: {copied}")) if asked.proposes else scripted(asked)

    settings = CompileSettings(
        trials=1, teleprompter="copro", arguments={"breadth": 2, "depth": 1}, reader_demo_sizes=(), threads=2,
        allow_copies=allowed,
    )  # fmt: skip
    world.winner = "both"
    made = compile_program(
        "hcqr", Splits(*parts), retriever=world, lm=make_lm(make_engine(write=write)), settings=settings, reader=None
    )
    (said,) = made.copied["copro"][:1]
    assert 'copies question q0: "which of the two passages of the archive"' in said
    assert made.to_json()["copied_prompts"]["copro"][0] == said
    assert ("copro" in made.nothing, any(arm.prompt == "copro" for arm in made.arms)) == (not allowed, allowed)
    text = card("mine", made, "scripted/model", "2026-01-02", {})
    assert f"The prompts copro copy training text and were {'tried' if allowed else 'excluded'}: " in text
