from __future__ import annotations

import asyncio
import sys

import dspy
import pytest
from dspy.utils import DummyLM

from querywright.adapters.dspy import as_module, save_module
from querywright.data.types import Question
from querywright.models.lm import resolve_lm
from querywright.optimize.artifacts.load import load
from querywright.programs import Knobs

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]
TRAIN = [
    dspy.Example(question=QUESTION, options=OPTIONS, answer=OPTIONS[1]),
    dspy.Example(question="What comes first when blood sugar is very low?", options=["bread", "juice"], answer="juice"),
]
TRAIN = [example.with_inputs("question", "options") for example in TRAIN]


class Explain(dspy.Module):
    """A larger program: our program finds an answer, and another predictor comments on it."""

    def __init__(self, rag):
        super().__init__()
        self.rag = rag
        self.comment = dspy.Predict("question, answer -> comment")

    def forward(self, question, options=None):
        found = self.rag(question=question, options=options)
        comment = self.comment(question=question, answer=found.answer).comment
        return dspy.Prediction(answer=found.answer, comment=comment, passages=found.passages)

    async def aforward(self, question, options=None):
        found = await self.rag.acall(question=question, options=options)
        comment = (await self.comment.acall(question=question, answer=found.answer)).comment
        return dspy.Prediction(answer=found.answer, comment=comment, passages=found.passages)


@pytest.fixture
def outer():
    """The LM of the larger program, which writes only comments."""
    return DummyLM([{"comment": f"word {n}"} for n in range(40)])


def right(example, prediction, trace=None):
    return prediction.answer == example.answer


def demos(module):
    return {name: len(predictor.demos) for name, predictor in module.named_predictors()}


def test_predictors_and_knobs_are_visible_from_outside(program):
    larger = Explain(as_module(program))
    names = [name for name, _ in larger.named_predictors()]
    assert names == [
        "rag.program.technique.form_hypothesis",
        "rag.program.technique.write_queries",
        "rag.program.reader.predict",
        "comment",
    ]
    parameters = dict(larger.named_parameters())
    assert isinstance(parameters["rag.program.technique.knobs"], Knobs)
    assert parameters["rag.program.technique.knobs"]["max_passages"] == 2


def test_it_asks_its_own_lm_beside_that_of_the_larger_program(program, server, outer):
    larger = Explain(as_module(program))
    with dspy.context(lm=outer):
        made = larger(question=QUESTION, options=OPTIONS)
        again = asyncio.run(larger.acall(question=QUESTION, options=OPTIONS))
    assert made.answer == again.answer == OPTIONS[1]
    assert made.comment == "word 0"
    assert server.count == 3, "the second time its answers were stored"


def test_an_outer_optimizer_tunes_what_is_inside_and_an_artifact_keeps_it(program, outer, place, tmp_path):
    larger = Explain(as_module(program))
    tuner = dspy.BootstrapFewShot(metric=right, max_bootstrapped_demos=2, max_labeled_demos=0)
    with dspy.context(lm=outer):
        tuned = tuner.compile(larger, trainset=TRAIN)
    wanted = {name.removeprefix("rag.program."): 2 for name in demos(larger) if name != "comment"}
    assert demos(tuned) == {**{f"rag.program.{name}": 2 for name in wanted}, "comment": 2}
    assert sum(demos(larger).values()) == sum(demos(program.program).values()) == 0

    saved = save_module(tmp_path / "tuned", tuned.rag, asked=[Question("q", QUESTION, tuple(OPTIONS))])
    assert saved.made["tuned_in"] == "a larger DSPy program"
    assert saved.made["began_as"] == program.manifest.digest
    assert (saved.lm, saved.collection, saved.engine) == ("openai/scripted", "sample", "bm25")
    again = load(tmp_path / "tuned", home=place / ".querywright", verify=True)
    assert demos(again.program) == wanted
    shown = [dict(demo) for demo in again.program.reader.predict.demos]
    assert {demo["question"] for demo in shown} == {example.question for example in TRAIN}
    assert dict(again.program.technique.knobs) == dict(program.program.technique.knobs)


def test_a_frozen_one_is_left_as_it_is(program, outer):
    larger = Explain(as_module(program, frozen=True))
    assert [name for name, _ in larger.named_predictors()] == ["comment"]
    with dspy.context(lm=outer):
        tuned = dspy.BootstrapFewShot(metric=right, max_labeled_demos=0).compile(larger, trainset=TRAIN)
        assert tuned(question=QUESTION, options=OPTIONS).answer == OPTIONS[1]
    assert demos(tuned.rag.program)["reader.predict"] == 0


def test_the_example(example, at_place, monkeypatch):
    module = sys.modules[load.__module__]  # the package gives its name to the function
    monkeypatch.setattr(module, "resolve_lm", lambda name, **given: resolve_lm("openai/scripted", **given))
    names, *_, answer = example("in_dspy.py")
    assert "rag.program.reader.predict" in names
    assert answer == OPTIONS[1]
    tuned = load(at_place / "artifacts" / "hcqr-careful", home=at_place / ".querywright")
    assert demos(tuned.program)["reader.predict"] >= 1


def test_a_conversation_before_the_question_reaches_it(program):
    asked = Question("q", QUESTION, tuple(OPTIONS), OPTIONS[1], history=("My cuff is new.",))
    scored = dspy.Evaluate(devset=[asked.to_example()], metric=right, num_threads=1)(as_module(program))
    assert scored.score == 100
    made = asyncio.run(as_module(program).acall(**asked.inputs))
    assert made.answer == OPTIONS[1]
