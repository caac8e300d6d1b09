"""Two artifacts side by side: what differs in knobs, prompts, demonstrations, scores, versions and golden answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from querywright.optimize.artifacts.card import Tested, scores
from querywright.optimize.artifacts.files import Artifact, ArtifactManifest, Golden
from querywright.optimize.artifacts.text_diff import word_changes
from querywright.optimize.program_state import PredictorState

FACTS = (
    "technique", "reader", "lm", "embedder", "collection", "engine", "reranker", "rewriter", "fingerprint", "created",
    "format",
)  # fmt: skip
"""What a manifest says in one word."""

SHAPE = ("nearest", "members")


def diff(a: Artifact, b: Artifact) -> dict[str, Any]:
    """What differs between two artifacts, as a JSON object.

    Args:
        a: The first one.
        b: The other one.

    Returns:
        ``same`` says whether both are the same to the byte of their manifests. ``facts``, ``knobs`` and ``versions``
        have a row ``{name, a, b}`` a difference; ``prompts`` the pieces of the instructions of each predictor that
        differs, ``[kind, text]`` with ``equal``, ``del`` or ``ins``; ``demonstrations`` those that only one of them
        has; ``scores`` all of both; ``golden`` the questions on which they differ, None for one that was not asked.
    """
    return {
        "same": a.manifest.checksum == b.manifest.checksum,
        "facts": [
            *_rows(_facts(a.manifest), _facts(b.manifest)),
            *_rows({name: getattr(a.state, name) for name in SHAPE}, {n: getattr(b.state, n) for n in SHAPE}),
        ],
        "knobs": _rows(a.state.knobs, b.state.knobs),
        "prompts": _prompts(a.state.predictors, b.state.predictors),
        "demonstrations": _demonstrations(a.state.predictors, b.state.predictors),
        "scores": _scores(scores(a), scores(b)),
        "versions": _rows(a.manifest.versions, b.manifest.versions),
        "golden": _golden(a.golden, b.golden),
    }


def _facts(manifest: ArtifactManifest) -> dict[str, Any]:
    found = {name: getattr(manifest, name) for name in FACTS}
    return {**found, "rewriter": None if manifest.rewriter is None else str(manifest.rewriter)}


def _rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys([*a, *b]))
    return [
        {"name": name, "a": a.get(name), "b": b.get(name)}
        for name in names
        if (name in a, a.get(name)) != (name in b, b.get(name)) or type(a.get(name)) is not type(b.get(name))
    ]


def _prompts(a: Mapping[str, PredictorState], b: Mapping[str, PredictorState]) -> list[dict[str, Any]]:
    found = []
    for name in dict.fromkeys([*a, *b]):
        one, other = _prompt(a.get(name)), _prompt(b.get(name))
        if one != other:
            found.append({"predictor": name, "changes": [list(piece) for piece in word_changes(one, other)]})
    return found


def _prompt(state: PredictorState | None) -> str:
    """The instructions, and below them what is said of each field."""
    if state is None:
        return ""
    return "\n".join([state.instructions, *(f"{name}: {text}" for name, text in state.fields.items())])


def _demonstrations(a: Mapping[str, PredictorState], b: Mapping[str, PredictorState]) -> list[dict[str, Any]]:
    found = []
    for name in dict.fromkeys([*a, *b]):
        one, other = (Counter(_keys(side[name].demos) if name in side else ()) for side in (a, b))
        if one != other:
            only_a, only_b = ([json.loads(key) for key in side.elements()] for side in (one - other, other - one))
            found.append({"predictor": name, "both": (one & other).total(), "only_a": only_a, "only_b": only_b})
    return found


def _keys(demos: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(demo, ensure_ascii=False, sort_keys=True) for demo in demos]


def _scores(a: list[Tested], b: list[Tested]) -> list[dict[str, Any]]:
    sides = [
        {(one.arm, metric): score.model_dump() for one in side for metric, score in one.metrics.items()}
        for side in (a, b)
    ]
    return [
        {"arm": arm, "metric": metric, "a": sides[0].get((arm, metric)), "b": sides[1].get((arm, metric))}
        for arm, metric in dict.fromkeys([*sides[0], *sides[1]])
    ]


def _golden(a: list[Golden], b: list[Golden]) -> list[dict[str, Any]]:
    one, other = ({(golden.question, tuple(golden.options)): golden for golden in side} for side in (a, b))
    return [
        {"question": key[0], "options": list(key[1]), "a": _answer(one.get(key)), "b": _answer(other.get(key))}
        for key in dict.fromkeys([*one, *other])
        if one.get(key) != other.get(key)
    ]


def _answer(golden: Golden | None) -> dict[str, Any] | None:
    return None if golden is None else {"answer": golden.answer, "passages": golden.passages}
