"""Passages by their page, and questions about what is asked about most: ``SOURCE?page=url&questions=1000``.

QB-RAG (arXiv 2407.18044) searches MedQuAD so: a document is a web page, which answers several questions, and of the
topics those that most questions are about are taken until there are 1,000 questions. It does not name them; here a
topic is a passage's title, whole topics are taken, the larger first, until there are so many, and of questions that
differ in case and punctuation alone the first.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from querywright.data.labels import GRADES
from querywright.data.types import Label, Passage, Question
from querywright.errors import DataError


class Pages(NamedTuple):
    """What makes passages one: the column that names their page, and how many questions are wanted; None for all."""

    column: str
    questions: int | None


def pages_of(source: Any) -> tuple[Any, Pages | None]:
    """A source without what stands behind a question mark, and what that says.

    Raises:
        DataError: It says something else.
    """
    if not isinstance(source, str) or "?" not in source or os.path.exists(source):
        return source, None
    bare, _, told = source.partition("?")
    given = parse_qs(told, keep_blank_values=True)
    (column, *_), (most, *_) = given.get("page", [""]), given.get("questions", [None])
    if not column or given.keys() - {"page", "questions"} or not (most is None or (most.isdecimal() and int(most))):
        raise DataError(f"{source}: expected {bare}?page=COLUMN, or {bare}?page=COLUMN&questions=NUMBER")
    return bare, Pages(column, None if most is None else int(most))


def most_asked(questions: Iterable[Question], parts: Sequence[Passage], most: int) -> tuple[list[Question], set[str]]:
    """The questions about the topics that most are about, each once, and these topics."""
    topics = {part.id: part.title for part in parts}
    distinct = {" ".join(re.findall(r"\w+", one.question.casefold())): one for one in reversed(list(questions))}
    asked: defaultdict[str, list[Question]] = defaultdict(list)
    for question in reversed(distinct.values()):
        if found := [topics[id] for id in question.evidence if id in topics]:
            asked[found[0]].append(question)
    taken: Counter[str] = Counter()
    for topic in sorted(asked, key=lambda topic: (-len(asked[topic]), topic)):
        if taken.total() < most:
            taken[topic] = len(asked[topic])
    return [question for topic in asked if topic in taken for question in asked[topic]], set(taken)


def merged(parts: Iterable[Passage], pages: Mapping[str, str]) -> list[Passage]:
    """Passages of one page as one: its name as the id, the first title, the texts one after the other."""
    by_page: defaultdict[str, list[Passage]] = defaultdict(list)
    for part in parts:
        by_page[pages[part.id] or part.id].append(part)
    made = []
    for page, found in by_page.items():
        shared = set.intersection(*(set(part.metadata.items()) for part in found))
        kept = {key: one for key, one in found[0].metadata.items() if (key, one) in shared}
        made.append(Passage(page, "\n\n".join(part.text for part in found), found[0].title, kept))
    return made


def about_pages(question: Question, pages: Mapping[str, str]) -> Question:
    """A question whose evidence names pages; of two labels of a page the better one."""
    evidence: dict[str, Label] = {}
    assessors: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for id, label in question.evidence.items():
        page = pages.get(id) or id
        evidence[page] = max(evidence.get(page, label), label, key=GRADES.index)
        assessors[page] = tuple(dict.fromkeys((*assessors[page], *question.assessors.get(id, ()))))
    kept = {page: who for page, who in assessors.items() if who}
    groups = (tuple(dict.fromkeys(pages.get(id) or id for id in group)) for group in question.alternatives)
    return replace(question, evidence=evidence, assessors=kept, alternatives=tuple(groups))
