"""An artifact's card: scores, comparisons, prompts, knobs, and how it was made.

Everything on the card was written by whoever made the artifact, so do not trust it: a page that shows this plain data
must escape it. Parts in a form that querywright does not write are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from querywright.errors import TechniqueError
from querywright.optimize.artifacts.files import Artifact, read_artifact
from querywright.programs import technique_class

FACTS = ("technique", "reader", "lm", "collection", "engine", "embedder", "reranker", "fingerprint", "created")
"""Single manifest values that the card shows."""

_SHOWN_ELSEWHERE = {
    "verdict", "verdict_sentence", "sentence", "recommended", "compiled", "name", "test", "comparisons", "arms", "arm",
    "given", "passages_sample",
}  # fmt: skip


class _Form(BaseModel):
    model_config = ConfigDict(strict=True)


class _Score(_Form):
    """A mean on test with its interval, or None if there is none."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    unscored: int = 0


class _TestScores(_Form):
    """A program's results on test."""

    arm: str
    n: int
    metrics: dict[str, _Score]


class _Comparison(_Form):
    sentence: str


def card(path: Path) -> dict[str, Any]:
    """Return an artifact's card as a JSON object.

    Args:
        path: Folder of the artifact.

    Raises:
        ArtifactError: The artifact is missing, damaged, or edited.
    """
    artifact = read_artifact(path)
    manifest, state, made = artifact.manifest, artifact.state, artifact.manifest.made
    said = (made.get(key) for key in ("verdict_sentence", "sentence", "verdict"))
    try:
        technique = technique_class(state.technique)
        title, source, defaults = (
            technique.TITLE,
            technique.PAPER,
            {knob.name: knob.default for knob in technique.KNOBS},
        )
    except TechniqueError:
        title, source, defaults = "", "", {}
    changed = {name: value for name, value in state.knobs.items() if name not in defaults or value != defaults[name]}
    return {
        "artifact": path.resolve().name,
        "title": title,
        "source": source,
        "digest": manifest.digest,
        "id": manifest.id,
        "format": manifest.format,
        **{name: getattr(manifest, name) for name in FACTS},
        "writer": None if manifest.writer is None else str(manifest.writer),
        "nearest_demonstrations": state.nearest,
        "members": state.members,
        "recommended": made.get("recommended") if isinstance(made.get("recommended"), str) else None,
        "verdict": next((one for one in said if one and isinstance(one, str)), None),
        "scores": scores(artifact),
        "comparisons": [one["sentence"] for one in _of_form(_Comparison, made.get("comparisons"))],
        "knobs": dict(state.knobs),
        "knobs_changed": {name: {"value": value, "default": defaults.get(name)} for name, value in changed.items()},
        "prompts": {name: one.model_dump() for name, one in state.predictors.items()},
        "golden": [one.model_dump() for one in artifact.golden],
        "made": {name: value for name, value in made.items() if name not in _SHOWN_ELSEWHERE},
        "versions": dict(manifest.versions),
    }


def scores(artifact: Artifact) -> list[dict[str, Any]]:
    """Return the programs that were evaluated on test with the artifact, with their n and their means by metric."""
    return _of_form(_TestScores, artifact.manifest.made.get("test"))


def _of_form(form: type[_Form], value: JsonValue) -> list[dict[str, Any]]:
    many: Any = list
    try:
        return [one.model_dump() for one in TypeAdapter(many[form]).validate_python(value)]
    except ValidationError:
        return []
