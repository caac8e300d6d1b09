"""The questions of the report: what each arm searched, found and answered, each passage's text kept once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from querywright.data.types import Passage, Question
from querywright.metrics.dspy_metrics import needs
from querywright.metrics.usefulness import helpful_ids, passage_labels
from querywright.optimize.comparison import Compared
from querywright.optimize.diagnosis import Diagnosis, Stage
from querywright.optimize.evaluate import Row
from querywright.optimize.html_text import box, cut, text

PASSAGE, WRITTEN, LINE = 700, 500, 160
"""Characters shown of a passage; of an answer, query or message; of a question in a list."""

SIGNS = {"right": "✓", "wrong": "✗", "yes": "✓", "no": "✗", "not scored": "-", "failed": "!"}
AGAINST = {"better": "▲", "worse": "▼"}


@dataclass(frozen=True, slots=True)
class Mark:
    """What is said of one arm and question.

    Args:
        word: ``right``, ``wrong``, ``yes``, ``no``, ``not scored``, ``failed``, or the value.
        against: ``better`` or ``worse`` than the baseline, or "".
    """

    word: str
    against: str = ""

    @property
    def sign(self) -> str:
        """The mark as a sign or two."""
        return SIGNS.get(self.word, self.word) + AGAINST.get(self.against, "")

    @property
    def said(self) -> str:
        """The mark in words."""
        return f"{self.word}, {self.against} than the baseline" if self.against else self.word


def marks(compared: Compared, metric: str) -> list[list[Mark]]:
    """The mark of every arm, by question."""
    base = compared.arm(compared.baseline).values(metric)
    return [
        [_mark(arm.rows[place], metric, base[place]) for arm in compared.arms]
        for place in range(len(base))
    ]  # fmt: skip


def questions_data(
    compared: Compared,
    questions: Sequence[Question],
    passages: Mapping[str, Passage],
    metric: str,
    diagnosis: Diagnosis | None,
) -> dict[str, Any]:
    """All that the page shows of a question when it is opened, as JSON; a passage is named by its place.

    Args:
        compared: The arms.
        questions: What they were asked.
        passages: Passages by id; one that is missing has no text.
        metric: What is marked.
        diagnosis: Where answers are lost.
    """
    rows = [arm.rows for arm in compared.arms]
    shown = dict.fromkeys(
        key
        for place, question in enumerate(questions)
        for key in (*(key for arm in rows for key in arm[place].passages), *helpful_ids(question.evidence))
    )
    places = {key: place for place, key in enumerate(shown)}
    stages = _stages(diagnosis)
    marked = marks(compared, metric)
    return {
        "arms": [arm.name for arm in compared.arms],
        "passages": [_passage(key, passages.get(key)) for key in shown],
        "questions": [
            {
                "id": question.id,
                "text": question.question,
                "options": list(question.options),
                "answers": list(question.answers),
                "arms": [
                    _row(arm.rows[place], question, marked[place][n], stages.get((arm.name, question.id)), places)
                    for n, arm in enumerate(compared.arms)
                ],
            }
            for place, question in enumerate(questions)
        ],
    }


def questions_part(compared: Compared, questions: Sequence[Question], metric: str) -> str:
    """All questions in a table, each to be opened, with a box to tick that leaves those on which the arms differ."""
    arms = "".join(f"<li>{text(arm.name)}</li>" for arm in compared.arms)
    differ = '<p><label><input type="checkbox" id="differ"> only questions on which the arms differ</label></p>'
    return (
        f"<p>{text(metric)}, question by question. ✓ right or yes, ✗ wrong or no, - not scored, ! failed; "
        "▲ better and ▼ worse than the baseline. A question opens to what each arm searched, found and answered.</p>"
        f'<ol class="key">{arms}</ol>'
        + (differ if len(compared.arms) > 1 else "")
        + box("All questions", question_table(compared, questions, metric))
    )


def question_table(compared: Compared, questions: Sequence[Question], metric: str) -> str:
    """A row a question and a mark an arm, as HTML."""
    heads = "".join(
        f'<th scope="col"><abbr title="{text(arm.name)}">{number}</abbr></th>'
        for number, arm in enumerate(compared.arms, 1)
    )
    body = "".join(
        _line(place, question, found)
        for place, (question, found) in enumerate(zip(questions, marks(compared, metric), strict=True))
    )
    return (
        '<table class="marks"><thead><tr><th scope="col">question</th>' + heads + f"</tr></thead><tbody>{body}"
        "</tbody></table>"
    )


def _line(place: int, question: Question, found: Sequence[Mark]) -> str:
    same = ' class="same"' if len({mark.word for mark in found}) == 1 else ""
    cells = "".join(
        f'<td class="{mark.against or "even"}"><span aria-hidden="true">{text(mark.sign)}</span>'
        f'<span class="said">{text(mark.said)}</span></td>'
        for mark in found
    )
    title = text(cut(question.question, LINE))
    return (
        f'<tr{same}><th scope="row"><details data-question="{place}"><summary>{title}</summary></details></th>'
        f"{cells}</tr>"
    )


def _mark(row: Row, metric: str, base: float) -> Mark:
    value = row.scores.get(metric, math.nan)
    if row.failure is not None:
        return Mark("failed")
    if math.isnan(value):
        return Mark("not scored")
    lead = 0.0 if math.isnan(base) else round(value - base, 12)
    against = "better" if lead > 0 else "worse" if lead < 0 else ""
    if value in (0.0, 1.0):
        words = ("wrong", "right") if "reader" in needs(metric) else ("no", "yes")
        return Mark(words[int(value)], against)
    return Mark(f"{value:.2f}", against)


def _row(row: Row, question: Question, mark: Mark, stage: Stage | None, places: Mapping[str, int]) -> dict[str, Any]:
    labels: Sequence[str] = [""] * len(row.passages)
    if question.evidence:
        labels = passage_labels(row.passages, question.evidence, jointly=question.jointly)
    missed = (
        [] if row.failure is not None else [key for key in helpful_ids(question.evidence) if key not in row.passages]
    )
    data: dict[str, Any] = {
        "mark": mark.sign,
        "said": mark.said,
        "stage": "" if stage is None or stage is Stage.RIGHT else str(stage),
        "answer": None if row.answer is None else cut(row.answer, WRITTEN) or "(empty)",
        "invalid": row.invalid,
        "scores": [f"{name} {_score(value)}" for name, value in row.scores.items()],
        "queries": [[role, cut(query, WRITTEN)] for role, query in row.queries],
        "found": len({*row.found, *row.passages}),
        "passages": [[places[key], str(label)] for key, label in zip(row.passages, labels, strict=True)],
        "missed": [
            [places[key], str(question.evidence[key]), "found, then cut" if key in row.found else "not found"]
            for key in missed
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


def _stages(diagnosis: Diagnosis | None) -> dict[tuple[str, str], Stage]:
    if diagnosis is None:
        return {}
    return {(name, lost.question): lost.stage for name, arm in diagnosis.arms.items() for lost in arm}


def _score(value: float) -> str:
    return "not scored" if math.isnan(value) else f"{value:.3g}"
