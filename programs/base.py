"""What every technique has in common: a plan of queries, one search, fusion, and a cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError

from querywright.data.types import Passage
from querywright.errors import TechniqueError
from querywright.programs.knobs import Knob, Knobs
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.fusion import fuse
from querywright.retrieval.types import Query

T = TypeVar("T")

MAX_PASSAGES = Knob("max_passages", 5, "passages given to the reader at most", low=1, high=50, search=False)
FUSION_CHOICES = ("interleave", "rrf", "union", "best_score")


@dataclass(frozen=True, slots=True)
class Plan:
    """The queries of a technique, and what happened while they were written.

    Args:
        queries: In the order in which fusion sees them. Empty: nothing is searched.
        notes: What only the retriever's side may know (a hypothesis, a rewrite); shown by a trace, never to a
            reader.
        fallbacks: Names of the steps that fell back to something plainer.
    """

    queries: tuple[Query, ...]
    notes: Mapping[str, Any] | None = None
    fallbacks: tuple[str, ...] = ()


class Technique(dspy.Module):
    """A way from a question to passages.

    A technique declares ``NAME``, ``TITLE``, ``PAPER``, ``LM_STAGES``, ``SEARCHES`` and ``KNOBS`` and writes
    ``plan``; searching, fusing and cutting happen here. ``max_passages`` must be among the knobs of a
    technique that searches; ``top_k`` (else ``max_passages``), ``fusion`` (else interleave) and ``rrf_k``
    (else 60) are read where they are declared.

    Args:
        retriever: A querywright retriever, or anything that ``as_retriever`` understands. Copies share it.
        knobs: Values of knobs that differ from their defaults.
    """

    NAME: ClassVar[str]
    TITLE: ClassVar[str]
    PAPER: ClassVar[str]
    LM_STAGES: ClassVar[int] = 0
    SEARCHES: ClassVar[str] = "1"
    KNOBS: ClassVar[tuple[Knob, ...]] = (MAX_PASSAGES,)
    NEEDS_OPTIONS: ClassVar[bool] = False

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__()
        self.retriever = None if retriever is None else as_retriever(retriever)
        self.knobs = Knobs(self.KNOBS, knobs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self.retriever is not None:
            memo[id(self.retriever)] = self.retriever
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        other.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return other

    def with_knobs(self, **values: Any) -> Self:
        """A copy with other knob values; prompts are copied, the retriever is shared."""
        other = copy.deepcopy(self)
        other.knobs.update(values)
        return other

    def plan(self, question: str, options: Sequence[str]) -> Plan:
        """The queries for a question; ``options`` is empty when the question has none."""
        raise NotImplementedError(f"{type(self).__name__} must write plan() or its own forward()")

    def forward(self, question: str, options: Sequence[str] | None = None) -> dspy.Prediction:
        """Find passages for a question.

        Args:
            question: The question as it was asked.
            options: Option texts of a multiple-choice question, or None.

        Returns:
            A prediction with ``passages`` (list of Passage, unique, best first, at most ``max_passages``),
            ``queries`` (list of Query), ``notes`` (mapping) and ``fallbacks`` (list of names).

        Raises:
            TechniqueError: The question is blank, its options are not two or more distinct texts, or it has
                none and the technique compares options.
        """
        choices = checked_options(question, options)
        if self.NEEDS_OPTIONS and not choices:
            raise TechniqueError(
                f"{self.NAME} compares options, but the question has none: {question[:80]!r}; "
                "give options, or use another technique"
            )
        plan = self.plan(question, choices)
        return dspy.Prediction(
            passages=self.retrieve(plan.queries),
            queries=list(plan.queries),
            notes=dict(plan.notes or {}),
            fallbacks=list(plan.fallbacks),
        )

    def retrieve(self, queries: Sequence[Query]) -> list[Passage]:
        """Search all queries in one call, fuse their lists and cut."""
        if not queries:
            return []
        if self.retriever is None:
            raise TechniqueError(f"{self.NAME} searches, but was made without a retriever; give one")
        limit = self.knobs.integer("max_passages")
        depth = self.knobs.integer("top_k") if "top_k" in self.knobs else limit
        lists = self.retriever.search([query.text for query in queries], depth)
        if len(lists) == 1:
            hits = fuse("union", lists, limit=limit)
        else:
            rule = self.knobs.text("fusion") if "fusion" in self.knobs else "interleave"
            k = self.knobs.integer("rrf_k") if "rrf_k" in self.knobs else 60
            hits = fuse(rule, lists, weights=[query.weight for query in queries], k=k, limit=limit)
        return [hit.passage for hit in hits]


def checked_options(question: Any, options: Any) -> list[str]:
    """The options without space around them; empty when there are none.

    Args:
        question: The question; looked at, because it comes from outside.
        options: A sequence of texts, or None.

    Raises:
        TechniqueError: The question is blank, or the options are not two or more distinct texts.
    """
    if not isinstance(question, str) or not question.strip():
        raise TechniqueError(f"a question must be a text that is not empty, but got {question!r}")
    if options is None:
        return []
    listed = isinstance(options, Sequence) and not isinstance(options, str)
    if not listed or not all(isinstance(option, str) and option.strip() for option in options):
        raise TechniqueError(
            f"options must be a list of texts that are not empty, but got {options!r} for {question[:80]!r}"
        )
    texts = [option.strip() for option in options]
    if len(texts) == 1 or len(set(texts)) < len(texts):
        raise TechniqueError(
            f"options must be two or more distinct texts, but got {texts!r} for {question[:80]!r}; "
            "leave them out for a question without options"
        )
    return texts


def attempt(step: Callable[[], T]) -> T | None:
    """The result of an LM step, or None when neither its answer nor the adapter's one repair could be read.

    Only an unreadable answer counts as a failure of the step: an outage, a budget stop or a bug goes up.
    """
    try:
        return step()
    except AdapterParseError:
        return None
