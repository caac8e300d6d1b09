"""Compiling, comparing and budgeting with a rewriter beside the LM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest

from querywright.errors import BudgetError, InputError
from querywright.models.budget import Budget
from querywright.models.engine import LMEngine
from querywright.optimize.artifacts.save import save_compiled
from querywright.optimize.comparison import compare
from querywright.optimize.study.compile import CompileSettings, compile_program

QUICK = CompileSettings(n_trials=4, demo_sizes=(1,), reader_demo_sizes=(), threads=2)
MARK = "rewriter:mine@0123456789ab"


def beside(lm: Any, engine: Any, *, budget: Budget | None = None, mark: str = MARK) -> Any:
    """A rewriter over a scripted engine, with the store and the ledger of an LM."""
    both = {"store": lm.engine.store, "ledger": lm.engine.ledger, "limits": lm.engine.limits}
    return dspy.LM(mark, engine=LMEngine(engine, identity=mark, budget=budget, **both), cache=False, num_retries=0)


def compiled(world: Any, lm: Any, rewriter: Any, **given: Any) -> Any:
    return compile_program(
        given.pop("technique", "hcqr"), world.splits, retriever=world, lm=lm, knobs={"max_passages": 3},
        settings=QUICK, rewriter=rewriter, **given,
    )  # fmt: skip


def steps(lm: Any) -> set[str]:
    return {asked.step for asked in lm.engine.inner.asked}


def test_a_compilation_asks_the_rewriter_to_write_and_the_lm_to_read(
    world: Any, make_lm: Any, make_engine: Any, store: Any, tmp_path: Path
) -> None:
    lm = make_lm(store=store)
    rewriter = beside(lm, make_engine())
    found = compiled(world, lm, rewriter)
    assert (steps(rewriter), steps(lm)) == ({"hypothesis", "queries"}, {"reader"})
    made = len(lm.engine.inner.asked) + len(rewriter.engine.inner.asked)
    assert sum(cost.calls for cost in found.costs.values()) == made, "the calls of both are entered"
    assert found.program.technique.own_lm is rewriter
    manifest = save_compiled(tmp_path / "own", found, world.splits, lm=lm, threads=1)
    assert (manifest.lm, str(manifest.rewriter)) == ("scripted/model", "mine@0123456789ab")


def test_a_compilation_that_is_repeated_asks_neither_of_them_again(
    world: Any, make_lm: Any, make_engine: Any, store: Any
) -> None:
    first = make_lm(store=store)
    compiled(world, first, beside(first, make_engine()))
    again = make_lm(store=store)
    rewriter = beside(again, make_engine())
    compiled(world, again, rewriter)
    assert not again.engine.inner.asked
    assert not rewriter.engine.inner.asked


def test_demonstrations_for_the_rewriter_are_its_own_runs(
    world: Any, make_lm: Any, make_engine: Any, scripted: Any
) -> None:
    def marked(asked: Any) -> str:
        answer = json.loads(scripted(asked))
        return json.dumps({**answer, **({"support": f"{answer['support']} mine"} if "support" in answer else {})})

    lm = make_lm()
    found = compiled(world, lm, beside(lm, make_engine(write=marked)))
    demos = [arm for arm in found.arms if arm.prompt.startswith("demos")]
    assert demos, "a set was bootstrapped"
    shown = [asked.prompt for asked in _asked(found) if asked.step == "queries" and asked.prompt.count(" mine")]
    assert shown


def _asked(found: Any) -> list[Any]:
    return list(found.program.technique.own_lm.engine.inner.asked)


def test_a_rewriter_that_is_of_no_use_or_not_counted_is_refused(world: Any, make_lm: Any, store: Any) -> None:
    lm, other = make_lm(), make_lm()
    with pytest.raises(InputError, match="another ledger than the LM"):
        compiled(world, lm, other)
    elsewhere = beside(lm, other.engine.inner)
    elsewhere.engine.store = store
    with pytest.raises(InputError, match="another store than the LM"):
        compiled(world, lm, elsewhere)
    with pytest.raises(InputError, match="filter asks no LM to write"):
        compiled(world, lm, beside(lm, lm.engine.inner), technique="filter")


def test_a_limit_of_calls_is_that_of_both(world: Any, make_lm: Any, make_engine: Any) -> None:
    budget = Budget(None, "both", calls=10)
    lm = make_lm(budget=budget)
    rewriter = beside(lm, make_engine(), budget=budget)
    with pytest.raises(BudgetError, match=r"the limit of 10 LM calls is reached.*Raise --max-calls"):
        compiled(world, lm, rewriter)
    assert len(lm.engine.inner.asked) + len(rewriter.engine.inner.asked) == 10


def test_answers_of_a_comparison_are_kept_by_rewriter(world: Any, make_lm: Any, make_engine: Any, store: Any) -> None:
    lm = make_lm(store=store)

    def run(*marks: str | None) -> int:
        """Calls of the rewriters."""
        made = {mark: None if mark is None else beside(lm, make_engine(), mark=mark) for mark in marks}
        arms = {str(mark): world.program() for mark in marks}
        for mark, rewriter in made.items():
            arms[str(mark)].technique.own_lm = rewriter
        compare(arms, world.splits.dev, lm=lm, baseline=str(marks[0]))
        return sum(len(one.engine.inner.asked) for one in made.values() if one is not None)

    calls = run(None, "rewriter:a@0123456789ab")
    assert calls
    assert run(None, "rewriter:a@0123456789ab") == 0
    assert run(None, "rewriter:a@ba9876543210") == calls, "another one has answers of its own"
