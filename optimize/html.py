"""A comparison as one HTML page that opens anywhere: no server, no network, every text from the data escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from querywright.errors import InputError
from querywright.optimize import html_figures
from querywright.optimize.comparison import Compared
from querywright.optimize.decisions import Decisions, decision_rows
from querywright.optimize.diagnosis import Diagnosis
from querywright.optimize.html_diagnosis import diagnosis_html, stages, telling_html
from querywright.optimize.html_page import page, table
from querywright.optimize.html_questions import questions_data, questions_part
from querywright.optimize.html_text import json_block, text
from querywright.optimize.report import table_rows

OF_THE_RUN = ("LM calls made", "seconds")
"""Columns that tell of one run on one machine; a run that was taken up again has others."""


def report_html(compared: Compared, *, title: str, facts: Mapping[str, str], notes: Sequence[str] = ()) -> str:
    """The page of a comparison; the same input gives the same text.

    Args:
        compared: The arms.
        title: Heads the page.
        facts: What was compared and how, such as the data, the LM and the command, by name.
        notes: What a reader should know before believing a number. Default nothing.

    Returns:
        HTML with all scripts and styles inside. To be written as UTF-8.

    Raises:
        InputError: An arm was not evaluated on these questions.
    """
    questions, diagnosis, decisions = compared.questions, compared.diagnosis, compared.decisions
    ids = [question.id for question in questions]
    for arm in compared.arms:
        if [row.id for row in arm.rows] != ids:
            raise InputError(f"{arm.name} was not evaluated on the questions of the report; give those it was asked")
    metric = _marked(compared, diagnosis)
    parts = {"Verdicts": _verdicts(compared), "Scores": scores(compared)}
    drawn = []
    for name, said, panels in (
        ("Means with 95 % intervals", "The dotted line is the baseline.", html_figures.means(compared)),
        (
            "Wins and losses against the baseline",
            "Questions on which an arm is better or worse than the baseline.",
            html_figures.differences(compared),
        ),
        (
            "Cost against score",
            "Arms by their number; calls count whether they were made or saved.",
            html_figures.costs(compared),
        ),
    ):
        if panels:
            parts[name] = f'<p>{said}</p><div class="panels">{"".join(panel.html() for panel in panels)}</div>'
            drawn += panels
    if diagnosis is not None:
        numbers = {arm.name: number for number, arm in enumerate(compared.arms, 1)}
        panel = stages(diagnosis, numbers)
        drawn.append(panel)
        parts["Where answers are lost"] = diagnosis_html(diagnosis, panel, numbers)
        parts["The most telling questions"] = telling_html(diagnosis, questions)
    if decisions:
        parts["What the passages did to the decisions"] = _decided(decisions)
    parts["All questions"] = questions_part(compared, questions, metric)
    blocks = [
        json_block("report-data", questions_data(compared, questions, compared.passages, metric, diagnosis)),
        json_block("report-figures", {panel.id: panel.figure for panel in drawn}),
    ]
    return page(title, facts, notes, parts, blocks)


def _marked(compared: Compared, diagnosis: Diagnosis | None) -> str:
    """The metric that questions are marked by."""
    if diagnosis is not None:
        return diagnosis.metric
    known = [*compared.arm(compared.baseline).metrics, *html_figures.metrics_of(compared)]
    return known[0] if known else "accuracy"


def _decided(decisions: Sequence[Decisions]) -> str:
    said = (
        "Answers that turned from right to wrong and from wrong to right against another arm; accuracy by the label of "
        "what was found, before closed book's on the same questions; and the labels of all passages for the reader."
    )
    return f"<p>{said}</p>" + table("What the passages did", decision_rows(decisions))


def _verdicts(compared: Compared) -> str:
    if not compared.comparisons:
        return f"<p>There is nothing to hold against {text(compared.baseline)}.</p>"
    by_metric: dict[str, list[str]] = {}
    for one in compared.comparisons:
        by_metric.setdefault(one.metric, []).append(f"<li>{text(one.sentence)}</li>")
    lists = "".join(f"<ul>{''.join(sentences)}</ul>" for sentences in by_metric.values())
    return (
        f"<p>Every arm is held against <b>{text(compared.baseline)}</b> on the same questions. p is two-sided, "
        f"corrected after Holm within a metric.</p>{lists}"
    )


def scores(compared: Compared) -> str:
    """The table of means."""
    arms = [*compared.arms, *compared.references]
    rows = [{name: value for name, value in row.items() if name not in OF_THE_RUN} for row in table_rows(arms)]
    for number, (row, arm) in enumerate(zip(rows, arms, strict=True), 1):
        tokens = arm.cost.tokens + arm.cost.saved_tokens
        row["tokens / question"] = f"{tokens / max(1, len(arm.rows)):.0f}"
        if number <= len(compared.arms):
            row["arm"] = f"{number} {arm.name}" + (" (baseline)" if arm.name == compared.baseline else "")
    said = "Means in per cent, with the 95 % interval; what could not be scored is left out and counted."
    return f"<p>{said}</p>" + table("Scores", rows)
