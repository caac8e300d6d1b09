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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dspy
from dspy.utils.exceptions import AdapterParseError

from querywright.data.judged import Case
from querywright.data.types import Label, Passage, Question
from querywright.errors import CollectionError, InputError
from querywright.metrics.judge import Judge
from querywright.metrics.judges import AnswerabilityJudge
from querywright.optimize.evaluate import Progress, asking
from querywright.optimize.failures import Failures
from querywright.optimize.pool import bounded_map
from querywright.optimize.question_set import Kind, QuestionSet
from querywright.programs.query_cleaning import folded
from querywright.programs.question_rules import COPIED, repeats, unfit
from querywright.programs.question_testset import AskAnother, RephraseQuestion
from querywright.retrieval.collection import collection_folder, published_passages
from querywright.retrieval.question_opening import build_command, fresh, published_questions
from querywright.retrieval.question_records import COMPLETE, questions_folder, read_records

Outcome = tuple[str, str]
"""The question that was written and why it is dropped; an empty reason for one that is not."""

DEFAULT_NUMBER = 500


@dataclass(frozen=True, slots=True)
class _Stored:
    """The collection and the index of its questions.

    Args:
        passages: Of the collection, by id.
        fresh: Stored questions whose passage is as it was when they were written, by id.
        stale: The number of the others.
        texts: All stored questions, as they are compared.
    """

    passages: Mapping[str, Passage]
    fresh: Mapping[str, Passage]
    stale: int
    texts: frozenset[str]


@dataclass(slots=True)
class _Made:
    """What became of those that were asked for."""

    asked: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    kept: list[tuple[Passage, str]] = field(default_factory=list)


def rephrase(
    collection: str,
    *,
    lm: dspy.LM,
    number: int = DEFAULT_NUMBER,
    seed: int = 0,
    threads: int = 4,
    deadline: float | None = 300.0,
    max_failures: float = 0.05,
    home: Path | None = None,
    progress: Progress | None = None,
) -> QuestionSet:
    """Stored questions in other words, each with the passage that its parent was written for.

    Only questions that their passage answers wholly are reworded. The same arguments give the same set, and answers
    of the LM that are stored cost nothing again.

    Args:
        collection: Name of the collection whose passages the questions are about.
        lm: An LM made by ``resolve_lm``, best another one than the index was written with.
        number: Questions in the set, 1 or more; fewer where the index does not give so many. Default 500.
        seed: Of the order in which stored questions are taken. Default 0.
        threads: Questions under way at a time, 1 or more. Default 4.
        deadline: Seconds that one question may take, or None. Default 300.
        max_failures: Share of the questions that may fail, 0 to 1; at least one may unless it is 0. Default 0.05.
        home: The working folder. Default: ``querywright.home.home()``.
        progress: Called after each question.

    Raises:
        CollectionError: The collection has no index of questions, or none of its questions can be reworded.
        InputError: A value is out of range.
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached.
        TooManyFailuresError: More questions failed than allowed.
    """
    _check_number(number)
    stored = _stored(collection, home)
    parents = [one for one in stored.fresh.values() if one.metadata["label"] == COMPLETE]
    if not parents:
        raise CollectionError(
            f"no question of {collection!r} can be reworded: {len(stored.fresh)} are of passages as they are now and "
            f"none of those is answered wholly by its passage, {stored.stale} are stale; write them: "
            f"{build_command(collection)}"
        )
    module = RephraseQuestion()

    def ask(parent: Passage) -> Outcome:
        with asking(lm):
            text = module(question=parent.text).question
        return text, _objection(text, stored, stored.passages[str(parent.metadata["passage"])], module.examples())

    made = _first_kept("rephrase", parents, ask, number, seed, threads, deadline, max_failures, progress)
    rows = [(_question("rephrase", str(parent.metadata["passage"]), text), parent.id) for parent, text in made.kept]
    return QuestionSet(
        kind="rephrase",
        collection=collection,
        seed=seed,
        wanted=number,
        available=len(parents),
        asked=made.asked,
        skipped=_counted(stale=stored.stale),
        dropped=dict(sorted(made.dropped.items())),
        questions=_by_id(question for question, _ in rows),
        parents={question.id: parent for question, parent in rows},
        lm=lm.model,
    )


