"""Find text from training questions and passages that an optimizer copied into a prompt.

A prompt that contains the questions it was tuned on scores well on these questions, but the score says little about
other questions. The search compares runs of words, because two texts rarely share eight words in a row by chance.
Demonstrations are training questions by design, so only demonstrations copied from dev and test questions count.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from querywright.data.splits import folded
from querywright.data.types import Passage, Question
from querywright.optimize.program_state import PredictorState

RUN = 8
"""Number of consecutive words that count as a copy."""

SHORTEST = 5
"""Minimum length in words of a text that counts as a copy if the prompt contains all of it."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A text that was copied into a prompt.

    Args:
        predictor: Name of the predictor whose prompt contains the text.
        source: Where the text comes from, such as ``question q3`` or ``passage p7``.
        text: The first words of the copy, in lower case and without punctuation.
    """

    predictor: str
    source: str
    text: str

    def __str__(self) -> str:
        return f'{self.predictor} copies {self.source}: "{self.text}"'


def find_copies(
    predictors: Mapping[str, PredictorState],
    untuned: Iterable[str],
    train: Sequence[Question],
    *,
    held_out: Sequence[Question] = (),
    passages: Collection[Passage] = (),
) -> list[Copy]:
    """Return the texts that were copied into tuned prompts, one per predictor and source.

    Args:
        predictors: The tuned prompts and demonstrations by the predictor's name.
        untuned: Prompts before tuning; their words do not count as copies.
        train: Training questions; the instructions must not repeat their texts, options, or answers.
        held_out: Dev and test questions, which must not be used as demonstrations. Default none.
        passages: Passages that the optimizer saw; the instructions must not repeat their texts. Default none.
    """
    before = " | ".join(map(_plain, untuned))
    sources = list(_sources(train, passages))
    learned = {folded(one.question) for one in train}
    hidden = {key: one.id for one in held_out if (key := folded(one.question)) not in learned}
    found: dict[tuple[str, str], Copy] = {}
    for name, state in predictors.items():
        prompt = _plain(state.instructions)
        runs = {size: set(_runs(prompt, size)) - set(_runs(before, size)) for size in range(SHORTEST, RUN + 1)}
        for source, text in sources:
            size = min(RUN, len(text.split()))
            copied = next((run for run in _runs(text, size) if run in runs.get(size, ())), None)
            if copied is not None:
                found.setdefault((name, source), Copy(name, source, copied))
        for demo in state.demos:
            key = folded(str(demo.get("question", "")))
            if key in hidden:
                source = f"held-out question {hidden[key]} in a demonstration"
                found.setdefault((name, source), Copy(name, source, key))
    return list(found.values())


def copies_sentence(copies: Sequence[Copy]) -> str:
    """Return the copies as one sentence that quotes up to three of them."""
    more = f"; and {len(copies) - 3} more" if len(copies) > 3 else ""
    return "; ".join(map(str, copies[:3])) + more


def _sources(train: Sequence[Question], passages: Collection[Passage]) -> Iterator[tuple[str, str]]:
    for one in train:
        for text in (one.question, *one.options):
            yield f"question {one.id}", _plain(text)
        for text in one.answers:
            yield f"the answer to question {one.id}", _plain(text)
    for passage in passages:
        yield f"passage {passage.id}", _plain(passage.content)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _runs(text: str, size: int) -> Iterator[str]:
    words = text.split()
    return (" ".join(words[start : start + size]) for start in range(len(words) - size + 1))
