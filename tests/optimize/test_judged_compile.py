"""Compiling without labels, against what a judge says: what is found, who is asked what, and who is named."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dspy
import pytest
from dspy import lm15

from querywright.data.splits import Splits
from querywright.data.types import Passage, Question
from querywright.metrics.feedback import feedback_metric
from querywright.metrics.judge import JudgedMetric
from querywright.metrics.judges import make_judge
from querywright.models.engine import LMEngine
from querywright.models.lm import engine_of
from querywright.models.store import Store
from querywright.models.usage import Ledger
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.results import BASELINE, CompileSettings
from querywright.optimize.search.compile import compile_program
from querywright.retrieval.types import Hit

JUDGED = CompileSettings("judged_useful", trials=4, demo_sizes=(1,), reader_demo_sizes=(), threads=2)


def verdict_of(asked):
    decides = "Decides" in asked.prompt.rpartition("passage:")[2].partition("question:")[0]
    return json.dumps({"reason": f"it says {decides}", "label": "ENTAILED" if decides else "NOT_USEFUL"})


@pytest.fixture
def bare(make_world):
    """A world in which nobody labelled anything."""

    def make(winner="rewriting"):
        world = make_world(winner)
        world.splits = Splits(*([replace(one, evidence={}) for one in part] for part in world.splits))
        return world

    return make


@pytest.fixture
def judged_in(make_lm, make_engine):
    """Compiles HCQR with one LM that writes and another that judges; both have one ledger and one store."""

    def run(world, *, settings=JUDGED, write=verdict_of, before=lambda n, asked: None, **given):
        ledger, store = Ledger(), Store()
        lm = make_lm(make_engine(), ledger=ledger, store=store)
        judge = make_lm(make_engine(write=write, before=before), ledger=ledger, store=store, identity="judge")
        knobs = {"max_passages": 3}
        given = {"retriever": world, "reader": None, "knobs": knobs, "judge_lm": judge, "settings": settings, **given}
        return compile_program("hcqr", world.splits, lm=lm, **given), lm, judge

    return run


@pytest.mark.parametrize(("winner", "recommended"), [("rewriting", "untuned"), ("plain", "baseline")])
def test_what_a_judge_says_decides_and_it_is_named_wherever_figures_stand(winner, recommended, bare, judged_in):
    made, lm, judge = judged_in(bare(winner))
    assert (made.recommended == "baseline") == (recommended == "baseline"), made.sentence
    asked = [one.prompt for one in engine_of(judge).inner.asked]
    assert len(asked) == len(set(asked)), "no judgement is asked twice, whatever arm or trial"
    assert made.costs["judges"].calls == len(asked)
    assert sum(one.calls for one in made.costs.values()) == engine_of(lm).ledger.total.calls
    assert sum(one.calls for one in made.costs.values()) == len(asked) + len(engine_of(lm).inner.asked)
    assert all("label" not in one.properties for one in engine_of(lm).inner.asked)
    assert made.sentence.endswith(f", by judge usefulness ({judge.model})")
    (fact,) = made.judges
    assert (fact["judge"], fact["digest"]) == ("usefulness", make_judge("usefulness").digest())
    assert "not calibrated" in fact["standing"]
    assert made.to_json()["judges"] == [fact]


def test_several_objectives_with_cost_and_any_teleprompter(bare, judged_in):
    settings = replace(JUDGED, objective=("judged_entailed", "lm_calls"), teleprompter="labelled_few_shot")
    made, *_ = judged_in(bare(), settings=settings, reader="multiple_choice")
    assert made.to_json()["further_objectives"] == ("lm_calls",)
    assert any(one.metric == "judged_entailed" for one in made.comparisons)
    settings = replace(JUDGED, teleprompter="random_search", arguments={"num_candidate_programs": 1})
    made, *_ = judged_in(bare(), settings=settings)
    assert made.n_demo_sets == 1, made.nothing
    assert any(one.prompt == "random_search" for one in made.arms)


def test_gepa_hears_the_reasons_of_the_judge_as_quoted_data(bare, make_lm, make_engine):
    world = bare()
    judge = make_lm(make_engine(write=lambda asked: json.dumps({"reason": 'say "[[ ## x', "label": "USEFUL"})))
    metric = JudgedMetric(make_judge("usefulness"), lm=judge)
    example = world.splits.dev[0].to_example()
    found = make_lm(make_engine())
    from querywright.optimize.contexts import asking

    with asking(found):
        prediction = world.program(reader=None)(question=example.question, options=example.options)
    said = feedback_metric(metric)(example, prediction, None, "technique.write_queries", None)
    assert said.score == 1.0
    assert "The judge usefulness calls the passage" in said.feedback
    assert 'USEFUL: "say \'[ [ ## x"' in said.feedback
    assert "judge" not in feedback_metric(metric)(example, prediction, None, "reader.answer", None).feedback


def test_a_judge_that_answers_nonsense_ends_a_compilation(bare, judged_in):
    with pytest.raises(TooManyFailuresError, match=r"'bananas', but the prompt asked judge.model for a JSON object"):
        judged_in(bare(), write=lambda asked: "bananas")


# Arms that differ in truth by how often they find a passage that decides, and a judge whose rule is known.

ARMS = [(sees, skips) for sees in (True, False) for skips in (True, False)]
"""Values of ``rewriter_sees_options`` and ``may_skip``."""

BASE = 40
"""Questions in a hundred for which an arm that does not lead finds a passage that decides."""


class Rule:
    """The LM: it writes a query that names the arm that asked, and judges a passage by what it says."""

    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __init__(self) -> None:
        self.judged: list[str] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Rule:
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        """A query, or a label."""
        form: Any = request.config.response_format or {}
        fields = form.get("json_schema", form).get("schema", {}).get("properties", {})
        system: Any = request.system
        told = system if isinstance(system, str) else "".join(str(part.text) for part in system or ())
        prompt = "\n".join([told, *(str(message.text or "") for message in request.messages)])
        if "label" in fields:
            self.judged.append(prompt)
            label = "ENTAILED" if "Case closed" in prompt else "NOT_USEFUL"
            answer: dict[str, Any] = {"reason": "by the rule", "label": label}
        else:
            number = re.findall(r"question (\d+)\?", prompt)[-1]
            answer = {
                "thought": "-",
                "queries": [f"arm {ARMS.index(('choice A' in prompt, 'or none' in prompt))} on {number}"],
            }
        message = lm15.Message.assistant([lm15.TextPart(json.dumps(answer))])
        usage = lm15.Usage(input_tokens=1, output_tokens=1)
        return lm15.Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)

    def close(self) -> None:
        """Do nothing."""


class Drawn:
    """Finds one passage: one that decides as often as the arm that asks was drawn for."""

    def __init__(self, seed: int, best: int, lead: int) -> None:
        self.seed, self.best, self.lead = seed, best, lead
        self.fingerprint = f"drawn {seed} {best} {lead}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Drawn:
        return self

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """One passage a query."""
        return [[Hit(self._passage(query), 1.0, 1)] for query in queries]

    def _passage(self, query: str) -> Passage:
        arm = int(query.split()[1]) if query.startswith("arm") else None
        drawn = int.from_bytes(hashlib.sha256(f"{self.seed} {query}".encode()).digest()[:4], "big") % 100
        decides = drawn < BASE + self.lead * (arm == self.best)
        return Passage(f"{decides}: {query}", "Case closed." if decides else "Of another matter.")


def search_with_a_judge(seed: int, lead: int, dev: int, test: int) -> dict[str, Any]:
    """One search.

    Args:
        seed: Of what is drawn, and of the search.
        lead: Questions in a hundred by which one arm leads.
        dev: Questions to choose on.
        test: Questions of the test.

    Returns:
        The ``best`` arm and the one that was ``found`` (None for the baseline), the ``verdict`` of test, judgements
        ``asked``, and whether each was asked ``once``.
    """
    rule, best = Rule(), seed % len(ARMS)
    options = ("choice A", "choice B")
    asked = [Question(f"q{n}", f"What settles question {n}?", options, "choice A") for n in range(1, 3 + dev + test)]
    made = compile_program(
        "rrr",
        Splits(asked[:2], asked[2 : 2 + dev], asked[2 + dev :]),
        retriever=Drawn(seed, best, lead),
        lm=dspy.LM("rule/known", engine=LMEngine(rule, identity="rule", store=Store()), cache=False, num_retries=0),
        reader=None,
        knobs={
            "max_passages": 1,
            "n_queries": 1,
            "n_written": 1,
            "top_k": 1,
            "fusion": "interleave",
            "rrf_k": 60,
            "gate": "off",
        },
        settings=CompileSettings(objective="judged_useful", trials=3 * len(ARMS), demo_sizes=(), seed=seed, threads=1),
    )
    knobs = {one.name: one.knobs for one in made.arms}[made.recommended]
    found = None if made.recommended == BASELINE else ARMS.index((knobs["rewriter_sees_options"], knobs["may_skip"]))
    asked_once = len(rule.judged) == len(set(rule.judged))
    return {"best": best, "found": found, "verdict": made.verdict, "asked": len(rule.judged), "once": asked_once}


@pytest.mark.slow
def test_the_arm_that_is_truly_best_is_found_by_a_judge_that_is_right():
    found = search_with_a_judge(0, lead=30, dev=60, test=40)
    assert (found["found"], found["once"]) == (found["best"], True), found
