"""The techniques of query translation, each a DSPy module, and the readers that answer from what is found."""

from __future__ import annotations

from typing import Any

from querywright.errors import TechniqueError
from querywright.programs.base import Plan, Technique
from querywright.programs.hcqr import HCQR
from querywright.programs.knobs import Knob, Knobs
from querywright.programs.oracle import OracleEvidence
from querywright.programs.plain import ClosedBook, PlainRetrieval
from querywright.programs.rag import RAG
from querywright.programs.readers import READERS, MultipleChoiceReader, Reader, ShortAnswerReader, make_reader

TECHNIQUES: dict[str, type[Technique]] = {
    technique.NAME: technique
    for technique in (
        ClosedBook,
        PlainRetrieval,
        HCQR,
    )
}
"""The only list of techniques: the command line, the README's table and the contract tests read it."""


def technique_class(name: str) -> type[Technique]:
    """The technique of that name.

    Raises:
        TechniqueError: There is no such technique.
    """
    if name not in TECHNIQUES:
        raise TechniqueError(f"unknown technique {name!r}; the techniques are: {', '.join(TECHNIQUES)}")
    return TECHNIQUES[name]


def make_program(technique: str, retriever: Any = None, *, reader: str | None = None, **knobs: Any) -> RAG:
    """A program by names.

    Args:
        technique: A name in ``TECHNIQUES``.
        retriever: What is searched; not needed for ``closed_book``.
        reader: ``multiple_choice``, ``short_answer``, or None for a program that only retrieves.
        knobs: Values of the technique's knobs that differ from their defaults.

    Raises:
        TechniqueError: A technique, reader or knob is unknown, or a knob's value is not allowed.
    """
    return RAG(technique_class(technique)(retriever, **knobs), None if reader is None else make_reader(reader))


__all__ = [
    "HCQR",
    "RAG",
    "READERS",
    "TECHNIQUES",
    "ClosedBook",
    "Knob",
    "Knobs",
    "MultipleChoiceReader",
    "OracleEvidence",
    "PlainRetrieval",
    "Plan",
    "Reader",
    "ShortAnswerReader",
    "Technique",
    "make_program",
    "make_reader",
    "technique_class",
]
