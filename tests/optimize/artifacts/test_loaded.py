"""A loaded program: asked from threads, event loops and in batches."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from dspy.utils.exceptions import LMInvalidRequestError, LMServerError

from querywright.data.types import Question
from querywright.errors import InputError, TechniqueError
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import BatchAnswer


def asked(number):
    return f"What of number {number}?", [f"wrong {number}", f"right {number}"]


@pytest.fixture
def loaded(artifact, world, make_lm):
    def make(engine=None, *, path=artifact, **options):
        return load(path, lm=make_lm(engine, **options), retriever=world)

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
    assert program.retrieve(*asked(1)).passages == one.passages
    with pytest.raises(InputError, match="options"):
        program(asked(1)[0])
    for answer in (program, program.retrieve):
        with pytest.raises(InputError, match=r"options must be a list .* the string 'a,b' .*; pass a list, such as"):
            answer(asked(1)[0], "a,b")


def test_an_lm_without_an_async_engine_is_asked_in_an_event_loop(artifact, world, make_lm):
    lm = make_lm()
    program = load(artifact, lm=lm.copy(engine=lm.engine), retriever=world)
    assert asyncio.run(program.acall(*asked(1))).answer == program(*asked(1)).answer == "right 1"


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


# Batches.


def test_a_batch_keeps_the_order_and_takes_questions_in_every_form(loaded):
    program, seen = loaded(), []
    questions = [asked(3), Question("q5", *asked(5), answer="right 5"), (asked(1)[0], tuple(asked(1)[1]))]
    answered = program.batch(questions, threads=2, progress=lambda done, total: seen.append((done, total)))
    assert [one.prediction.answer for one in answered] == ["right 3", "right 5", "right 1"]
    assert answered[0] == BatchAnswer(asked(3)[0], tuple(asked(3)[1]), answered[0].prediction, None)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert program.batch([]) == []


def test_a_failure_in_a_batch_is_that_questions_own(loaded, make_engine):
    def before(n, one):
        if one.number == 2:
            raise LMServerError("boom")
        if one.number == 4:
            raise LMInvalidRequestError("not that")

    program = loaded(make_engine(before=before), outage_after=100)
    search = program.program.technique.retriever.search
    program.program.technique.retriever.search = lambda queries, k: (
        1 / 0 if "of 5" in queries[0] else search(queries, k)
    )
    answered = program.batch([*map(asked, range(6)), "What of number 6?", asked(7)], threads=4)
    assert [one.prediction is None for one in answered] == [one.error is not None for one in answered]
    expected = [None, None, LMServerError, None, LMInvalidRequestError, ZeroDivisionError, TechniqueError, None]
    assert [one.error and type(one.error) for one in answered] == expected


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ("What?", r"pass \[question\]"),
        (["What?", ("What?",)], "question 2 must be"),
        ([("What?", "hot")], "question 1 must be"),
    ],
)
def test_what_is_no_question_is_refused_before_any_is_asked(loaded, questions, message):
    program = loaded()
    with pytest.raises(InputError, match=message):
        program.batch(questions)
    assert requests(program) == []
