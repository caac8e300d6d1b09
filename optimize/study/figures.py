"""The figures of a study's report; their frame is that of a comparison's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from querywright.metrics.statistics import Mean
from querywright.models.usage import Cost
from querywright.optimize.html_figures import ARM, BASELINE, Panel, arm_label, drawn, lined, plain
from querywright.optimize.study.importance import Importance
from querywright.optimize.study.status import Aim, arm_name, best, changed_knobs, ended, front, interval, of_technique
from querywright.optimize.study.tables import shown
from querywright.optimize.study.types import TrialRecord

COLOURS = ("#3b82c4", "#d1720b", "#15805f", "#a05fb4", "#b8860b", "#c2410c", "#5b7c99", "#7d8f2a")
SYMBOLS = ("circle", "square", "triangle-up", "cross", "star", "hexagon", "pentagon", "triangle-down")
MADE, SAVED = "#3b82c4", "#a8c5de"
MANY = 12
"""Parameters that are drawn, the greatest first."""


def course(trials: Sequence[TrialRecord], aim: Aim, techniques: Sequence[str]) -> Panel | None:
    """Value by the number of the trial, the best so far as a line; late trials stand on grey, crosses were pruned."""
    import plotly.graph_objects as go

    told = [one for one in ended(trials, "complete", "pruned") if not math.isnan(_met(one, aim).value)]
    if not told:
        return None
    traces = []
    for name, colour, symbol in zip(techniques, cycle(COLOURS), cycle(SYMBOLS), strict=False):
        mine = of_technique(told, name)
        if not mine:
            continue
        pruned = [one.state == "pruned" for one in mine]
        marker = {"size": 9, "color": colour, "symbol": ["x-thin-open" if one else symbol for one in pruned]}
        marker["line"] = {"width": [2 if one else 0 for one in pruned], "color": colour}
        traces.append(
            go.Scatter(
                x=[one.number for one in mine],
                y=[_scaled(_met(one, aim).value, aim) for one in mine],
                mode="markers",
                name=plain(name),
                cliponaxis=False,
                marker=marker,
                customdata=[plain(_said(one, aim)) for one in mine],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    steps = _running_best(trials, aim)
    traces.append(
        go.Scatter(
            x=[number for number, _ in steps],
            y=[_scaled(value, aim) for _, value in steps],
            mode="lines",
            name="best so far",
            line={"shape": "hv", "color": BASELINE, "width": 2},
            hoverinfo="skip",
        )
    )
    layout = _plane("trial", _unit(aim))
    _legend(layout)
    late = [one.number for one in trials if one.late]
    if late:
        layout["shapes"] = [_behind(min(late) - 0.5, max(one.number for one in trials) + 0.5)]
    pruned_numbers = [str(one.number) for one in told if one.state == "pruned"]
    alt = (
        f"{len(told)} trials. Best so far: "
        + "; ".join(f"trial {number} {_number(value, aim)}" for number, value in _leaps(steps))
        + (f". Pruned: {', '.join(pruned_numbers)}" if pruned_numbers else "")
        + (f". Late from trial {min(late)}" if late else "")
    )
    return Panel(f"figure-course-{_slug(aim)}", f"{aim.name} by trial", alt, drawn(traces, layout))


def spread(trials: Sequence[TrialRecord], aim: Aim, techniques: Sequence[str]) -> Panel | None:
    """The values of each technique's complete trials: every one as a dot, and their quartiles as a box."""
    import plotly.graph_objects as go

    values = {}
    for name in techniques:
        mine = of_technique(ended(trials, "complete"), name)
        kept = [one for one in mine if not math.isnan(one.values.get(aim.name, math.nan))]
        if kept:
            values[name] = kept
    if not values:
        return None
    boxes = [
        go.Box(
            x=[_scaled(one.values[aim.name], aim) for one in mine],
            y=[line] * len(mine),
            orientation="h",
            boxpoints="all",
            jitter=0.5,
            pointpos=0,
            whiskerwidth=0.4,
            width=0.55,
            fillcolor="rgba(0,0,0,0)",
            line={"color": BASELINE, "width": 1},
            marker={"color": colour, "size": 7, "opacity": 0.75},
            customdata=[plain(_said(one, aim)) for one in mine],
            hovertemplate="%{customdata}<extra></extra>",
            hoveron="points",
        )
        for line, (mine, colour) in enumerate(zip(values.values(), cycle(COLOURS), strict=False))
    ]
    labels = [arm_label(None, name) + f"<br>n = {len(mine)}" for name, mine in values.items()]
    alt = "; ".join(
        f"{name}: {len(mine)} trials, from {_number(low, aim)} to {_number(high, aim)}"
        for name, mine in values.items()
        for low, high in [_ends([one.values[aim.name] for one in mine])]
    )
    return Panel(f"figure-spread-{_slug(aim)}", aim.name, alt, drawn(boxes, lined(labels, _unit(aim))))


