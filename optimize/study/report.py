"""A study as one HTML page that opens anywhere, at any moment of its life."""

from __future__ import annotations

import json
import math
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
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import finite
from querywright.optimize.report import NO_QUESTIONS, browser, page, score_rows
from querywright.optimize.study import figures
from querywright.optimize.study.importance import importances
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.status import (
    aims,
    arm_name,
    asked_on_test,
    best,
    changed_knobs,
    ended,
    front,
    interval,
    of_technique,
    on_test,
    techniques,
)
from querywright.optimize.study.tables import best_rows, hidden, ranked, shown, technique_rows, value_text
from querywright.optimize.study.types import Snapshot, TrialRecord


def write_report(snapshot: Snapshot, path: str | Path) -> None:
    """Write the page of a study, whole or not at all.

    Args:
        snapshot: The study: running, broken off or finished.
        path: The file.
    """
    write_file(Path(path), study_html(snapshot).encode("utf-8", "replace"))


def study_html(snapshot: Snapshot) -> str:
    """The page of a study; the same input gives the same text.

    Args:
        snapshot: The study: running, broken off or finished.

    Returns:
        HTML with all scripts and styles inside, every text from the data escaped, and no password of an address.
    """
    spec, trials, outcome = snapshot.spec, snapshot.trials, dict(snapshot.outcome or {})
    objectives, names = aims(spec), techniques(snapshot)
    aim = objectives[0]
    kept = front(trials, objectives) if len(objectives) > 1 else []
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
        leader=leader,
        best=best_rows(ranked(trials, aim), objectives),
        front=best_rows([one for one in trials if one.number in kept], objectives, len(kept)),
        scores=[] if compared is None else score_rows(compared),
        silent=[one for one in mattered if one.why],
        techniques=technique_rows(snapshot, aim),
        trials=trials,
        measured=list(dict.fromkeys([*spec.objectives, *(name for one in trials for name in one.values)])),
        spent=snapshot.spent,
        costs=_costs(trials, aim, costs),
        in_use=_in_use(compared, aim),
        metric=metric,
        chosen=_chosen_prompt(outcome),
        command=hidden(str(outcome.get("command") or f"querywright study run {spec.name}.yaml --out FOLDER")),
        seeds=outcome.get("seeds") or {"study": spec.seed},
        versions={
            "querywright": __version__,
            **{name: metadata.version(name) for name in ("optuna", "dspy", "plotly")},
        },
        spec=_asked(spec),
        **{one.__name__: one for one in (arm_name, changed_knobs, changes, hidden, interval, shown, value_text)},
    )


def _how_far(snapshot: Snapshot) -> str:
    """One sentence on a study that has no outcome yet."""
    done, planned = len(ended(snapshot.trials)), snapshot.spec.trials
    if done >= planned:
        return f"All {planned} trials have ended; nothing was chosen and tested yet"
    under_way = len(ended(snapshot.trials, "running"))
    return (
        f"{done} of {planned} trials have ended, {under_way} under way or broken off; nothing was chosen and tested yet"
    )


def _costs(trials: Sequence[TrialRecord], aim: Objective, costs: Mapping[str, Cost]) -> list[dict[str, Any]]:
    """What the trials of each technique cost, and what its best one gained over no rewriting; None where unknown."""
    plain = next((one for one in ended(trials, "complete") if one.arm and one.arm.is_plain), None)
    base = math.nan if plain is None else plain.values.get(aim.name, math.nan)
    rows = []
    for name, cost in costs.items():
        leader = best(of_technique(trials, name), aim)
        value = math.nan if leader is None else leader.values[aim.name]
        gain = finite(value - base if aim.direction == "maximize" else base - value)
        rows.append({"technique": name, "cost": cost, "best": value_text(value, aim), "gain": gain})
    return rows


def _in_use(compared: Compared | None, aim: Objective) -> list[dict[str, Any]]:
    """What a point gained on test costs each time that an arm is asked; nothing where that cannot be told."""
    if compared is None or not aim.metrics:
        return []
    if not all(metric in arm.metrics for arm in compared.arms for metric in aim.metrics):
        return []
    calls = {arm.name: arm.cost.asked / max(1, len(arm.rows)) for arm in compared.arms}
    value = {arm.name: sum(arm.mean(name).value for name in aim.metrics) / len(aim.metrics) for arm in compared.arms}
    base = compared.baseline
    return [
        {
            "arm": name,
            "calls": calls[name],
            "more": calls[name] - calls[base],
            "gain": 100 * (value[name] - value[base]),
        }
        for name in calls
    ]


def _stages(snapshot: Snapshot, outcome: Mapping[str, Any]) -> dict[str, Cost]:
    """What each stage cost: as the outcome has it, else what the trials took so far."""
    if outcome.get("costs"):
        return {str(name): Cost.from_json(cost) for name, cost in outcome["costs"].items()}
    prompts = sum((one.prompt_spent for one in snapshot.trials), Cost())
    return {"search": sum((one.spent for one in snapshot.trials), Cost()) - prompts, "prompts": prompts}


def _questions(
    outcome: Mapping[str, Any], compared: Compared | None, objectives: Sequence[Objective]
) -> tuple[str, Mapping[str, Any]]:
    """The metric that the test questions are marked by, and what stands behind each of them."""
    if compared is None:
        return "", NO_QUESTIONS
    baseline = compared.arm(compared.baseline)
    asked = asked_on_test(outcome, [row.id for row in baseline.rows])
    wanted = [metric for one in objectives for metric in one.metrics if metric in baseline.metrics]
    metric = [*wanted, *baseline.metrics, "decision_useful"][0]
    return metric, browser(replace(compared, questions=tuple(asked)), metric)


def _chosen_prompt(outcome: Mapping[str, Any]) -> str | None:
    """The prompt variant of the recommended program, where it is known."""
    arm = (outcome.get("best") or {}).get("arm") or {}
    names = (f"{arm.get('technique')}, {arm.get('prompt')}", arm.get("prompt"))
    return next((name for name in names if name in (outcome.get("prompts") or {})), None)


def changes(before: str, after: str) -> list[tuple[str, str]]:
    """The pieces of two texts as one; a text that was written anew stands on lines of its own."""
    found: list[tuple[str, str]] = [*word_changes(before, after)]
    return [found[0], ("equal", "\n"), found[1]] if [kind for kind, _ in found] == ["del", "ins"] else found


def _asked(spec: StudySpec) -> str:
    """What was asked for, without passwords."""
    asked = {**spec.to_json(), "storage": hidden(spec.storage)}
    if spec.api_base is not None:
        asked["api_base"] = hidden(spec.api_base)
    return json.dumps(asked, ensure_ascii=False, indent=2)


def _facts(snapshot: Snapshot) -> dict[str, str]:
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


def _notes(snapshot: Snapshot) -> list[str]:
    if snapshot.finished:
        return ["Everything but the test was measured on dev, on which programs were chosen."]
    return [f"This study has not ended: {_how_far(snapshot)}."]
