"""Closed book and oracle evidence: what the reader of an arm makes of no passages, and of the deciding ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from querywright.data.types import Passage, Question
from querywright.errors import InputError
from querywright.programs import RAG, OracleEvidence, technique_class
from querywright.programs.readers import Reader

CLOSED_BOOK, ORACLE = "closed book", "oracle evidence"


@dataclass(frozen=True, slots=True)
class References:
    """Programs that are no rivals of the arms, one of a kind for each reader among them.

    Args:
        programs: By name.
        closed_book: By arm the name of the reference, or of the arm, that has its reader and no passages.
        oracle: By arm the name of the reference that has its reader and the deciding passages.
    """

    programs: Mapping[str, RAG] = field(default_factory=dict)
    closed_book: Mapping[str, str] = field(default_factory=dict)
    oracle: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, arms: Mapping[str, RAG], questions: Sequence[Question]) -> References:
        """Those of every reader among the arms that search.

        Args:
            arms: Programs by name.
            questions: What they are asked.
        """
        searching = {name: one for name, one in arms.items() if one.technique.retriever is not None}
        budget = {"max_passages": max((one.technique.max_passages for one in searching.values()), default=1)}
        programs: dict[str, RAG] = {}
        bare = {_reader(one): name for name, one in arms.items() if one.technique.NAME == "closed_book"}
        perfect: dict[str, str | None] = {}
        readers = {arm: _reader(one) for arm, one in searching.items() if one.reader is not None}
        for arm, own in readers.items():
            reader, whose = searching[arm].reader, f", reader of {arm}" if bare and own not in bare else ""
            if reader is not None and own not in bare:
                bare[own] = f"{CLOSED_BOOK}{whose}"
                programs[bare[own]] = closed_book(reader)
            if own not in perfect:
                oracle = oracle_evidence(searching[arm].technique.retriever, questions, reader, budget)
                perfect[own] = None if oracle is None else f"{ORACLE}{whose}"
                programs |= {} if oracle is None else {f"{ORACLE}{whose}": oracle}
        best = {arm: name for arm, own in readers.items() if (name := perfect[own]) is not None}
        return cls(programs, {arm: bare[own] for arm, own in readers.items()}, best)


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
    ids = sorted({key for question in questions for key in question.evidence})
    passages = held_by(retriever, ids)
    if reader is None or passages is None or not ids:
        return None
    return RAG(OracleEvidence(passages, questions, **knobs), reader)


def held_by(retriever: Any, ids: Iterable[str]) -> dict[str, Passage] | None:
    """The passages of these ids that a retriever holds, by id; None where it cannot tell what it holds."""
    if not hasattr(retriever, "get"):
        return None
    try:
        return {passage.id: passage for passage in retriever.get([key for key in ids if key in retriever])}
    except (InputError, TypeError):
        return None


def _reader(program: RAG) -> str:
    """What tells the reader of a program from others: its name, prompts and demonstrations."""
    reader = program.reader
    return repr(reader and (reader.NAME, [(name, one.dump_state()) for name, one in reader.named_predictors()]))