def out_of_distribution(
    collection: str,
    *,
    lm: dspy.LM,
    judge_lm: dspy.LM | None = None,
    judge: Judge | None = None,
    number: int | None = None,
    seed: int = 0,
    threads: int = 4,
    deadline: float | None = 300.0,
    max_failures: float = 0.05,
    home: Path | None = None,
    progress: Progress | None = None,
) -> QuestionSet:
    """New questions, one a passage at most, that the passage answers and its stored questions do not ask.

    Passages for which questions were written are asked of, also where none of those was kept. The same arguments give
    the same set, and answers of the LMs that are stored cost nothing again.

    Args:
        collection: Name of the collection.
        lm: An LM made by ``resolve_lm`` that writes, best another one than the index was written with.
        judge_lm: The LM that judges. Default ``lm``, which then judges what it wrote.
        judge: Judges whether a passage answers a question; 1.0 of its scale is the whole answer. Default
            ``AnswerabilityJudge``.
        number: Questions in the set at most, 1 or more. Default: as many as there are.
        seed: Of the order in which passages are taken. Default 0.
        threads: Passages under way at a time, 1 or more. Default 4.
        deadline: Seconds that one passage may take, or None. Default 300.
        max_failures: Share of the passages that may fail, 0 to 1; at least one may unless it is 0. Default 0.05.
        home: The working folder. Default: ``querywright.home.home()``.
        progress: Called after each passage.

    It raises what ``rephrase`` raises.
    """
    _check_number(number)
    stored = _stored(collection, home)
    written = read_records(questions_folder(collection, home))
    known = [passage for passage in stored.passages.values() if passage.id in written]
    current = [passage for passage in known if written[passage.id].digest == passage.text_digest()]
    if not current:
        raise CollectionError(
            f"no passage of {collection!r} can be asked of: the questions of all {len(known)} that have any are stale; "
            f"write them: {build_command(collection)}"
        )
    told: dict[str, list[str]] = {}
    for question in stored.fresh.values():
        told.setdefault(str(question.metadata["passage"]), []).append(question.text)
    module, judging = AskAnother(), judge or AnswerabilityJudge()

    def ask(passage: Passage) -> Outcome:
        with asking(lm):
            text = module(passage=passage, stored=told.get(passage.id, [])).question
        reason = _objection(text, stored, passage, module.examples())
        if not reason:
            with asking(judge_lm or lm):
                label = judging.label_of(Case(Question(passage.id, text), (passage,)))
            reason = "unjudged" if label is None else "" if judging.score([label]) == 1.0 else "unanswerable"
        return text, reason

    wanted = len(current) if number is None else number
    made = _first_kept("out-of-distribution", current, ask, wanted, seed, threads, deadline, max_failures, progress)
    return QuestionSet(
        kind="out-of-distribution",
        collection=collection,
        seed=seed,
        wanted=number,
        available=len(current),
        asked=made.asked,
        skipped=_counted(stale=len(known) - len(current), unwritten=len(stored.passages) - len(known)),
        dropped=dict(sorted(made.dropped.items())),
        questions=_by_id(_question("out-of-distribution", passage.id, text) for passage, text in made.kept),
        parents={},
        lm=lm.model,
        judge=(judge_lm or lm).model,
    )


def compared(text: str) -> str:
    """A question as it is compared with others: capitals, spaces and punctuation make no difference."""
    plain = unicodedata.normalize("NFKC", text)
    return folded("".join(" " if unicodedata.category(mark).startswith("P") else mark for mark in plain))


def _stored(collection: str, home: Path | None) -> _Stored:
    _, passages = published_passages(collection_folder(collection, home), home)
    questions = published_questions(collection, home)
    live = {question.id: question for question in fresh(questions, passages)}
    texts = frozenset(compared(question.text) for question in questions)
    return _Stored(passages, live, len(questions) - len(live), texts)


def _first_kept(
    kind: Kind,
    candidates: Sequence[Passage],
    ask: Callable[[Passage], Outcome],
    wanted: int,
    seed: int,
    threads: int,
    deadline: float | None,
    max_failures: float,
    progress: Progress | None,
) -> _Made:
    """Ask of the candidates in the order of the seed until ``wanted`` are kept; how many threads changes nothing."""
    order = sorted(candidates, key=lambda candidate: candidate.id)
    random.Random(seed).shuffle(order)
    failures = Failures(kind, min(wanted, len(order)), max_failures)
    made, seen = _Made(), set[str]()
    done = 0

    def on_done(position: int, result: Outcome | Exception) -> None:
        nonlocal done
        done += 1
        if isinstance(result, Exception) and not isinstance(result, AdapterParseError):
            failures.add(wave[position].id, result)
        if progress is not None:
            progress(kind, done, made.asked)

    while len(made.kept) < wanted and made.asked < len(order):
        wave = order[made.asked : made.asked + wanted - len(made.kept)]
        made.asked += len(wave)
        results = bounded_map(ask, wave, threads=threads, deadline=deadline, on_done=on_done)
        for candidate, result in zip(wave, results, strict=True):
            text, reason = _read(result)
            if not reason and compared(text) in seen:
                reason = "repeated"
            if reason:
                made.dropped[reason] += 1
            else:
                seen.add(compared(text))
                made.kept.append((candidate, text))
    return made


def _read(result: Outcome | Exception) -> Outcome:
    if isinstance(result, Exception):
        return "", "unreadable" if isinstance(result, AdapterParseError) else "failed"
    return result


def _objection(text: str, stored: _Stored, passage: Passage, examples: Iterable[str]) -> str:
    """Why a question cannot stand in a set; empty when it can. The rules are those of the index."""
    plain = compared(text)
    if not plain:
        return "empty"
    if plain in stored.texts:
        return "indexed"
    return unfit(text, passage) or (COPIED if repeats(text, examples) else "")


def _question(kind: Kind, passage: str, text: str) -> Question:
    digest = hashlib.sha256(json.dumps([kind, passage, text], ensure_ascii=False).encode()).hexdigest()
    return Question(digest[:16], text, evidence={passage: Label.ENTAILED})


def _by_id(questions: Iterable[Question]) -> tuple[Question, ...]:
    return tuple(sorted(questions, key=lambda question: question.id))


def _counted(**numbers: int) -> dict[str, int]:
    return {name: number for name, number in numbers.items() if number}


def _check_number(number: int | None) -> None:
    if number is not None and number < 1:
        raise InputError(f"number must be 1 or more, but got {number}")
