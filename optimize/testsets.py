"""Test sets written by an LM: a first labeled set for a collection, and two sets to test a question index.

``make`` writes a question with its answer about a single passage or two similar passages. It keeps the question if the
answer occurs in the passages, and if a reader gives this answer with the passages but not without passages (and, if
there are two, not with one of the two alone). It does not need a question index.

``rephrase`` rewords each stored question that is completely answered by its passage; the passage to find is the same.
``out_of_distribution`` writes a question about each passage that is different from all of its stored questions, and
keeps the question if the answerability judge finds the complete answer in the passage. No question in the index is in a
set, even with different capitalization, spacing, or punctuation.

Source: the two test sets in Yang et al. 2024 (QB-RAG), arXiv:2407.18044. The paper rephrases all questions and draws
500 of the remaining questions. Here the questions are shuffled first and rephrased in that order until enough remain.
The result is equivalent, because each question is kept or dropped independently of the others, but takes only as many
calls as needed. A smaller set is the beginning of a larger set with the same seed.
"""

from __future__ import annotations

import hashlib
import json
import random
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import dspy
from dspy.utils.exceptions import AdapterParseError

from querywright.data.judged import Case
from querywright.data.types import Label, Passage, Question
from querywright.errors import CollectionError, InputError
from querywright.files import write_file
from querywright.metrics.answers import contains_answer, hit, token_f1
from querywright.metrics.judges import AnswerabilityJudge
from querywright.models.embedder import CHUNK, TextEmbedder
from querywright.optimize.contexts import asking
from querywright.optimize.evaluate import Progress
from querywright.optimize.failures import Failures
from querywright.optimize.question_build import read_made
from querywright.programs.query_cleaning import folded
from querywright.programs.question_rules import COPIED, repeats, unfit
from querywright.programs.question_writer import AskAndAnswer, AskAnother, OneQuestion, RephraseQuestion
from querywright.programs.readers import ShortAnswerReader
from querywright.progress import part
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import collection_folder, published_passages
from querywright.retrieval.generated_questions import (
    COMPLETE,
    build_command,
    fresh,
    published_questions,
    questions_folder,
    read_records,
)

Draft = tuple[Question | None, str]
"""A question or None, and the reason for dropping it; the reason is empty if the question is kept."""
Kind = Literal["rephrase", "out-of-distribution", "make"]

