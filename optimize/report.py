"""Write reports: self-contained HTML pages, rendered from the templates next to this module with all data escaped.

This module makes the page for comparisons. The report pages for studies and training runs are made in their own
packages from the same components.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup, escape

from querywright.data.types import PERSON, Label, Question
from querywright.metrics.dspy_metrics import needs
from querywright.metrics.usefulness import helpful_ids, passage_labels
from querywright.optimize import figures
from querywright.optimize.comparison import Comparison
from querywright.optimize.diagnosis import DECIDED, MEANING, Stage, decision_rows
from querywright.optimize.evaluate import Evaluation, mean_json
from querywright.optimize.figures import STAGE_COLOURS
from querywright.optimize.results import BASELINE, PairedComparison, in_words
from querywright.optimize.significance import verdict_rows, verdict_sentence
from querywright.optimize.slices import known_sentence, slice_rows
from querywright.optimize.tables import clean, cut, each_text, percent, table_rows

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""Content security policy of a page: run its own scripts, and request nothing from any host."""

NOTHING = ("-", "0", "0%", "- / -", "0.0")

ROOM, LENGTHS = 900_000, (700, 400, 200, 100, 50)
"""Limit on the total number of characters of text in a page, and the lengths to which each text may be truncated; the
first length that fits is used.
"""

PROMPT_ROOM = 500_000
"""Limit on the compressed prompts and answers in a page, in bytes."""

_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render(template: str, **context: Any) -> str:
    """Render one of this package's templates; if its name ends in ``.html``, every value is escaped."""
    return _templates().get_template(template).render(**context)


def comparison_page(
    compared: Comparison,
    *,
    title: str,
    facts: Mapping[str, str],
    notes: Sequence[str] = (),
    outcome: str = "",
    command: str = "",
    template: str = "compare.html",
    kind: str | None = None,
    metric: str = "",
    **more: Any,
) -> str:
    """Return the comparison's page that ``Comparison.report`` writes; the same input produces the same page.

    The page begins with a summary, which ``querywright view`` reads, and opens on ``metric``. A template that extends
    ``compare.html`` can add sections with the values in ``more``.
    """
    diagnosis = compared.diagnosis
    metrics = figures.metrics_of(compared)
    if metric not in metrics:
        metric = [*compared.arm(compared.baseline).metrics, *metrics, "accuracy"][0]
    drawn = {name: getattr(figures, name)(compared) for name in ("means", "differences", "costs")}
    if diagnosis is not None:
        drawn["stages"] = [figures.stages(compared, diagnosis)]
    said = verdict_sentence([one for one in compared.comparisons if one.metric == metric], compared.programs)
    said = said or f"there is no program to compare with {in_words(compared.baseline)}"
    kind = kind or ("compilation" if outcome else "comparison")
    outcome = outcome.rstrip(".") or said[0].upper() + said[1:]
    return render(
        template,
        policy=POLICY,
        parts=[],
        title=title,
        summary={"kind": kind, "title": title, "metric": metric, "verdict": outcome, **_arms(compared)},
        facts=facts,
        notes=notes,
        figures=drawn,
        data=browser(compared, metric),
        prompts=base64.b64encode(packed_prompts(compared)).decode(),
        outcome=outcome,
        verdicts=verdict_rows(compared.comparisons),
        command=command,
        baseline=compared.baseline,
        sentences=[one.sentence for one in compared.comparisons],
        scores=score_rows(compared),
        diagnosis=diagnosis,
        labelled_by=compared.labelled_by,
        numbers={arm.name: number for number, arm in enumerate(compared.arms, 1)},
        meaning=MEANING,
        colours=STAGE_COLOURS,
        decided=decision_rows(compared.decisions),
        decided_how=DECIDED,
        sliced=slice_rows(compared.slices),
        sliced_verdict=known_sentence(compared.comparisons, compared.slices),
        **more,
    )


