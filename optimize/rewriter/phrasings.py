"""How a collection words its answers, learnt from labelled evidence: an answer's sentence with a gap for the name.

Questions that ask alike of different things, such as *What is the outlook for X?*, have evidence that is worded alike.
A sentence that one of them was answered with, with another's name in it, is a hypothetical document (Gao et al. 2022,
arXiv:2212.10496) that no LM had to write; which sentence helps most questions of a kind is measured.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from querywright.data.types import Passage, Question
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.evidence import GAP, filled, helpful, names_of

LEAST_ALIKE = 8
"""Questions that must ask alike before a sentence is looked for that serves them all."""

_FIRST = (64, 16)  # sentences, and questions that each is tried on
_SECOND = (8, 64)
_OPENING = 400  # characters of a passage whose sentences are taken
_SENTENCES = 2
_WORDS = 16
_ENDS = re.compile(r"(?<=[.?!])\s+")
_PUNCTUATION = re.compile(r"[^\w{}]+")

Found = Callable[[Sequence[Question], Sequence[str]], list[float]]
"""What each question's measure is where a text is searched in its place; NaN where it cannot be told."""


@dataclass(frozen=True, slots=True)
class Frame:
    """How a question asks, and what about.

    Args:
        asked: The question in small letters and without punctuation, with a gap where the name stood.
        name: As the collection writes it.
    """

    asked: str
    name: str


def frame_of(question: Question, titles: Callable[[str], str]) -> Frame | None:
    """The frame of a question that holds one name; None for any other.

    Args:
        question: With labelled evidence.
        titles: The title of a passage by its id; empty where it has none.
    """
    names = names_of(question, titles)
    if len(names) != 1:
        return None
    return Frame(_PUNCTUATION.sub(" ", _with_gap(question.question.casefold(), names[0])).strip(), names[0])


def sentences_of(passage: Passage, name: str) -> list[str]:
    """Of the first two sentences of a passage those that hold the name, of 16 words at most, with gaps for it.

    Args:
        passage: Evidence.
        name: What it is about.
    """
    parts = _ENDS.split(passage.text[:_OPENING].replace(GAP, "").strip())[:_SENTENCES]
    cut = (" ".join(_with_gap(part, name).split()[:_WORDS]) for part in parts)
    return [sentence for sentence in cut if GAP in sentence]


def phrasings(
    questions: Sequence[Question],
    titles: Callable[[str], str],
    passages: Callable[[str], Passage | None],
    found: Found,
    progress: Progress | None = None,
) -> dict[str, str]:
    """For each way to ask, the sentence that finds most when it is searched after the question.

    Of up to 64 sentences of a frame's evidence the best 8 on 16 questions are tried on 64. A sentence that stands
    in the evidence of one question alone does not count for that one.

    Args:
        questions: Train questions, with labelled evidence.
        titles: The title of a passage by its id; empty where it has none.
        passages: A passage by its id; None where it is missing.
        found: Measures texts.
        progress: Called as frames are done.

    Returns:
        A sentence with gaps, by ``Frame.asked``; frames of fewer than 8 questions, and those where no sentence finds
        more than the question alone, are left out.
    """
    frames: dict[str, list[tuple[Question, str]]] = {}
    for question in questions:
        frame = frame_of(question, titles)
        if frame is not None:
            frames.setdefault(frame.asked, []).append((question, frame.name))
    alike = {asked: members for asked, members in frames.items() if len(members) >= LEAST_ALIKE}
    chosen: dict[str, str] = {}
    for done, (asked, members) in enumerate(sorted(alike.items()), 1):
        best = _best(members, passages, found)
        if best:
            chosen[asked] = best
        if progress is not None:
            progress("how evidence is worded", done, len(alike))
    return chosen


def _best(
    members: Sequence[tuple[Question, str]], passages: Callable[[str], Passage | None], found: Found
) -> str | None:
    sources: dict[str, set[str]] = {}
    for question, name in members:
        for id in sorted(helpful(question)):
            passage = passages(id)
            for sentence in () if passage is None else sentences_of(passage, name):
                sources.setdefault(sentence, set()).add(question.id)
    left = sorted(sources, key=_drawn)
    order = sorted(members, key=lambda member: _drawn(member[0].id))
    gains: dict[str, float] = {}
    for most, tried in (_FIRST, _SECOND):
        left = sorted(left, key=lambda one: -gains.get(one, 0.0))[:most]
        gains = _gains({sentence: sources[sentence] for sentence in left}, order[:tried], found)
    best = max(left, key=lambda one: gains[one], default=None)
    return best if best is not None and gains[best] > 0 else None


def _gains(sentences: dict[str, set[str]], members: Sequence[tuple[Question, str]], found: Found) -> dict[str, float]:
    """What each sentence adds in the mean to what the questions find by themselves."""
    questions = [question for question, _ in members]
    plain = found(questions, [question.question for question in questions])
    texts = [f"{question.question} {filled(one, name)}" for one in sentences for question, name in members]
    values = iter(found(questions * len(sentences), texts))
    gains = {}
    for sentence, sources in sentences.items():
        each = []
        for question, alone in zip(questions, plain, strict=True):
            gain = next(values) - alone
            if sources != {question.id} and not math.isnan(gain):
                each.append(gain)
        gains[sentence] = fmean(each) if each else 0.0
    return gains


def _with_gap(text: str, name: str) -> str:
    return re.sub(re.escape(name), GAP, text, flags=re.IGNORECASE)


def _drawn(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