def fronts(trials: Sequence[TrialRecord], aims: Sequence[Aim]) -> list[Panel]:
    """Each further objective against the first: every complete trial, those of the front named and joined."""
    kept = set(front(trials, {aim.name: aim.direction for aim in aims}))
    return [_front(trials, aims[0], other, kept) for other in aims[1:] if kept]


def _front(trials: Sequence[TrialRecord], aim: Aim, other: Aim, kept: set[int]) -> Panel:
    import plotly.graph_objects as go

    told = [
        one
        for one in ended(trials, "complete")
        if not any(math.isnan(one.values.get(name, math.nan)) for name in (aim.name, other.name))
    ]
    first = sorted((one for one in told if one.number in kept), key=lambda one: one.values[other.name])
    rest = [one for one in told if one.number not in kept]

    def dots(trials: Sequence[TrialRecord], name: str, **more: Any) -> Any:
        return go.Scatter(
            x=[_scaled(one.values[other.name], other) for one in trials],
            y=[_scaled(one.values[aim.name], aim) for one in trials],
            name=name,
            cliponaxis=False,
            customdata=[plain(f"{_said(one, aim)}; {other.name} {_number(one.values[other.name], other)}")
                        for one in trials],
            hovertemplate="%{customdata}<extra></extra>",
            **more,
        )  # fmt: skip

    traces = [
        dots(rest, "other trials", mode="markers", marker={"size": 8, "color": BASELINE, "opacity": 0.6}),
        dots(
            first,
            "front",
            mode="markers+text+lines",
            text=[str(one.number) for one in first],
            textposition="top center",
            line={"color": ARM, "width": 1, "dash": "dot"},
            marker={"size": 11, "color": ARM, "symbol": "diamond"},
        ),
    ]
    layout = _plane(_titled(other), _titled(aim))
    _legend(layout)
    alt = "Front: " + "; ".join(
        f"trial {one.number}: {aim.name} {_number(one.values[aim.name], aim)}, "
        f"{other.name} {_number(one.values[other.name], other)}"
        for one in first
    )
    return Panel(f"figure-front-{_slug(other)}", f"{aim.name} against {other.name}", alt, drawn(traces, layout))


def mattered(found: Sequence[Importance], aim: Aim) -> list[Panel]:
    """The shares of the parameters as bars, a panel for the study and one a technique."""
    return [_mattered(place, one, aim) for place, one in enumerate(found) if one.shares]


def _mattered(place: int, found: Importance, aim: Aim) -> Panel:
    import plotly.graph_objects as go

    shares = dict(list(found.shares.items())[:MANY])
    bar = go.Bar(
        x=[100 * share for share in shares.values()],
        y=list(range(len(shares))),
        orientation="h",
        marker={"color": ARM},
        text=[f"{100 * share:.0f}" for share in shares.values()],
        textposition="outside",
        cliponaxis=False,
        customdata=[plain(f"{name}: {100 * share:.1f} %") for name, share in shares.items()],
        hovertemplate="%{customdata}<extra></extra>",
    )
    start = "" if found.of is None else f"{found.of}."
    layout = lined([arm_label(None, name.removeprefix(start)) for name in shares], "share, %")
    layout["xaxis"].update({"range": [0, 115], "tickvals": [0, 25, 50, 75, 100]})
    title = ("The whole study" if found.of is None else found.of) + f", {found.n} trials"
    alt = f"{aim.name}: " + "; ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
    return Panel(f"figure-mattered-{_slug(aim)}-{place}", title, alt, drawn([bar], layout))


