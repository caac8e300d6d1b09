"""Steps that are taken from memory: what is one step and what another, what they cost, and that nothing is changed."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

import dspy
import pydantic
import pytest
from dspy.utils.exceptions import AdapterParseError, LMServerError

from querywright.models.adapter import PromptAdapter
from querywright.models.cached import stored_only
from querywright.models.circuit_breaker import Limits
from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.models.engine_errors import NotStoredError
from querywright.models.late import LateSignature, signature_text
from querywright.models.memo import Memo, ask, remembering
from querywright.models.store import Store
from querywright.models.usage import Cost, metered
from querywright.programs import READERS, TECHNIQUES, make_program
from querywright.programs.steps import Ask
from querywright.retrieval.replay import ReplayRetriever

OPTIONS = ["Aspirin", "Insulin", "Warfarin", "Heparin"]
QUESTIONS = ["Which drug is the right one in case 1?", "Why is that so in case 2?"]


class Write(dspy.Signature):
    """Write queries."""

    question: str = dspy.InputField()
    queries: list[str] = dspy.OutputField()


@pytest.fixture
def guarded(scripted):
    """Makes an LM whose answers are counted; ``lm.engine.inner.asked`` holds what it was asked."""

    def make(*steps, store=None, temperature=0.0, identity="scripted", **options):
        engine = LMEngine(
            scripted(*steps).engine, identity=identity, store=store, limits=Limits(max_attempts=1), sleep=lambda _: None
        )
        both = {"engine": engine, "async_engine": AsyncLMEngine(engine), "cache": False, "num_retries": 0}
        return dspy.LM("scripted", temperature=temperature, **both, **options)

    return make


@pytest.fixture
def memo():
    return Memo()


def under(lm, **settings):
    """The settings under which programs are run."""
    return dspy.context(**({"lm": lm, "adapter": PromptAdapter(), "disable_history": True, "trace": None} | settings))


def times(lm):
    """How often the LM was asked."""
    return len(lm.engine.inner.asked)


def test_a_step_is_asked_once(guarded, memo):
    lm, predictor = guarded(), dspy.Predict(Write)
    with under(lm), remembering(memo):
        first = ask(predictor, {"question": "Why?"})
        again = ask(predictor, {"question": "Why?"})
        other = ask(predictor, {"question": "How?"})

    assert times(lm) == len(memo) == 2
    assert again == first
    assert again.toDict() == first.toDict() != other.toDict()
    assert again.completions[0].toDict() == first.toDict()


def test_without_a_memo_nothing_is_remembered(guarded, memo):
    lm, predictor = guarded(), dspy.Predict(Write)
    with remembering(memo):
        pass
    with under(lm):
        for _ in range(2):
            ask(predictor, {"question": "Why?"})
    assert (times(lm), len(memo)) == (2, 0)


def test_what_is_handed_out_can_be_changed(guarded, memo):
    lm, predictor = guarded({"queries": ["one", "two"]}), dspy.Predict(Write)
    with under(lm), remembering(memo):
        for _ in range(3):
            made = ask(predictor, {"question": "Why?"})
            assert made.queries == ["one", "two"]
            made.queries.append("three")
            made.completions.queries[0].append("four")
            made["other"] = 1
    assert times(lm) == 1


CHANGES = {
    "question": lambda p, given, lm: given.update(question="How?"),
    "instructions": lambda p, given, lm: setattr(p, "signature", p.signature.with_instructions("Write well.")),
    "instructions in place": lambda p, given, lm: setattr(p.signature, "instructions", "Write well."),
    "description": lambda p, given, lm: setattr(p, "signature", p.signature.with_updated_fields("queries", desc="two")),
    "type": lambda p, given, lm: given.update(signature=LateSignature(p.signature, "queries", {"type_": list[int]})),
    "choice": lambda p, given, lm: given.update(
        signature=LateSignature(p.signature, "queries", {"type_": Literal["a", "b"]})
    ),
    "demonstrations": lambda p, given, lm: setattr(p, "demos", [dspy.Example(question="q", queries=["a"])]),
    "sampling": lambda p, given, lm: given.update(config={"temperature": 0.5, "seed": 1}),
    "config": lambda p, given, lm: p.config.update(max_tokens=7),
    "sampling of the LM": lambda p, given, lm: lm.kwargs.update(max_tokens=7),
    "LM": lambda p, given, lm: setattr(lm.engine, "identity", "another"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_step_is_asked(change, guarded, memo):
    signature = dspy.Signature(Write.fields.copy(), "Write queries.")
    lm, predictor, given = guarded(lambda asked: '{"queries": []}'), dspy.Predict(signature), {"question": "Why?"}
    if change == "choice":
        lm.engine.inner.steps = ('{"queries": []}', '{"queries": "a"}')
    with under(lm), remembering(memo):
        ask(predictor, given)
        CHANGES[change](predictor, given, lm)
        for _ in range(2):
            ask(predictor, given)
    assert times(lm) == 2


def test_a_demonstration_that_is_changed_in_place_is_noticed(guarded, memo):
    lm, predictor = guarded(), dspy.Predict(Write)
    predictor.demos = [dspy.Example(question="q", queries=["a"])]
    with under(lm), remembering(memo):
        for change in (lambda: None, lambda: predictor.demos[0].queries.append("b"), lambda: predictor.demos.pop()):
            change()
            ask(predictor, {"question": "Why?"})
            ask(predictor, {"question": "Why?"})
    assert times(lm) == 3


def test_another_adapter_is_another_step_or_none(guarded, memo):
    lm, predictor = guarded(), dspy.Predict(Write)
    with remembering(memo):
        for adapter in (PromptAdapter(), PromptAdapter(grammar=True), dspy.JSONAdapter()):
            for _ in range(2):
                with under(lm, adapter=adapter):
                    ask(predictor, {"question": "Why?"})
    assert (times(lm), len(memo)) == (4, 2)


def test_a_signature_of_equal_words_is_the_same_step(guarded, memo):
    lm = guarded()
    with under(lm), remembering(memo):
        for _ in range(2):
            late = LateSignature(Write, "queries", {"desc": "two", "count": 2, "max_chars": 9}, "Write well.")
            ask(dspy.Predict(Write), {"question": "Why?", "signature": late})
    assert times(lm) == 1
    assert lm.engine.inner.asked[0].system.startswith("Write well.")
    assert "- queries: two, list of texts" in lm.engine.inner.asked[0].system


def test_a_type_of_ones_own_is_like_no_other_of_its_name():
    def signature():
        class Own:
            pass

        class Asks(dspy.Signature):
            """Ask."""

            question: str = dspy.InputField()
            answer: Own = dspy.OutputField()

        return Asks

    one, other = signature(), signature()
    assert signature_text(one) == signature_text(one)
    assert signature_text(one) != signature_text(other)


def test_a_signature_is_made_once_and_anew_where_anything_of_it_differs():
    def late(base=Write, *names, instructions=None):
        return LateSignature(base, "queries", {"type_": Literal[names]}, instructions)

    made = late(Write, "a", "b").made()
    assert late(Write, "a", "b").made() is made
    assert get_args(made.output_fields["queries"].annotation) == ("a", "b")
    others = [
        late(Write, "b", "a"),  # equal to the first one for Python, and another prompt
        late(Write, "a", "b", instructions="Write well."),
        late(Write.with_instructions("Write."), "a", "b"),
        LateSignature(Write, "queries", {"desc": "two"}),
    ]
    assert len({made, *(one.made() for one in others)}) == 5
    assert get_args(others[0].made().output_fields["queries"].annotation) == ("b", "a")
    assert others[1].made().instructions == "Write well."


def test_what_is_made_follows_instructions_that_are_changed_in_place():
    base = Write.with_instructions("First.")
    assert LateSignature(base, "queries", {"desc": "two"}).made().instructions == "First."
    base.instructions = "Second."
    assert LateSignature(base, "queries", {"desc": "two"}).made().instructions == "Second."


def test_a_type_of_ones_own_is_made_anew():
    class Own(pydantic.BaseModel):
        text: str

    late = LateSignature(Write, "queries", {"type_": Own})
    assert late.made() is not late.made()


def test_draws_are_never_remembered_and_seeded_samples_are(guarded, memo):
    lm, predictor = guarded(), dspy.Predict(Write)
    with under(lm), remembering(memo):
        for config in ({"temperature": 0.7}, {"temperature": 0.7, "seed": 3}):
            for _ in range(3):
                ask(predictor, {"question": "Why?", "config": config})
    assert times(lm) == 3 + 1
    hot = guarded(temperature=0.7)
    with under(hot), remembering(memo):
        for _ in range(2):
            ask(predictor, {"question": "Why?"})
    assert times(hot) == 2


def test_nothing_is_taken_while_a_trace_is_kept(guarded, memo):
    lm, predictor = guarded(), dspy.Predict(Write)
    with remembering(memo):
        for trace in (None, [], []):
            with under(lm, trace=trace):
                ask(predictor, {"question": "Why?"})
            assert trace is None or len(trace) == 1
    assert times(lm) == 3


def test_a_step_that_cannot_be_read_is_remembered_as_such(guarded, memo):
    lm, predictor = guarded("no JSON", "none again"), dspy.Predict(Write)
    errors = []
    with under(lm), remembering(memo), metered() as meter:
        for _ in range(3):
            with pytest.raises(AdapterParseError) as caught:
                ask(predictor, {"question": "Why?"})
            errors.append(caught.value)
        assert Ask("write", predictor, question="Why?").run() is None
    assert times(lm) == 2
    assert len({(str(e), e.lm_response, repr(e.parsed_result)) for e in errors}) == 1
    assert len({id(e) for e in errors}) == 3
    assert meter.total.repairs == 4
    assert meter.total.asked == 8


def test_an_exception_is_not_remembered(guarded, memo):
    def fail(asked):
        raise LMServerError("out of order")

    lm, predictor = guarded(fail, {}), dspy.Predict(Write)
    with under(lm), remembering(memo):
        with pytest.raises(LMServerError):
            ask(predictor, {"question": "Why?"})
        assert len(memo) == 0
        ask(predictor, {"question": "Why?"})
        ask(predictor, {"question": "Why?"})
    assert times(lm) == 2


def test_what_is_taken_costs_what_it_saved(guarded, memo):
    lm, predictor = guarded("no JSON", {}), dspy.Predict(Write)
    with under(lm), remembering(memo):
        with metered() as first:
            ask(predictor, {"question": "Why?"})
        with metered() as outer, metered() as inner:
            ask(predictor, {"question": "Why?"})
    assert first.total.calls == 2
    assert inner.total == outer.total
    assert inner.total == Cost(saved=2, repairs=1, saved_tokens=first.total.tokens, saved_seconds=first.total.seconds)
    assert inner.total.asked == first.total.asked
    assert lm.engine.ledger.total == first.total + inner.total


def test_equal_steps_at_the_same_time_are_asked_once(guarded, memo):
    def slowly(asked):
        time.sleep(0.2)
        return json.dumps({"queries": ["one"]})

    lm, predictor = guarded(slowly), dspy.Predict(Write)

    def work(_):
        with under(lm), remembering(memo), metered() as meter:
            return ask(predictor, {"question": "Why?"}).queries, meter.total.calls, meter.total.saved

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(8)))
    assert times(lm) == 1
    assert sorted(found) == [(["one"], 0, 1)] * 7 + [(["one"], 1, 0)]


def test_equal_steps_of_an_event_loop_are_asked_once(guarded, memo):
    def slowly(asked):
        time.sleep(0.2)
        return json.dumps({"queries": ["one"]})

    lm, predictor = guarded(slowly), dspy.Predict(Write)

    async def work():
        step = Ask("write", predictor, question="Why?")
        impatient = asyncio.ensure_future(step.run_async())
        others = [asyncio.ensure_future(step.run_async()) for _ in range(5)]
        await asyncio.sleep(0.05)
        others[0].cancel()
        assert impatient.cancel()  # who waits asks again by itself
        return await asyncio.gather(*others, return_exceptions=True)

    with under(lm), remembering(memo):
        cancelled, *rest = asyncio.run(work())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert [one.queries for one in rest] == [["one"]] * 4
    assert times(lm) == 1  # the guard shares what is under way


def test_where_nothing_may_be_asked_the_memo_is_looked_at_first(guarded, memo):
    lm, predictor = guarded(), dspy.Predict(Write)
    with under(lm), remembering(memo):
        ask(predictor, {"question": "Why?"})
        with stored_only():
            ask(predictor, {"question": "Why?"})
            with pytest.raises(NotStoredError):
                ask(predictor, {"question": "How?"})
        ask(predictor, {"question": "How?"})
    assert times(lm) == 2


def test_who_may_not_ask_does_not_end_the_waiting_of_others(guarded, memo):
    started, lm, predictor = threading.Event(), None, dspy.Predict(Write)

    def slowly(asked):
        started.set()
        time.sleep(0.3)
        return json.dumps({"queries": ["one"]})

    lm = guarded(slowly)

    def work():
        with under(lm), remembering(memo):
            return ask(predictor, {"question": "Why?"}).queries

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(work)
        assert started.wait(5)
        second = pool.submit(work)
        with under(lm), remembering(memo), stored_only(), pytest.raises(NotStoredError):
            ask(predictor, {"question": "Why?"})
        assert first.result() == second.result() == ["one"]
    assert times(lm) == 1


def seen(out):
    """All that a caller can see of a result."""
    return (
        [(passage.id, id(passage)) for passage in out.passages],
        [(query.text, query.role, query.weight) for query in out.queries],
        [(record.kind, record.name, record.stage, record.given, record.made) for record in out.steps],
        (list(out.fallbacks), list(out.findings), out.answer, out.support),
    )


def drawn(name, seed, draw):
    """Random values of the knobs of a technique."""
    rng = random.Random(f"{name} {seed} {draw}")
    values = {}
    for knob in TECHNIQUES[name].KNOBS:
        if knob.choices or isinstance(knob.default, bool):
            values[knob.name] = rng.choice(knob.choices or (False, True))
        elif isinstance(knob.default, int):
            values[knob.name] = rng.randint(int(knob.low), min(int(knob.high), 25))
        else:
            values[knob.name] = rng.uniform(knob.low, knob.high)
    return values


def unreliable(asked):
    """Answers that depend on the prompt alone, every seventh of which cannot be read."""
    number = sum(map(ord, asked.text)) + 31 * (asked.sampling[1] or 0)
    if number % 7 == 0:
        return "no JSON"
    values = {}
    for name, spec in asked.properties.items():
        if "enum" in spec:
            values[name] = spec["enum"][number % len(spec["enum"])]
        elif spec.get("type") == "array" and spec["items"].get("type") == "integer":
            values[name] = [1, number % 4]
        else:
            texts = [f"{name} {number % 11} {place}" for place in range(8)]
            values[name] = texts if spec.get("type") == "array" else texts[0]
    return json.dumps(values)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_memo_and_kept_rankings_change_no_result(name, retriever, guarded, memo, tmp_path):
    """Whatever the numbers are, also in another process, which has the store and not the memo."""
    if not hasattr(retriever, "get"):
        by_id = {passage.id: passage for passage in retriever.passages}
        retriever.get = lambda ids: [by_id[id] for id in ids]  # so that rankings can be kept in the store
    store = Store(tmp_path / "store.sqlite")
    replay = ReplayRetriever(retriever, store=store, deepest=20)
    with_store = guarded(unreliable, store=store)
    plain = guarded(unreliable)
    for draw in range(6):
        knobs = drawn(name, 0, draw)
        reader = [None, *READERS][draw % 4]
        for question in QUESTIONS:
            results = []
            for lm, searched in ((plain, retriever), (with_store, replay), (with_store, replay)):
                program = make_program(name, searched, reader=reader, **knobs)
                with under(lm), remembering(memo if searched is replay else Memo()), metered() as meter:
                    results.append((seen(program(question=question, options=OPTIONS)), meter.total.asked))
            assert results[0] == results[1] == results[2]
            again = ReplayRetriever(retriever, store=store, deepest=20)
            program = make_program(name, again, reader=reader, **knobs)
            with under(with_store), remembering(Memo()), metered() as meter:
                assert seen(program(question=question, options=OPTIONS)) == results[0][0]
            assert meter.total.asked == results[0][1]
    assert name == "closed_book" or store.count(f"ranking:{retriever.fingerprint}")
    store.close()


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_trial_that_changes_only_numbers_asks_and_searches_nothing(name, retriever, guarded, memo):
    """Numbers that shape prompts are at their largest first; those that choose what is searched stay."""
    lm, replay = guarded(), ReplayRetriever(retriever, store=None, deepest=50)
    knobs = [knob for knob in TECHNIQUES[name].KNOBS if knob.name in {"max_passages", "top_k", "n_queries", "rrf_k"}]
    written = {"n_written": 8} if name in {"multi_query", "rag_fusion", "rrr"} else {}
    if name in {"decomposition", "ircot", "qa_rag"}:  # what they read, and so ask, depends on how much they find
        knobs = [knob for knob in knobs if knob.name in {"max_passages", "rrf_k"}]
    with under(lm), remembering(memo):
        largest = {knob.name: min(knob.high, 50) for knob in knobs}
        make_program(name, replay, **written, **largest)(question=QUESTIONS[0], options=OPTIONS)
        asked, searched = times(lm), len(retriever.searches)
        for seed in range(4):
            values = {key: value for key, value in drawn(name, 1, seed).items() if key in largest}
            make_program(name, replay, **written, **values)(question=QUESTIONS[0], options=OPTIONS)
    assert (times(lm), len(retriever.searches)) == (asked, searched)


def test_fewer_documents_of_hyde_are_the_first_of_more(retriever, guarded, memo):
    lm = guarded()
    with under(lm), remembering(memo):
        many = TECHNIQUES["hyde"](retriever, n_documents=8)(question=QUESTIONS[0])
        few = TECHNIQUES["hyde"](retriever, n_documents=3)(question=QUESTIONS[0])
    assert times(lm) == 8
    assert [query.text for query in few.queries] == [query.text for query in many.queries[:4]]
