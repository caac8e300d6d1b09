"""Rewrites for a model to learn from, made without an LM: of the names that a question's labelled evidence is about.

The titles of passages are what a collection calls things. Those that stand in a question are the names that have to be
looked up, and the evidence tells them from its other words. Where the options can be seen, they say in the collection's
own words what the question is about. What is learnt is to do the same without the evidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from querywright.data.types import Label, Question

MOST_NAMES = 2
IDEAS = 5
"""Lists of queries that ``ideas`` gives at most."""

_BEHIND = re.compile(r"\s*\([^()]*\)\s*$")


def names_of(question: Question, titles: Callable[[str], str]) -> tuple[str, ...]:
    """The titles of a question's evidence that stand in the question, in its order.

    What stands in brackets behind a title, as in ``Mercury (planet)``, is no part of the name.

    Args:
        question: With labelled evidence.
        titles: The title of a passage by its id; empty where it has none.
    """
    helpful = [id for id, label in question.evidence.items() if label is not Label.NOT_USEFUL]
    asked = question.question.casefold()
    places: dict[str, int] = {}
    for id in helpful:
        name = _BEHIND.sub("", titles(id)).strip()
        place = asked.find(name.casefold())
        if name and place >= 0:
            places[name] = place
    return tuple(sorted(places, key=lambda name: (places[name], name)))


def ideas(question: Question, titles: Callable[[str], str], *, options: bool) -> list[tuple[str, ...]]:
    """Lists of queries that are worth a try, none twice; the question alone is always among them.

    The question with its names, before and after it; with each name said again in front of it; with its options.

    Args:
        question: With labelled evidence.
        titles: The title of a passage by its id; empty where it has none.
        options: Whether the options are seen, and so may stand in a query.
    """
    asked, names = question.question, names_of(question, titles)[:MOST_NAMES]
    tried: list[tuple[str, ...]] = [(asked,)]
    if names:
        tried += [(asked, *names), (*names, asked), (asked, *(f"{name} {asked}" for name in names))]
    if options and question.options:
        tried.append((" ".join((asked, *question.options)),))
    return list(dict.fromkeys(tried))
