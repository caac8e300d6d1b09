"""Step-Back prompting: search with the question and a more general question about its principle or background.

Zheng et al. 2023, arXiv 2310.06117. The reader answers the original question from the passages of both searches. As in
LangChain, the passages for the original question come first. The equal shares of the budget are ours: if one search has
fewer passages, the other gets the rest. Where we differ: there are no demonstrations by default. ``demos=1`` shows one
of ours; the paper shows one demonstration, and LangChain shows two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dspy

from querywright.data.types import History
from querywright.programs.base import FUSION, FUSION_CHOICES, MAX_PASSAGES, TOP_K, Technique, demos_knob
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import query_in
from querywright.programs.steps import Predict
from querywright.retrieval.types import Query


class QuestionToStepBack(dspy.Signature):
    """Write a simpler, more general question about the principle, concept or history behind the question."""

    question: str = dspy.InputField()
    step_back_question: str = dspy.OutputField(max_length=120)


class StepBackRetrieval(Technique):
    """Searches with the question and with a step-back question.

    If the step-back question cannot be read, the question is the only query (fallback ``step_back``).
    """

    NAME = "step_back"
    TITLE = "Step-Back"
    PAPER = "arXiv 2310.06117"
    LM_STAGES = 1
    SEARCHES = "2"
    KNOBS = (
        MAX_PASSAGES,
        TOP_K,
        replace(demos_knob(1), high=2),
        Knob("fusion", "shares", FUSION.help, choices=("shares", *FUSION_CHOICES)),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.step_back = Predict(QuestionToStepBack)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Search with the question and the more general question behind it."""
        made = self.step_back(question=question, history=history)
        text = query_in(made, "step_back_question")
        if not text:
            return self.retrieve([Query(question)], ["step_back"])
        return self.retrieve([Query(question), Query(text, "step_back")])
