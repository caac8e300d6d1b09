"""Combine several programs with the same technique into one program, which runs them in parallel and can be saved.

DSPy's ``Ensemble`` defines its class inside a function, so it cannot be saved, and it leaves the fusion of passages to
the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import dspy

from querywright.answer_text import words
from querywright.errors import TechniqueError
from querywright.programs.rag import RAG
from querywright.programs.steps import parallel, telling
from querywright.retrieval.fusion import rrf
from querywright.retrieval.types import Hit

MOST_MEMBERS = 20


class Ensemble(RAG):
    """Programs that differ in their prompts.

    Reciprocal rank fusion merges the members' passage lists into one list of at most ``max_passages``. Each member
    answers from its own passages. The ensemble's answer is the most frequent answer or, in a tie, the one that comes
    first. ``technique`` and ``reader`` are the first member's.

    Args:
        members: Two or more programs that share the same technique and reader.

    Raises:
        TechniqueError: There are too few or too many members, their techniques or readers differ, or one is an
            ensemble.
    """

    def __init__(self, members: Sequence[RAG]) -> None:
        if not 2 <= len(members) <= MOST_MEMBERS:
            raise TechniqueError(f"an ensemble must have 2 to {MOST_MEMBERS} members, but got {len(members)}")
        if any(isinstance(member, Ensemble) for member in members):
            raise TechniqueError("an ensemble cannot be a member of another ensemble; pass its members instead")
        kinds = {(type(member.technique), type(member.reader)) for member in members}
        if len(kinds) > 1:
            names = sorted({member.technique.NAME for member in members})
            raise TechniqueError(
                f"the members of this ensemble have different techniques or readers (techniques: {', '.join(names)}); "
                "pass members with the same technique and the same reader"
            )
        first = members[0]
        super().__init__(first.technique, first.reader, nearest=first.nearest)
        self.members = list(members)

    def answer(self, **given: Any) -> dspy.Prediction:
        """Run the members in parallel, fuse their passages, and choose the most frequent answer."""
        with telling(None):  # one member's passages and answer are not the ensemble's result
            asks: list[Any] = [partial(member.__call__, **given) for member in self.members]
            made = parallel(asks)
        lists = [[Hit(passage, 1 / rank, rank) for rank, passage in enumerate(one.passages, 1)] for one in made]
        chosen = made[_majority([one.answer for one in made])]
        return dspy.Prediction(
            answer=chosen.answer,
            support=chosen.support,
            passages=[hit.passage for hit in rrf(lists, limit=self.technique.knobs.get("max_passages"))],
            queries=[query for one in made for query in one.queries],
            fallbacks=list(dict.fromkeys(name for one in made for name in one.fallbacks)),
            findings=list(chosen.findings),
            steps=[step for one in made for step in one.steps],
        )


def without_reader(program: RAG) -> RAG:
    """Return the same technique objects without their readers; return a custom subclass of ``RAG`` unchanged."""
    if isinstance(program, Ensemble):
        return Ensemble([without_reader(member) for member in program.members])
    return RAG(program.technique, None, nearest=program.nearest) if type(program) is RAG else program


def _majority(answers: Sequence[Any]) -> int:
    """Return the index of the first member that gave the most frequent answer."""
    plain = [None if answer is None else tuple(words(str(answer))) for answer in answers]
    counts = Counter(plain)
    return max(range(len(plain)), key=lambda place: (counts[plain[place]], -place))
