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


def on_test(outcome: Mapping[str, Any] | None) -> Compared | None:
    """Every program that met the test, held against no rewriting; None before that.

    Programs that met other questions, such as those of a check of the reader, are references.
    """
    arms = evaluations(outcome)
    if not arms:
        return None
    baseline = next((one for one in arms if one.name == NO_REWRITING), arms[0])
    asked = [row.id for row in baseline.rows]
    same = [one for one in arms if [row.id for row in one.rows] == asked]
    return Compared(
        (baseline, *(one for one in same if one is not baseline)),
        baseline.name,
        tuple(_comparisons((outcome or {}).get("comparisons") or (), {one.name: one for one in arms})),
        tuple(one for one in arms if one not in same),
    )


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


def _comparisons(listed: Sequence[Mapping[str, Any]], arms: Mapping[str, Evaluation]) -> list[Comparison]:
    """The comparisons as they were made, with the corrected p that was kept."""
    found = []
    for one in listed:
        pair = (arms.get(one["arm"]), arms.get(one["other"]))
        if pair[0] is None or pair[1] is None or [r.id for r in pair[0].rows] != [r.id for r in pair[1].rows]:
            continue
        p = one.get("p_holm")
        test = replace(pair[0].against(pair[1], one["metric"]), p_two_sided=math.nan if p is None else p)
        found.append(Comparison(one["family"], one["metric"], one["arm"], one["other"], test, one["sentence"]))
    return found
