"""The figures of a study's report; their frame is that of a comparison's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from querywright.models.usage import Cost
from querywright.optimize.figures import (
    ARM,
    BASELINE,
    COLOURS,
    LEGEND,
    Figure,
    arm_label,
    bars,
    dots,
    lined,
    plane,
)
from querywright.optimize.study.importance import Importance
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.status import arm_name, best, changed_knobs, ended, front, interval, of_technique
from querywright.optimize.study.tables import shown, value_text
from querywright.optimize.study.types import TrialRecord

SYMBOLS = ("circle", "square", "triangle-up", "cross", "star", "hexagon", "pentagon", "triangle-down")
MADE, SAVED = "#3b82c4", "#a8c5de"
MANY = 12
"""Parameters that are drawn, the greatest first."""


def course(trials: Sequence[TrialRecord], aim: Objective, techniques: Sequence[str]) -> list[Figure]:
    """Value by the number of the trial, the best so far as a line; late trials stand on grey, crosses were pruned."""
    told = [one for one in ended(trials, "complete", "pruned") if not math.isnan(interval(one, aim).value)]
    if not told:
        return []
    data = []
    for name, colour, symbol in zip(techniques, cycle(COLOURS), cycle(SYMBOLS), strict=False):
        mine = of_technique(told, name)
        pruned = [one.state == "pruned" for one in mine]
        marker = {
            "size": 9,
            "color": colour,
            "symbol": ["x-thin-open" if one else symbol for one in pruned],
            "line": {"width": [2 if one else 0 for one in pruned], "color": colour},
        }
        values = [_scaled(interval(one, aim).value, aim) for one in mine]
        if mine:
            said = [_said(one, aim) for one in mine]
            data.append(dots([one.number for one in mine], values, said, name=name, marker=marker))
    steps = _running_best(trials, aim)
    line = {"shape": "hv", "color": BASELINE, "width": 2}
    best_so_far = {"x": [number for number, _ in steps], "y": [_scaled(value, aim) for _, value in steps], "line": line}
    data.append({"type": "scatter", "mode": "lines", "name": "best so far", "hoverinfo": "skip", **best_so_far})
    layout = plane("trial", _unit(aim)) | LEGEND
    late = [one.number for one in trials if one.late]
    if late:
        layout["shapes"] = [_behind(min(late) - 0.5, max(one.number for one in trials) + 0.5)]
    leaps = [step for place, step in enumerate(steps) if place == 0 or step[1] != steps[place - 1][1]]
    pruned_numbers = [str(one.number) for one in told if one.state == "pruned"]
    alt = (
        f"{len(told)} trials. Best so far: "
        + "; ".join(f"trial {number} {value_text(value, aim)}" for number, value in leaps)
        + (f". Pruned: {', '.join(pruned_numbers)}" if pruned_numbers else "")
        + (f". Late from trial {min(late)}" if late else "")
    )
    return [Figure(f"figure-course-{_slug(aim)}", f"{aim.name} by trial", data, layout, alt)]


def spread(trials: Sequence[TrialRecord], aim: Objective, techniques: Sequence[str]) -> list[Figure]:
    """The values of each technique's complete trials: every one as a dot, and their quartiles as a box."""
    values = {}
    for name in techniques:
        mine = of_technique(ended(trials, "complete"), name)
        values[name] = [one for one in mine if not math.isnan(one.values.get(aim.name, math.nan))]
    values = {name: mine for name, mine in values.items() if mine}
    if not values:
        return []
    data = [
        {
            "type": "box",
            "x": [_scaled(one.values[aim.name], aim) for one in mine],
            "y": [line] * len(mine),
            "orientation": "h",
            "boxpoints": "all",
            "jitter": 0.5,
            "pointpos": 0,
            "whiskerwidth": 0.4,
            "width": 0.55,
            "fillcolor": "rgba(0,0,0,0)",
            "line": {"color": BASELINE, "width": 1},
            "marker": {"color": colour, "size": 7, "opacity": 0.75},
            "customdata": [_said(one, aim) for one in mine],
            "hoveron": "points",
        }
        for line, (mine, colour) in enumerate(zip(values.values(), cycle(COLOURS), strict=False))
    ]
    labels = [arm_label(None, name) + f"<br>n = {len(mine)}" for name, mine in values.items()]
    ends = {name: [end([one.values[aim.name] for one in mine]) for end in (min, max)] for name, mine in values.items()}
    alt = "; ".join(
        f"{name}: {len(values[name])} trials, from {value_text(low, aim)} to {value_text(high, aim)}"
        for name, (low, high) in ends.items()
    )
    return [Figure(f"figure-spread-{_slug(aim)}", aim.name, data, lined(labels, _unit(aim)), alt)]


def fronts(trials: Sequence[TrialRecord], aims: Sequence[Objective]) -> list[Figure]:
    """Each further objective against the first: every complete trial, those of the front named and joined."""
    kept = set(front(trials, aims))
    return [_front(trials, aims[0], other, kept) for other in aims[1:] if kept]


