"""Two texts as one: what stayed, what was taken away, what was added."""

from __future__ import annotations

import difflib
import re
from typing import Literal

Kind = Literal["equal", "del", "ins"]

WORDS = 3000
"""Words up to which two texts are told apart word by word; longer ones are line by line."""

ALIKE = 0.3
"""Share of equal words below which a text counts as written anew."""


def word_changes(before: str, after: str) -> list[tuple[Kind, str]]:
    """The pieces of two texts in their order; none of them is empty.

    Args:
        before: The pieces that are ``equal`` or ``del``, joined.
        after: Those that are ``equal`` or ``ins``, joined.
    """
    if before == after:
        return [("equal", after)] if after else []
    old, new = _words(before), _words(after)
    if max(len(old), len(new)) > WORDS:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changes: list[tuple[Kind, str]] = []

    def add(kind: Kind, text: str) -> None:
        if text:
            changes.append((kind, text))

    if matcher.ratio() < ALIKE:
        add("del", before)
        add("ins", after)
        return changes
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            add("equal", "".join(new[c:d]))
        else:
            add("del", "".join(old[a:b]))
            add("ins", "".join(new[c:d]))
    return changes


def _words(value: str) -> list[str]:
    return re.findall(r"\s+|\w+|[^\w\s]", value)