def spending(place: str, title: str, costs: Mapping[str, Cost]) -> Panel | None:
    """LM calls made and saved as bars, a line a stage or technique."""
    import plotly.graph_objects as go

    costs = {name: cost for name, cost in costs.items() if cost.asked}
    if not costs:
        return None

    def bar(what: str, counts: list[int], colour: str) -> Any:
        return go.Bar(
            x=counts,
            y=list(range(len(counts))),
            orientation="h",
            name=what,
            marker={"color": colour},
            text=[str(count) if count else "" for count in counts],
            textposition="inside",
            textangle=0,
            customdata=[plain(f"{name}: {count} {what}") for name, count in zip(costs, counts, strict=True)],
            hovertemplate="%{customdata}<extra></extra>",
        )

    bars = [
        bar("made", [cost.calls for cost in costs.values()], MADE),
        bar("saved", [cost.saved for cost in costs.values()], SAVED),
    ]
    layout = lined([arm_label(None, name) for name in costs], "LM calls")
    layout["barmode"] = "stack"
    _legend(layout)
    layout["legend"]["traceorder"] = "normal"
    layout["height"] += 40
    alt = "; ".join(f"{name}: {cost.calls} made, {cost.saved} saved" for name, cost in costs.items())
    return Panel(f"figure-spending-{place}", title, alt, drawn(bars, layout))


def _met(record: TrialRecord, aim: Aim) -> Mean:
    """A trial's value; of a pruned one that on the questions which it met."""
    return interval(record, aim)


def _said(record: TrialRecord, aim: Aim) -> str:
    found = f"trial {record.number}, {arm_name(record.arm)}: {shown(_met(record, aim), aim)}"
    if record.state == "pruned":
        found += f", pruned after {0 if record.dev is None else len(record.dev.rows)} questions"
    knobs = changed_knobs(record.arm)
    return found if knobs == "-" else f"{found}; {knobs}"


def _running_best(trials: Sequence[TrialRecord], aim: Aim) -> list[tuple[int, float]]:
    """The best value so far at the number of each complete trial."""
    steps = []
    numbered = sorted(ended(trials, "complete"), key=lambda one: one.number)
    for place, one in enumerate(numbered, 1):
        leader = best(numbered[:place], aim)
        if leader is not None:
            steps.append((one.number, leader.values[aim.name]))
    return steps


def _leaps(steps: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    return [step for place, step in enumerate(steps) if place == 0 or step[1] != steps[place - 1][1]]


def _plane(x_title: str, y_title: str) -> dict[str, Any]:
    layout = lined([], x_title)
    layout["height"] = 360
    layout["yaxis"] = {"title": {"text": y_title}, "fixedrange": True, "zeroline": False, "automargin": True}
    return layout


def _legend(layout: dict[str, Any]) -> None:
    layout["showlegend"] = True
    layout["legend"] = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"}
    layout["margin"]["t"] += 30


def _behind(left: float, right: float) -> dict[str, Any]:
    return {
        "type": "rect",
        "x0": left,
        "x1": right,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "layer": "below",
        "line": {"width": 0},
        "fillcolor": "rgba(138,143,152,0.18)",
    }


def _scaled(value: float, aim: Aim) -> float:
    return 100 * value if aim.metrics else value


def _number(value: float, aim: Aim) -> str:
    return f"{100 * value:.1f} %" if aim.metrics else f"{value:.4g}"


def _unit(aim: Aim) -> str:
    return "mean, %" if aim.metrics else aim.name


def _titled(aim: Aim) -> str:
    return f"{aim.name}{', %' if aim.metrics else ''} ({'more' if aim.direction == 'maximize' else 'less'} is better)"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _slug(aim: Aim) -> str:
    """The objective as a part of an element's id."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "-" for letter in aim.name)
