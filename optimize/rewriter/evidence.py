"""A teacher that is no LM: rewrites made of what a question's labelled evidence is about.

The titles of passages are what a collection calls things. Those that stand in a question are the names that have to be
looked up, and the evidence tells them from its other words. Where the options can be seen, they say in the collection's
own words what the question is about. Questions that ask alike of different things, such as *What is the outlook for
X?*, have evidence that is worded alike: a sentence that one of them was answered with, with another's name in it, is a
hypothetical document (Gao et al. 2022, arXiv:2212.10496) that no LM had to write. What is learnt is to do the same
without the evidence.

An idea that is best for a question is often so by luck, so ideas are chosen for all questions that are alike, by
the mean.

Of passages it teaches what people asked of them (``passage_pairs``), for the writer of the questions that QB-RAG
searches; nothing is scored there.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from querywright.data.splits import asked_of
from querywright.data.types import Label, Passage, Question
from querywright.errors import InputError
from querywright.models.embedded import EmbeddedSettings
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.canonical import as_written, json_text
from querywright.optimize.rewriter.episodes import REWRITER_LIMITS, first_asked
from querywright.optimize.rewriter.pairs import Pair
from querywright.programs.base import Technique
from querywright.programs.qb_rag import QBRAG
from querywright.programs.query_cleaning import LONGEST_QUERY, folded, one_line
from querywright.programs.question_rules import repeats, unfit
from querywright.programs.question_writer import BATCH_SIZE, QuestionWriter
from querywright.retrieval.collection import HeldPassages
from querywright.retrieval.replay import searched_by

Writer = Callable[[Question], "list[str] | None"]
"""What is written for a question, a text a turn, each as ``json_text`` gives it; None where there is nothing."""
Rewards = Callable[[Sequence[Writer]], Sequence[Sequence[float]]]
"""Of each question, what is earned by what each writer writes; NaN where that cannot be told."""
Found = Callable[[Sequence[Question], Sequence[str]], list[float]]
"""What each question's measure is where a text is searched in its place; NaN where it cannot be told."""

MOST_NAMES = 2
LEAST_ALIKE = 8
"""Questions that must ask alike before a sentence is looked for that serves them all."""

LONGEST_PASSAGE = 1500
"""Characters of a passage that is learnt from at most: the time of a training is its prompts."""

_GAP = "{}"  # where a name stood
_BEHIND = re.compile(r"\s*\([^()]*\)\s*$")
_FIRST, _SECOND = (64, 16), (8, 64)  # sentences, and questions that each is tried on
_OPENING, _SENTENCES, _WORDS = 400, 2, 16  # characters and sentences of a passage, words of a sentence
_ENDS = re.compile(r"(?<=[.?!])\s+")
_PUNCTUATION = re.compile(r"[^\w{}]+")


def taught_by_evidence(
    technique: Technique,
    questions: Sequence[Question],
    rewards: Rewards,
    found: Found | None = None,
    progress: Progress | None = None,
) -> Writer:
    """Writes for each question what is best for questions like it.

    Every idea is tried for every question. What is chosen for a group of questions, those with as many names for which
    the same can be tried, is learnt from all of them, so that a rule is learnt and not what was lucky; where the
    question alone is best, that it is to be left alone.

    Args:
        technique: Whose rewrites they are.
        questions: Train questions, with labelled evidence.
        rewards: Tries what is written.
        found: Measures texts, by which evidence's wording is looked for. Default None: it is not.
        progress: Called as wordings are found.

    Raises:
        InputError: It is not known how the technique's LM would say a query.
    """
    check_taught(technique)
    retriever: Any = searched_by(technique.retriever)
    held = retriever if isinstance(retriever, HeldPassages) else None
    evidence = _Evidence(lambda id: held.get([id])[0] if held is not None and id in held else None)
    signature: Any = technique.predictors()[0].signature
    options = "options" in signature.input_fields
    wordings = {} if found is None else evidence.wordings(questions, found, progress)
    ideas = {one.id: evidence.ideas(one, wordings, options=options) for one in questions}
    kinds = list(dict.fromkeys(kind for each in ideas.values() for kind in each))

    def write(question: Question, kind: str) -> list[str] | None:
        queries = ideas[question.id].get(kind)
        return None if queries is None else _said(technique, question, queries)

    earned = rewards([partial(write, kind=kind) for kind in kinds])
    groups = {id: _group(each) for id, each in ideas.items()}
    tried: dict[str, dict[str, list[float]]] = {}
    for question, values in zip(questions, earned, strict=True):
        for kind, value in zip(kinds, values, strict=True):
            if not math.isnan(value):
                tried.setdefault(groups[question.id], {}).setdefault(kind, []).append(value)
    best = {group: max(each, key=lambda kind: fmean(each[kind])) for group, each in tried.items()}
    return lambda question: write(question, best.get(groups[question.id], "question"))


