"""Reports: one HTML page that opens anywhere, from the templates beside this module, every text from the data escaped.

A comparison's page is made here; those of a study and of a training are made where these are, of the same blocks.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from querywright.metrics.dspy_metrics import needs
from querywright.metrics.usefulness import helpful_ids, passage_labels
from querywright.optimize import figures
from querywright.optimize.comparison import Compared
from querywright.optimize.diagnosis import MEANING, decision_rows
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.figures import STAGE_COLOURS, Figure
from querywright.optimize.tables import clean, cut, each_text, percent, table_rows

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""What a page may do: run what it holds, and ask no host for anything."""

OF_THE_RUN = ("LM calls made", "seconds")
"""Columns that tell of one run on one machine; a run that was started again has others."""

NO_QUESTIONS: Mapping[str, Any] = {"arms": [], "questions": []}

_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render(template: str, **context: Any) -> str:
    """Text from a template of this package; in one that ends in ``.html`` every value is escaped."""
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
    """A whole page, with all scripts and styles inside, from a template that extends ``page.html``; written as UTF-8.

    Facts are what it is about, notes what a reader should know before believing a number. The template has names for
    the figures; questions are as ``browser`` makes them, and ``context`` is what else it shows.
    """
    from plotly.offline import get_plotlyjs

    drawn = {one.id: one.drawn for several in figures.values() for one in several}
    given = {"title": title, "facts": facts, "notes": notes, "figures": figures, "data": data, "drawn": drawn}
    return render(template, policy=POLICY, parts=[], plotly=Markup(get_plotlyjs()), **given, **context)


def comparison_page(
    compared: Compared, *, title: str, facts: Mapping[str, str], notes: Sequence[str] = (), outcome: str = ""
) -> str:
    """The page of a comparison, as ``Compared.report`` writes it; the same input gives the same text."""
    diagnosis = compared.diagnosis
    metrics = figures.metrics_of(compared)
    metric = [*compared.arm(compared.baseline).metrics, *metrics, "accuracy"][0]
    drawn = {name: getattr(figures, name)(compared) for name in ("means", "differences", "costs")}
    if diagnosis is not None:
        metric = diagnosis.metric
        drawn["stages"] = [figures.stages(compared, diagnosis)]
    return page(
        "compare.html",
        title=title,
        facts=facts,
        notes=notes,
        figures=drawn,
        data=browser(compared, metric),
        outcome=outcome.rstrip("."),
        baseline=compared.baseline,
        sentences=[
            [one.sentence for one in compared.comparisons if one.metric == name]
            for name in dict.fromkeys(one.metric for one in compared.comparisons)
        ],
        scores=score_rows(compared),
        diagnosis=diagnosis,
        labelled_by=compared.labelled_by,
        numbers={arm.name: number for number, arm in enumerate(compared.arms, 1)},
        meaning=MEANING,
        colours=STAGE_COLOURS,
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


def browser(compared: Compared, metric: str) -> dict[str, Any]:
    """What each arm searched, found and answered, marked by a metric, for the macro ``questions``."""
    lost = {} if compared.diagnosis is None else compared.diagnosis.arms
    base = compared.arm(compared.baseline).values(metric)
    told: dict[str, dict[str, Any]] = {}
    shown: dict[str, None] = {}
    for place, question in enumerate(compared.questions):
        helpful, evidence = helpful_ids(question.evidence), question.evidence
        arms: list[dict[str, Any]] = []
        for arm in compared.arms:
            row = arm.rows[place]
            word, against = _mark(row, metric, base[place])
            pooled = bool(question.assessors) or not evidence
            labels = passage_labels(row.passages, evidence, jointly=question.jointly, pooled=pooled)
            missed = [] if row.failure is not None else [key for key in helpful if key not in row.passages]
            arms.append(
                {"name": arm.name, "row": row, "word": word, "against": against, "missed": missed}
                | {"labels": dict(zip(row.passages, labels, strict=True))}
                | {"stage": str(lost[arm.name][place].stage) if arm.name in lost else ""}
            )
        shown |= dict.fromkeys(key for one in arms for key in (*one["row"].passages, *helpful))
        told[question.id] = {
            "question": question,
            "same": len({one["word"] for one in arms}) == 1,
            "arms": arms,
        }
    return {
        "arms": [arm.name for arm in compared.arms],
        "questions": told,
        "passages": {key: compared.passages.get(key) for key in shown},
        "numbers": {key: number for number, key in enumerate(shown, 1)},
    }


def _mark(row: Row, metric: str, base: float) -> tuple[str, str]:
    """What is said of one arm and question: a word, and ``better`` or ``worse`` than the baseline, or nothing."""
    value = row.scores.get(metric, math.nan)
    if row.failure is not None or math.isnan(value):
        return "failed" if row.failure is not None else "not scored", ""
    lead = 0.0 if math.isnan(base) else round(value - base, 12)
    against = "better" if lead > 0 else "worse" if lead < 0 else ""
    if value in (0.0, 1.0):
        return (("wrong", "right") if "reader" in needs(metric) else ("no", "yes"))[int(value)], against
    return f"{value:.2f}", against


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
    written = json.dumps(each_text(data, clean), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(re.sub("[<>&\u2028\u2029]", lambda found: _IN_SCRIPT[found[0]], written))
