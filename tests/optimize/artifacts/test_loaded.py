"""A loaded program: asked from threads, event loops and in batches, and watched."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import SimpleNamespace

import dspy
import pytest
from dspy.utils.exceptions import LMInvalidRequestError, LMServerError

from querywright.data.declined import DECLINED
from querywright.data.types import Passage, Question
from querywright.errors import InputError, TechniqueError
from querywright.optimize.artifacts import watchers
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import Answered
from querywright.optimize.artifacts.watchers import exchange_of, flush
from querywright.retrieval.types import Query


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
    assert program.retrieve(*asked(1)).passages == one.passages
    with pytest.raises(InputError, match="options"):
        program.retrieve(asked(1)[0])


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


def test_an_event_loop_is_not_held_up(loaded, make_engine):
    """The LM answers only once the loop has gone on."""
    go = threading.Event()
    program = loaded(make_engine(before=lambda n, one: go.wait(60)))

    async def main():
        asking = asyncio.ensure_future(program.acall(*asked(1)))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not asking.done()
        go.set()
        return await asking

    assert asyncio.run(main()).answer == "right 1"


# Batches.


def test_a_batch_keeps_the_order_and_takes_questions_in_every_form(loaded):
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
        ("What?", r"write \[question\]"),
        (["What?", ("What?",)], "question 2 is"),
        ([("What?", "hot")], "question 1 is"),
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
        assert program(*asked(1), metadata={"request": 7}).answer == "right 1"  # which no exchange can hold
        assert asyncio.run(program.acall(*asked(1))).answer == "right 1"
        assert flush()
    assert len(seen) == 2
    names = ["ValueError", "ValidationError", "ValueError"]
    assert caplog.messages == [f"a watcher failed: {name}" for name in names]  # without its text


def test_a_watcher_holds_up_no_event_loop_and_is_told_in_the_context_of_the_question(loaded, monkeypatch, caplog):
    """As where the file of traffic is locked by somebody else."""
    caller = contextvars.ContextVar("caller", default="nobody")
    go, seen = threading.Event(), []

    def slow(one):
        assert go.wait(60)
        seen.append((one.question, caller.get()))

    program = loaded(watchers=[slow])

    async def main():
        caller.set("a request")
        await program.acall(*asked(1))
        return [event async for event in program.astream(*asked(3))]

    assert asyncio.run(main())[-1].kind == "prediction"
    assert seen == []
    assert not flush(0.01)
    monkeypatch.setattr(watchers, "MOST_WAITING", 1)
    assert asyncio.run(program.acall(*asked(5))).answer == "right 5"  # of which no watcher is told any more
    go.set()
    assert flush()
    assert seen == [(asked(number)[0], "a request") for number in (1, 3)]
    assert "watchers are 1 questions behind; one more is lost" in caplog.messages


ENDS = """
import asyncio, os, time
from querywright.optimize.artifacts.watchers import flush, watched

def slow(one):
    time.sleep(0.3)
    os.write(1, one.question.encode() + b"\\n")

def exits(one):
    raise SystemExit

def ask(question):
    given = {"question": question, "options": None}
    with watched([exits if question == "no one" else slow], "a", given, None, later=True):
        pass

ask("no one")
ask("first")
assert flush()
ask("parent")
if not os.fork():
    ask("forked")
    os._exit(0 if flush() else 1)
assert os.wait()[1] == 0
ask("last")
"""


def test_a_process_that_ends_has_told_everything_and_a_forked_one_too():
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=300, check=True)
    assert sorted(done.stdout.splitlines()) == ["first", "forked", "last", "parent"]  # each once


# Exchanges.


GIVEN = {"at": "2026-01-02T03:04:05.678+00:00", "artifact": "abc", "question": "What?"}


def made(**changes):
    found = {
        "passages": [Passage("b", "B."), Passage("a", "A.")],
        "fallbacks": ["reader"],
        "steps": [],
        "support": None,
    }
    queries = [Query("What?"), Query("tea", "support", 0.5)]
    return dspy.Prediction(**{"answer": "tea", **found, "queries": queries, **changes})


def test_an_exchange_holds_what_was_asked_found_and_said():
    steps = [
        SimpleNamespace(kind="search", scores={"What?": (0.9, 0.5), "tea": ()}),
        SimpleNamespace(kind="lm"),
        SimpleNamespace(kind="search", scores={"mate": (0.25,)}),
    ]
    one = exchange_of(made(steps=steps), **GIVEN, options=["tea", " mate "], seconds=1.5, lm_calls=2, lm_saved=1)
    assert (one.question, one.options, one.answer, one.support) == ("What?", ("tea", "mate"), "tea", None)
    assert [(query.role, query.text) for query in one.queries] == [("original", "What?"), ("support", "tea")]
    assert (one.passages, one.n_passages, one.fallbacks) == (("b", "a"), 2, ("reader",))
    assert (one.at, one.artifact, one.seconds, one.lm_calls, one.lm_saved) == (GIVEN["at"], "abc", 1.5, 2, 1)
    assert (one.error, one.declined, one.metadata, one.top_scores) == (None, False, {}, (0.9, 0.25))
    assert len(one.id) == 32


@pytest.mark.parametrize(
    ("answer", "options", "declined"),
    [
        (DECLINED, (), True),
        ("I don't know", ("I know", " I don't know "), False),
        ("I don't know", ("I know", "I don't"), True),
        ("tea", (), False),
        (None, (), False),
    ],
)
def test_a_reader_that_says_that_the_passages_do_not_answer_declined(answer, options, declined):
    assert exchange_of(made(answer=answer), **GIVEN, options=options).declined is declined
