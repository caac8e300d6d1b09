"""Rewrites for a model to learn from, made without an LM: of the names that a question's labelled evidence is about.

The titles of passages are what a collection calls things. Those that stand in a question are the names that have to be
looked up, and the evidence tells them from its other words. Where the options can be seen, they say in the collection's
own words what the question is about. How evidence is worded (``phrasings``) is an idea too. What is learnt is to do the
same without the evidence.

An idea that is best for a question is often so by luck, so ideas are chosen for all questions that are alike, by
the mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from querywright.data.types import Label, Question

MOST_NAMES = 2
GAP = "{}"
"""Where a name stood."""

_BEHIND = re.compile(r"\s*\([^()]*\)\s*$")


def helpful(question: Question) -> list[str]:
    """The ids of a question's evidence, in its order, without what is labelled as no help."""
    return [id for id, label in question.evidence.items() if label is not Label.NOT_USEFUL]


def names_of(question: Question, titles: Callable[[str], str]) -> tuple[str, ...]:
    """The titles of a question's evidence that stand in the question, in its order.

    What stands in brackets behind a title, as in ``Mercury (planet)``, is no part of the name.

    Args:
        question: With labelled evidence.
        titles: The title of a passage by its id; empty where it has none.
    """
    asked = question.question.casefold()
    places: dict[str, int] = {}
    for id in helpful(question):
        name = _BEHIND.sub("", titles(id)).strip()
        place = asked.find(name.casefold())
        if name and place >= 0:
            places[name] = place
    return tuple(sorted(places, key=lambda name: (places[name], name)))


def ideas(
    question: Question, titles: Callable[[str], str], *, options: bool, wording: str = ""
) -> dict[str, tuple[str, ...]]:
    """Lists of queries that are worth a try, by what they are made of.

    Args:
        question: With labelled evidence.
        titles: The title of a passage by its id; empty where it has none.
        options: Whether the options are seen, and so may stand in a query.
        wording: How evidence is worded for questions that ask like this one, with a gap for the name; empty where that
            is not known.
    """
    asked, names = question.question, names_of(question, titles)[:MOST_NAMES]
    tried: dict[str, tuple[str, ...]] = {"question": (asked,)}
    if names:
        tried["question, names"] = (asked, *names)
        tried["names, question"] = (*names, asked)
        tried["question, each name with it"] = (asked, *(f"{name} {asked}" for name in names))
    if wording and names:
        tried[f"question, {wording}"] = (f"{asked} {filled(wording, names[0])}",)
    if options and question.options:
        tried["question with its options"] = (" ".join((asked, *question.options)),)
    return tried


def filled(wording: str, name: str) -> str:
    """A wording with a name in its gaps."""
    return wording.replace(GAP, name)


def group_of(tried: Mapping[str, tuple[str, ...]]) -> str:
    """Questions of which one rule is learnt: those with as many names for which the same can be tried.

    Args:
        tried: What ``ideas`` gave for one of them.
    """
    names = len(tried.get("question, names", tried["question"])) - 1
    return f"{names} names; {'; '.join(tried)}"


def best_ideas(groups: Sequence[str], rewards: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """The idea of each group that is worth most in the mean, so that no luck with a single question is learnt.

    Args:
        groups: One a question.
        rewards: Of each idea that was tried, one mapping a question; NaN where it could not be scored.

    Returns:
        An idea a group; of equal ones the first. A group of which nothing could be scored is left out.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for group, scored in zip(groups, rewards, strict=True):
        for idea, reward in scored.items():
            if not math.isnan(reward):
                found.setdefault(group, {}).setdefault(idea, []).append(reward)
    means = {group: {idea: fmean(values) for idea, values in scored.items()} for group, scored in found.items()}
    return {group: max(each, key=lambda idea: each[idea]) for group, each in means.items()}