def packed_prompts(compared: Comparison) -> bytes:
    """Return the prompts and answers of LM calls, gzipped, one line of JSON per question.

    Failed questions come first, followed by questions on which programs differ. Questions that do not fit in the page
    are left out. The keys of a line are ``place`` (from 0), ``question`` (id), and ``arms``, which maps each name to
    its calls in the form of ``Exchange.to_json``.
    """
    asked: list[tuple[int, str]] = []
    for place, rows in enumerate(zip(*(arm.rows for arm in compared.arms), strict=True)):
        if any(row.exchanges for row in rows):
            differ = len({json.dumps(row.scores, sort_keys=True) for row in rows}) > 1
            calls = {arm.name: [call.to_json() for call in arm.rows[place].exchanges] for arm in compared.arms}
            line = _plain_json({"place": place, "question": rows[0].id, "arms": calls})
            asked.append((0 if any(row.failure for row in rows) else 1 if differ else 2, f"{line}\n"))
    pack, packed = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16), b""
    for _, line in sorted(asked, key=lambda one: one[0]):
        packed += pack.compress(line.encode()) + pack.flush(zlib.Z_SYNC_FLUSH)
        if len(packed) > PROMPT_ROOM:
            break
    return packed + pack.flush() if packed else b""


def results_html(
    arms: Sequence[Evaluation], sentences: Sequence[str] = (), held: Sequence[PairedComparison] = ()
) -> str:
    """Return results for a notebook: the score and verdict tables, and sentences."""
    verdicts = verdict_rows(held)
    return render("results.html", parts=[], scores=table_rows(arms), verdicts=verdicts, sentences=sentences)


def score_rows(compared: Comparison) -> list[dict[str, str]]:
    """Return the score table with numbered programs, without empty columns."""
    arms = [*compared.arms, *compared.references]
    rows = table_rows(arms)
    for number, (row, arm) in enumerate(zip(rows, arms, strict=True), 1):
        row["tokens per question"] = f"{arm.tokens_per_question:.0f}"
        if number <= len(compared.arms):
            row["arm"] = f"{number} {arm.name}" + (" (baseline)" if arm.name == compared.baseline != BASELINE else "")
            row["arm"] += " (second baseline)" if arm.name == compared.second else ""
        if compared.options:
            row["options"] = ("no", "yes")[compared.options[arm.name]] if arm.name in compared.options else "-"
    return filled(rows)


def filled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, without the columns that are empty in every row."""
    kept = [name for name in (rows[0] if rows else ()) if any(row[name] not in NOTHING for row in rows)]
    return [{name: row[name] for name in kept} for row in rows]


def breaks(name: str) -> Markup:
    """Return a program's name, with possible line breaks after punctuation."""
    return Markup(re.sub(r"(?<=[:,@/])(?=\S)", "<wbr>", str(escape(clean(name)))))


