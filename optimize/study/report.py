"""A study as one HTML page that opens anywhere, at any moment of its life."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from querywright import __version__
from querywright.files import write_file
from querywright.models.usage import Cost
from querywright.optimize import figures as comparison_figures
from querywright.optimize.artifacts.diff import word_changes
from querywright.optimize.browser import NO_QUESTIONS, browser
from querywright.optimize.comparison import Compared
from querywright.optimize.report import page, score_rows
from querywright.optimize.study import figures
from querywright.optimize.study.importance import importances
from querywright.optimize.study.status import Aim, Known, aims, best, ended, front, of_technique, techniques
from querywright.optimize.study.tables import (
    best_rows,
    cost_rows,
    hidden,
    ranked,
    technique_rows,
    trial_rows,
    use_rows,
    value_text,
)
from querywright.optimize.study.tested import asked_on_test, on_test


def write_report(snapshot: Known, path: str | Path) -> None:
    """Write the page of a study, whole or not at all.

    Args:
        snapshot: The study: running, broken off or finished.
        path: The file.
    """
    write_file(Path(path), study_html(snapshot).encode("utf-8", "replace"))


def study_html(snapshot: Known) -> str:
    """The page of a study; the same input gives the same text.

    Args:
        snapshot: The study: running, broken off or finished.

    Returns:
        HTML with all scripts and styles inside, every text from the data escaped, and no password of an address.
    """
    spec, trials, outcome = snapshot.spec, snapshot.trials, dict(snapshot.outcome or {})
    objectives, names = aims(spec), techniques(snapshot)
    aim = objectives[0]
    kept = front(trials, {one.name: one.direction for one in objectives}) if len(objectives) > 1 else []
    compared = on_test(snapshot.outcome)
    metric, data = _questions(outcome, compared, objectives)
    mattered = importances(trials, aim, names)
    costs = {name: sum((one.spent for one in of_technique(trials, name)), Cost()) for name in names}
    leader = best(trials, aim)
    drawn = {
        "fronts": figures.fronts(trials, objectives) if kept else [],
        "means": [] if compared is None else comparison_figures.means(compared),
        "differences": [] if compared is None else comparison_figures.differences(compared),
        "mattered": figures.mattered(mattered, aim),
        "spread": figures.spread(trials, aim, names),
        "course": [drawn for one in objectives for drawn in figures.course(trials, one, names)],
        "spending": [
            *figures.spending("stages", "By stage", _stages(snapshot, outcome)),
            *figures.spending("techniques", "By technique, while searching", costs),
        ],
    }
    return page(
        "study.html",
        title=f"Study {spec.name}",
        facts=_facts(snapshot),
        notes=_notes(snapshot),
        figures=drawn,
        data=data,
        outcome=outcome,
        how_far=_how_far(snapshot),
        aim=aim,
        several=len(objectives) > 1,
        leader=None
        if leader is None
        else best_rows([leader], [aim])[0] | {"questions": len(leader.dev.rows) if leader.dev else 0},
        curse=_curse(outcome, aim),
        best=best_rows(ranked(trials, aim), objectives),
        front=best_rows([one for one in trials if one.number in kept], objectives, len(kept)),
        sentences=[one["sentence"] for one in outcome.get("comparisons") or ()],
        scores=[] if compared is None else score_rows(compared),
        silent=[f"{one.of or 'The whole study'}: {one.why}." for one in mattered if one.why],
        techniques=technique_rows(snapshot, aim),
        course=trial_rows(snapshot),
        spent=snapshot.spent,
        costs=cost_rows(snapshot, aim, costs),
        in_use=use_rows(compared, aim),
        metric=metric,
        **_prompts(outcome),
        dead=[
            {"technique": str(one.get("technique", "-")), "knob": str(one.get("knob", "-"))}
            | {"values tried": ", ".join(str(value) for value in one.get("values") or ())}
            for one in outcome.get("dead_knobs") or ()
        ],
        **_again(snapshot, outcome),
    )


def _how_far(snapshot: Known) -> str:
    """One sentence on a study that has no outcome yet."""
    done, planned = len(ended(snapshot.trials)), snapshot.spec.trials
    if done >= planned:
        return f"All {planned} trials have ended; nothing was chosen and tested yet"
    under_way = len(ended(snapshot.trials, "running"))
    return (
        f"{done} of {planned} trials have ended, {under_way} under way or broken off; nothing was chosen and tested yet"
    )


def _curse(outcome: Mapping[str, Any], aim: Aim) -> dict[str, Any] | None:
    """How far the value of the chosen trial is to be believed."""
    found = outcome.get("corrected") or {}
    if found.get("dev") is None or found.get("corrected") is None:
        return None
    return {name: value_text(float(found[name]), aim) for name in ("dev", "corrected")} | {"arms": found.get("arms")}


def _stages(snapshot: Known, outcome: Mapping[str, Any]) -> dict[str, Cost]:
    """What each stage cost: as the outcome has it, else what the trials took so far."""
    if outcome.get("costs"):
        return {str(name): Cost.from_json(cost) for name, cost in outcome["costs"].items()}
    prompts = sum((one.prompt_spent for one in snapshot.trials), Cost())
    return {"search": sum((one.spent for one in snapshot.trials), Cost()) - prompts, "prompts": prompts}


def _questions(
    outcome: Mapping[str, Any], compared: Compared | None, objectives: Sequence[Aim]
) -> tuple[str, Mapping[str, Any]]:
    """The metric that the test questions are marked by, and what stands behind each of them."""
    if compared is None:
        return "", NO_QUESTIONS
    baseline = compared.arm(compared.baseline)
    asked = asked_on_test(outcome, [row.id for row in baseline.rows])
    wanted = [metric for one in objectives for metric in one.metrics if metric in baseline.metrics]
    metric = [*wanted, *baseline.metrics, "decision_useful"][0]
    return metric, browser(replace(compared, questions=tuple(asked)), metric)


def _prompts(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What tuning did to prompts, the variant of the recommended program first."""
    prompts = outcome.get("prompts") or {}
    arm = (outcome.get("best") or {}).get("arm") or {}
    names = (f"{arm.get('technique')}, {arm.get('prompt')}", arm.get("prompt"))
    chosen = next((name for name in names if name in prompts), None)
    ordered = {name: prompts[name] for name in sorted(prompts, key=lambda name: name != chosen)}
    return {"prompts": ordered, "chosen": chosen, "changes": changes, "written": _written}