SUFFIX = ".jsonl"
PATIENCE = 5
"""Maximum number of passages that ``make`` uses per question to keep."""
RIGHT = 0.5
"""Minimum token F1 for a reader's answer to count as right if it does not contain the whole written answer."""
NEIGHBOURS = 8
"""Number of candidate passages for a question's second passage."""


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A set of test questions and how it was made.

    Args:
        kind: ``make``, ``rephrase``, or ``out-of-distribution``.
        collection: The collection whose passages answer the questions.
        seed: Seed for the order in which questions were written.
        wanted: Maximum number of questions to write; None for all.
        available: Number of stored questions that could be rephrased, or of passages and pairs that could be used.
        asked: Number of available questions, passages, or pairs that were used.
        skipped: Number of questions or passages that were not available, by reason: ``stale`` (the passage was changed
            or removed after its questions were written), ``unwritten`` (the passage has no questions yet).
        dropped: Number of written questions that are not in the set, by reason: ``indexed`` (it is in the index),
            ``repeated`` (it is the same as an earlier question in the set), ``copied`` (it is from the prompt's
            example), ``empty``, ``unreadable`` (the LM's answer could not be parsed), ``no_words``, ``too_long``,
            ``no_question``, ``points_at_text`` (it refers to the text; see ``question_rules.unfit``), ``unanswerable``
            (according to the judge, or because the reader's answer is different), ``unjudged`` (the judge's answer
            could not be parsed), ``failed``; for ``make`` also ``answer_not_found`` (no passage contains the answer),
            ``answer_told`` (the question contains the answer), ``closed_book`` (the reader knows the answer without
            passages), ``one_is_enough`` (one of two passages is enough).
        questions: The set by id; a question's evidence is the passage that answers it.
        parents: For each rephrased question's id, the id of the stored question; empty for new questions.
        lm: The LM that wrote the questions.
        judge: The LM that judged or answered the questions; None if there was none.
        index: The LMs that made the question index (``writer`` and ``judge``); empty if the index does not name them.
        prompts: SHA-256 of the instructions, fields, and examples in the prompts, 16 hexadecimal digits.
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
    prompts: str = ""

    @property
    def cautions(self) -> list[str]:
        """What to know about the LMs that made the set and the index before interpreting results, one sentence each."""
        lines = []
        if self.kind == "make":
            lines.append(
                f"synthetic: {self.lm} wrote the questions and answers; review them before you rely on results"
            )
        elif "writer" not in self.index:
            lines.append(
                "the index does not name the LM that wrote its questions; if that LM also wrote this set, the set "
                "is circular"
            )
        elif self.index["writer"] == self.lm:
            lines.append(
                f"circular: {self.lm} wrote both the index and this set, which favors the index; use a different LM"
            )
        if self.judge is not None and self.judge == self.lm:
            lines.append(f"circular: {self.lm} judged the questions that it wrote; use a different LM as the judge")
        if self.judge is not None and self.judge == self.index.get("judge"):
            lines.append(f"circular: {self.judge} judged both the index and this set; use a different LM as the judge")
        return lines


def make_testset(
    kind: Kind,
    collection: str,
    *,
    lm: dspy.LM,
    judge_lm: dspy.LM | None = None,
    number: int | None = None,
    two_passage: float = 0.5,
    embedder: TextEmbedder | None = None,
    seed: int = 0,
    threads: int = 4,
    max_failures: float = 0.05,
    home: Path | None = None,
    progress: Progress | None = None,
) -> QuestionSet:
    """Write questions with answers for a collection, rewordings of stored questions, or new questions.

    ``make`` uses single passages and pairs, up to five for each question to keep. ``rephrase`` rewords the stored
    questions that their passage answers completely. ``out-of-distribution`` writes one question for each passage that
    has stored questions. The same arguments produce the same set, and cached LM answers cost nothing.

    Args:
        kind: ``make``, ``rephrase``, or ``out-of-distribution``.
        collection: Name of the collection.
        lm: The LM that writes, from ``resolve_lm``; preferably not the LM that wrote the index.
        judge_lm: The LM that judges new questions and answers the questions from ``make``. Default ``lm``, which then
            judges its own questions.
        number: Maximum number of questions in the set, 1 or more. Default: as many as possible.
        two_passage: Share of the questions from ``make`` that need two passages, 0 to 1. Default 0.5.
        embedder: The collection's embedder, which ``make`` uses to find pairs of similar passages. Default: the
            embedder that the collection names.
        seed: Seed for the order of stored questions or passages. Default 0.
        threads: Number of questions to run at a time, 1 or more. Default 4.
        max_failures: Share of the questions that may fail, 0 to 1; at least one may fail unless it is 0. Default 0.05.
        home: The workspace. Default: ``querywright.home.home()``.
        progress: Called after each question.

    Raises:
        CollectionError: The collection does not exist, a required question index is missing, or there is nothing to
            reword or ask about.
        InputError: A value is out of range.
        OutageError: The LM cannot be reached.
        BudgetError: The call limit is reached.
        TooManyFailuresError: More questions failed than allowed.
    """
    if number is not None and number < 1:
        raise InputError(f"number must be 1 or more, but got {number}")
    if not 0 <= two_passage <= 1:
        raise InputError(f"two_passage must be between 0 and 1, but got {two_passage}")
    _, passages = published_passages(collection_folder(collection, home), home)
    index: dict[str, str] = {}
    skipped: dict[str, int] = {}
    writer: OneQuestion
    ask: Callable[[Any], Draft]
    parts: list[tuple[Sequence[Any], int]]
    if kind == "make":
        writer, ask = AskAndAnswer(), partial(_ask_and_answer, passages, lm=lm, reader_lm=judge_lm or lm)
        order = sorted(passages)
        random.Random(seed).shuffle(order)
        wanted = len(order) if number is None else number
        n_two = round(wanted * two_passage)
        single = [(one,) for one in order[: PATIENCE * (wanted - n_two)]]
        near = _pairs(collection, order[: PATIENCE * n_two], home=home, embedder=embedder)
        parts = [(single, wanted - n_two), (near, n_two)]
    else:
        candidates, ask, writer, skipped = _of_index(kind, collection, passages, home, lm, judge_lm or lm)
        order = sorted(candidates)
        random.Random(seed).shuffle(order)
        parts = [(order, len(order) if number is None else number)]
        with suppress(CollectionError):  # in this case, only the makers are unknown
            if by := read_made(questions_folder(collection, home)):
                index = {"writer": by.lm, "judge": by.judge_lm}
    kept: dict[str, tuple[Any, Question]] = {}
    dropped: Counter[str] = Counter()
    asked = 0
    for given, wanted in parts:
        failures = Failures(kind, min(wanted, len(given)), max_failures)
        enough, left = len(kept) + wanted, list(given)
        while len(kept) < enough and left:  # the result does not depend on the number of threads
            wave, left = left[: enough - len(kept)], left[enough - len(kept) :]
            tell, asked = part(progress, asked, asked + len(wave) + len(left)), asked + len(wave)
            results = failures.map(ask, wave, id_of=_id_of, threads=threads, progress=tell)
            for one, result in zip(wave, results, strict=True):
                question, reason = (None, "failed") if isinstance(result, Exception) else result
                if question is not None and not reason and compared(question.question) in kept:
                    reason = "repeated"
                if question is None or reason:
                    dropped[reason] += 1
                else:
                    kept[compared(question.question)] = (one, question)
    rows = sorted(((question, _id_of(one)) for one, question in kept.values()), key=lambda row: row[0].id)
    predictors: list[Any] = writer.predictors()
    prompts = [(str(one.signature.instructions), *one.signature.fields, one.demos) for one in predictors]
    return QuestionSet(
        kind=kind,
        collection=collection,
        seed=seed,
        wanted=number,
        available=sum(len(given) for given, _ in parts),
        asked=asked,
        skipped={why: count for why, count in skipped.items() if count},
        dropped=dict(sorted(dropped.items())),
        questions=tuple(question for question, _ in rows),
        parents={question.id: parent for question, parent in rows} if kind == "rephrase" else {},
        lm=lm.model,
        judge=None if kind == "rephrase" else (judge_lm or lm).model,
        index=index,
        prompts=hashlib.sha256(repr(prompts).encode()).hexdigest()[:16],
    )


def _of_index(
    kind: Kind, collection: str, passages: Mapping[str, Passage], home: Path | None, lm: dspy.LM, judge_lm: dspy.LM
) -> tuple[list[str], Callable[[str], Draft], OneQuestion, dict[str, int]]:  # fmt: skip
    """Return the ids of stored questions or passages to use, the function that uses one, the writer, and the skipped
    counts.
    """
    stored = published_questions(collection, home)
    indexed = frozenset(hash(compared(question.text)) for question in stored.values())
    told: defaultdict[str, list[str]] = defaultdict(list)
    whole: list[str] = []
    for question in fresh(stored.values(), passages):
        told[str(question.metadata["passage"])].append(question.id)
        if question.metadata["label"] == COMPLETE:
            whole.append(question.id)
    live = sum(map(len, told.values()))
    judging, rephrasing, asking_anew = AnswerabilityJudge(), RephraseQuestion(), AskAnother()
    writer: OneQuestion = rephrasing if kind == "rephrase" else asking_anew
    if kind == "rephrase":
        candidates = whole
        skipped = {"stale": len(stored) - live}
    else:
        written = read_records(questions_folder(collection, home))
        known = [id for id in passages if id in written]
        candidates = [id for id in known if written[id].digest == passages[id].text_digest()]
        skipped = {"stale": len(known) - len(candidates), "unwritten": len(passages) - len(known)}
    if not candidates:
        raise CollectionError(
            f"no {'question' if kind == 'rephrase' else 'passage'} in {collection!r} can be used: "
            f"{len(stored) - live} of {len(stored)} questions are stale, and no other question is answered completely "
            f"by its passage; write new questions with {build_command(collection)}"
        )

    def ask(id: str) -> Draft:
        passage = passages[str(stored[id].metadata["passage"]) if kind == "rephrase" else id]
        try:
            with asking(lm):
                if kind == "rephrase":
                    text = rephrasing(question=stored[id].text).question
                else:
                    others = [stored[other].text for other in told.get(id, [])]
                    text = asking_anew(passage=passage, stored=others).question
        except AdapterParseError:
            return None, "unreadable"
        plain, question = compared(text), _question(kind, passage.id, text)
        if not plain or hash(plain) in indexed:
            return question, "indexed" if plain else "empty"
        if reason := unfit(text, passage) or (COPIED if repeats(text, writer.examples()) else ""):
            return question, reason
        if kind == "rephrase":
            return question, ""
        with asking(judge_lm):
            label = judging.label_of(Case(Question(passage.id, text), (passage,)))
        return question, "unjudged" if label is None else "" if label == COMPLETE else "unanswerable"

    return candidates, ask, writer, skipped


def _ask_and_answer(
    passages: Mapping[str, Passage], ids: Sequence[str], *, lm: dspy.LM, reader_lm: dspy.LM
) -> Draft:  # fmt: skip
    """Return a question about one or two passages, its answer, and the reason if it must be dropped; cheap checks run
    first.
    """
    writer, reader, given = AskAndAnswer(), ShortAnswerReader(), [passages[id] for id in ids]
    try:
        with asking(lm):
            made = writer(passages=given)
    except AdapterParseError:
        return None, "unreadable"
    text, answer = made.question, made.answer
    if not compared(text) or not compared(answer):
        return None, "empty"
    both = Passage("both", "\n".join(one.content for one in given))
    if reason := unfit(text, both) or (COPIED if repeats(text, writer.examples()) else ""):
        return None, reason
    if hit([one.content for one in given], [answer]) != 1.0:
        return None, "answer_not_found"
    if contains_answer(text, [answer]):
        return None, "answer_told"

    def gives(shown: Sequence[Passage]) -> bool:
        with asking(reader_lm):
            said = str(reader(question=text, options=None, passages=shown).answer)
        return bool(contains_answer(said, [answer])) or token_f1(said, [answer]) >= RIGHT

    if not gives(given):
        return None, "unanswerable"
    if gives(()):
        return None, "closed_book"
    if len(given) > 1 and any(gives((one,)) for one in given):
        return None, "one_is_enough"
    label = Label.USEFUL if len(ids) > 1 else Label.ENTAILED
    asked = _question("make", "\n".join(ids), text)
    return replace(asked, answer=answer, evidence=dict.fromkeys(ids, label), jointly=len(ids) > 1), ""


def _pairs(collection: str, ids: Sequence[str], **options: Any) -> list[tuple[str, str]]:
    """Return distinct pairs of ids: each passage and its nearest one, with a different title or file if possible."""
    if not ids:
        return []
    passages = ChromaRetriever(collection, **options)
    pairs: dict[frozenset[str], tuple[str, str]] = {}
    for start in range(0, len(ids), CHUNK):
        some = passages.get(ids[start : start + CHUNK])
        for one, hits in zip(some, passages.search([one.content for one in some], NEIGHBOURS), strict=True):
            others = [hit.passage for hit in hits if hit.passage.text != one.text]
            place = (one.metadata.get("file"), one.title)
            apart = [other for other in others if (other.metadata.get("file"), other.title) != place] or others
            for other in apart[:1]:
                pairs.setdefault(frozenset((one.id, other.id)), (one.id, other.id))
    return list(pairs.values())


def _id_of(one: str | Sequence[str]) -> str:
    return one if isinstance(one, str) else " and ".join(one)


def compared(text: str) -> str:
    """Return a question in the form used to compare questions: without capitals, extra spaces, or punctuation."""
    plain = unicodedata.normalize("NFKC", text)
    return folded("".join(" " if unicodedata.category(mark).startswith("P") else mark for mark in plain))


def _question(kind: Kind, passage: str, text: str) -> Question:
    digest = hashlib.sha256(json.dumps([kind, passage, text], ensure_ascii=False).encode()).hexdigest()
    return Question(digest[:16], text, evidence={passage: Label.ENTAILED})


def card_file(path: Path) -> Path:
    """Return the path of a set's card: ``NAME.card.json`` next to ``NAME.jsonl``."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}.card.json")


def check_set_file(path: Path) -> None:
    """Raise ``InputError`` if the name of a set does not end in .jsonl."""
    if not path.name.endswith(SUFFIX) or path.name == SUFFIX:
        raise InputError(f"the file name of a question set must end in {SUFFIX}, but got {path.name!r}")


def write_question_set(path: Path, made: QuestionSet) -> dict[str, Any]:
    """Write a set and its card atomically, and return the card.

    Args:
        path: A file that ends in .jsonl; its folder is created if it is missing.
        made: The set, with at least one question.
    """
    check_set_file(path)
    if not made.questions:
        why = ", ".join(f"{number} {name}" for name, number in made.dropped.items()) or "none"
        raise InputError(
            f"all {made.asked} requested questions were dropped ({why}), so nothing was written; use a better LM with "
            "--lm"
        )
    parents = made.parents
    rows = [one.to_json() | ({"parent": parents[one.id]} if parents else {}) for one in made.questions]
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = write_file(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    told = {one.name: getattr(made, one.name) for one in fields(made) if one.name not in ("questions", "parents")}
    card = {
        "synthetic": True,
        "date": datetime.now(UTC).date().isoformat(),
        **told,
        "kept": len(rows),
        "jointly": sum(one.jointly for one in made.questions),
        "cautions": made.cautions,
        "sha256": digest,
    }
    write_file(card_file(path), json.dumps(card, ensure_ascii=False, indent=2) + "\n")
    return card
