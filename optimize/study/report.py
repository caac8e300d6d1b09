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
from querywright.data.types import Question
from querywright.files import write_file
from querywright.models.usage import Cost
from querywright.optimize.comparison import Comparison
from querywright.optimize.figures import (
    ARM,
    NEUTRAL,
    Figure,
    Plot,
    costs,
    differences,
    means,
    span,
)
from querywright.optimize.objectives import Objective
from querywright.optimize.report import NO_QUESTIONS, browser, page, score_rows
from querywright.optimize.results import by_judges
from querywright.optimize.search.trials import (
    TrialRecord,
    arm_name,
    best,
    changed_knobs,
    ended,
    front,
    interval,
    ranked,
)
from querywright.optimize.study.status import (
    STATES,
    Snapshot,
    best_rows,
    of_technique,
    on_test,
    shown,
    technique_rows,
    value_text,
)


def write_report(snapshot: Snapshot, path: str | Path) -> None:
    """Write the page of a study, whole or not at all.

    Args:
        snapshot: The study: running, broken off or finished.
        path: The file.
    """
    write_file(Path(path), study_html(snapshot))


def study_html(snapshot: Snapshot) -> str:
    """The page of a study; the same input gives the same text."""
    spec, trials, outcome = snapshot.spec, snapshot.trials, dict(snapshot.outcome or {})
    objectives = spec.aims
    aim = objectives[0]
    kept = front(trials, objectives) if len(objectives) > 1 else []
    compared = on_test(snapshot.outcome)
    data = _questions(outcome, compared, objectives)
    prompts = sum((one.prompt_spent for one in trials), Cost())
    stages = {"search": sum((one.spent for one in trials), Cost()) - prompts, "prompts": prompts}
    judged = sum((one.judged for one in trials), Cost())
    stages |= {"judges": judged} if judged.asked else {}
    stages |= {name: Cost.from_json(cost) for name, cost in outcome.get("costs", {}).items()}
    counts = {state: len(ended(trials, state)) for state in STATES}
    how_far = (
        f"{len(ended(trials))} of {spec.trials} trials have ended, {counts['running']} under way or broken off; "
        "nothing was chosen and tested yet"
    )
    best_arm = (outcome.get("best") or {}).get("arm") or {}
    prompt = ", ".join(filter(None, (best_arm.get(part) for part in ("technique", "prompt", "writer"))))
    return page(
        "study.html",
        kind="study",
        title=f"Study {spec.name}{by_judges(outcome.get('judges', ()))}",
        facts={
            "Questions": Path(spec.questions).name + (f", the first {spec.limit}" if spec.limit else ""),
            "Collection": spec.collection + (f", where {json.dumps(spec.where)}" if spec.where else ""),
            "LM": spec.lm,
            **({"Writers": ", ".join(one.name for one in spec.writers)} if spec.writers else {}),
            "Reader": spec.reader,
            "Objectives": ", ".join(spec.objectives),
            **({"Judges": "; ".join(one["standing"] for one in outcome["judges"])} if outcome.get("judges") else {}),
            "Trials": f"{spec.trials} planned; {', '.join(f'{n} {state}' for state, n in counts.items() if n)}",
            "querywright": __version__,
        },
        notes=[
            "Everything but the test was measured on dev, on which programs were chosen."
            if snapshot.finished
            else f"This study has not ended: {how_far}."
        ],
        figures={
            "fronts": _fronts(trials, objectives) if kept else [],
            "costs": [] if compared is None else costs(compared),
            "means": [] if compared is None else means(compared),
            "differences": [] if compared is None else differences(compared),
        },
        data=data,
        compared=compared,
        sentences=[one["sentence"] for one in outcome.get("comparisons") or ()],
        outcome=outcome,
        how_far=how_far,
        aim=aim,
        several=len(objectives) > 1,
        leader=best(trials, aim),
        best=best_rows(ranked(trials, aim), objectives),
        front=best_rows([one for one in trials if one.number in kept], objectives, len(kept)),
        scores=[] if compared is None else score_rows(compared),
        techniques=[
            row | _told(sum((one.spent for one in of_technique(trials, row["technique"])), Cost()))
            for row in technique_rows(snapshot, aim)
        ],
        trials=[_trial_row(one, spec.objectives) for one in trials],
        spent=snapshot.spent,
        stages=[{"stage": name, **_told(cost)} for name, cost in stages.items() if cost.asked],
        chosen=prompt if prompt in (outcome.get("prompts") or {}) else None,
        command=str(outcome.get("command") or f"querywright study run {spec.name}.yaml --out FOLDER"),
        seeds=outcome.get("seeds") or {"study": spec.seed},
        versions={
            "querywright": __version__,
            **{name: metadata.version(name) for name in ("optuna", "dspy")},
        },
        spec=json.dumps(spec.to_json(), ensure_ascii=False, indent=2),
        **{one.__name__: one for one in (arm_name, interval, shown, value_text)},
    )


