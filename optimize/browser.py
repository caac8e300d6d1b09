"""The questions browser of a report: what each arm searched, found and answered, each passage's text kept once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from querywright.data.types import Passage, Question
from querywright.metrics.dspy_metrics import needs
from querywright.metrics.usefulness import helpful_ids, passage_labels
from querywright.optimize.comparison import Compared
from querywright.optimize.diagnosis import Stage
from querywright.optimize.evaluate import Row
from querywright.optimize.tables import cut

PASSAGE, WRITTEN, LINE = 700, 500, 160
"""Characters shown of a passage; of an answer, query or message; of a title."""

NO_QUESTIONS: Mapping[str, Any] = {"arms": [], "passages": [], "questions": []}

SIGNS = {"right": "✓", "wrong": "✗", "yes": "✓", "no": "✗", "not scored": "-", "failed": "!"}
AGAINST = {"better": "▲", "worse": "▼", "": ""}


def browser(compared: Compared, metric: str) -> dict[str, Any]:
    """All that a page shows of its questions, as JSON; a passage is named by its place.

    Args:
        compared: The arms, with the questions that they were asked.
        metric: What questions are marked by.
    """
    questions, rows = compared.questions, [arm.rows for arm in compared.arms]
    shown = dict.fromkeys(
        key
        for place, question in enumerate(questions)
        for key in (*(key for arm in rows for key in arm[place].passages), *helpful_ids(question.evidence))
    )
    places = {key: place for place, key in enumerate(shown)}
    lost = {} if compared.diagnosis is None else compared.diagnosis.arms
    stages = {(name, one.question): one.stage for name, arm in lost.items() for one in arm}
    base = compared.arm(compared.baseline).values(metric)
    told = []
    for place, question in enumerate(questions):
        marks = [_mark(arm[place], metric, base[place]) for arm in rows]
        told.append(
            {
                "id": question.id,
                "text": question.question,
                "options": list(question.options),
                "answers": list(question.answers),
                "same": len({word for word, _ in marks}) == 1,
                "arms": [
                    _marked(*mark) | _row(arm.rows[place], question, stages.get((arm.name, question.id)), places)
                    for arm, mark in zip(compared.arms, marks, strict=True)
                ],
            }
        )
    return {
        "arms": [arm.name for arm in compared.arms],
        "passages": [_passage(key, compared.passages.get(key)) for key in shown],
        "questions": told,
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


def _marked(word: str, against: str) -> dict[str, str]:
    said = f"{word}, {against} than the baseline" if against else word
    return {"mark": SIGNS.get(word, word) + AGAINST[against], "said": said, "against": against}


def _row(row: Row, question: Question, stage: Stage | None, places: Mapping[str, int]) -> dict[str, Any]:
    labels: Sequence[str] = [""] * len(row.passages)
    if question.evidence:
        labels = passage_labels(row.passages, question.evidence, jointly=question.jointly)
    helpful = [] if row.failure is not None else helpful_ids(question.evidence)
    data: dict[str, Any] = {
        "stage": "" if stage is None or stage is Stage.RIGHT else str(stage),
        "answer": None if row.answer is None else cut(row.answer, WRITTEN) or "(empty)",
        "invalid": row.invalid,
        "scores": [
            f"{name} not scored" if math.isnan(value) else f"{name} {value:.3g}" for name, value in row.scores.items()
        ],
        "queries": [[role, cut(query, WRITTEN)] for role, query in row.queries],
        "found": len({*row.found, *row.passages}),
        "passages": [[places[key], str(label)] for key, label in zip(row.passages, labels, strict=True)],
        "missed": [
            [places[key], str(question.evidence[key]), "found, then cut" if key in row.found else "not found"]
            for key in helpful
            if key not in row.passages
        ],
        "fallbacks": list(row.fallbacks),
        "failure": row.failure,
        "message": cut(row.message, WRITTEN),
        "calls": row.cost.asked,
    }
    return {name: value for name, value in data.items() if value or name == "calls"}


def _passage(key: str, passage: Passage | None) -> dict[str, str]:
    if passage is None:
        return {"id": key}
    return {"id": key, "title": cut(passage.title, LINE), "text": cut(passage.text, PASSAGE)}
