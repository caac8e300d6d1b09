"""The test of a study as a comparison, so that it is shown as any comparison is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from querywright.data.types import Question
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import NO_REWRITING, Comparison
from querywright.optimize.verdict import READER_CHECK


def on_test(outcome: Mapping[str, Any] | None) -> Compared | None:
    """Every program that met the test, held against no rewriting; None before that.

    Those that check the reader, and any that met other questions, are references.
    """
    met = evaluations(outcome)
    if not met:
        return None
    baseline = next((one for one in met if one.name == NO_REWRITING), met[0])
    asked = [row.id for row in baseline.rows]
    rivals = [
        one
        for one in met
        if one is not baseline and one.name not in READER_CHECK and [row.id for row in one.rows] == asked
    ]
    arms = (baseline, *rivals)
    held = _comparisons((outcome or {}).get("comparisons") or (), {one.name: one for one in arms}, baseline.name)
    return Compared(arms, baseline.name, tuple(held), tuple(one for one in met if one not in arms))


def evaluations(outcome: Mapping[str, Any] | None) -> list[Evaluation]:
    """The results on test, where their rows were kept."""
    return [
        Evaluation(one["arm"], tuple(Row.from_json(row) for row in one["rows"]), one.get("seconds") or 0.0)
        for one in (outcome or {}).get("test") or ()
        if one.get("rows")
    ]


def asked_on_test(outcome: Mapping[str, Any], ids: Sequence[str]) -> list[Question]:
    """The test questions in the order of these ids; one whose text was not kept is called by its id."""
    known = {one["id"]: one for one in outcome.get("questions") or ()}
    return [_question(known.get(id, {"id": id, "question": id})) for id in ids]


def _question(data: Mapping[str, Any]) -> Question:
    answer = data.get("answer")
    return Question(
        data["id"],
        data["question"],
        tuple(data.get("options") or ()),
        answer if isinstance(answer, str) else None,
        tuple(data.get("aliases") or ()),
    )


def _comparisons(
    planned: Sequence[Mapping[str, Any]], arms: Mapping[str, Evaluation], baseline: str
) -> list[Comparison]:
    """The comparisons with the baseline as they were made, with the corrected p that was kept."""
    found = []
    for one in planned:
        if one["arm"] in arms and one["other"] == baseline:
            p = one.get("p_holm")
            raw = arms[one["arm"]].against(arms[baseline], one["metric"])
            test = replace(raw, p_two_sided=math.nan if p is None else p)
            found.append(Comparison(one["family"], one["metric"], one["arm"], baseline, test, one["sentence"]))
    return found
