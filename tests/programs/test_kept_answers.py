"""What was answered and searched before is not asked or searched again, and changes no result."""

from __future__ import annotations

import json
import random

import dspy
import pytest

from querywright.models.adapter import PromptAdapter
from querywright.models.circuit_breaker import Limits
from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.models.store import Store
from querywright.models.usage import metered
from querywright.programs import READERS, TECHNIQUES, make_program
from querywright.retrieval.replay import ReplayRetriever

OPTIONS = ["Aspirin", "Insulin", "Warfarin", "Heparin"]
QUESTION = "Which drug is the right one in case 1?"


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    yield store
    store.close()


@pytest.fixture
def counted(scripted):
    """Makes an LM; ``lm.engine.inner.asked`` holds what it was asked."""

    def make(*steps, store=None):
        engine = LMEngine(scripted(*steps).engine, identity="scripted", store=store, limits=Limits(max_attempts=1))
        both = {"engine": engine, "async_engine": AsyncLMEngine(engine), "cache": False, "num_retries": 0}
        return dspy.LM("scripted", temperature=0.0, **both)

    return make


def under(lm):
    """The settings under which programs are run."""
    return dspy.context(lm=lm, adapter=PromptAdapter(), disable_history=True, trace=None)


def seen(out):
    """All that a caller can see of a result."""
    return (
        [passage.id for passage in out.passages],
        [(query.text, query.role, query.weight) for query in out.queries],
        [(record.kind, record.name, record.stage, record.given, record.made) for record in out.steps],
        (list(out.fallbacks), list(out.findings), out.answer, out.support),
    )


def drawn(name, draw):
    """Random values of the knobs of a technique."""
    rng = random.Random(f"{name} {draw}")
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
    """Answers that depend on the prompt alone, every seventh of which lacks what was asked for."""
    number = sum(map(ord, asked.text)) + 31 * (asked.sampling[1] or 0)
    if number % 7 == 0:
        return "{}"
    values = {}
    for name, spec in asked.properties.items():
        texts = [f"{name} {number % 11} {place}" for place in range(8)]
        if spec.get("type") == "array":
            values[name] = [1, number % 4] if spec["items"].get("type") == "integer" else texts
        else:
            values[name] = spec.get("enum", texts)[number % len(spec.get("enum", texts))]
    return json.dumps(values)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_kept_answers_and_rankings_change_no_result(name, retriever, counted, store):
    """Whatever the numbers are, also in another process."""
    if not hasattr(retriever, "get"):
        by_id = {passage.id: passage for passage in retriever.passages}
        retriever.get = lambda ids: [by_id[id] for id in ids]  # so that rankings can be kept in the store
    plain, kept = counted(unreliable), counted(unreliable, store=store)
    for draw in range(4):
        results = []
        replays = [(kept, ReplayRetriever(retriever, store=store, deepest=20)) for _ in range(2)]
        for lm, searched in ((plain, retriever), *replays):
            program = make_program(name, searched, reader=[None, *READERS][draw % 4], **drawn(name, draw))
            with under(lm), metered() as meter:
                results.append((seen(program(question=QUESTION, options=OPTIONS)), meter.total.asked))
        assert results[0] == results[1] == results[2]
    assert name == "closed_book" or store.count(f"ranking:{retriever.fingerprint}")


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_trial_that_changes_only_numbers_asks_and_searches_nothing(name, retriever, counted, store):
    """Numbers that shape prompts are at their largest first; those that choose what is searched stay."""
    lm, replay = counted(store=store), ReplayRetriever(retriever, store=None, deepest=50)
    names = {"max_passages", "top_k", "n_queries", "rrf_k"}
    if name in {"decomposition", "ircot", "qa_rag"}:  # what they read, and so ask, depends on how much they find
        names = {"max_passages", "rrf_k"}
    if name == "rrs":  # as does what it selects from, and how many passages it is asked for
        names = set()
    counts = "n_written" in [knob.name for knob in TECHNIQUES[name].KNOBS]
    written = {"n_written": 8} if counts and "n_queries" in names else {}
    largest = {knob.name: min(knob.high, 50) for knob in TECHNIQUES[name].KNOBS if knob.name in names}
    with under(lm):
        make_program(name, replay, **written, **largest)(question=QUESTION, options=OPTIONS)
        asked, searched = len(lm.engine.inner.asked), len(retriever.searches)
        for draw in range(4):
            values = {key: value for key, value in drawn(name, draw).items() if key in largest}
            make_program(name, replay, **written, **values)(question=QUESTION, options=OPTIONS)
    assert (len(lm.engine.inner.asked), len(retriever.searches)) == (asked, searched)
