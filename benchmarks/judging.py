"""How long judging takes when every judgement takes .2 s: 60 questions of 5 passages, 32 at a time.

    python benchmarks/judging.py

Prints the seconds, those of an ideal judge without any work beside, and the ratio.
"""

from __future__ import annotations

import json
import math
import time

import dspy
from dspy import lm15

from querywright.data.types import Passage, Question
from querywright.models.engine import LMEngine
from querywright.models.lm import as_lm
from querywright.optimize.evaluate import evaluate
from querywright.optimize.judging import judged_metrics
from querywright.programs import make_program

QUESTIONS, PASSAGES, THREADS, SECONDS = 61, 5, 32, 0.2


class SlowEngine:
    """Says USEFUL after a while."""

    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def complete(self, request: lm15.Request) -> lm15.Response:
        """The answer."""
        time.sleep(SECONDS)
        text = json.dumps({"reason": "It says so.", "label": "USEFUL"})
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant([lm15.TextPart(text)]),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=1, output_tokens=1),
        )

    def close(self) -> None:
        """Nothing is open."""


def search(query: str, k: int) -> list[Passage]:
    """As many passages of the question's own."""
    return [Passage(f"{query} {n}", f"Passage {n} of {query}") for n in range(k)]


def main() -> None:
    """Judge, and print how long it took."""
    lm = as_lm(dspy.LM("slow", engine=LMEngine(SlowEngine(), identity="slow"), cache=False))
    questions = [Question(f"q{n}", f"Question {n}?", answer="yes") for n in range(QUESTIONS)]
    metrics = judged_metrics(["judged_useful", "judged_entailed"], lm=lm, threads=THREADS)
    program = make_program("plain", search, reader=None, max_passages=PASSAGES)
    evaluate(program, questions[:1], lm=lm, name="warm", metrics=metrics)
    began = time.monotonic()
    found = evaluate(program, questions[1:], lm=lm, name="judged", metrics=metrics, threads=THREADS)
    seconds = time.monotonic() - began
    ideal = math.ceil(len(found.rows) * PASSAGES / THREADS) * SECONDS
    print(f"{len(found.rows) * PASSAGES} judgements: {seconds:.2f} s, ideal {ideal:.2f} s, ratio {seconds / ideal:.2f}")


if __name__ == "__main__":
    main()
