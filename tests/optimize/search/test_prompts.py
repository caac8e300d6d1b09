from __future__ import annotations

import pytest

from querywright.metrics.dspy_metrics import METRICS
from querywright.optimize.comparison import closed_book
from querywright.optimize.evaluate import evaluate
from querywright.optimize.program_state import ProgramState, state_of
from querywright.optimize.search.prompts import make_variant, with_reader_prompts, with_variant
from querywright.optimize.search.spec import PromptSpec
from querywright.programs import Ensemble, make_reader

QUERIES = "technique.write_queries"


@pytest.fixture
def make(world, make_lm, writing):
    def of(spec, name="p", *, program=None, metric=METRICS["decision_useful"], **given):
        settings = {"lm": make_lm(writing()), "seed": 0, **given}
        state = make_variant(spec, name, program or world.program(), world.questions[:6], metric=metric, **settings)
        return ProgramState.model_validate_json(state.model_dump_json())

    return of


def test_instructions_by_hand_need_no_lm(make, world, make_lm, writing, asked_of):
    lm = make_lm(writing())
    state = make(PromptSpec(instructions={QUERIES: "Do it."}), lm=lm)
    assert asked_of(lm) == []
    assert list(state.predictors) == [QUERIES]
    changed = with_variant(world.program(n_queries=1), state)
    assert state_of(changed).predictors[QUERIES].instructions == "Do it."
    assert changed.technique.knobs["n_queries"] == 1


def test_a_optimizer_comes_after_the_instructions(make):
    spec = PromptSpec(optimizer="bootstrap_few_shot", instructions={QUERIES: "Name the key."}, part="technique")
    state = make(spec)
    assert state.predictors[QUERIES].instructions == "Name the key."
    assert len(state.predictors[QUERIES].demos) == 2
    assert sorted(state.predictors) == ["technique.form_hypothesis", QUERIES]
    assert state.reader is None


@pytest.mark.parametrize(
    ("optimizer", "arguments"),
    [("knn_few_shot", {"k": 1}), ("ensemble", {"size": 2}), ("bootstrap_few_shot", {})],
)
def test_it_goes_into_another_program(optimizer, arguments, make, world, make_lm, writing, asked_of):
    state = make(PromptSpec(optimizer=optimizer, arguments=arguments))
    changed = with_variant(world.program(n_queries=2), state)
    assert isinstance(changed, Ensemble) == (optimizer == "ensemble")
    assert changed.nearest == (1 if optimizer == "knn_few_shot" else 0)
    lm = make_lm(writing())
    evaluate(changed, [world.questions[13]], lm=lm, name="x", threads=1)
    assert any("key of" in text for asked in asked_of(lm) for _, text in asked.messages)


def test_a_variant_of_a_reader_goes_with_that_reader_only(make, world):
    state = make(PromptSpec(optimizer="bootstrap_few_shot", part="reader"), metric=METRICS["accuracy"])
    assert state.reader == "multiple_choice"
    assert list(state.predictors) == ["reader.predict"]
    alone = world.program(reader=None)
    assert state_of(with_variant(alone, state)) == state_of(alone)


def test_numbers_of_a_name_differ(make):
    spec = PromptSpec(optimizer="bootstrap_few_shot", arguments={"max_bootstrapped_demos": 1})
    made = [make(spec, name).model_dump_json() for name in ("p", "p.2", "p.3", "p.4", "p.2")]
    assert len(set(made)) > 1
    assert made[1] == made[4]


def test_the_readers_prompts_go_into_programs_of_any_technique(make, world):
    spec = PromptSpec(optimizer="bootstrap_few_shot", arguments={"max_bootstrapped_demos": 1}, part="reader")
    state = make(spec, metric=METRICS["accuracy"])
    several = with_variant(world.program(), make(PromptSpec(optimizer="ensemble", arguments={"size": 2})))
    for program in (world.program("plain"), closed_book(make_reader("multiple_choice")), several):
        before, after = state_of(program).predictors, state_of(with_reader_prompts(program, state)).predictors
        assert list(after) == list(before)
        reading = [name for name in after if ".reader." in f".{name}"]
        assert [len(after[name].demos) for name in reading] == [1] * (2 if program is several else 1)
        assert {name: one for name, one in after.items() if name not in reading} == {
            name: one for name, one in before.items() if name not in reading
        }