def _group(ideas: Mapping[str, tuple[str, ...]]) -> str:
    names = len(ideas.get("question, names", ideas["question"])) - 1
    return f"{names} names; {'; '.join(ideas)}"


class _Evidence:
    """What the labelled evidence of questions knows; ``passage`` gives a passage by its id, or None."""

    def __init__(self, passage: Callable[[str], Passage | None]) -> None:
        self._passage = passage

    def names(self, question: Question) -> tuple[str, ...]:
        """The titles of a question's evidence that stand in it, in its order, without what is behind in brackets."""
        asked = question.question.casefold()
        places: dict[str, int] = {}
        for passage in self._helpful(question):
            name = _BEHIND.sub("", passage.title).strip()
            place = asked.find(name.casefold())
            if name and place >= 0:
                places[name] = place
        return tuple(sorted(places, key=lambda name: (places[name], name)))

    def ideas(self, question: Question, wordings: Mapping[str, str], *, options: bool) -> dict[str, tuple[str, ...]]:
        """Lists of queries that are worth a try, by what they are made of."""
        asked, names = question.question, self.names(question)[:MOST_NAMES]
        tried: dict[str, tuple[str, ...]] = {"question": (asked,)}
        if names:
            tried["question, names"] = (asked, *names)
            tried["names, question"] = (*names, asked)
            tried["question, each name with it"] = (asked, *(f"{name} {asked}" for name in names))
        frame = self._frame(question)
        wording = wordings.get(frame[0]) if frame else None
        if wording:
            tried[f"question, {wording}"] = (f"{asked} {wording.replace(_GAP, names[0])}",)
        if options and question.options:
            tried["question with its options"] = (" ".join((asked, *question.options)),)
        return tried

    def wordings(self, questions: Sequence[Question], found: Found, progress: Progress | None) -> dict[str, str]:
        """For each way to ask, the sentence with a gap that finds most when it is searched after the question.

        Of up to 64 sentences of a frame's evidence the best 8 on 16 questions are tried on 64. A sentence that stands
        in the evidence of one question alone does not count for that one. Frames of fewer than 8 questions, and those
        where no sentence finds more than the question alone, are left out.
        """
        frames: dict[str, list[tuple[Question, str]]] = {}
        for question in questions:
            frame = self._frame(question)
            if frame is not None:
                frames.setdefault(frame[0], []).append((question, frame[1]))
        alike = {asked: members for asked, members in sorted(frames.items()) if len(members) >= LEAST_ALIKE}
        chosen: dict[str, str] = {}
        for done, (asked, members) in enumerate(alike.items(), 1):
            best = self._best(members, found)
            if best is not None:
                chosen[asked] = best
            if progress is not None:
                progress("how evidence is worded", done, len(alike))
        return chosen

    def _helpful(self, question: Question) -> list[Passage]:
        """The evidence, in its order, without what is labelled as no help or is missing."""
        ids = [id for id, label in question.evidence.items() if label is not Label.NOT_USEFUL]
        return [passage for passage in map(self._passage, ids) if passage is not None]

    def _frame(self, question: Question) -> tuple[str, str] | None:
        """How a question asks that holds one name, in small letters with a gap for it, and the name."""
        names = self.names(question)
        if len(names) != 1:
            return None
        return _PUNCTUATION.sub(" ", _with_gap(question.question.casefold(), names[0])).strip(), names[0]

    def _best(self, members: Sequence[tuple[Question, str]], found: Found) -> str | None:
        sources: dict[str, set[str]] = {}
        for question, name in members:
            for passage in sorted(self._helpful(question), key=lambda passage: passage.id):
                for sentence in _sentences(passage, name):
                    sources.setdefault(sentence, set()).add(question.id)
        left = sorted(sources, key=_mixed)
        order = sorted(members, key=lambda member: _mixed(member[0].id))
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
    texts = [f"{question.question} {one.replace(_GAP, name)}" for one in sentences for question, name in members]
    values = iter(found(questions * len(sentences), texts))
    gains = {}
    for sentence, sources in sentences.items():
        each = [
            value - alone
            for question, alone, value in zip(questions, plain, values, strict=False)
            if sources != {question.id} and not math.isnan(value - alone)
        ]
        gains[sentence] = fmean(each) if each else 0.0
    return gains


