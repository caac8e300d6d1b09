"""The card of an artifact: its scores, what it was compared with, prompts, knobs, how it was made.

Whatever is in it was written by whoever made the artifact: plain data here, which whoever shows it has to escape. What
is not of the form that querywright writes is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from querywright.errors import TechniqueError
from querywright.optimize.artifacts.files import Artifact, read_artifact
from querywright.programs import technique_class
from querywright.programs.hyperparameters import Value

_SAID = ("verdict", "verdict_sentence", "sentence", "recommended", "compiled", "name")
_SHOWN_ELSEWHERE = {*_SAID, "test", "comparisons", "arms", "arm"}


class Score(BaseModel):
    """A mean on test with its interval; None where there is none."""

    model_config = ConfigDict(strict=True)

    value: float | None
    low: float | None
    high: float | None
    n: int
    unscored: int = 0


class TestedArm(BaseModel):
    """An arm on test."""

    __test__ = False
    model_config = ConfigDict(strict=True)

    arm: str
    n: int
    metrics: dict[str, Score]


class _Comparison(BaseModel):
    model_config = ConfigDict(strict=True)

    sentence: str


def card(path: Path) -> dict[str, Any]:
    """The card of an artifact, as a JSON object.

    Args:
        path: The artifact's folder.

    Raises:
        ArtifactError: It is missing, damaged or edited.
    """
    artifact = read_artifact(path)
    manifest, state, made = artifact.manifest, artifact.state, artifact.manifest.made
    try:
        technique = technique_class(state.technique)
        title, source = technique.TITLE, technique.PAPER
    except TechniqueError:
        title = source = ""
    return {
        "artifact": path.resolve().name,
        "digest": manifest.digest,
        "id": manifest.id,
        "format": manifest.format,
        "created": manifest.created,
        "technique": state.technique,
        "title": title,
        "source": source,
        "reader": state.reader,
        "nearest_demonstrations": state.nearest,
        "members": state.members,
        "lm": manifest.lm,
        "collection": manifest.collection,
        "engine": manifest.engine,
        "embedder": manifest.embedder,
        "reranker": manifest.reranker,
        "rewriter": None if manifest.rewriter is None else str(manifest.rewriter),
        "fingerprint": manifest.fingerprint,
        "recommended": _text(made.get("recommended")),
        "verdict": _text(made.get("verdict_sentence")) or _text(made.get("sentence")) or _text(made.get("verdict")),
        "scores": [one.model_dump() for one in scores(artifact)],
        "comparisons": [one.sentence for one in _listed(_Comparison, made.get("comparisons"))],
        "knobs": dict(state.knobs),
        "knobs_changed": {
            name: {"value": value, "default": default} for name, (value, default) in changed_knobs(artifact).items()
        },
        "prompts": {name: one.model_dump() for name, one in state.predictors.items()},
        "golden": [one.model_dump() for one in artifact.golden],
        "made": {name: value for name, value in made.items() if name not in _SHOWN_ELSEWHERE},
        "versions": dict(manifest.versions),
    }


def scores(artifact: Artifact) -> list[TestedArm]:
    """The arms that met test with the artifact, and their means."""
    return _listed(TestedArm, artifact.manifest.made.get("test"))


def changed_knobs(artifact: Artifact) -> Mapping[str, tuple[Value, Value | None]]:
    """The knobs that differ from their defaults: value and default; None for a knob that is not known here."""
    try:
        declared = {knob.name: knob.default for knob in technique_class(artifact.state.technique).KNOBS}
    except TechniqueError:
        declared = {}
    return {
        name: (value, declared.get(name))
        for name, value in artifact.state.knobs.items()
        if name not in declared or value != declared[name]
    }


def _listed(kind: Any, value: JsonValue) -> list[Any]:
    try:
        many: Any = list
        return list(TypeAdapter(many[kind]).validate_python(value))
    except ValidationError:
        return []


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None
