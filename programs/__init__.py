"""Query translation techniques, each a DSPy module, and readers, which answer questions from passages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dspy

from querywright.errors import TechniqueError, unknown
from querywright.programs.base import Finding, Technique
from querywright.programs.contrastive import ContrastiveHypotheses, QuestionToContrastingHypotheses
from querywright.programs.corpus_steered import CorpusSteeredExpansion, PassagesToExpansion
from querywright.programs.custom import CustomProgram, technique_from
from querywright.programs.decomposition import Decomposition, QuestionToSubQuestions, SubQuestionToAnswer
from querywright.programs.ensemble import Ensemble
from querywright.programs.filter import Filter, PassageToRelevance
from querywright.programs.hcqr import HCQR, HypothesisToQueries, QuestionToHypothesis
from querywright.programs.hyde import HyDE, QuestionToHypotheticalDocument
from querywright.programs.hyperparameters import Knob, Knobs
from querywright.programs.ircot import IRCoT, PassagesToNextSentence
from querywright.programs.multi_query import MultiQuery, QuestionToParaphrases
from querywright.programs.oracle import OracleEvidence
from querywright.programs.plain import ClosedBook, PlainRetrieval
from querywright.programs.qa_rag import QARAG, QuestionToHypotheticalAnswer
from querywright.programs.qb_rag import QBRAG
from querywright.programs.query2doc import Query2Doc, QuestionToPseudoDocument
from querywright.programs.rag import RAG, check_takes_writer, use_writer
from querywright.programs.rag_fusion import QuestionToRelatedQueries, RAGFusion
from querywright.programs.readers import (
    READERS,
    AutoReader,
    GroundedReader,
    MultipleChoiceReader,
    Reader,
    ReasoningReader,
    ShortAnswerReader,
    make_reader,
)
from querywright.programs.rerank import PassageToGrade, Rerank
from querywright.programs.rewrite_retrieve_read import QuestionToQueries, RewriteRetrieveRead
from querywright.programs.rewrite_retrieve_select import QuestionToSearches, RewriteRetrieveSelect
from querywright.programs.selection import PassagesToNeededSet, PassagesToSelection
from querywright.programs.step_back import QuestionToStepBack, StepBackRetrieval
from querywright.programs.steps import Predict, Record, parallel

if TYPE_CHECKING:
    from querywright.retrieval.rerank import Reranker

TECHNIQUES: dict[str, type[Technique]] = {
    technique.NAME: technique
    for technique in (
        ClosedBook,
        PlainRetrieval,
        HCQR,
        MultiQuery,
        RAGFusion,
        StepBackRetrieval,
        HyDE,
        Decomposition,
        IRCoT,
        Query2Doc,
        RewriteRetrieveRead,
        RewriteRetrieveSelect,
        QARAG,
        QBRAG,
        ContrastiveHypotheses,
        CorpusSteeredExpansion,
        Rerank,
        Filter,
    )
}
"""The only list of techniques: the command line, the README's table, and the contract tests all read it.

``register_technique`` adds a custom technique to this list."""


PLACES: dict[str, type[Technique]] = {}
"""Techniques in the user's code, by the location that a study file gives instead of the name."""


def technique_class(name: str) -> type[Technique]:
    """Return the technique with the given name, or from the location that a study file in this process gave.

    Raises:
        TechniqueError: There is no such technique.
    """
    if name in PLACES:
        return PLACES[name]
    if name not in TECHNIQUES:
        if name.endswith(".py"):
            raise TechniqueError(f"{name!r} is a file; name a technique or program in it, as in {name}:NAME")
        base, _, engine = name.partition("@")
        if base in TECHNIQUES:
            raise TechniqueError(
                f"{name!r} contains an engine; use {base!r}, and set the engine with engine={engine!r} or, in a study "
                f"file, engines: [{engine}]"
            )
        raise TechniqueError(unknown("technique", name, TECHNIQUES))
    return TECHNIQUES[name]


