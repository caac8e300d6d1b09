"""Programs that are no rivals: what a reader makes of no evidence, and of perfect evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.programs import RAG, OracleEvidence, technique_class
from querywright.programs.readers import Reader


def closed_book(reader: Reader) -> RAG:
    """A program that gives the reader no passage."""
    return RAG(technique_class("closed_book")(), reader)


def oracle_evidence(
    retriever: Any, questions: Sequence[Question], reader: Reader | None, knobs: Mapping[str, Any]
) -> RAG | None:
    """A program that gives the reader the deciding passages themselves.

    Args:
        retriever: Holds them.
        questions: Labelled questions.
        reader: The reader.
        knobs: Such as ``max_passages``.

    Returns:
        The program; None without a reader or labelled evidence, and where the retriever cannot give passages by id.
    """
    get = getattr(retriever, "get", None)
    ids = sorted({key for question in questions for key in question.evidence})
    if reader is None or get is None or not ids:
        return None
    try:
        passages = {passage.id: passage for passage in get([key for key in ids if key in retriever])}
    except (InputError, TypeError):  # it cannot tell what it holds
        return None
    return RAG(OracleEvidence(passages, questions, **knobs), reader)
