"""A loaded program: asked from threads, event loops and in batches, and watched."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import dspy
import pytest
from dspy.utils.exceptions import LMInvalidRequestError, LMServerError

from querywright.data.types import Passage, Question
from querywright.errors import ArtifactError, BudgetError, InputError, QuerywrightError, TechniqueError
from querywright.models.circuit_breaker import Limits
from querywright.models.lm import engine_of, resolve_lm
from querywright.models.store import open_store
from querywright.optimize.artifacts.batch import Answered, FailedQuestionError
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.optimize.artifacts.watchers import flush
from querywright.optimize.program_state import shaped
from querywright.programs import make_program


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


def test_an_ensemble_retrieves_what_it_answers_from(place, write, loaded):
    whole = shaped(make_program("hcqr", lambda query, k: [], reader="multiple_choice"), nearest=0, members=3)
    write(place / "e", whole)
    program = loaded(path=place / "e")
    found = program.retrieve(*asked(1))
    assert "reader" not in [one.step for one in requests(program)]
    assert found.passages == program(*asked(1)).passages
    assert len(found.queries) == len(program(*asked(1)).queries)


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


def test_a_cancelled_call_begins_nothing_further(chat_server):
    server = chat_server({"hang": True})
    lm = resolve_lm("openai/x", api_base=server.url, api_key="none", timeout=0.4, limits=Limits(max_attempts=1))
    technique = make_program("multi_query", lambda query, k: [Passage("p", "P.")], reader="short_answer")
    seen = []
    program = LoadedProgram(technique, lm, made_manifest(), [seen.append])

    async def main():
        task = asyncio.ensure_future(program.acall("What?"))
        while not server.count:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return server.count

    began = time.monotonic()
    count = asyncio.run(main())
    assert [one.error for one in seen] == ["CancelledError"]
    while engine_of(lm).ledger.total.failures < count and time.monotonic() - began < 10:
        time.sleep(0.02)
    assert engine_of(lm).ledger.total.failures == count == server.count  # each ended by itself, and none came after
    engine_of(lm).close()


def made_manifest():
    from querywright.optimize.artifacts.files import ArtifactManifest

    return ArtifactManifest(
        format=5, technique="plain", reader=None, lm="openai/x", embedder=None, collection=None, engine=None,
        reranker=None, fingerprint=None, created="2026-01-02", versions={}, made={},
    )  # fmt: skip


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


def test_a_budget_that_ends_in_a_batch_leaves_what_was_answered(loaded):
    program = loaded(max_calls=7)
    answered = program.batch([asked(number) for number in range(4)], threads=1)
    assert [one.prediction is not None for one in answered] == [True, True, False, False]
    assert isinstance(answered[-1].error, BudgetError)


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


@pytest.mark.slow
def test_ctrl_c_loses_nothing_that_was_answered(chat_server, tmp_path):
    """A process is interrupted in the middle of a batch; the next one asks only for the rest."""
    server = chat_server(lambda body: time.sleep(0.05) or '{"answer": "tea"}')
    script = f"""
import sys
from pathlib import Path
from querywright.models.lm import resolve_lm
from querywright.models.store import open_store
from querywright.optimize.artifacts.files import ArtifactManifest
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.programs import make_program
lm = resolve_lm("openai/x", api_base={server.url!r}, api_key="none", store=open_store(Path({str(tmp_path)!r})))
manifest = ArtifactManifest(
    format=5, technique="plain", reader=None, lm="x", embedder=None, collection=None, engine=None, reranker=None,
    fingerprint=None, created="2026-01-02", versions={{}}, made={{}})
program = LoadedProgram(make_program("plain", lambda query, k: [], reader="short_answer"), lm, manifest)
done = program.batch([f"What is {{number}}?" for number in range(40)], threads=2,
                     progress=lambda done, total: print(done, flush=True))
print("saved", lm.engine.ledger.total.saved)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.strip() == "6":
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT or "KeyboardInterrupt" in errors
    answered = open_store(tmp_path).count("lm")
    assert 6 <= answered < 40
    again = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert again.stdout.splitlines()[-1] == f"saved {answered}"
    open_store(tmp_path).close()


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


def test_calls_of_others_are_not_counted(loaded, make_engine):
    """Each question is told its own LM calls, also while others are asked."""
    seen = []
    program = loaded(make_engine(before=lambda n, one: time.sleep(0.01)), watchers=[seen.append])
    program.batch([asked(number) for number in range(12)], threads=6)

    async def main():
        await asyncio.gather(*(program.acall(*asked(number)) for number in range(12)))

    asyncio.run(main())
    assert flush()
    assert [one.lm_calls for one in seen] == [3] * 24


def test_a_failed_question_is_told_as_well(loaded):
    seen = []
    program = loaded(watchers=[seen.append])
    with pytest.raises(InputError):
        program(asked(1)[0])
    (one,) = seen
    assert (one.error, one.answer, one.passages) == ("TechniqueError", None, ())


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


def test_metadata_that_is_none_spoils_no_answer_and_hides_no_error(loaded, caplog):
    seen = []
    program = loaded(watchers=[seen.append])
    with caplog.at_level(logging.WARNING, logger="querywright.watching"):
        assert program(*asked(1), metadata=7).answer == "right 1"
        assert asyncio.run(program.acall(*asked(1), metadata=["request"])).answer == "right 1"
        with pytest.raises(TechniqueError):
            program(asked(1)[0], metadata=7)
    assert seen == []
    assert caplog.messages == [
        f"watchers could not be told of a question: {name}" for name in ("TypeError", "ValueError", "TypeError")
    ]


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


def test_watchers_can_be_given_later_and_are_not_told_of_golden_questions(artifact, place, world, make_lm, write):
    program = load(artifact, lm=make_lm(), retriever=world)
    from querywright.optimize.artifacts.files import Golden

    made = program(*asked(1))
    golden = Golden(
        question=asked(1)[0], options=asked(1)[1], answer=made.answer, passages=[one.id for one in made.passages]
    )
    write(place / "g", program.program, golden=[golden])
    seen = []
    program = load(place / "g", lm=make_lm(), retriever=world, verify=True, watchers=[seen.append])
    assert seen == []
    program.watchers = (*program.watchers, seen.append)
    program(*asked(1))
    assert len(seen) == 2
    assert program.id == read_artifact(place / "g").manifest.id


def test_an_artifact_is_loaded_only_with_the_digest_that_is_given(artifact, world, make_lm):
    digest = load(artifact, lm=make_lm(), retriever=world).manifest.digest
    assert load(artifact, lm=make_lm(), retriever=world, digest=digest).manifest.digest == digest
    with pytest.raises(ArtifactError, match="is asked for: it is another one"):
        load(artifact, lm=make_lm(), retriever=world, digest="sha256:" + "0" * 64)


def test_an_lm_of_the_users_own_is_left_as_it_is(artifact, world):
    lm = dspy.utils.DummyLM([{"answer": "x"}])
    assert load(artifact, lm=lm, retriever=world).lm is lm
    with pytest.raises(InputError, match="lm must be an LM or its name, but got 7"):
        load(artifact, lm=7, retriever=world)
