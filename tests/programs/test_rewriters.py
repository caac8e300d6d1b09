"""A rewriter: an LM of its own for what a technique writes."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from querywright.errors import TechniqueError
from querywright.models.engine import LMEngine
from querywright.optimize.optimizer_run import DrawnLM
from querywright.optimize.program_state import program_from, shaped, state_of
from querywright.programs import TECHNIQUES, Ensemble, make_program, takes_rewriter, use_rewriter

QUESTION, OPTIONS = "Which fact of the handbook?", ["Fact number 1", "Fact number 2"]
WRITERS = [name for name, kind in TECHNIQUES.items() if takes_rewriter(kind)]


@pytest.fixture
def lms(scripted: Callable[..., dspy.LM]) -> tuple[Any, Any]:
    """The LM of the settings, and a rewriter."""
    outer, rewriter = scripted(), scripted()
    outer.model, rewriter.model = "outer", "rewriter:mine@abc"
    return outer, rewriter


@pytest.mark.parametrize("name", WRITERS)
def test_a_rewriter_writes_for_the_technique_and_the_other_lm_reads(
    name: str, lms: tuple[Any, Any], retriever: Any, asking: Any
) -> None:
    outer, rewriter = lms
    program = make_program(name, retriever, reader="multiple_choice", rewriter=rewriter)
    with asking(outer):
        out = program(question=QUESTION, options=OPTIONS)
        async_out = asyncio.run(program.acall(question=QUESTION, options=OPTIONS))
    assert rewriter.engine.asked
    assert len(outer.engine.asked) == 2, "one reading each"
    assert {step.lm for step in out.steps if step.kind == "lm"} == {"rewriter:mine@abc"}
    assert [step.made for step in async_out.steps] == [step.made for step in out.steps]
    assert all("lm" not in step.given for step in out.steps)


def test_techniques_that_write_nothing_take_no_rewriter(lms: tuple[Any, Any], retriever: Any) -> None:
    assert set(TECHNIQUES) - set(WRITERS) == {"closed_book", "plain", "qb_rag", "rerank", "filter"}
    for name in ("plain", "filter", "rerank"):
        with pytest.raises(TechniqueError, match=f"{name} asks no LM to write"):
            make_program(name, retriever, rewriter=lms[1])
        assert make_program(name, retriever, rewriter=None).technique.own_lm is None


def test_copies_and_what_resets_predictors_keep_the_rewriter(lms: tuple[Any, Any], retriever: Any, asking: Any) -> None:
    outer, rewriter = lms
    program = make_program("rrr", retriever, rewriter=rewriter)
    copies = [
        copy.deepcopy(program),
        program.reset_copy(),
        program.deepcopy(),
        shaped(program, nearest=2, members=0),
        shaped(program, nearest=0, members=2),
    ]
    for one in copies:
        before = len(rewriter.engine.asked)
        with asking(outer):
            one(question=QUESTION)
        assert len(rewriter.engine.asked) == before + (len(one.members) if isinstance(one, Ensemble) else 1)
    assert not outer.engine.asked
    assert program.technique.with_knobs(max_passages=2).own_lm is rewriter
    use_rewriter(copies[-1], None)
    with asking(outer):
        copies[-1](question=QUESTION)
    assert len(outer.engine.asked) == 2


def test_what_is_saved_holds_no_rewriter(lms: tuple[Any, Any], retriever: Any) -> None:
    program = make_program("rrr", retriever, reader="short_answer", rewriter=lms[1])
    assert state_of(program) == state_of(make_program("rrr", retriever, reader="short_answer"))
    assert program.dump_state()["technique.rewriter"]["lm"] is None
    assert program_from(state_of(program), retriever).technique.own_lm is None


def test_a_trace_names_the_lm_of_the_settings_where_there_is_no_rewriter(
    lms: tuple[Any, Any], retriever: Any, asking: Any
) -> None:
    with asking(lms[0]):
        out = make_program("rrr", retriever)(question=QUESTION)
    assert [(step.kind, step.lm) for step in out.steps] == [("lm", "outer"), ("search", None)]


def test_hyde_numbers_its_samples_where_the_rewriter_takes_seeds(
    scripted: Callable[..., dspy.LM], lms: tuple[Any, Any], retriever: Any, asking: Any
) -> None:
    outer, rewriter = lms
    outer.engine.supported_params = frozenset({"temperature"})
    program = make_program("hyde", retriever, rewriter=rewriter, n_documents=3)
    with asking(outer):
        program(question=QUESTION)
    assert sorted(asked.sampling for asked in rewriter.engine.asked) == [(0.7, 0), (0.7, 1), (0.7, 2)]


def test_where_a_optimizer_draws_anew_the_rewriter_is_drawn_from_and_stopped_too(
    lms: tuple[Any, Any], retriever: Any, asking: Any
) -> None:
    outer, rewriter = lms
    stops: list[Exception | None] = []
    drawn = DrawnLM(outer, 7, stops.append)
    program = make_program("rrr", retriever, reader="short_answer", rewriter=rewriter)
    for lm in (drawn, drawn.copy(rollout_id=1, temperature=1.0), drawn.copy(rollout_id=2, temperature=1.0)):
        with asking(lm):
            program(question=QUESTION)
    sampling = [asked.sampling for asked in rewriter.engine.asked]
    assert not any(sampling[0])
    assert [temperature for temperature, _ in sampling[1:]] == [1.0, 1.0]
    assert len({seed for _, seed in sampling}) == 3
    assert len(stops) == 6, "before each call, the rewriter's and the reader's"
    assert rewriter.kwargs.get("rollout_id") is None, "the rewriter itself is as it was"


def _guarded(lm: Any) -> Any:
    """The LM with a store's and a ledger's engine around its own."""
    engine = LMEngine(lm.engine, identity=lm.model)
    return dspy.LM(lm.model, engine=engine, cache=False, num_retries=0)