def _sentences(passage: Passage, name: str) -> list[str]:
    """Of the first two sentences those that hold the name, of 16 words at most, with gaps for it."""
    parts = _ENDS.split(passage.text[:_OPENING].replace(_GAP, "").strip())[:_SENTENCES]
    cut = (" ".join(_with_gap(part, name).split()[:_WORDS]) for part in parts)
    return [sentence for sentence in cut if _GAP in sentence]


def _with_gap(text: str, name: str) -> str:
    return re.sub(re.escape(name), _GAP, text, flags=re.IGNORECASE)


def _mixed(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def check_taught(technique: Technique) -> None:
    """Refuse a technique that evidence cannot teach.

    Raises:
        InputError: It is not known how its LM would say a query.
    """
    if technique.NAME not in _SCRIPTS:
        raise InputError(
            f"the teacher 'evidence' can teach {', '.join(sorted(_SCRIPTS))}, but not {technique.NAME}; give an LM as "
            "the teacher (--teacher)"
        )


def _said(technique: Technique, question: Question, queries: Sequence[str]) -> list[str]:
    """What the LM of a technique would have written, had it wanted these queries searched: a text a turn."""
    return [json_text(fields) for fields in _SCRIPTS[technique.NAME](question, queries, technique)]


def _counted(texts: Sequence[str], question: Question, count: int) -> list[str]:
    """As many texts as are asked for, since a grammar takes no fewer.

    The question stands in what is left over: it is searched besides, and not once more for being repeated.
    """
    others = [text for text in texts if folded(text) != folded(question.question)]
    return [*others, *[question.question] * count][:count]


def _queries(question: Question, queries: Sequence[str], technique: Technique) -> list[Mapping[str, Any]]:
    return [{"queries": _counted(queries, question, technique.written())}]


def _sub_questions(question: Question, queries: Sequence[str], technique: Technique) -> list[Mapping[str, Any]]:
    """Each name that has to be looked up, as a question of its own; what repeats the question is none."""
    asked = [f"What is {text}?" for text in queries if question.question not in text]
    return [{"sub_questions": _counted(asked, question, technique.written("n_sub_questions"))}]


def _rewrite(question: Question, queries: Sequence[str], technique: Technique) -> list[Mapping[str, Any]]:
    return [{"thought": "Look these up.", "queries": list(queries)}]


def _hypothesis(question: Question, queries: Sequence[str], technique: Technique) -> list[Mapping[str, Any]]:
    """The right option as the guess; the queries in the order support, distinguish, verify.

    A query that is missing is the question with the guess, then the question.
    """
    guess = question.answer if question.answer in question.options else question.options[0]
    support, distinguish, verify = (*queries, f"{question.question} {guess}", question.question)[:3]
    return [
        {
            "discriminating_features": list(question.options[:2]),
            "reasoning": f"The question points to {guess}",
            "confirming_evidence": [guess],
            "best_guess": guess,
        },
        {"support": support, "distinguish": distinguish, "verify": verify},
    ]


_SCRIPTS: Mapping[str, Callable[[Question, Sequence[str], Technique], list[Mapping[str, Any]]]] = {
    "rrr": _rewrite,
    "multi_query": _queries,
    "rag_fusion": _queries,
    "hcqr": _hypothesis,
    "decomposition": _sub_questions,
}


def passage_pairs(
    questions: Sequence[Question],
    passages: HeldPassages,
    *,
    data: str = "",
    limits: EmbeddedSettings | None = REWRITER_LIMITS,
) -> list[Pair]:
    """A pair a passage: the prompt that asks for as many questions as are known, and those.

    Left out are questions of several passages together, those that a set with answers has none for (they cannot be
    answered from the passage), those that nobody could be asked (``unfit``) or that are longer than the writer's, and
    near-repetitions; and passages of more than ``LONGEST_PASSAGE`` characters. A passage has ``BATCH_SIZE`` questions
    at most, the first ones.

    Args:
        questions: Train questions, with labelled evidence.
        passages: What they were asked of; evidence that is not there is passed over.
        data: The collection's name, for the pairs.
        limits: What the LM that the writer will run in can write; None: anything. Default: a rewriter's.

    Returns:
        Pairs whose question is the passage's id, in the order of the questions.

    Raises:
        InputError: No question says which passage answers it, or nothing is left of what they say.
    """
    asked = _asked_of_each(questions, passages)
    if not asked:
        raise InputError(
            f"none of the {len(questions)} train questions has evidence that is a passage of the collection, so "
            "nothing is known that was asked of one; give questions with evidence, or another collection"
        )
    short = [passage for passage in passages.get(list(asked)) if len(passage.text) <= LONGEST_PASSAGE]
    kept = [(passage, _kept(asked[passage.id], passage)) for passage in short]
    found = [_passage_pair(passage, texts, data, limits) for passage, texts in kept if texts]
    if not found:
        raise InputError(
            f"of {len(asked)} passages that train questions are answered by, {len(asked) - len(short)} have more than "
            f"{LONGEST_PASSAGE} characters, and the others' questions cannot be written as they are (more than "
            f"{LONGEST_QUERY - 1} characters, or no question); give more questions, or shorter passages"
        )
    return found


def _asked_of_each(questions: Sequence[Question], passages: HeldPassages) -> Mapping[str, list[Question]]:
    """The questions that each passage answers."""
    answered = any(one.answer for one in questions)
    asked: dict[str, list[Question]] = {}
    for question in questions:
        if question.jointly or (answered and not question.answer):
            continue
        for id, label in question.evidence.items():
            if label is Label.ENTAILED and id in passages:
                asked.setdefault(id, []).append(question)
    return asked


def _kept(asked: Sequence[Question], passage: Passage) -> dict[str, Question]:
    """Questions as the writer writes them. One at the limit would be taken for one that was cut off by it."""
    kept: dict[str, Question] = {}
    for question in asked:
        text = one_line(question.question)
        if len(kept) < BATCH_SIZE and len(text) < LONGEST_QUERY and not (unfit(text, passage) or repeats(text, kept)):
            kept[text] = question
    return kept


def _passage_pair(passage: Passage, asked: Mapping[str, Question], data: str, limits: EmbeddedSettings | None) -> Pair:
    texts = list(asked)
    writer = QuestionWriter(len(texts), len(texts))
    messages, schema = first_asked(lambda: writer(passage))
    return Pair(
        question=passage.id,
        technique=QBRAG.NAME,
        number=0,
        messages=messages,
        text=json_text(as_written({"questions": texts}, schema, limits)),
        reward=None,
        source="evidence",
        data=data,
        asked=" ".join(asked_of(question) for question in asked.values()),
    )
