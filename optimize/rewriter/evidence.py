"""Make rewrites from questions' labeled evidence, without an LM.

Passage titles are the collection's names for things. Titles that occur in a question are the names to look up; the
evidence shows which of the question's words these are. If the technique sees the options, they say in the
collection's words what the question is about. Questions that ask the same thing about different subjects, such as *What
is the outlook for X?*, have evidence with similar wording. A sentence that answers one of them, with a different name
inserted, is a hypothetical document (Gao et al. 2022, arXiv:2212.10496) that no LM had to write. The model learns to do
the same without the evidence.

The best idea for a single question is often the best only by luck, so the idea with the best mean is chosen for each
group of similar questions.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.episodes import json_text
from querywright.programs.base import Technique
from querywright.programs.query_cleaning import folded
from querywright.retrieval.collection import CollectionPassages
from querywright.retrieval.replay import searched_by

Writer = Callable[[Question], "list[str] | None"]
"""Returns the texts for a question, one per turn, in the form of ``json_text``; None if there are none."""
Rewards = Callable[[Sequence[Writer]], Sequence[Sequence[float]]]
"""Returns, for each question, the reward for each writer's texts; NaN if the reward is not known."""
TextScores = Callable[[Sequence[Question], Sequence[str]], list[float]]
"""Returns the metric for each question if a given text is searched for instead; NaN if the metric is not known."""

TAUGHT = ("decomposition", "hcqr", "multi_query", "rag_fusion", "rrr")
"""Techniques for which queries can be put into the form that the technique's LM writes."""
MOST_NAMES = 2
LEAST_ALIKE = 8
"""Minimum number of questions with the same wording for which a shared sentence is sought."""

_GAP = "{}"  # placeholder for a name
_BEHIND = re.compile(r"\s*\([^()]*\)\s*$")
_ROUNDS = ((64, 16), (8, 64))  # in each round: number of sentences, and number of questions to try them on
_OPENING, _SENTENCES, _WORDS = 400, 2, 16  # limits: characters and sentences per passage, words per sentence
_ENDS = re.compile(r"(?<=[.?!])\s+")
_PUNCTUATION = re.compile(r"[^\w{}]+")


def taught_by_evidence(
    technique: Technique,
    questions: Sequence[Question],
    rewards: Rewards,
    found: TextScores | None = None,
    progress: Progress | None = None,
) -> Writer:
    """Return a writer that, for each question, writes what works best for similar questions.

    Every idea is tried for every question. The idea for a group of questions (those with the same number of names and
    the same possible ideas) is chosen on all questions in the group, so that the model learns a rule and not luck. If
    the question alone is best, the model learns to leave it unchanged.
    """
    retriever: Any = searched_by(technique.retriever)
    held = retriever if isinstance(retriever, CollectionPassages) else None
    signature: Any = technique.predictors()[0].signature
    shows_options = "options" in signature.input_fields
    known = {one.id: _Evidence(one, held) for one in questions}
    wordings = {} if found is None else _wordings(list(known.values()), found, progress)
    ideas = {id: one.ideas(wordings, options=shows_options) for id, one in known.items()}
    groups = {id: f"{len(known[id].names[:MOST_NAMES])} names; {'; '.join(each)}" for id, each in ideas.items()}
    kinds = list(dict.fromkeys(kind for each in ideas.values() for kind in each))

    def write(question: Question, kind: str) -> list[str] | None:
        queries = ideas[question.id].get(kind)
        return None if queries is None else [json_text(one) for one in _script(technique, question, queries)]

    tried: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    earned = rewards([partial(write, kind=kind) for kind in kinds])
    for question, values in zip(questions, earned, strict=True):
        for kind, value in zip(kinds, values, strict=True):
            if not math.isnan(value):
                tried[groups[question.id]][kind].append(value)
    best = {group: max(each, key=lambda kind: fmean(each[kind])) for group, each in tried.items()}
    return lambda question: write(question, best.get(groups[question.id], "question"))


class _Evidence:
    """What the labeled evidence reveals about a question."""

    def __init__(self, question: Question, held: CollectionPassages | None) -> None:
        ids = [id for id, label in question.evidence.items() if label is not Label.NOT_USEFUL]
        self.question = question
        self.passages = [] if held is None else held.get([id for id in ids if id in held])
        titles = {_BEHIND.sub("", passage.title).strip() for passage in self.passages} - {""}
        asked = question.question.casefold()
        places = {name: asked.find(name.casefold()) for name in titles}
        # The titles that occur in the question, in order of appearance, without trailing parentheses.
        self.names = sorted((name for name in titles if places[name] >= 0), key=lambda name: (places[name], name))
        # If the question has exactly one name: its wording in lower case, with a gap for the name.
        one = self.names[0] if len(self.names) == 1 else None
        self.frame = None if one is None else _PUNCTUATION.sub(" ", _with_gap(asked, one)).strip()

    def ideas(self, wordings: Mapping[str | None, str], *, options: bool) -> dict[str, tuple[str, ...]]:
        """Return lists of queries to try, keyed by what they consist of."""
        asked, names = self.question.question, self.names[:MOST_NAMES]
        tried: dict[str, tuple[str, ...]] = {"question": (asked,)}
        if names:
            tried["question, names"] = (asked, *names)
            tried["names, question"] = (*names, asked)
            tried["question, each name with it"] = (asked, *(f"{name} {asked}" for name in names))
        if self.frame in wordings:
            tried[f"question, {wordings[self.frame]}"] = (self.after(wordings[self.frame]),)
        if options and self.question.options:
            tried["question with its options"] = (" ".join((asked, *self.question.options)),)
        return tried

    def after(self, sentence: str) -> str:
        """Return the question followed by a sentence that mentions its name."""
        return f"{self.question.question} {sentence.replace(_GAP, self.names[0])}"

    def sentences(self) -> list[str]:
        """Return the first two sentences of each passage, cut to 16 words, with the passage's name left blank."""
        found = []
        for passage in sorted(self.passages, key=lambda passage: passage.id):
            opening = passage.text[:_OPENING].replace(_GAP, "").strip()
            for part in _ENDS.split(opening)[:_SENTENCES]:
                found.append(" ".join(_with_gap(part, self.names[0]).split()[:_WORDS]))
        return [sentence for sentence in found if _GAP in sentence]