def _told(cost: Cost) -> dict[str, str]:
    """What was spent, in columns of a table."""
    return {"LM calls": str(cost.calls), "cached": str(cost.saved), "tokens": str(cost.tokens)}


def _trial_row(one: TrialRecord, objectives: Sequence[str]) -> dict[str, str]:
    """All of a trial, for the table of all trials."""
    same = "-" if one.same_as is None else f"the same arm as trial {one.same_as}"
    return {
        "trial": str(one.number),
        "arm": arm_name(one.arm),
        "state": one.state,
        **{name: f"{one.values[name]:.4g}" if name in one.values else "-" for name in objectives},
        "questions": str(len(one.dev.rows) or "-"),
        "LM calls": f"{one.spent.calls} ({one.spent.saved} cached)",
        "seconds": f"{one.ended - one.began:.1f}" if one.began and one.ended else "-",
        "knobs": changed_knobs(one.arm),
        "why": one.message or same,
    }


def _questions(
    outcome: Mapping[str, Any], compared: Comparison | None, objectives: Sequence[Objective]
) -> Mapping[str, Any]:
    """What stands behind each of the test questions."""
    if compared is None:
        return NO_QUESTIONS
    baseline = compared.arm(compared.baseline)
    known = {one["id"]: one for one in outcome["questions"]}
    asked = []
    for one in (known[row.id] for row in baseline.rows):
        answer, options = one.get("answer"), tuple(one.get("options") or ())
        asked.append(Question(one["id"], one["question"], options, answer, tuple(one.get("aliases") or ())))
    wanted = [metric for one in objectives for metric in one.metrics if metric in baseline.metrics]
    metric = [*wanted, *baseline.metrics, "decision_useful"][0]
    return browser(replace(compared, questions=tuple(asked)), metric)


def _fronts(trials: Sequence[TrialRecord], aims: Sequence[Objective]) -> list[Figure]:
    """Each further objective against the first: every complete trial, those of the front named and joined."""
    kept = set(front(trials, aims))
    return [_one_front(trials, aims[0], other, kept) for other in aims[1:] if kept]


def _one_front(trials: Sequence[TrialRecord], aim: Objective, other: Objective, kept: set[int]) -> Figure:
    told = [one for one in ranked(trials, other) if not math.isnan(one.values.get(aim.name, math.nan))]
    at = {one.number: [_scaled(one.values[which.name], which) for which in (other, aim)] for one in told}
    x_title, y_title = (
        f"{one.name}{', %' if one.metrics else ''} ({'more' if one.metrics else 'less'} is better)"
        for one in (other, aim)
    )
    ends = [span([point[side] for point in at.values()]) for side in (0, 1)]
    plot = Plot(ends[0], ends[1], x_title=x_title, y_title=y_title)
    plot.line(sorted((x, y) for number, (x, y) in at.items() if number in kept), ARM, dash=True)
    said = {}
    for one in sorted(told, key=lambda one: one.number in kept):
        first, (x, y) = one.number in kept, at[one.number]
        said[one.number] = f"{_said(one, aim)}; {other.name} {value_text(one.values[other.name], other)}"
        look: Any = {"shape": "diamond", "text": str(one.number)} if first else {}
        plot.dot(x, y, said[one.number], ARM if first else NEUTRAL, **look)
    alt = f"Front: {'; '.join(text for number, text in said.items() if number in kept)}"
    legend = {"front": ARM, "other trials": NEUTRAL}
    title = f"{aim.name} against {other.name}"
    return Figure(f"figure-front-{_slug(other)}", title, plot.svg(), alt, legend=legend)


def _said(record: TrialRecord, aim: Objective) -> str:
    found = f"trial {record.number}, {arm_name(record.arm)}: {shown(interval(record, aim), aim)}"
    if record.state == "pruned":
        found += f", pruned after {len(record.dev.rows)} questions"
    knobs = changed_knobs(record.arm)
    return found if knobs == "-" else f"{found}; {knobs}"


def _scaled(value: float, aim: Objective) -> float:
    return 100 * value if aim.metrics else value


def _slug(aim: Objective) -> str:
    """The objective as a part of an element's id."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "-" for letter in aim.name)