def _front(trials: Sequence[TrialRecord], aim: Objective, other: Objective, kept: set[int]) -> Figure:
    told = [
        one
        for one in ended(trials, "complete")
        if not any(math.isnan(one.values.get(name, math.nan)) for name in (aim.name, other.name))
    ]
    first = sorted((one for one in told if one.number in kept), key=lambda one: one.values[other.name])
    rest = [one for one in told if one.number not in kept]

    def points(some: Sequence[TrialRecord], name: str, **more: Any) -> dict[str, Any]:
        x, y = ([_scaled(one.values[which.name], which) for one in some] for which in (other, aim))
        said = [f"{_said(one, aim)}; {other.name} {value_text(one.values[other.name], other)}" for one in some]
        return dots(x, y, said, name=name, **more)

    data = [
        points(rest, "other trials", marker={"size": 8, "color": BASELINE, "opacity": 0.6}),
        points(
            first,
            "front",
            mode="markers+text+lines",
            text=[str(one.number) for one in first],
            textposition="top center",
            line={"color": ARM, "width": 1, "dash": "dot"},
            marker={"size": 11, "color": ARM, "symbol": "diamond"},
        ),
    ]
    alt = "Front: " + "; ".join(
        f"trial {one.number}: {aim.name} {value_text(one.values[aim.name], aim)}, "
        f"{other.name} {value_text(one.values[other.name], other)}"
        for one in first
    )
    layout = plane(_titled(other), _titled(aim)) | LEGEND
    return Figure(f"figure-front-{_slug(other)}", f"{aim.name} against {other.name}", data, layout, alt)


def mattered(found: Sequence[Importance], aim: Objective) -> list[Figure]:
    """The shares of the parameters as bars, a figure for the study and one a technique."""
    return [_mattered(place, one, aim) for place, one in enumerate(found) if one.shares]


def _mattered(place: int, found: Importance, aim: Objective) -> Figure:
    shares = dict(list(found.shares.items())[:MANY])
    percents = [100 * share for share in shares.values()]
    said = [f"{name}: {100 * share:.1f} %" for name, share in shares.items()]
    data = bars(percents, ARM, said, text=[f"{share:.0f}" for share in percents], textposition="outside")
    start = "" if found.of is None else f"{found.of}."
    layout = lined([arm_label(None, name.removeprefix(start)) for name in shares], "share, %")
    layout["xaxis"] |= {"range": [0, 115], "tickvals": [0, 25, 50, 75, 100]}
    title = f"{'The whole study' if found.of is None else found.of}, {found.n} trials"
    return Figure(f"figure-mattered-{_slug(aim)}-{place}", title, [data], layout)


def spending(place: str, title: str, costs: Mapping[str, Cost]) -> list[Figure]:
    """LM calls made and saved as bars, a line a stage or technique."""
    costs = {name: cost for name, cost in costs.items() if cost.asked}
    if not costs:
        return []
    look = {"textposition": "inside", "textangle": 0}
    data = [
        bars(counts, colour, [f"{name}: {n} {what}" for name, n in zip(costs, counts, strict=True)], name=what, **look)
        for what, colour, counts in (
            ("made", MADE, [cost.calls for cost in costs.values()]),
            ("saved", SAVED, [cost.saved for cost in costs.values()]),
        )
    ]
    layout = lined([arm_label(None, name) for name in costs], "LM calls") | LEGEND
    layout |= {"barmode": "stack", "height": layout["height"] + 40}
    return [Figure(f"figure-spending-{place}", title, data, layout)]


def _said(record: TrialRecord, aim: Objective) -> str:
    found = f"trial {record.number}, {arm_name(record.arm)}: {shown(interval(record, aim), aim)}"
    if record.state == "pruned":
        found += f", pruned after {0 if record.dev is None else len(record.dev.rows)} questions"
    knobs = changed_knobs(record.arm)
    return found if knobs == "-" else f"{found}; {knobs}"


def _running_best(trials: Sequence[TrialRecord], aim: Objective) -> list[tuple[int, float]]:
    """The best value so far at the number of each complete trial."""
    steps = []
    numbered = sorted(ended(trials, "complete"), key=lambda one: one.number)
    for place, one in enumerate(numbered, 1):
        leader = best(numbered[:place], aim)
        if leader is not None:
            steps.append((one.number, leader.values[aim.name]))
    return steps


def _behind(left: float, right: float) -> dict[str, Any]:
    """A grey ground from left to right."""
    area = {"type": "rect", "x0": left, "x1": right, "y0": 0, "y1": 1, "yref": "paper"}
    return {**area, "layer": "below", "line": {"width": 0}, "fillcolor": "rgba(138,143,152,0.18)"}


def _scaled(value: float, aim: Objective) -> float:
    return 100 * value if aim.metrics else value


def _unit(aim: Objective) -> str:
    return "mean, %" if aim.metrics else aim.name


def _titled(aim: Objective) -> str:
    return f"{aim.name}{', %' if aim.metrics else ''} ({'more' if aim.direction == 'maximize' else 'less'} is better)"


def _slug(aim: Objective) -> str:
    """The objective as a part of an element's id."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "-" for letter in aim.name)
