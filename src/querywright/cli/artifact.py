"""``querywright artifact``: show and check compiled programs.

Artifacts may come from anyone, so the text printed from them must not control the terminal or look like the command's
own output.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.show import emit, one_line, progress, say, show_facts, show_table

ArtifactFolder = Annotated[Path, Parameter(help="An artifact folder from querywright compile.")]

DIFFERS = 2
"""Exit status if a check fails."""

FACTS = {
    "technique": "technique", "reader": "reader", "lm": "LM", "collection": "collection", "engine": "engine",
    "embedder": "embedder", "reranker": "reranker", "writer": "writer", "fingerprint": "retriever fingerprint",
    "created": "created", "digest": "digest",
}  # fmt: skip
STATE_STYLES = {"ok": "green", "warning": "yellow", "differs": "bold red", "not possible": "bold red"}

artifact_app = opt.make_app("artifact", "Show and check compiled programs.")


@artifact_app.command(name="show")
def show_command(artifact: ArtifactFolder, /, *, as_json: opt.Json = False) -> None:
    """Show a compiled program's scores, prompts, knobs, and provenance.

    Example: querywright artifact show artifacts/hcqr
    """
    from querywright.optimize.artifacts.card import card

    found = card(artifact)
    emit(as_json, found, lambda: _show_card(found))


@artifact_app.command(name="verify")
def verify_command(
    artifact: ArtifactFolder,
    /,
    *,
    writer: opt.WriterLM = opt.WriterLM(),
    digest: opt.Digest | None = None,
    technique: opt.OwnTechnique = None,
    lm: opt.LMOptions = opt.LMOptions(),
    output: opt.Output = opt.Output(),
) -> int:
    """Check a compiled program's files, requirements, and golden answers.

    The exit status is 0 only if all checks pass. A different library version causes only a warning, unless answers
    differ.

    Example: querywright artifact verify artifacts/hcqr --digest sha256:...

    Args:
        digest: Required digest of the artifact, as printed by artifact show.
    """
    from querywright.optimize.artifacts.verify import passed, verify
    from querywright.technique_names import import_technique

    import_technique(technique)
    asked = {"lm": lm.for_artifact(artifact, output.home), "writer_lm": writer.beside(lm)}
    with progress("reading the artifact") as update:
        checks = verify(artifact, **asked, home=output.home, digest=digest, progress=update)
    is_well = passed(checks)
    emit(output.as_json, {"ok": is_well, "checks": [asdict(one) for one in checks]}, lambda: _show_checks(checks))
    return 0 if is_well else DIFFERS


def _show_card(card: Mapping[str, Any]) -> None:
    title = one_line(f"{card['artifact']}: {card['title'] or card['technique']}")
    say(title + (f" ({one_line(card['source'])})" if card["source"] else ""), style="bold")
    if card["verdict"]:
        say(one_line(f"{card['verdict'].rstrip('.')}."))
    show_facts({name: card[key] for key, name in FACTS.items() if card[key] is not None}, indent=2)
    recommended = {card["recommended"]: " (recommended)"}
    _show_scores(
        (f"{one['arm']}{recommended.get(one['arm'], '')}", {"n": str(one["n"])}, one["metrics"])
        for one in card["scores"]
    )
    for sentence in card["comparisons"]:
        say(one_line(f"- {sentence}"))
    changed = {
        name: f"{_value(one['value'])} (default {_value(one['default'])})"
        for name, one in card["knobs_changed"].items()
    }
    prompts = {
        name: {"instructions": one["instructions"], "fields": one["fields"], "demonstration": one["demos"]}
        for name, one in card["prompts"].items()
    }
    versions = ", ".join(f"{name} {one}" for name, one in card["versions"].items())
    made = {name: _spent(value) if name == "cost" else value for name, value in card["made"].items()}
    made = {name: value for name, value in made.items() if value not in (None, {}, [])}
    show_facts({"Knobs that differ from their defaults": changed or {"none": "-"}})
    show_facts({"Prompts": prompts}, lines=True)
    show_facts({"How it was made": {**made, "versions": versions, "golden answers": len(card["golden"])}})


def _spent(cost: Any) -> Any:
    """Return counters by stage, leaving out zero counters and empty stages."""
    if not isinstance(cost, Mapping):
        return cost
    told = {name: _spent(value) for name, value in cost.items()}
    return {name: value for name, value in told.items() if value not in (0, {})}


def _show_checks(checks: Sequence[Any]) -> None:
    for check in checks:
        say(one_line(f"{check.state}: {check.name}: {check.said}"), style=STATE_STYLES[check.state])
        if check.remedy and check.state != "ok":
            say(one_line(check.remedy), indent=4)


def _value(value: Any) -> str:
    """Return a manifest value as a string: strings unchanged, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _show_scores(rows: Iterable[tuple[str, Mapping[str, str], Mapping[str, Any]]]) -> None:
    """Print a table of test means. Each row has a name, additional columns, and scores."""
    told = list(rows)
    metrics = list(dict.fromkeys(name for _, _, scores in told for name in scores))
    table = [
        {"arm": one_line(name), **more, **{one_line(one): _percent(scores.get(one)) for one in metrics}}
        for name, more, scores in told
    ]
    if table:
        show_table("Test results (evaluated once): mean with 95% interval", table)


def _percent(score: Mapping[str, Any] | None) -> str:
    from querywright.metrics.statistics import Mean
    from querywright.optimize.tables import percent

    if score is None:
        return "-"
    value, low, high = (math.nan if score[key] is None else score[key] for key in ("value", "low", "high"))
    return percent(Mean(value, low, high, score["n"], score["unscored"])) if math.isfinite(value) else "-"
