"""A complete program: a technique that finds passages and a reader that answers from them.

The technique can call a separate LM (the writer), while the reader calls the LM in the DSPy settings. DSPy does not see
the writer: an optimizer that resets predictors does not change it, copies share it, and it is never saved to a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import dspy

from querywright.data.types import History, Passage, turns_of
from querywright.errors import TechniqueError
from querywright.models.pieces import Ear, heard_by
from querywright.programs.base import Technique
from querywright.programs.hyperparameters import Knob, Knobs
from querywright.programs.knn_demos import NearestDemos
from querywright.programs.readers import Reader
from querywright.programs.steps import Threaded, question_context, showing
from querywright.retrieval.types import Query

P = TypeVar("P", bound=dspy.Module)

_NEAREST = Knob("nearest", 0, "number of demonstrations in each call; 0: all", low=0, high=1_000_000, search=False)


class Listener(Protocol):
    """Receives events while a program answers a question, in the thread that answers the question."""

    @property
    def ear(self) -> Ear | None:
        """Receives the reader's answer while the LM writes it; None if partial answers are not needed."""

    def found(self, queries: Sequence[Query], passages: Sequence[Passage]) -> None:
        """Receive the queries and passages before the reader is called."""


class RAG(Threaded):
    """A technique and a reader.

    Args:
        technique: The technique that finds passages.
        reader: The reader that answers from them, or None for a program that only retrieves.
        nearest: Number of demonstrations in each predictor call: those nearest to the input of the call. 0 shows all of
            the predictor's demonstrations. Default 0.

    Raises:
        TechniqueError: ``nearest`` is below 0.
    """

    def __init__(self, technique: Technique, reader: Reader | None, *, nearest: int = 0) -> None:
        super().__init__()
        if nearest < 0:
            raise TechniqueError(f"nearest must be 0 (for all demonstrations) or more, but got {nearest}")
        self.technique = technique
        self.reader = reader
        self.showing = Knobs((_NEAREST,), {"nearest": nearest})  # a parameter, so that DSPy saves it with the prompts
        self._nearest = NearestDemos(getattr(technique.retriever, "embed", None))

    @property
    def nearest(self) -> int:
        """The number of demonstrations in each predictor call; 0 for all."""
        return int(self.showing["nearest"])

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Find passages and answer.

        Args:
            question: The question.
            options: Option texts of a multiple-choice question, or None.
            history: The conversation before the question, for the technique's LM and the reader; see ``turns_of``.
                Default none.

        Returns:
            A prediction with ``answer`` (the reader's text; None without a reader), ``support`` (ids of the passages
            that support the answer; None if the reader does not name them), ``passages`` (list of Passage, best
            first), ``queries`` (list of Query), ``fallbacks`` (names of the steps that used a fallback), ``findings``
            (list of Finding) and ``steps`` (list of Record, for traces).

        Raises:
            TechniqueError: The question is blank, or its options do not suit the technique or the reader.
            DataError: The history is not in an accepted form.
        """
        turns = turns_of(history)
        # A custom technique might not accept a history.
        given: dict[str, Any] = {"question": question, "options": options} | ({"history": turns} if turns else {})
        with self.choosing():
            return self.answer(**given)

    def load_state(self, state: Any, **options: Any) -> None:
        """Load a state that ``dump_state`` returned."""
        for one in (self.deepcopy(), self):
            one.technique.take_knobs(state["technique.knobs"])
            dspy.Module.load_state(one, state, **options)

    def choosing(self) -> AbstractContextManager[None]:
        """Show the demonstrations that this program chooses for each call, inside the ``with`` block."""
        return showing(self._nearest, self.nearest)

    def answer(self, **given: Any) -> dspy.Prediction:
        """Find passages and let the reader answer; ``given`` has the arguments of ``forward``."""
        if self.reader is not None:
            self.reader.check(given["question"], given["options"])
        found = self.technique(**given)
        told = question_context().listener
        if told is not None:
            told.found(found.queries, found.passages)
        read = dspy.Prediction(answer=found.get("answer"), support=None, fallbacks=[])
        if self.reader is not None and read.answer is None:
            # The reader gets the passages and the sub-answers meant for it, and no other LM text.
            with heard_by(None if told is None else told.ear):
                read = self.reader(**given, passages=found.passages, findings=found.findings)
        return dspy.Prediction(
            answer=read.answer,
            support=read.get("support"),
            passages=found.passages,
            queries=found.queries,
            fallbacks=[*found.fallbacks, *read.fallbacks],
            findings=found.findings,
            steps=found.steps,
        )


def check_takes_writer(technique: type[Technique] | Technique, writer: Any) -> None:
    """Raise if a writer is passed for a technique that calls no LM.

    Raises:
        TechniqueError: The technique calls no LM, so a writer has no effect.
    """
    if writer is not None and not technique.LM_STAGES:
        raise TechniqueError(
            f"{technique.NAME} calls no LM before the reader, so writer_lm= would have no effect; remove it, or use a "
            "technique that rewrites the question, such as rrr"
        )


def use_writer(program: P, lm: dspy.BaseLM | None) -> P:
    """Set the LM that all predictors in a technique call; the reader's LM is unchanged.

    Args:
        program: A technique, or a program with one or more techniques; it is changed in place.
        lm: Any LM. None: the LM in the DSPy settings.

    Returns:
        The program.

    Raises:
        TechniqueError: The technique calls no LM.
    """
    techniques = [part for _, part in program.named_sub_modules() if isinstance(part, Technique)]
    for technique in techniques:
        check_takes_writer(technique, lm)
        technique.writer_lm = lm
    return program
