"""Several programs of one technique, asked side by side, as one program that is saved like any other.

DSPy's ``Ensemble`` makes a class inside a function, which nothing can save, and leaves the fusion of what was found to
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

    Their lists of passages are fused by reciprocal rank fusion and cut to ``max_passages``. Each member reads what it
    found itself; the answer is the one that most members gave, of equals the one of the first member. ``technique``
    and ``reader`` are the first member's.

    Args:
        members: Two or more programs of one technique with one reader.

    Raises:
        TechniqueError: There are too few or too many, their techniques or readers differ, or one is an ensemble.
    """

    def __init__(self, members: Sequence[RAG]) -> None:
        if not 2 <= len(members) <= MOST_MEMBERS:
            raise TechniqueError(f"an ensemble has 2 to {MOST_MEMBERS} members, but got {len(members)}")
        if any(isinstance(member, Ensemble) for member in members):
            raise TechniqueError("an ensemble cannot be a member of another; give its members instead")
        kinds = {(type(member.technique), type(member.reader)) for member in members}
        if len(kinds) > 1:
            names = sorted({member.technique.NAME for member in members})
            raise TechniqueError(
                f"the members of an ensemble have one technique and one reader, but these have {len(kinds)} different "
                f"pairs (techniques {', '.join(names)})"
            )
        first = members[0]
        super().__init__(first.technique, first.reader, nearest=first.nearest)
        self.members = list(members)

    def answer(self, **given: Any) -> dspy.Prediction:
        """Ask the members side by side and put together what they found and answered."""
        with telling(None):  # what one of several members finds and reads is not yet what all of them do
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


def _majority(answers: Sequence[Any]) -> int:
    """Which member's answer most members gave."""
    plain = [None if answer is None else tuple(words(str(answer))) for answer in answers]
    counts = Counter(plain)
    return max(range(len(plain)), key=lambda place: (counts[plain[place]], -place))