def _wordings(known: Sequence[_Evidence], found: TextScores, progress: Progress | None) -> dict[str | None, str]:
    """Return, for each wording (frame), the sentence with a gap that improves retrieval most when appended to the
    question.

    Up to 64 sentences from a frame's evidence are tried on 16 questions, and the best 8 of them on 64. A sentence that
    occurs only in one question's evidence is not scored on that question. Frames with fewer than 8 questions are left
    out, and so are frames for which no sentence does better than the question alone.
    """
    frames: dict[str, list[_Evidence]] = defaultdict(list)
    for one in known:
        if one.frame is not None:
            frames[one.frame].append(one)
    alike = {frame: members for frame, members in sorted(frames.items()) if len(members) >= LEAST_ALIKE}
    chosen: dict[str | None, str] = {}
    for done, (frame, members) in enumerate(alike.items(), 1):
        sources: dict[str, set[str]] = defaultdict(set)
        for one in members:
            for sentence in one.sentences():
                sources[sentence].add(one.question.id)
        left, gains = sorted(sources, key=_mixed), dict[str, float]()
        order = sorted(members, key=lambda one: _mixed(one.question.id))
        for most, tried in _ROUNDS:
            left = sorted(left, key=lambda sentence: -gains.get(sentence, 0.0))[:most]
            gains = _gains({sentence: sources[sentence] for sentence in left}, order[:tried], found)
        best = max(left, key=lambda sentence: gains[sentence], default="")
        if best and gains[best] > 0:
            chosen[frame] = best
        if progress is not None:
            progress("evidence wordings", done, len(alike))
    return chosen


def _gains(sentences: Mapping[str, set[str]], members: Sequence[_Evidence], found: TextScores) -> dict[str, float]:
    """Return each sentence's mean gain over the questions alone."""
    questions = [one.question for one in members]
    plain = found(questions, [question.question for question in questions])
    values = iter(found(questions * len(sentences), [one.after(text) for text in sentences for one in members]))
    gains = {}
    for sentence, sources in sentences.items():
        each = [
            value - alone
            for question, alone, value in zip(questions, plain, values, strict=False)
            if sources != {question.id} and not math.isnan(value - alone)
        ]
        gains[sentence] = fmean(each) if each else 0.0
    return gains


def _with_gap(text: str, name: str) -> str:
    return re.sub(re.escape(name), _GAP, text, flags=re.IGNORECASE)


def _mixed(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def check_taught(technique: Technique) -> None:
    """Raise if a technique cannot learn from evidence."""
    if technique.NAME not in TAUGHT:
        raise InputError(
            f"cannot collect pairs for {technique.NAME} from evidence; use one of {', '.join(TAUGHT)}, or write the "
            "pairs yourself (rewriter train --pairs FILE)"
        )


def _script(technique: Technique, question: Question, queries: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a technique's LM would have written to search with these queries: its fields for each turn."""
    asked = question.question

    def counted(texts: Sequence[str], knob: str = "n_queries") -> list[str]:
        """Return as many texts as the grammar requires, padded with the question, which is searched anyway and only
        once.
        """
        count = technique.written(knob)
        return [*(text for text in texts if folded(text) != folded(asked)), *[asked] * count][:count]

    match technique.NAME:
        case "rrr":
            return [{"thought": "Look these up.", "queries": list(queries)}]
        case "decomposition":  # each name becomes a separate question; repeats of the question are left out
            parts = [f"What is {text}?" for text in queries if asked not in text]
            return [{"sub_questions": counted(parts, "n_sub_questions")}]
        case "hcqr":  # the right option is the guess; a missing query is the question with the guess
            guess = question.answer if question.answer in question.options else question.options[0]
            thought = {
                "discriminating_features": list(question.options[:2]),
                "reasoning": f"The question points to {guess}",
                "confirming_evidence": [guess],
                "best_guess": guess,
            }
            support, distinguish, verify = (*queries, f"{asked} {guess}", asked)[:3]
            return [thought, {"support": support, "distinguish": distinguish, "verify": verify}]
    return [{"queries": counted(queries)}]
