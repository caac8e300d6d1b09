"""Sets of test questions for an index of questions, written by an LM: known questions reworded, and new ones.

``rephrase``: each question that the index answers wholly is put in other words; the passage to find is the one that it
was written for. ``out_of_distribution``: of each passage something is asked that none of its stored questions asks, and
the question is kept where the answerability judge finds the whole answer in that passage. No question that is in the
index stands in a set, whatever capitals, spaces or punctuation it has.

Source: Yang et al. 2024 (QB-RAG), arXiv:2407.18044, its two test sets. The paper rephrases all questions and draws 500
of those that are left. Here they are shuffled first and rephrased in that order until so many are left: the same set,
since whether one is left does not depend on the others, for as many calls as are needed. A smaller number is the
beginning of a larger one with the same seed.
"""

from __future__ import annotations

import hashlib
import json
import random
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import dspy
from dspy.utils.exceptions import AdapterParseError

from querywright.data.judged import Case
from querywright.data.types import Label, Passage, Question
from querywright.errors import CollectionError, InputError
from querywright.files import write_file
from querywright.metrics.judge import Judge
from querywright.metrics.judges import AnswerabilityJudge
from querywright.optimize.dspy_context import asking
from querywright.optimize.evaluate import Progress
from querywright.optimize.failures import Failures
from querywright.optimize.question_build import read_made
from querywright.programs.query_cleaning import folded
from querywright.programs.question_rules import COPIED, repeats, unfit
from querywright.programs.question_writer import AskAnother, RephraseQuestion
from querywright.retrieval.collection import collection_folder, published_passages
from querywright.retrieval.generated_questions import (
    COMPLETE,
    build_command,
    fresh,
    published_questions,
    questions_folder,
    read_records,
)

Kind = Literal["rephrase", "out-of-distribution"]

SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A set of test questions, and how it came about.

    Args:
        kind: ``rephrase`` or ``out-of-distribution``.
        collection: The collection whose passages answer them.
        seed: Of the order in which they were asked for.
        wanted: Questions asked for at most; None for all that there could be.
        available: Stored questions that could be rephrased, or passages that could be asked of.
        asked: How many of those were.
        skipped: How many were left out before, by reason: ``stale`` (the passage was changed or removed after its
            questions were written), ``unwritten`` (no questions were written for the passage yet).
        dropped: How many of those asked for are not in the set, by reason: ``indexed`` (it is a question of the
            index), ``repeated`` (an earlier one of the set asks it), ``copied`` (it is of the prompt's example),
            ``empty``, ``unreadable`` (the LM's answer), ``no_words``, ``too_long``, ``no_question``,
            ``points_at_text``, ``other_script`` (nobody could be asked it; see ``question_rules.unfit``),
            ``unanswerable`` (the judge's label), ``unjudged`` (the judge's answer could not be read), ``failed``.
        questions: The set by id; each one's evidence is the passage that answers it.
        parents: Id of the stored question by the id of its rephrasing; empty for new questions.
        lm: The LM that wrote them.
        judge: The LM that judged them, or None where none did.
        index: The LMs that made the index of questions, ``writer`` and ``judge``; empty where it does not tell.
    """

    kind: Kind
    collection: str
    seed: int
    wanted: int | None
    available: int
    asked: int
    skipped: Mapping[str, int]
    dropped: Mapping[str, int]
    questions: tuple[Question, ...]
    parents: Mapping[str, str]
    lm: str
    judge: str | None = None
    index: Mapping[str, str] = field(default_factory=dict)

    @property
    def cautions(self) -> list[str]:
        """What a reader of results on this set must know about its LMs and those of the index, a sentence each."""
        lines = []
        if "writer" not in self.index:
            lines.append("the index does not tell which LM wrote it; if it is the one of this set, the set is circular")
        elif self.index["writer"] == self.lm:
            lines.append(f"circular: {self.lm} wrote the index and this set, which favours the index; use another LM")
        if self.judge is not None and self.judge == self.lm:
            lines.append(f"circular: {self.lm} judged the questions that it wrote; use another LM to judge")
        if self.judge is not None and self.judge == self.index.get("judge"):
            lines.append(f"circular: {self.judge} judged the index and this set")
        return lines


def make_testset(
    kind: Kind,
    collection: str,
    *,
    lm: dspy.LM,
    judge_lm: dspy.LM | None = None,
    judge: Judge | None = None,
    number: int | None = None,
    seed: int = 0,
    threads: int = 4,
    max_failures: float = 0.05,
    home: Path | None = None,
    progress: Progress | None = None,
) -> QuestionSet:
    """Stored questions in other words, or new ones that passages answer and their stored questions do not ask.

    ``rephrase`` rewords those that their passage answers wholly, ``out-of-distribution`` asks one question of each
    passage for which questions were written. The same arguments give the same set, and stored answers of the LMs cost
    nothing again.

    Args:
        kind: ``rephrase`` or ``out-of-distribution``.
        collection: Name of the collection whose passages the questions are about.
        lm: An LM made by ``resolve_lm`` that writes, best another one than the index was written with.
        judge_lm: The LM that judges new questions. Default ``lm``, which then judges what it wrote.
        judge: Judges whether a passage answers a new question; 1.0 of its scale is the whole answer. Default
            ``AnswerabilityJudge``.
        number: Questions in the set, 1 or more; fewer where there are not so many. Default: as many as there are.
        seed: Of the order in which stored questions or passages are taken. Default 0.
        threads: Questions under way at a time, 1 or more. Default 4.
        max_failures: Share of the questions that may fail, 0 to 1; at least one may unless it is 0. Default 0.05.
        home: The working folder. Default: ``querywright.home.home()``.
        progress: Called after each question.

    Raises:
        CollectionError: The collection has no index of questions, or nothing of it can be reworded or asked of.
        InputError: A value is out of range.
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached.
        TooManyFailuresError: More questions failed than allowed.
    """
    if number is not None and number < 1:
        raise InputError(f"number must be 1 or more, but got {number}")
    _, passages = published_passages(collection_folder(collection, home), home)
    stored = published_questions(collection, home)
    live = fresh(stored, passages)
    texts = frozenset(compared(question.text) for question in stored)
    told: defaultdict[str, list[str]] = defaultdict(list)
    for question in live:
        told[str(question.metadata["passage"])].append(question.text)
    judging, rephrasing, asking_anew = judge or AnswerabilityJudge(), RephraseQuestion(), AskAnother()
    if kind == "rephrase":
        candidates = [one for one in live if one.metadata["label"] == COMPLETE]
        skipped = {"stale": len(stored) - len(live)}
    else:
        written = read_records(questions_folder(collection, home))
        known = [one for one in passages.values() if one.id in written]
        candidates = [one for one in known if written[one.id].digest == one.text_digest()]
        skipped = {"stale": len(known) - len(candidates), "unwritten": len(passages) - len(known)}
    if not candidates:
        raise CollectionError(
            f"nothing of {collection!r} can be {'reworded' if kind == 'rephrase' else 'asked of'}: of {len(stored)} "
            f"questions {len(stored) - len(live)} are stale, and none of the others is answered wholly by its passage; "
            f"write them: {build_command(collection)}"
        )

    def owner(one: Passage) -> Passage:
        return passages[str(one.metadata["passage"])] if kind == "rephrase" else one

    def ask(one: Passage) -> tuple[str, str]:
        """The question that is written and why it is dropped; an empty reason for one that is not."""
        passage = owner(one)
        try:
            with asking(lm):
                if kind == "rephrase":
                    text, examples = rephrasing(question=one.text).question, rephrasing.examples()
                else:
                    text = asking_anew(passage=one, stored=told.get(one.id, [])).question
                    examples = asking_anew.examples()
        except AdapterParseError:
            return "", "unreadable"
        plain = compared(text)
        if not plain or plain in texts:
            return text, "indexed" if plain else "empty"
        if reason := unfit(text, passage) or (COPIED if repeats(text, examples) else ""):
            return text, reason
        if kind == "rephrase":
            return text, ""
        with asking(judge_lm or lm):
            label = judging.label_of(Case(Question(passage.id, text), (passage,)))
        return text, "unjudged" if label is None else "" if judging.score([label]) == 1.0 else "unanswerable"

    order = sorted(candidates, key=lambda candidate: candidate.id)
    random.Random(seed).shuffle(order)
    wanted = len(order) if number is None else number
    failures = Failures(kind, min(wanted, len(order)), max_failures)
    kept: dict[str, tuple[Passage, str]] = {}
    dropped: Counter[str] = Counter()
    asked = 0
    while len(kept) < wanted and asked < len(order):  # how many threads there are changes nothing
        wave = order[asked : asked + wanted - len(kept)]
        asked += len(wave)
        results = failures.map(ask, wave, id_of=lambda one: one.id, threads=threads, progress=progress)
        for one, result in zip(wave, results, strict=True):
            text, reason = ("", "failed") if isinstance(result, Exception) else result
            if not reason and compared(text) in kept:
                reason = "repeated"
            if reason:
                dropped[reason] += 1
            else:
                kept[compared(text)] = (one, text)
    rows = sorted(
        ((_question(kind, owner(one).id, text), one.id) for one, text in kept.values()), key=lambda row: row[0].id
    )
    try:
        by = read_made(questions_folder(collection, home))
    except CollectionError:  # only who made them is not known
        by = None
    return QuestionSet(
        kind=kind,
        collection=collection,
        seed=seed,
        wanted=number,
        available=len(candidates),
        asked=asked,
        skipped={why: count for why, count in skipped.items() if count},
        dropped=dict(sorted(dropped.items())),
        questions=tuple(question for question, _ in rows),
        parents={question.id: parent for question, parent in rows} if kind == "rephrase" else {},
        lm=lm.model,
        judge=None if kind == "rephrase" else (judge_lm or lm).model,
        index={} if by is None else {"writer": by.lm, "judge": by.judge_lm},
    )


def compared(text: str) -> str:
    """A question as it is compared with others: capitals, spaces and punctuation make no difference."""
    plain = unicodedata.normalize("NFKC", text)
    return folded("".join(" " if unicodedata.category(mark).startswith("P") else mark for mark in plain))


def _question(kind: Kind, passage: str, text: str) -> Question:
    digest = hashlib.sha256(json.dumps([kind, passage, text], ensure_ascii=False).encode()).hexdigest()
    return Question(digest[:16], text, evidence={passage: Label.ENTAILED})


def card_file(path: Path) -> Path:
    """Where the card of a set lies: ``NAME.card.json`` beside ``NAME.jsonl``."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}.card.json")


def check_set_file(path: Path) -> None:
    """Raise ``InputError`` when a set cannot have this name: it does not end in .jsonl."""
    if not path.name.endswith(SUFFIX) or path.name == SUFFIX:
        raise InputError(
            f"a question set is a file of JSON lines; give a name that ends in {SUFFIX}, not {path.name!r}"
        )


def write_question_set(path: Path, made: QuestionSet) -> dict[str, Any]:
    """Write a set and its card, whole or not at all; gives the card.

    Args:
        path: A file that ends in .jsonl; its folder is made when it is missing.
        made: The set, with at least one question.
    """
    check_set_file(path)
    if not made.questions:
        why = ", ".join(f"{number} {name}" for name, number in made.dropped.items()) or "none"
        raise InputError(
            f"not one of {made.asked} questions asked for is left ({why}); nothing was written. Name a better LM with "
            "--lm"
        )
    parents = made.parents
    rows = [one.to_json() | ({"parent": parents[one.id]} if parents else {}) for one in made.questions]
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = write_file(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    told = ("kind", "collection", "seed", "wanted", "available", "skipped", "asked", "dropped", "lm", "judge")
    card = {name: getattr(made, name) for name in told} | {
        "kept": len(rows),
        "index": dict(made.index),
        "cautions": made.cautions,
        "sha256": digest,
    }
    write_file(card_file(path), json.dumps(card, ensure_ascii=False, indent=2) + "\n")
    return card
