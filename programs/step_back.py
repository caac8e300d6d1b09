"""Step-Back prompting: beside the question, a more general one about the principle or the background it rests on.

Zheng et al. 2023, arXiv 2310.06117. The reader answers the question itself, from the passages of both. The passages of
the question come first and each of the two gets half of the budget, as LangChain arranges them; what one leaves over
goes to the other. Where we differ: no demonstrations by default; an optimizer chooses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import dspy

from querywright.programs.base import FUSION_CHOICES, MAX_PASSAGES, TOP_K, Plan, Technique
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import query_in
from querywright.retrieval.types import Query


class StepBack(dspy.Signature):
    """Write a simpler, more general question about the principle, concept or history behind the question."""

    question: str = dspy.InputField()
    step_back_question: str = dspy.OutputField(max_length=120)


class StepBackRetrieval(Technique):
    """Searches the question and a step-back question.

    When that cannot be read, the question is the only query (fallback ``step_back``).
    """

    NAME = "step_back"
    TITLE = "Step-Back"
    PAPER = "arXiv 2310.06117"
    PROMPTS: ClassVar = {"step_back": StepBack}
    LM_STAGES = 1
    SEARCHES = "2"
    KNOBS = (
        MAX_PASSAGES,
        TOP_K,
        Knob("fusion", "shares", "how the lists become one", choices=("shares", *FUSION_CHOICES)),
    )

    async def plan(self, question: str, options: Sequence[str]) -> Plan:
        """The question and the one behind it."""
        text = query_in(await self.ask("step_back", question=question), "step_back_question")
        if not text:
            return Plan((Query(question),), ("step_back",))
        return Plan((Query(question), Query(text, "step_back")))