def changes(before: str, after: str) -> list[tuple[str, str]]:
    """The pieces of two texts as one; a text that was written anew stands on lines of its own."""
    found: list[tuple[str, str]] = [*word_changes(before, after)]
    return [found[0], ("equal", "\n"), found[1]] if [kind for kind, _ in found] == ["del", "ins"] else found


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _again(snapshot: Known, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """All that it takes to run the study again."""
    spec = snapshot.spec
    seeds = outcome.get("seeds") or {"study": spec.seed}
    versions = {"querywright": __version__, **{name: metadata.version(name) for name in ("optuna", "dspy", "plotly")}}
    asked = {**spec.to_json(), "storage": hidden(spec.storage)}
    if spec.api_base is not None:
        asked["api_base"] = hidden(spec.api_base)
    return {
        "command": hidden(str(outcome.get("command") or f"querywright study run {spec.name}.yaml --out FOLDER")),
        "seeds": [
            *(f"seed of {name}: {value}" for name, value in seeds.items()),
            *(f"{name} {version}" for name, version in versions.items()),
        ],
        "spec": json.dumps(asked, ensure_ascii=False, indent=2),
    }


def _facts(snapshot: Known) -> dict[str, str]:
    spec = snapshot.spec
    states = {state: len(ended(snapshot.trials, state)) for state in ("complete", "pruned", "failed", "running")}
    counts = ", ".join(f"{count} {state}" for state, count in states.items() if count)
    return {
        "Questions": f"{Path(spec.questions).name}" + (f", the first {spec.limit}" if spec.limit else ""),
        "Collection": spec.collection,
        "LM": spec.lm,
        **({} if spec.rewriter is None else {"Rewriter": Path(spec.rewriter).name}),
        "Reader": spec.reader if isinstance(spec.reader, str) else ", ".join(spec.reader),
        "Objectives": ", ".join(spec.objectives),
        "Trials": f"{spec.trials} planned; {counts or 'none begun'}",
        "querywright": __version__,
    }


def _notes(snapshot: Known) -> list[str]:
    if snapshot.finished:
        return ["Everything but the test was measured on dev, on which programs were chosen."]
    return [f"This study has not ended: {_how_far(snapshot)}."]
