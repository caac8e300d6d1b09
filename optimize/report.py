"""Reports: one HTML page that opens anywhere, from the templates beside this module, every text from the data escaped.

A comparison's page is made here; those of a study and of a training are made where these are, of the same blocks.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from querywright.errors import InputError
from querywright.optimize import figures
from querywright.optimize.browser import NO_QUESTIONS, browser
from querywright.optimize.comparison import Compared
from querywright.optimize.decisions import decision_rows
from querywright.optimize.diagnosis import MEANING, Diagnosis, Stage
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.figures import STAGE_COLOURS, Figure
from querywright.optimize.tables import clean, cut, percent, table_rows

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""What a page may do: run what it holds, and ask no host for anything."""

OF_THE_RUN = ("LM calls made", "seconds")
"""Columns that tell of one run on one machine; a run that was started again has others."""

_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render(template: str, **context: Any) -> str:
    """Text from a template of this package; in one that ends in ``.html`` every value is escaped.

    Args:
        template: Its name, such as ``compare.html``.
        context: What it shows.
    """
    return _templates().get_template(template).render(**context)


def page(
    template: str,
    *,
    title: str,
    facts: Mapping[str, str],
    notes: Sequence[str] = (),
    figures: Mapping[str, Sequence[Figure]],
    data: Mapping[str, Any] = NO_QUESTIONS,
    **context: Any,
) -> str:
    """A whole page, with all scripts and styles inside. To be written as UTF-8.

    Args:
        template: One that extends ``page.html``.
        title: Heads the page.
        facts: What it is about, by name.
        notes: What a reader should know before believing a number. Default nothing.
        figures: What is drawn, by the names that the template has for them.
        data: Of the questions browser. Default no question.
        context: What else the template shows.
    """
    from plotly.offline import get_plotlyjs

    drawn = {one.id: one.drawn for several in figures.values() for one in several}
    given = {"title": title, "facts": facts, "notes": notes, "figures": figures, "data": data, "drawn": drawn}
    return render(template, policy=POLICY, parts=[], plotly=Markup(get_plotlyjs()), **given, **context)


def comparison_page(
    compared: Compared, *, title: str, facts: Mapping[str, str], notes: Sequence[str] = (), outcome: str = ""
) -> str:
    """The page of a comparison; the same input gives the same text.

    Args:
        compared: The arms.
        title: Heads the page.
        facts: What was compared and how, such as the data, the LM and the command, by name.
        notes: What a reader should know before believing a number. Default nothing.
        outcome: What came of it, in a sentence. Default nothing.

    Raises:
        InputError: An arm was not evaluated on the questions of the comparison.
    """
    ids = [question.id for question in compared.questions]
    for arm in compared.arms:
        if ids and [row.id for row in arm.rows] != ids:
            raise InputError(f"{arm.name} was not evaluated on the questions of the report; give those it was asked")
    diagnosis = compared.diagnosis
    known = [*compared.arm(compared.baseline).metrics, *figures.metrics_of(compared), "accuracy"]
    metric = known[0] if diagnosis is None else diagnosis.metric
    sentences: dict[str, list[str]] = {}
    for one in compared.comparisons:
        sentences.setdefault(one.metric, []).append(one.sentence)
    drawn: dict[str, Sequence[Figure]] = {
        "means": figures.means(compared),
        "differences": figures.differences(compared),
        "costs": figures.costs(compared),
    }
    lost = None if diagnosis is None else _lost(compared, diagnosis)
    if diagnosis is not None and lost is not None:
        labels = [figures.arm_label(number, name) for number, name in lost["arms"]]
        drawn["stages"] = [figures.stages(diagnosis, labels)]
    return page(
        "compare.html",
        title=title,
        facts=facts,
        notes=notes,
        figures=drawn,
        data=browser(compared, metric),
        outcome=outcome.rstrip("."),
        baseline=compared.baseline,
        sentences=list(sentences.values()),
        scores=score_rows(compared),
        lost=lost,
        decided=decision_rows(compared.decisions),
        metric=metric,
    )


def results_html(arms: Sequence[Evaluation], sentences: Sequence[str] = ()) -> str:
    """Results as a notebook shows them: the table of scores, and what the comparisons show."""
    return render("results.html", parts=[], scores=table_rows(arms), sentences=sentences)


def score_rows(compared: Compared) -> list[dict[str, str]]:
    """The table of scores, arms by their number, without what tells of one run."""
    arms = [*compared.arms, *compared.references]
    rows = [{name: value for name, value in row.items() if name not in OF_THE_RUN} for row in table_rows(arms)]
    for number, (row, arm) in enumerate(zip(rows, arms, strict=True), 1):
        tokens = arm.cost.tokens + arm.cost.saved_tokens
        row["tokens / question"] = f"{tokens / max(1, len(arm.rows)):.0f}"
        if number <= len(compared.arms):
            row["arm"] = f"{number} {arm.name}" + (" (baseline)" if arm.name == compared.baseline else "")
    return rows


def _lost(compared: Compared, diagnosis: Diagnosis) -> dict[str, Any]:
    """Where answers are lost, as the page tells it."""
    numbers = {arm.name: number for number, arm in enumerate(compared.arms, 1)}
    places = {question.id: place for place, question in enumerate(compared.questions)}
    counts = [diagnosis.counts(name) for name in diagnosis.arms]
    return {
        "metric": diagnosis.metric,
        "jointly": diagnosis.jointly,
        "n": max((len(lost) for lost in diagnosis.arms.values()), default=0),
        "alone": [f"{name} {right} of {n}" for name, right, n in diagnosis.alone],
        "arms": [(numbers[name], name) for name in diagnosis.arms],
        "stages": [
            {"name": stage, "colour": STAGE_COLOURS[stage], "meaning": MEANING[stage]}
            | {"counts": [found[stage] for found in counts]}
            for stage in Stage
        ],
        "telling": [places[key] for key in diagnosis.telling if key in places],
    }


@functools.cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("querywright.optimize"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: clean(str(value)) if isinstance(value, str) and not isinstance(value, Markup) else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "cut": cut,
        "percent": percent,
        "json": _json,
        "plain_json": functools.partial(json.dumps, ensure_ascii=False, default=str),
    }
    return made


def _json(data: Any) -> Markup:
    """Data for a script element, which nothing in the data can end; ValueError where a number is NaN or infinite."""
    written = json.dumps(_cleaned(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(re.sub("[<>&\u2028\u2029]", lambda found: _IN_SCRIPT[found[0]], written))


def _cleaned(data: Any) -> Any:
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, Mapping):
        return {key: _cleaned(value) for key, value in data.items()}
    return [_cleaned(one) for one in data] if isinstance(data, (list, tuple)) else data
