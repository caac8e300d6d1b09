"""Rewrites from evidence: what is tried, what is chosen for questions that are alike, and how it is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from querywright.data.types import Label, Passage, Question
from querywright.optimize.rewriter.evidence import Writer, taught_by_evidence
from querywright.programs import technique_class
from querywright.retrieval.collection import CollectionPassages

TITLES = {"a": "Mercury (planet)", "b": "Venus", "c": "Orbit", "d": "", "e": "venus"}
TREES = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Gum", "Hazel", "Ironwood", "Juniper")
TAUGHT = ("rrr", "multi_query", "rag_fusion", "hcqr", "decomposition")


class Held(CollectionPassages):
    name = fingerprint = "held"

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = {one.id: one for one in passages}

    def search(self, queries: Sequence[str], k: int) -> Any:
        raise AssertionError("what is found is measured by who asks for it")


PLANETS = Held([Passage(id=id, title=title, text="A text.") for id, title in TITLES.items()])
FOREST = Held(
    [
        Passage(id=one, title=one, text=f"{one} grows tall. Experts say that {one} lives long. More on {one}.")
        for one in TREES
    ]
)


def asked(text: str = "Is Venus hotter than Mercury?", **values: Any) -> Question:
    evidence = {"a": Label.ENTAILED, "b": Label.USEFUL, "c": Label.ENTAILED, "d": Label.USEFUL, "gone": Label.ENTAILED}
    return Question(values.pop("id", text), text, **{"evidence": evidence, **values})


def tree(name: str, text: str = "How old does {} get?") -> Question:
    return Question(f"{text}-{name}", text.replace("{}", name), evidence={name: Label.USEFUL})


def queries(texts: list[str] | None) -> tuple[str, ...] | None:
    return None if texts is None else tuple(json.loads(texts[0])["queries"])


def tried(questions: Sequence[Question], held: Held = PLANETS, found: Any = None) -> list[Any]:
    """What is tried for each question, what is worth nothing everywhere."""
    seen: list[Any] = []

    def rewards(writers: Sequence[Writer]) -> list[list[float]]:
        seen.extend([[made for write in writers if (made := queries(write(one))) is not None] for one in questions])
        return [[0.0] * len(writers)] * len(questions)

    taught_by_evidence(technique_class("rrr")(held), questions, rewards, found)
    return seen


def test_ideas_are_the_question_with_its_names_and_with_its_options() -> None:
    question = asked(options=("yes", "no"))
    whole, names = question.question, ("Venus", "Mercury")
    expected = [(whole,), (whole, *names), (*names, whole), (whole, f"Venus {whole}", f"Mercury {whole}")]
    assert tried([question]) == [[*expected, (f"{whole} yes no",)]]


def test_what_is_best_in_the_mean_for_questions_that_are_alike_is_written_for_all_of_them() -> None:
    two = [asked(f"Venus or Mercury, {n}?", options=("yes",)) for n in range(3)]
    one, none = asked("is MERCURY near?"), asked("what is it?")
    rewards = {
        (two[0].question, "names"): 1.0, (two[1].question, "names"): -1.0, (two[2].question, "names"): math.nan,
        **{(question.question, "options"): 0.1 for question in two},
    }  # fmt: skip

    def worth(writers: Sequence[Writer]) -> list[list[float]]:
        return [[reward(question, queries(write(question))) for write in writers] for question in (*two, one, none)]

    def reward(question: Question, made: tuple[str, ...] | None) -> float:
        if made is None or question is none:
            return math.nan
        kind = "names" if made[0] == "Venus" else "options" if made[0].endswith(" yes") else "question"
        return rewards.get((question.question, kind), 0.0)

    write = taught_by_evidence(technique_class("rrr")(PLANETS), [*two, one, none], worth)
    assert [queries(write(question)) for question in two] == [(f"{question.question} yes",) for question in two]
    assert [queries(write(question)) for question in (one, none)] == [(one.question,), (none.question,)]


def measure(values: dict[str, float]) -> Callable[..., list[float]]:
    """Worth of a text by the end that it has; of any other, the plain question's among them, .5."""

    def found(questions: Sequence[Question], texts: Sequence[str]) -> list[float]:
        assert len(questions) == len(texts)
        return [next((worth for end, worth in values.items() if text.endswith(end)), 0.5) for text in texts]

    return found


def wordings(questions: Sequence[Question], found: Any, held: Held = FOREST) -> set[str | None]:
    """What is tried after each question, with the name as X."""
    made = [[text for (text, *more) in each if not more][1:] for each in tried(questions, held, found)]
    return {
        each[0].removeprefix(one.question).strip().replace(next(iter(one.evidence)), "X") if each else None
        for one, each in zip(questions, made, strict=True)
    }


def test_the_sentence_that_finds_most_in_the_mean_is_tried_for_each_way_to_ask() -> None:
    found = measure({"lives long.": 0.9, "grows tall.": 0.6})
    for text in ("How old does {} get?", "how OLD does {}  get"):
        assert wordings([tree(one, text) for one in TREES], found) == {"Experts say that X lives long."}
    assert wordings([tree(one) for one in TREES[:7]], found) == {None}  # too few that ask alike
    assert wordings([tree(one, f"{n} of {{}}?") for n, one in enumerate(TREES)], found) == {None}
    for worth in (0.5, 0.1, math.nan):  # where the question alone finds as much nothing is chosen
        found = measure({"lives long.": worth, "grows tall.": worth})
        assert wordings([tree(one) for one in TREES], found) == {None}


def test_a_sentence_does_not_count_for_the_question_that_it_was_taken_from() -> None:
    own = Held([Passage(id=one, title=one, text=f"{one} is number {place}.") for place, one in enumerate(TREES)])
    questions = [tree(one) for one in TREES]
    plain = {question.question for question in questions}

    def found(members: Sequence[Question], texts: Sequence[str]) -> list[float]:
        """A sentence is worth much for its own question and nothing for all others."""
        names = [next(iter(question.evidence)) for question in members]
        ends = [text.endswith(own.get([name])[0].text) for text, name in zip(texts, names, strict=True)]
        return [1.0 if text in plain else 5.0 if end else 0.9 for text, end in zip(texts, ends, strict=True)]

    assert wordings(questions, found, own) == {None}


def said(name: str, question: Question, **knobs: Any) -> list[dict[str, Any]]:
    """What is written where the names, then the question, are best."""

    def rewards(writers: Sequence[Writer]) -> list[list[float]]:
        return [[float(number == 2) for number, _ in enumerate(writers)]]

    write = taught_by_evidence(technique_class(name)(PLANETS, **knobs), [question], rewards)
    return [json.loads(text) for text in write(question) or ()]


def test_every_technique_that_can_be_taught_reads_its_script() -> None:
    question = asked(options=("yes", "no"), answer="no")
    for name in TAUGHT:
        technique, turns = technique_class(name)(None), said(name, question)
        predictors = technique.predictors()[: len(turns)]  # those that write what is searched come first
        assert [set(turn) for turn in turns] == [set(one.signature.output_fields) for one in predictors], name
        assert all(query in json.dumps(turns) for query in ("Venus", "Mercury", question.question)), name
    near = asked("is MERCURY near?", options=("yes", "no"), answer="no")
    first, second = said("hcqr", near)  # the right option is the guess, and missing queries are made of it
    assert first["best_guess"] == "no"
    assert second == {"support": "Mercury", "distinguish": near.question, "verify": f"{near.question} no"}
