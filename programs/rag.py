"""A whole program: a technique that finds passages and a reader that answers from them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import dspy

from querywright.data.types import History, turns_of
from querywright.errors import TechniqueError
from querywright.models.pieces import heard_by
from querywright.programs import listener
from querywright.programs.base import Technique
from querywright.programs.hyperparameters import Knob, Knobs
from querywright.programs.knn_demos import NearestDemos, showing
from querywright.programs.readers import Reader
from querywright.programs.steps import Use, drive, drive_async

_NEAREST = Knob("nearest", 0, "demonstrations shown with each call, 0 for all", low=0, high=1_000_000, search=False)


class RAG(dspy.Module):
    """A technique and a reader.

    Args:
        technique: Finds passages.
        reader: Answers from them, or None for a program that only retrieves.
        nearest: Demonstrations that each call of a predictor is shown, those nearest to what it is asked; 0 for all
            that the predictor has. Default 0.

    Raises:
        TechniqueError: ``nearest`` is below 0.
    """

    def __init__(self, technique: Technique, reader: Reader | None, *, nearest: int = 0) -> None:
        super().__init__()
        if nearest < 0:
            raise TechniqueError(f"nearest must be 0 (all demonstrations are shown) or more, but got {nearest}")
        self.technique = technique
        self.reader = reader
        self.showing = Knobs((_NEAREST,), {"nearest": nearest})  # a parameter, so that DSPy saves it beside the prompts
        self._nearest = NearestDemos(getattr(technique.retriever, "embed", None))

    @property
    def nearest(self) -> int:
        """Demonstrations that each call of a predictor is shown; 0 for all."""
        return int(self.showing["nearest"])

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Find passages and answer.

        Args:
            question: The question as it was asked.
            options: Option texts of a multiple-choice question, or None.
            history: The conversation before the question, for the technique's LM and for the reader, see ``turns_of``.
                Default none.

        Returns:
            A prediction with ``answer`` (text, as the reader gives it; None without a reader), ``support`` (ids of
            the passages that the answer rests on; None where the reader does not say), ``passages`` (list of
            Passage, best first), ``queries`` (list of Query), ``fallbacks`` (names of the steps that fell back),
            ``findings`` (list of Finding) and ``steps`` (list of Record, for traces).

        Raises:
            TechniqueError: The question is blank, or its options are not what technique and reader need.
            DataError: The history has another form.
        """
        return drive(self._work(**_given(question, options, history)), [])

    async def aforward(
        self, question: str, options: Sequence[str] | None = None, history: History = None
    ) -> dspy.Prediction:
        """``forward`` in an event loop."""
        return await drive_async(self._work(**_given(question, options, history)), [])

    def load_state(self, state: Any, **options: Any) -> None:
        """Take what ``dump_state`` gave."""
        with self.technique.prepared_for(state.get("technique.knobs")):
            super().load_state(state, **options)

    def choosing(self) -> AbstractContextManager[None]:
        """Inside the ``with`` block, predictors are shown the demonstrations that this program chooses for a call."""
        return showing(self._nearest, self.nearest)

    async def _work(self, **given: Any) -> dspy.Prediction:
        with self.choosing():
            return await self.read(await Use(self.technique, **given), **given)

    async def read(self, found: dspy.Prediction, **given: Any) -> dspy.Prediction:
        """``forward`` from where the technique has found its passages, as a coroutine of steps.

        Args:
            found: What the technique gave.
            given: ``question``, ``options`` and, where there is one, ``history``.
        """
        told = listener.current.get()
        if told is not None:
            told.found(found.queries, found.passages)
        read = dspy.Prediction(answer=None, support=None, fallbacks=[])
        if self.reader is not None:
            # The reader is given the passages, and sub-answers meant for it; nothing else that was written.
            with heard_by(None if told is None else told.ear):
                read = await Use(self.reader, **given, passages=found.passages, findings=found.findings)
        return dspy.Prediction(
            answer=read.answer,
            support=read.get("support"),
            passages=found.passages,
            queries=found.queries,
            fallbacks=[*found.fallbacks, *read.fallbacks],
            findings=found.findings,
            steps=found.steps,
        )


def _given(question: str, options: Sequence[str] | None, history: History) -> dict[str, Any]:
    """What technique and reader are given; a technique of the user's own may know nothing of a history."""
    turns = turns_of(history)
    return {"question": question, "options": options} | ({"history": turns} if turns else {})
