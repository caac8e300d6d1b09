"""Compiling, comparing and budgeting with an LM that writes beside the one that reads."""

from __future__ import annotations

import json

import dspy

from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.optimize.artifacts.save import save_compiled
from querywright.optimize.results import CompileSettings
from querywright.optimize.search.compile import compile_program

QUICK = CompileSettings(trials=4, demo_sizes=(1,), reader_demo_sizes=(), threads=2)
MARK = "rewriter:mine@0123456789ab"


def beside(lm, engine):
    """A rewriter over a scripted engine, with the store and the ledger of an LM."""
    both = {"store": lm.engine.store, "ledger": lm.engine.ledger, "limits": lm.engine.limits}
    own = LMEngine(engine, identity=MARK, **both)
    return dspy.LM(MARK, engine=own, async_engine=AsyncLMEngine(own), cache=False, num_retries=0)


def compiled(world, lm, rewriter):
    return compile_program(
        "hcqr", world.splits, retriever=world, lm=lm, knobs={"max_passages": 3}, settings=QUICK, writer_lm=rewriter
    )


def asked(lm):
    return lm.engine.inner.asked


def test_the_rewriter_writes_the_lm_reads_and_neither_is_asked_again(world, make_lm, make_engine, store, tmp_path):
    lm = make_lm(store=store)
    rewriter = beside(lm, make_engine())
    found = compiled(world, lm, rewriter)
    assert {one.step for one in asked(rewriter)} == {"hypothesis", "queries"}
    assert {one.step for one in asked(lm)} == {"reader"}
    made = len(asked(lm)) + len(asked(rewriter))
    assert sum(cost.calls for cost in found.costs.values()) == made, "the calls of both are entered"
    assert found.program.technique.writer_lm is rewriter
    manifest = save_compiled(tmp_path / "own", found, world.splits, lm=lm, threads=1)
    assert (manifest.lm, str(manifest.writer)) == ("scripted/model", MARK)

    again = make_lm(store=store)
    rewriter = beside(again, make_engine())
    compiled(world, again, rewriter)
    assert asked(again) == asked(rewriter) == []


def test_demonstrations_for_the_rewriter_are_its_own_runs(world, make_lm, make_engine, scripted):
    def marked(one):
        answer = json.loads(scripted(one))
        return json.dumps({**answer, **({"support": f"{answer['support']} mine"} if "support" in answer else {})})

    lm = make_lm()
    rewriter = beside(lm, make_engine(write=marked))
    found = compiled(world, lm, rewriter)
    assert any(arm.prompt.startswith("demos") for arm in found.arms), "a set was bootstrapped"
    assert any(one.step == "queries" and " mine" in one.prompt for one in asked(rewriter))
