"""A loaded program: asked from threads, event loops and in batches, and watched."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import dspy
import pytest
from dspy.utils.exceptions import LMInvalidRequestError, LMServerError

from querywright.data.types import Question
from querywright.errors import InputError, QuerywrightError, TechniqueError
from querywright.optimize.artifacts.batch import Answered, FailedQuestionError
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.watchers import flush


def asked(number):
    return f"What of number {number}?", [f"wrong {number}", f"right {number}"]


@pytest.fixture
def loaded(artifact, world, make_lm):
    def make(engine=None, *, path=artifact, watchers=(), **options):
        return load(path, lm=make_lm(engine, **options), retriever=world, watchers=watchers)

    return make


def requests(program):
    return program.lm.engine.inner.asked


def test_the_answer_is_the_same_however_it_is_asked_for(loaded):
    program = loaded()
    one = program(*asked(1))

    async def main():
        return await program.acall(*asked(1)), [event async for event in program.astream(*asked(1))]

    other, events = asyncio.run(main())
    (batched,) = program.batch([asked(1)])
    predictions = [one, other, batched.prediction, events[-1].data, list(program.stream(*asked(1)))[-1].data]
    assert {prediction.answer for prediction in predictions} == {"right 1"}
    assert len({tuple(passage.id for passage in prediction.passages) for prediction in predictions}) == 1
    assert len({tuple(query.text for query in prediction.queries) for prediction in predictions}) == 1


def test_to_retrieve_asks_no_reader(loaded):
    program = loaded()
    found = program.retrieve(*asked(1))
    steps = [one.step for one in requests(program)]
    assert (found.answer, found.support) == (None, None)
    assert "reader" not in steps
    whole = program(*asked(1))
    assert [passage.id for passage in found.passages] == [passage.id for passage in whole.passages]
    assert asyncio.run(program.aretrieve(*asked(1))).passages == found.passages
    with pytest.raises(InputError, match="options"):
        program.retrieve(asked(1)[0])


def test_many_threads_and_event_loops_get_each_its_own_answer(loaded, store):
    program = loaded(store=store)

    def in_a_loop(first):
        async def main():
            return await asyncio.gather(*(program.acall(*asked(number)) for number in range(first, 18, 3)))

        return [prediction.answer for prediction in asyncio.run(main())]

    with ThreadPoolExecutor(9) as pool:
        loops = [pool.submit(in_a_loop, first) for first in range(3)]
        answers = list(pool.map(lambda number: program(*asked(number)).answer, range(18)))
    expected = [f"right {number}" for number in range(18)]
    assert answers == expected
    assert [loops[number % 3].result()[number // 3] for number in range(18)] == expected
    total = program.lm.engine.ledger.total
    assert total.calls == len(requests(program)) == 18 * 3
    assert total.saved == total.calls


def test_an_event_loop_is_not_held_up(loaded, make_engine):
    """The LM answers only once the loop has gone on."""
    go = threading.Event()
    program = loaded(make_engine(before=lambda n, one: go.wait(30)))

    async def main():
        asking = asyncio.ensure_future(program.acall(*asked(1)))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not asking.done()
        go.set()
        return await asking

    assert asyncio.run(main()).answer == "right 1"


# Batches.


def test_a_batch_keeps_the_order_and_takes_questions_in_every_form(loaded, world):
    program, seen = loaded(), []
    questions = [asked(3), Question("q5", *asked(5), answer="right 5"), (asked(1)[0], tuple(asked(1)[1]))]
    answered = program.batch(questions, threads=2, progress=lambda done, total: seen.append((done, total)))
    assert [one.prediction.answer for one in answered] == ["right 3", "right 5", "right 1"]
    assert answered[0] == Answered(asked(3)[0], tuple(asked(3)[1]), answered[0].prediction, None)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert program.batch([]) == []


def test_a_failure_in_a_batch_is_that_questions_own(loaded, make_engine):
    def before(n, one):
        if one.number == 2:
            raise LMServerError("boom")
        if one.number == 4:
            raise LMInvalidRequestError("not that")

    program = loaded(make_engine(before=before), outage_after=100)
    broken = program.program.technique.retriever.search
    program.program.technique.retriever.search = lambda queries, k: (
        1 / 0 if "of 5" in queries[0] else broken(queries, k)
    )
    answered = program.batch([*map(asked, range(6)), "What of number 6?", asked(7)], threads=4)
    errors = [one.error for one in answered]
    assert [one.prediction is None for one in answered] == [error is not None for error in errors]
    kinds = [error and getattr(error, "kind", type(error).__name__) for error in errors]
    assert kinds == [None, None, "lm", None, "lm", "bug", "TechniqueError", None]
    assert all(isinstance(error, QuerywrightError) for error in errors if error)
    assert isinstance(errors[2], FailedQuestionError)
    assert isinstance(errors[2].__cause__, LMServerError)
    assert isinstance(errors[5].__cause__, ZeroDivisionError)
    assert "division by zero" in str(errors[5])
    assert isinstance(errors[6], TechniqueError)


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ("What?", r"write \[question\]"),
        ([3], "question 1 is 3"),
        (["What?", ("What?",)], "question 2 is"),
        ([("What?", "hot")], "question 1 is"),
        ([(None, ["hot"])], "question 1 is"),
    ],
)
def test_what_is_no_question_is_refused_before_any_is_asked(loaded, questions, message):
    program = loaded()
    with pytest.raises(InputError, match=message):
        program.batch(questions)
    assert requests(program) == []


# Watchers.


def test_a_watcher_is_told_of_every_question(loaded, store):
    seen = []
    program = loaded(watchers=[lambda one: seen.append((one, threading.current_thread()))], store=store)
    program(*asked(1), metadata={"request": "r1"})
    program(*asked(1))
    program.retrieve(*asked(1))
    asyncio.run(program.acall(*asked(3)))
    assert flush()
    list(program.stream(*asked(5)))
    program.batch([asked(7)], threads=1)
    exchanges = [one for one, _ in seen]
    assert [one.question for one in exchanges] == [asked(number)[0] for number in (1, 1, 1, 3, 5, 7)]
    first, again, found = exchanges[:3]
    assert (first.answer, first.options, first.metadata) == ("right 1", tuple(asked(1)[1]), {"request": "r1"})
    assert (first.lm_calls, first.lm_saved, again.lm_calls, again.lm_saved) == (3, 0, 0, 3)
    assert (found.answer, found.lm_saved) == (None, 2)
    assert first.passages == tuple(passage.id for passage in program(*asked(1)).passages)
    assert {one.artifact for one in exchanges} == {program.id}
    assert datetime.fromisoformat(first.at).tzinfo is not None
    assert 0 < first.seconds < 60
    assert len({one.id for one in exchanges}) == 6
    assert [thread is threading.main_thread() for _, thread in seen[:4]] == [True] * 3 + [False]


def test_a_watcher_that_fails_spoils_nothing(loaded, caplog):
    seen = []

    def fails(one):
        raise ValueError(one.question)

    program = loaded(watchers=[fails, seen.append])
    with caplog.at_level(logging.WARNING, logger="querywright.watching"):
        assert program(*asked(1)).answer == "right 1"
        assert asyncio.run(program.acall(*asked(1))).answer == "right 1"
        assert flush()
    assert len(seen) == 2
    assert caplog.messages == ["a watcher failed: ValueError"] * 2  # without its text


def test_a_watcher_holds_up_no_event_loop_and_is_told_in_the_context_of_the_question(loaded):
    """As where the file of traffic is locked by somebody else."""
    caller = contextvars.ContextVar("caller", default="nobody")
    go, seen = threading.Event(), []

    def slow(one):
        assert go.wait(10)
        seen.append((one.question, caller.get()))

    program = loaded(watchers=[slow])

    async def main():
        caller.set("a request")
        await program.acall(*asked(1))
        return [event async for event in program.astream(*asked(3))]

    assert asyncio.run(main())[-1].kind == "prediction"
    assert seen == []
    go.set()
    assert flush()
    assert seen == [(asked(number)[0], "a request") for number in (1, 3)]


def test_an_lm_of_the_users_own_is_left_as_it_is(artifact, world):
    lm = dspy.utils.DummyLM([{"answer": "x"}])
    assert load(artifact, lm=lm, retriever=world).lm is lm
    with pytest.raises(InputError, match="lm must be an LM or its name, but got 7"):
        load(artifact, lm=7, retriever=world)
