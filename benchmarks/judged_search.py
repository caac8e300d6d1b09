"""Whether a search that asks a judge finds the arm that is truly best, and crowns none where none is.

Everything but the texts is real: a technique's arms differ by whether its rewriter sees the options and may skip, each
arm's query finds a passage that decides a question as often as was drawn for it, and a judge that reads the passages,
an LM whose rule is known, says which do. Nothing is labelled. With a lead one arm, another one each time, truly finds
such a passage for so many more questions in a hundred than any other arm and no rewriting; without, all are alike.

    python benchmarks/judged_search.py --runs 20 --lead 15 --dev 400 --test 200
    python benchmarks/judged_search.py --runs 60 --lead 0 --dev 100 --test 100
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import dspy
from dspy import lm15

from querywright.data.splits import Splits
from querywright.data.types import Passage, Question
from querywright.models.engine import LMEngine
from querywright.models.store import Store
from querywright.optimize.results import NO_REWRITING, CompileSettings
from querywright.optimize.study.compile import compile_program
from querywright.retrieval.types import Hit

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


def searched(seed: int, lead: int, dev: int, test: int) -> dict[str, Any]:
    """One search.

    Args:
        seed: Of what is drawn, and of the search.
        lead: Questions in a hundred by which one arm leads.
        dev: Questions to choose on.
        test: Questions that are met once.

    Returns:
        The ``best`` arm and the one that was ``found`` (None for no rewriting), the ``verdict`` of test, judgements
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
    found = (
        None if made.recommended == NO_REWRITING else ARMS.index((knobs["rewriter_sees_options"], knobs["may_skip"]))
    )
    asked_once = len(rule.judged) == len(set(rule.judged))
    return {"best": best, "found": found, "verdict": made.verdict, "asked": len(rule.judged), "once": asked_once}


def main() -> None:
    """Run searches and say what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"runs": 20, "lead": 15, "dev": 400, "test": 200, "first": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    runs = []
    for seed in range(given.first, given.first + given.runs):
        runs.append(searched(seed, given.lead, given.dev, given.test))
        print(json.dumps({"seed": seed, **runs[-1]}), flush=True)
    right = sum(one["found"] == one["best"] for one in runs)
    gains = sum(one["verdict"] == "gain" for one in runs)
    print(f"lead {given.lead}: the best arm found in {right} of {given.runs} runs, a gain claimed in {gains}")


if __name__ == "__main__":
    main()
