"""Closed book and oracle evidence beside the arms of a comparison: each arm's own reader, without and with evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from querywright.cli.prepare import Prepared

if TYPE_CHECKING:
    from querywright.programs import RAG

CLOSED_BOOK, ORACLE = "closed book", "oracle evidence"


@dataclass(frozen=True, slots=True)
class References:
    """Programs that are no rivals, and whose reader they have.

    Args:
        programs: By name.
        closed_book: By arm the name of the reference, or of the arm, that has its reader and no passages.
        oracle: By arm the name of the reference that has its reader and the deciding passages.
    """

    programs: Mapping[str, RAG]
    closed_book: Mapping[str, str]
    oracle: Mapping[str, str]

    @classmethod
    def of(cls, ready: Prepared) -> References:
        """Those of every reader among the arms that search."""
        from querywright.optimize.references import closed_book, oracle_evidence

        searching = {name: ready.programs[name] for name in ready.searched}
        budget = {"max_passages": max((one.technique.max_passages for one in searching.values()), default=1)}
        programs: dict[str, RAG] = {}
        names: tuple[dict[str, str], dict[str, str]] = ({}, {})
        bare = {_reader(one): name for name, one in ready.programs.items() if one.technique.NAME == "closed_book"}
        perfect: dict[str, str] = {}
        for arm, program in searching.items():
            if program.reader is None:
                continue
            own = _reader(program)
            whose = f", reader of {arm}" if bare and own not in bare else ""
            if own not in bare:
                bare[own] = f"{CLOSED_BOOK}{whose}"
                programs[bare[own]] = closed_book(program.reader)
            names[0][arm] = bare[own]
            if own not in perfect:
                oracle = oracle_evidence(program.technique.retriever, ready.questions, program.reader, budget)
                if oracle is None:
                    continue
                perfect[own] = f"{ORACLE}{whose}"
                programs[perfect[own]] = oracle
            names[1][arm] = perfect[own]
        return cls(programs, *names)


def _reader(program: RAG) -> str:
    """What tells the reader of a program from others: its name, prompts and demonstrations."""
    from querywright.optimize.program_state import state_of

    state = state_of(program)
    prompts = {name: one.model_dump() for name, one in state.predictors.items() if name.startswith("reader.")}
    return repr((state.reader, prompts))
