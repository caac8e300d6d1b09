"""Two artifacts side by side: what differs in knobs, prompts, demonstrations, scores, versions and golden answers."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from querywright.optimize.artifacts.card import FACTS, scores
from querywright.optimize.artifacts.files import Artifact
from querywright.optimize.program_state import PredictorState

Kind = Literal["equal", "del", "ins"]

WORDS = 3000
"""Words up to which two texts are told apart word by word; longer ones are line by line."""

ALIKE = 0.3
"""Share of equal words below which a text counts as written anew."""


def diff(a: Artifact, b: Artifact) -> dict[str, Any]:
    """What differs between two artifacts, as a JSON object.

    Args:
        a: The first one.
        b: The other one.

    Returns:
        ``same`` says whether both are the same to the byte of their manifests. ``facts``, ``knobs`` and ``versions``
        have a row ``{name, a, b}`` a difference; ``prompts`` the pieces of the instructions of each predictor that
        differs, ``[kind, text]`` with ``equal``, ``del`` or ``ins``; ``demonstrations`` those that only one of them
        has; ``scores`` all of both; ``golden`` the questions on which they differ, with the ``history`` of one
        that has it, None for one that was not asked.
    """
    means = [
        {(one["arm"], metric): score for one in scores(side) for metric, score in one["metrics"].items()}
        for side in (a, b)
    ]
    answers = [
        {
            (one.question, tuple(one.options), tuple(one.history)): {"answer": one.answer, "passages": one.passages}
            for one in side.golden
        }
        for side in (a, b)
    ]
    return {
        "same": a.manifest.digest == b.manifest.digest,
        "facts": _rows(_facts(a), _facts(b)),
        "knobs": _rows(a.state.knobs, b.state.knobs),
        "prompts": [
            {"predictor": row["name"], "changes": [list(one) for one in word_changes(row["a"] or "", row["b"] or "")]}
            for row in _rows(_prompts(a), _prompts(b))
        ],
        "demonstrations": list(_demonstrations(a.state.predictors, b.state.predictors)),
        "scores": [{"arm": key[0], "metric": key[1], "a": one, "b": two} for key, one, two in _joined(*means)],
        "versions": _rows(a.manifest.versions, b.manifest.versions),
        "golden": [
            {"question": row["name"][0], "options": list(row["name"][1]), "a": row["a"], "b": row["b"]}
            | ({"history": list(row["name"][2])} if row["name"][2] else {})
            for row in _rows(*answers)
        ],
    }


def word_changes(before: str, after: str) -> list[tuple[Kind, str]]:
    """Two texts as one: its pieces in their order; none of them is empty.

    Args:
        before: The pieces that are ``equal`` or ``del``, joined.
        after: Those that are ``equal`` or ``ins``, joined.
    """
    old, new = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (before, after))
    if max(len(old), len(new)) > WORDS:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changes: list[tuple[Kind, str]] = []
    if before != after and matcher.ratio() < ALIKE:
        changes = [("del", before), ("ins", after)]
    else:
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag == "equal":
                changes.append(("equal", "".join(new[c:d])))
            else:
                changes.append(("del", "".join(old[a:b])))
                changes.append(("ins", "".join(new[c:d])))
    return [change for change in changes if change[1]]


def _joined(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> Iterable[tuple[Any, Any, Any]]:
    return ((key, a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b]))


def _rows(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """What stands in only one of them, or differs by value or type."""
    return [
        {"name": name, "a": one, "b": two}
        for name, one, two in _joined(a, b)
        if (name in a, one) != (name in b, two) or type(one) is not type(two)
    ]


def _facts(artifact: Artifact) -> dict[str, Any]:
    manifest, state = artifact.manifest, artifact.state
    found = {name: getattr(manifest, name) for name in (*FACTS, "format")}
    writer = None if manifest.writer is None else str(manifest.writer)
    return {**found, "writer": writer, "nearest": state.nearest, "members": state.members}


def _prompts(artifact: Artifact) -> dict[str, str]:
    """By predictor, the instructions and below them what is said of each field."""
    return {
        name: "\n".join([one.instructions, *(f"{field}: {text}" for field, text in one.fields.items())])
        for name, one in artifact.state.predictors.items()
    }


def _demonstrations(a: Mapping[str, PredictorState], b: Mapping[str, PredictorState]) -> Iterable[dict[str, Any]]:
    for name, *sides in _joined(a, b):
        demos = [[] if side is None else side.demos for side in sides]
        one, two = (Counter(json.dumps(demo, ensure_ascii=False, sort_keys=True) for demo in side) for side in demos)
        if one != two:
            only_a, only_b = ([json.loads(key) for key in side.elements()] for side in (one - two, two - one))
            yield {"predictor": name, "both": (one & two).total(), "only_a": only_a, "only_b": only_b}