def browser(compared: Comparison, metric: str) -> dict[str, Any]:
    """Return what each program searched, found, and answered, in the form that ``page.js`` draws, initially sorted by a
    metric.

    Each text is stored once, truncated so that all texts fit; texts, passages, labels, and stages are referenced by
    number. A row is a list: scores by metric, queries (role and text), passages, a digit for the label of each passage,
    the number of found passages, and an object with optional values: ``a`` answer, ``k`` LM calls, ``c`` missed
    passages that were found, ``g`` stage, ``f`` failure with ``m`` message, ``b`` fallbacks, ``i`` whether the answer
    does not name an option.
    """
    lost = {} if compared.diagnosis is None else compared.diagnosis.arms
    metrics, labels, stages = figures.metrics_of(compared), [str(one) for one in Label], [str(one) for one in Stage]
    texts: dict[str, int] = {}
    ids: dict[str, int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts))

    def number(key: str) -> int:
        return ids.setdefault(key, len(ids))

    def row(arm: Evaluation, place: int, question: Question) -> list[Any]:
        one, evidence = arm.rows[place], question.evidence
        pooled = bool(question.assessors) or not evidence
        judged = passage_labels(
            one.passages, evidence, jointly=question.jointly, pooled=pooled, alternatives=question.alternatives
        )
        cut_off = [number(key) for key in helpful_ids(evidence) if key in one.found and key not in one.passages]
        more = {
            "a": None if one.answer is None else text(one.answer),
            "k": one.cost.asked, "i": int(one.invalid), "b": [text(name) for name in one.fallbacks], "c": cut_off,
            "f": one.failure, "m": text(one.message) if one.failure else None,
            "g": stages.index(str(lost[arm.name][place].stage)) if arm.name in lost else None,
        }  # fmt: skip
        return [
            [_short(one.scores.get(name, math.nan)) for name in metrics],
            [[text(role), text(asked)] for role, asked in one.queries],
            [number(key) for key in one.passages],
            "".join("-" if label is None else str(labels.index(str(label))) for label in judged),
            len({*one.found, *one.passages}),
            {name: value for name, value in more.items() if value not in (None, []) and (value or name in "agm")},
        ]

    questions = [
        {
            "id": text(question.id), "q": text(question.question), "options": [text(one) for one in question.options],
            "answers": [text(one) for one in question.answers],
            "evidence": [
                [number(key), labels.index(str(question.evidence[key]))] for key in helpful_ids(question.evidence)
            ],
            "by": {
                number(key): ", ".join(name if name == PERSON else f"judge {name}" for name in names)
                for key, names in question.assessors.items()
            },
            "rows": [row(arm, place, question) for arm in compared.arms],
        } | ({"either": [[*map(number, group)] for group in question.alternatives]} if question.alternatives else {})
        for place, question in enumerate(compared.questions)
    ]  # fmt: skip
    passages = [
        {"id": text(key)} | ({} if one is None else {"t": text(one.title) if one.title else -1, "x": text(one.text)})
        for key, one in ((key, compared.passages.get(key)) for key in ids)
    ]
    length = next((n for n in LENGTHS if sum(min(len(one), n) for one in texts) <= ROOM), LENGTHS[-1])
    return {
        "metric": metric, "metrics": metrics, "baseline": [arm.name for arm in compared.arms].index(compared.baseline),
        "arms": [arm.name for arm in compared.arms], "labels": labels, "stages": stages if lost else [],
        "reads": [name for name in metrics if "reader" in needs(name)],
        "texts": [cut(one, length) for one in texts], "passages": passages, "questions": questions,
    }  # fmt: skip


def _short(value: float) -> float | int | None:
    """Return a score as a short number (an integer, or up to four decimals); None for NaN."""
    return None if math.isnan(value) else int(value) if value == int(value) else round(value, 4)


def _arms(compared: Comparison) -> dict[str, Any]:
    """Return the programs for a summary, with calls per question and the value of each metric with its interval."""
    arms = [
        {
            "name": arm.name, "n": len(arm.rows), "calls": round(arm.calls_per_question, 2),
            "metrics": {name: mean_json(arm.mean(name)) for name in arm.metrics},
        }
        for arm in compared.arms
    ]  # fmt: skip
    return {"baseline": compared.baseline, "arms": arms}


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
        "breaks": breaks,
        "cut": cut,
        "filled": filled,
        "percent": percent,
        "json": _json,
        "packed": lambda data: base64.b64encode(gzip.compress(_plain_json(data).encode(), mtime=0)).decode(),
        "plain_json": functools.partial(json.dumps, ensure_ascii=False, default=str),
    }
    return made


def _plain_json(data: Any) -> str:
    """Return data as one line of JSON, without characters that are not allowed in a page; raise ValueError for NaN or
    infinity.
    """
    return json.dumps(each_text(data, clean), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _json(data: Any) -> Markup:
    """Return data for a script element; nothing in the data can close the element."""
    return Markup(re.sub("[<>&\u2028\u2029]", lambda found: _IN_SCRIPT[found[0]], _plain_json(data)))