def register_technique(technique: Any) -> str:
    """Register a technique under its ``NAME`` in this process, and return the name.

    Commands, saved artifacts, and studies can then use the technique. If the same class is defined again, the new
    definition replaces the earlier one.

    Args:
        technique: The class, a subclass of ``Technique``.

    Raises:
        TechniqueError: The class is not a subclass of ``Technique``, or its name belongs to another technique.
    """
    if not (isinstance(technique, type) and issubclass(technique, Technique)):
        raise TechniqueError(
            f"a technique must be a subclass of querywright.programs.Technique, but got {technique!r:.80}"
        )
    name = getattr(technique, "NAME", None)
    if not isinstance(name, str):
        raise TechniqueError(f"{technique.__name__}.NAME must be a string, but got {name!r}; set NAME in the class")
    known = TECHNIQUES.get(name, technique)
    if (known.__module__, known.__qualname__) != (technique.__module__, technique.__qualname__):
        raise TechniqueError(
            f"the name {name!r} is already used by {known.__name__}; choose a different NAME for {technique.__name__}"
        )
    TECHNIQUES[name] = technique
    return name


def make_program(
    technique: str,
    retriever: Any = None,
    *,
    reader: str | None = None,
    reranker: Reranker | None = None,
    writer_lm: dspy.BaseLM | None = None,
    **knobs: Any,
) -> RAG:
    """Return a program that combines a technique and a reader, both given by name.

    Args:
        technique: A name in ``TECHNIQUES``.
        retriever: The retriever; not needed for ``closed_book``.
        reader: ``auto`` (chosen for each question), ``multiple_choice``, ``short_answer``, ``reasoning``, ``grounded``,
            ``long_answer``, or None for a program that only retrieves.
        reranker: A cross-encoder for a technique that reranks. Default None: the technique reranks with the LM.
        writer_lm: A separate LM for the technique; the reader does not use it. Default None: the LM in the DSPy
            settings.
        knobs: Knob values that differ from the technique's defaults.

    Raises:
        TechniqueError: The technique, the reader, or a knob is unknown, or a knob's value is not allowed.
    """
    finds = technique_class(technique)(retriever, reranker=reranker, **knobs)
    return use_writer(RAG(finds, None if reader is None else make_reader(reader)), writer_lm)


__all__ = [
    "HCQR",
    "QARAG",
    "QBRAG",
    "RAG",
    "READERS",
    "TECHNIQUES",
    "AutoReader",
    "ClosedBook",
    "ContrastiveHypotheses",
    "CorpusSteeredExpansion",
    "CustomProgram",
    "Decomposition",
    "Ensemble",
    "Filter",
    "Finding",
    "GroundedReader",
    "HyDE",
    "HypothesisToQueries",
    "IRCoT",
    "Knob",
    "Knobs",
    "MultiQuery",
    "MultipleChoiceReader",
    "OracleEvidence",
    "PassageToGrade",
    "PassageToRelevance",
    "PassagesToExpansion",
    "PassagesToNeededSet",
    "PassagesToNextSentence",
    "PassagesToSelection",
    "PlainRetrieval",
    "Predict",
    "Query2Doc",
    "QuestionToContrastingHypotheses",
    "QuestionToHypothesis",
    "QuestionToHypotheticalAnswer",
    "QuestionToHypotheticalDocument",
    "QuestionToParaphrases",
    "QuestionToPseudoDocument",
    "QuestionToQueries",
    "QuestionToRelatedQueries",
    "QuestionToSearches",
    "QuestionToStepBack",
    "QuestionToSubQuestions",
    "RAGFusion",
    "Reader",
    "ReasoningReader",
    "Record",
    "Rerank",
    "RewriteRetrieveRead",
    "RewriteRetrieveSelect",
    "ShortAnswerReader",
    "StepBackRetrieval",
    "SubQuestionToAnswer",
    "Technique",
    "check_takes_writer",
    "make_program",
    "make_reader",
    "parallel",
    "register_technique",
    "technique_class",
    "technique_from",
    "use_writer",
]
