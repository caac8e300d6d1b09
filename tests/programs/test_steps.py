"""What a technique does while it answers: its calls side by side, their order, their errors and their records."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from types import SimpleNamespace

import dspy
import pytest
from dspy.lm15 import Message, Request

from querywright.models.response_parsing import text_response
from querywright.models.transcript import Transcript, TranscriptLayer
from querywright.programs import HyDE, Predict, QuestionToHypotheticalDocument, Technique
from querywright.programs.steps import parallel, record, recording
from querywright.retrieval.types import Query


def fails():
    raise LookupError("gone")


def test_a_step_after_one_that_failed_is_the_next_and_steps_side_by_side_share_a_stage():
    with recording(None) as steps:
        record("search", "first", {}, 1)
        with pytest.raises(LookupError, match="gone"):
            parallel([fails, partial(record, "search", "lost", {}, 2)])
        parallel([partial(record, "search", f"side {number}", {}, number) for number in range(3)])
        record("search", "last", {}, 4)
    assert [(step.name, step.stage) for step in steps] == [
        ("first", 1), ("side 0", 3), ("side 1", 3), ("side 2", 3), ("last", 4),
    ]  # fmt: skip
    record("search", "unheard", {}, 5)
    assert len(steps) == 5


@pytest.mark.parametrize("count", [0, 9])
def test_calls_side_by_side_wait_together_and_keep_their_order(count):
    barrier = threading.Barrier(max(count, 1))  # it breaks unless all are under way at the same time

    def work(number):
        barrier.wait(timeout=60)
        time.sleep(0.002 * (count - number))
        return number

    assert parallel([partial(work, number) for number in range(count)]) == list(range(count))


def test_a_transcript_has_calls_side_by_side_in_the_order_of_the_calls():
    def asks(name, seconds=0.0):
        def answer(request):
            time.sleep(seconds)
            return text_response(name, "stop", "m", 1, 1)

        layer = TranscriptLayer(SimpleNamespace(complete=answer))
        return lambda: layer.complete(Request(model="m", messages=(Message.user(f"{name}?"),)))

    with Transcript() as transcript:
        asks("first")()
        parallel([asks("slow", 0.1), asks("quick"), asks("between", 0.05)])
        asks("last")()
    asks("unheard")()
    told = transcript.exchanges
    assert [one.answer for one in told] == ["first", "slow", "quick", "between", "last"]
    assert [one.messages for one in told] == [(("user", f"{one.answer}?"),) for one in told]
    assert {one.predictor for one in told} == {""}


def test_when_one_fails_none_begins_any_more():
    begun = []

    def fails_and_tells():
        begun.append(True)
        raise LookupError

    with pytest.raises(LookupError):
        parallel([fails_and_tells for _ in range(200)])
    assert len(begun) <= 33  # those that were under way in their threads


# A technique is an ordinary DSPy module: it is subclassed, called by its super class, and its parts are replaced.


class Documents(dspy.Signature):
    """Write one line of a catalog."""

    question: str = dspy.InputField()
    passage: str = dspy.OutputField()


@pytest.fixture
def ask(scripted, asking):
    def ask(program, **inputs):
        with asking(lm := scripted()):
            return program(**inputs), lm.engine.asked

    return ask


@pytest.mark.parametrize("predict", [Predict, dspy.Predict])
def test_a_subclass_replaces_a_signature(retriever, ask, predict):
    class Catalog(HyDE):
        def __init__(self, retriever=None, **knobs):
            super().__init__(retriever, **knobs)
            self.write_document = predict(Documents)

    found, asked = ask(Catalog(retriever, n_documents=2), question="Which part wears first?")
    assert [one.system.split("\n")[0] for one in asked] == ["Write one line of a catalog."] * 2
    assert (len(found.passages), found.fallbacks) == (5, [])
    other, _ = ask(HyDE(retriever, n_documents=2), question="Which part wears first?")
    assert QuestionToHypotheticalDocument.instructions != Documents.instructions
    assert [query.role for query in other.queries] == [query.role for query in found.queries]


def test_a_subclass_may_call_the_forward_of_its_class_around_which_all_is_done_once(retriever, ask):
    class Twice(HyDE):
        NAME = "twice"

        def forward(self, question, options=None, history=None):
            found = super().forward(question, options, history)
            again = self.retrieve([Query("more")])
            return dspy.Prediction(passages=[*again.passages[:1], *found.passages[:1]], queries=found.queries)

    technique = Twice(retriever, n_documents=1, gate="score", gate_score=1.0)
    found, asked = ask(technique, question="What?", history=["We spoke of brakes."])
    assert [step.kind for step in found.steps] == ["search", "gate", "lm", "search", "search"]
    assert len(asked) == 1
    assert "We spoke of brakes." in asked[0].text


def test_a_technique_is_called_in_an_event_loop_beside_others(retriever, scripted, asking):
    class Waits(Technique):
        NAME = "waits"

        def forward(self, question, options=None, history=None):
            barrier.wait(timeout=60)
            return self.retrieve([Query(question)])

    barrier, technique = threading.Barrier(20), Waits(retriever)

    async def several():
        return await asyncio.gather(*(technique.acall(question=f"q{number}") for number in range(20)))

    with asking(scripted()):
        found = asyncio.run(several())
    assert [one.queries[0].text for one in found] == [f"q{number}" for number in range(20)]
