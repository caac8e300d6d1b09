"""A whole program: a technique that finds passages and a reader that answers from them.

The technique may ask a writer, an LM of its own, while the reader asks that of the settings. It is held where DSPy does
not look: an optimizer that resets predictors leaves it alone, copies share it, and no file holds it.
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

_NEAREST = Knob("nearest", 0, "demonstrations shown with each call, 0 for all", low=0, high=1_000_000, search=False)


class Listener(Protocol):
    """Told of a question while it is worked on, from the thread that works."""

    @property
    def ear(self) -> Ear | None:
        """Listens to the LM while the reader asks it; None where its answer is of no use before it is whole."""

    def found(self, queries: Sequence[Query], passages: Sequence[Passage]) -> None:
        """What the technique searched for and found, before the reader is asked."""


class RAG(Threaded):
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
        turns = turns_of(history)
        # A technique of the user's own may know nothing of a history.
        given: dict[str, Any] = {"question": question, "options": options} | ({"history": turns} if turns else {})
        with self.choosing():
            return self.answer(**given)

    def load_state(self, state: Any, **options: Any) -> None:
        """Take what ``dump_state`` gave."""
        for one in (self.deepcopy(), self):
            one.technique.take_knobs(state["technique.knobs"])
            dspy.Module.load_state(one, state, **options)

    def choosing(self) -> AbstractContextManager[None]:
        """Inside the ``with`` block, predictors are shown the demonstrations that this program chooses for a call."""
        return showing(self._nearest, self.nearest)

    def answer(self, **given: Any) -> dspy.Prediction:
        """Find passages and read them; ``given`` has ``question``, ``options`` and, if there is one, ``history``."""
        found = self.technique(**given)
        told = question_context().listener
        if told is not None:
            told.found(found.queries, found.passages)
        read = dspy.Prediction(answer=found.get("answer"), support=None, fallbacks=[])
        if self.reader is not None and read.answer is None:
            # The reader is given the passages, and sub-answers meant for it; nothing else that was written.
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
    """Refuse a writer, where one is given, for a technique, or the class of one, that asks no LM.

    Raises:
        TechniqueError: It asks none, so a writer has nothing to do in it.
    """
    if writer is not None and not technique.LM_STAGES:
        raise TechniqueError(
            f"{technique.NAME} asks no LM before it reads, so a writer has nothing to do in it; leave the writer out "
            "(writer_lm=), or take a technique that writes, such as rrr"
        )


def use_writer(program: P, lm: dspy.BaseLM | None) -> P:
    """Have every predictor of a technique ask this LM, and no reader.

    Args:
        program: A technique, or a program around one or several; changed in place.
        lm: Any LM. None: the one of the DSPy settings.

    Returns:
        The program.

    Raises:
        TechniqueError: The technique asks no LM.
    """
    techniques = [part for _, part in program.named_sub_modules() if isinstance(part, Technique)]
    for technique in techniques:
        check_takes_writer(technique, lm)
        technique.writer_lm = lm
    return program
