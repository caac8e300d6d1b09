"""A study as one HTML page that opens anywhere, at any moment of its life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from querywright import __version__
from querywright.files import write_file
from querywright.optimize import html_figures
from querywright.optimize.comparison import Compared
from querywright.optimize.html import scores
from querywright.optimize.html_figures import Panel
from querywright.optimize.html_page import page
from querywright.optimize.html_questions import questions_data, questions_part
from querywright.optimize.html_text import json_block, text
from querywright.optimize.study import figures, html
from querywright.optimize.study.importance import importances
from querywright.optimize.study.prompts_html import prompts_html
from querywright.optimize.study.status import Aim, Known, aims, ended, front, techniques
from querywright.optimize.study.tested import asked_on_test, on_test

LATER = "<p>Told when the study has ended.</p>"

NO_QUESTIONS: dict[str, Any] = {"arms": [], "passages": [], "questions": []}


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
    objectives, names = aims(snapshot.spec), techniques(snapshot)
    aim, trials = objectives[0], snapshot.trials
    drawn: list[Panel] = []

    def kept(*panels: Panel | None) -> list[Panel]:
        here = [panel for panel in panels if panel is not None]
        drawn.extend(here)
        return here

    parts = {"Outcome": html.outcome_part(snapshot, aim), "Best on dev": html.best_part(snapshot, objectives)}
    if len(objectives) > 1:
        numbers = front(trials, {one.name: one.direction for one in objectives})
        parts["The front"] = html.front_part(snapshot, objectives, kept(*figures.fronts(trials, objectives)), numbers)
    compared = on_test(snapshot.outcome)
    parts["Test"] = _test(snapshot, compared, kept)
    found = importances(trials, aim, names)
    parts["What mattered"] = html.mattered_part(found, kept(*figures.mattered(found, aim)), aim)
    parts["Techniques"] = html.techniques_part(snapshot, aim, kept(figures.spread(trials, aim, names)))
    parts["The course of the search"] = html.course_part(
        snapshot, kept(*(figures.course(trials, one, names) for one in objectives))
    )
    spending = html.cost_part(snapshot, aim, names, kept(*html.drawn_costs(snapshot, names)))
    parts["What it cost and saved"] = spending + ("" if compared is None else html.in_use(compared, aim))
    shown, data = _questions(snapshot, compared, objectives)
    parts["Wins and losses, question by question"] = shown
    parts["Prompts, before and after"] = _prompts(snapshot)
    parts["Dead knobs"] = html.dead_part(snapshot)
    parts["To run it again"] = html.repeat_part(snapshot, _versions())
    blocks = [
        json_block("report-data", data),
        json_block("report-figures", {panel.id: panel.figure for panel in drawn}),
    ]
    return page(f"Study {snapshot.spec.name}", _facts(snapshot), _notes(snapshot), parts, blocks)


def _test(snapshot: Known, compared: Compared | None, kept: Callable[..., list[Panel]]) -> str:
    if compared is None:
        return LATER
    planned = (snapshot.outcome or {}).get("comparisons") or ()
    sentences = "".join(f"<li>{text(one['sentence'])}</li>" for one in planned)
    said = "<p>Met once. The planned comparisons, on the same questions; p is two-sided, corrected after Holm.</p>"
    drawn = ""
    for name, found in (
        ("Means with 95 % intervals", kept(*html_figures.means(compared))),
        ("Wins and losses", kept(*html_figures.differences(compared))),
    ):
        if found:
            drawn += f"<h3>{name}</h3>{html.panels(found)}"
    return said + (f"<ul>{sentences}</ul>" if sentences else "") + scores(compared) + drawn


def _questions(snapshot: Known, compared: Compared | None, objectives: Sequence[Aim]) -> tuple[str, dict[str, Any]]:
    """The table of the test questions, and what stands behind each of them."""
    if compared is None:
        return LATER, NO_QUESTIONS
    baseline = compared.arm(compared.baseline)
    asked = asked_on_test(snapshot.outcome or {}, [row.id for row in baseline.rows])
    wanted = [metric for one in objectives for metric in one.metrics]
    metric = next((name for name in wanted if name in baseline.metrics), (baseline.metrics or ["decision_useful"])[0])
    return questions_part(compared, asked, metric), questions_data(compared, asked, {}, metric, None)


def _prompts(snapshot: Known) -> str:
    outcome = snapshot.outcome or {}
    if "prompts" not in outcome:
        return LATER
    if not outcome["prompts"]:
        return "<p>No prompt was tuned; all are as written.</p>"
    arm = (outcome.get("best") or {}).get("arm") or {}
    names = (f"{arm.get('technique')}, {arm.get('prompt')}", arm.get("prompt"))
    return prompts_html(outcome["prompts"], next((name for name in names if name in outcome["prompts"]), None))


def _facts(snapshot: Known) -> dict[str, str]:
    spec = snapshot.spec
    counts = ", ".join(
        f"{len(ended(snapshot.trials, state))} {state}"
        for state in ("complete", "pruned", "failed", "running")
        if ended(snapshot.trials, state)
    )
    readers = spec.reader if isinstance(spec.reader, str) else ", ".join(spec.reader)
    return {
        "Questions": f"{Path(spec.questions).name}" + (f", the first {spec.limit}" if spec.limit else ""),
        "Collection": spec.collection,
        "LM": spec.lm,
        **({} if spec.rewriter is None else {"Rewriter": Path(spec.rewriter).name}),
        "Reader": readers,
        "Objectives": ", ".join(spec.objectives),
        "Trials": f"{spec.trials} planned; {counts or 'none begun'}",
        "querywright": __version__,
    }


def _notes(snapshot: Known) -> list[str]:
    if snapshot.finished:
        return ["Everything but the test was measured on dev, on which programs were chosen."]
    return ["This study has not ended: " + html.how_far(snapshot) + "."]


def _versions() -> dict[str, str]:
    return {"querywright": __version__, **{name: metadata.version(name) for name in ("optuna", "dspy", "plotly")}}
