"""The figures of reports, as plotly's own JSON; colours of text and lines are the page's."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from querywright.metrics.statistics import Mean, p_value
from querywright.optimize.comparison import Compared
from querywright.optimize.diagnosis import Diagnosis, Stage
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.results import Comparison
from querywright.optimize.significance import ALPHA
from querywright.optimize.tables import clean, percent

ARM, BASELINE, WIN, LOSS = "#3b82c4", "#8a8f98", "#15805f", "#c2500a"
COLOURS = ("#3b82c4", "#d1720b", "#15805f", "#a05fb4", "#b8860b", "#c2410c", "#5b7c99", "#7d8f2a")

STAGE_COLOURS: Mapping[Stage, str] = {
    Stage.RIGHT: "#15805f",
    Stage.NOT_INDEXED: "#a6761d",
    Stage.NOT_FOUND: "#c2500a",
    Stage.CUT: "#e6ab02",
    Stage.NOT_USED: "#80b1d3",
    Stage.MISREAD: "#7570b3",
    Stage.UNKNOWN: "#a0a4aa",
}

LEGEND: Mapping[str, Any] = {"showlegend": True, "margin": {"t": 44}}
"""What a layout has with a legend above the figure."""

LINE_HEIGHT = 46
"""Pixels an arm."""

LABEL = 20
"""Characters in a line of an arm's label."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and what is said about it.

    Args:
        id: Of its element.
        title: Stands above it.
        alt: What it shows, for those who do not see it.
        data: Traces as plotly takes them.
        layout: As plotly takes it.
    """

    id: str
    title: str
    alt: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]


def metrics_of(compared: Compared) -> list[str]:
    """The metrics that scored a question of some arm, in the order of the arms."""
    return list(dict.fromkeys(metric for arm in compared.arms for metric in arm.metrics))


def means(compared: Compared, part: str = "") -> list[Figure]:
    """Every arm's mean with its interval, a figure a metric.

    Args:
        compared: The arms.
        part: Stands at the end of the figures' ids, where a page shows several comparisons.
    """
    return [_means(f"figure-mean-{place}{part}", metric, compared) for place, metric in enumerate(metrics_of(compared))]


def differences(compared: Compared, part: str = "") -> list[Figure]:
    """Questions won and lost against the baseline, a figure a metric; see ``means``."""
    by_metric = {
        metric: [one for one in compared.comparisons if one.metric == metric] for metric in metrics_of(compared)
    }
    return [
        _differences(f"figure-difference-{place}{part}", metric, comparisons, compared)
        for place, (metric, comparisons) in enumerate(by_metric.items())
        if comparisons
    ]


def costs(compared: Compared) -> list[Figure]:
    """Score over LM calls a question, a figure a metric."""
    return [_costs(f"figure-cost-{place}", metric, compared) for place, metric in enumerate(metrics_of(compared))]


def stages(diagnosis: Diagnosis, labels: Sequence[str]) -> Figure:
    """What became of the questions of each arm, with closed book and oracle as lines.

    Args:
        diagnosis: Where answers are lost.
        labels: Of the arms, as ``arm_label`` makes them.
    """
    counts = {name: diagnosis.counts(name) for name in diagnosis.arms}
    asked = max((len(lost) for lost in diagnosis.arms.values()), default=0)
    data = []
    for stage in Stage:
        found = [one[stage] for one in counts.values()]
        if any(found):
            said = [f"{plain(name)}: {stage}, {one[stage]}" for name, one in counts.items()]
            shown = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
            data.append(bars(found, STAGE_COLOURS[stage], [str(count or "") for count in found], said, **shown))
    layout = lined(labels, "questions")
    layout["barmode"] = "stack"
    if asked <= 10:
        layout["xaxis"]["dtick"] = 1
    layout |= {"margin": {"t": 46}, "height": layout["height"] + 32}  # the names of the lines
    layout["shapes"] = [across(right) for _, right, _ in diagnosis.alone]
    layout["annotations"] = [
        {"x": right, "y": 1, "yref": "paper", "yanchor": "bottom", "yshift": 16 * place, "showarrow": False}
        | {"xanchor": "left" if right < asked / 2 else "right", "text": f"{name} {right}"}
        for place, (name, right, _) in enumerate(diagnosis.alone)
    ]
    alt = "; ".join(
        f"{name}: " + ", ".join(f"{stage} {one[stage]}" for stage in Stage if one[stage])
        for name, one in counts.items()
    )
    return Figure("figure-stages", "What became of the questions", alt, data, layout)


def lined(labels: Sequence[str], x_title: str) -> dict[str, Any]:
    """The layout of a figure with an arm a line; what all figures have in common stands in ``page.js``."""
    return {
        "height": 76 + LINE_HEIGHT * len(labels),
        "xaxis": {"title": {"text": x_title}},
        "yaxis": {
            "tickvals": list(range(len(labels))),
            "ticktext": list(labels),
            "range": [len(labels) - 0.5, -0.6],
            "showgrid": False,
            "ticklabelstandoff": 6,
        },
    }


def plane(x_title: str, y_title: str = "", height: int = 360) -> dict[str, Any]:
    """The layout of a figure with a number on either axis; ``height`` in pixels."""
    return {"height": height, "xaxis": {"title": {"text": x_title}}, "yaxis": {"title": {"text": y_title}}}


def across(x: float) -> dict[str, Any]:
    """A dotted line over all arms at x."""
    line = {"color": BASELINE, "width": 2, "dash": "dot"}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def bars(x: Sequence[float], colour: str, texts: Sequence[str], said: Sequence[str], **more: Any) -> dict[str, Any]:
    """A bar a line, with a text on it and another where the pointer is."""
    drawn = {"type": "bar", "orientation": "h", "marker": {"color": colour}, **more}
    return drawn | {"x": list(x), "y": list(range(len(x))), "text": list(texts), "customdata": list(said)}


def dots(x: Sequence[float], y: Sequence[float], said: Sequence[str], **more: Any) -> dict[str, Any]:
    """Points, with a text where the pointer is."""
    return {"type": "scatter", "mode": "markers", "x": list(x), "y": list(y), "customdata": list(said), **more}


def arm_label(number: int | None, name: str) -> str:
    """The arm's number and name in at most two lines."""
    shown = clean(name) if number is None else f"{number} {clean(name)}"
    first, *rest = textwrap.wrap(shown, LABEL) or [""]
    lines = [first, *rest[:1]] if len(rest) < 2 else [first, rest[0][: LABEL - 2] + " …"]
    return "<br>".join(escape(line, quote=False) for line in lines)


def plain(value: str) -> str:
    """Text in which plotly sees no markup, in lines for a hover label."""
    return "<br>".join(escape(line, quote=False) for line in textwrap.wrap(clean(value), 60))


def _means(id: str, metric: str, compared: Compared) -> Figure:
    found = [(line, arm, arm.mean(metric)) for line, arm in enumerate(compared.arms)]
    scored = [(line, arm, mean) for line, arm, mean in found if not math.isnan(mean.value)]
    data = dots(
        [100 * mean.value for _, _, mean in scored],
        [line for line, _, _ in scored],
        [plain(f"{arm.name}: {percent(mean)}") for _, arm, mean in scored],
        mode="markers+text",
        text=[f"{100 * mean.value:.1f}" for _, _, mean in scored],
        textposition="top center",
        marker=_markers([arm for _, arm, _ in scored], compared.baseline),
        error_x=_whiskers([mean for _, _, mean in scored]),
    )
    labels = [
        arm_label(number, arm.name) + ("<br>(baseline)" if arm.name == compared.baseline else "")
        for number, arm in enumerate(compared.arms, 1)
    ]
    layout = lined(labels, "mean, %")
    base = compared.arm(compared.baseline).mean(metric).value
    if not math.isnan(base):
        layout["shapes"] = [across(100 * base)]
    return Figure(id, metric, "; ".join(f"{arm.name}: {percent(mean)}" for _, arm, mean in found), [data], layout)


def _differences(id: str, metric: str, comparisons: Sequence[Comparison], compared: Compared) -> Figure:
    numbers = {arm.name: number for number, arm in enumerate(compared.arms, 1)}
    said = [plain(one.sentence) for one in comparisons]
    data = [
        bars(
            [sign * count for count in counts],
            colour,
            [str(count) for count in counts],
            said,
            textposition="outside",
            hovertemplate=f"{what}: %{{text}}<br>%{{customdata}}<extra></extra>",
        )
        for what, sign, colour, counts in (
            ("losses", -1, LOSS, [one.test.losses for one in comparisons]),
            ("wins", 1, WIN, [one.test.wins for one in comparisons]),
        )
    ]
    facts = [f"{_p(one)}, ties {one.test.ties}" for one in comparisons]
    labels = [
        arm_label(numbers[one.arm], one.arm) + f'<br><span style="font-size:11px">{plain(fact)}</span>'
        for one, fact in zip(comparisons, facts, strict=True)
    ]
    most = max(1, *(max(one.test.wins, one.test.losses) for one in comparisons))
    layout = lined(labels, "losses ◂   ▸ wins")
    layout["barmode"] = "relative"
    layout["xaxis"].update({"range": [-1.25 * most, 1.25 * most], "showticklabels": False, "showgrid": False})
    alt = "; ".join(
        f"{one.arm}: wins {one.test.wins}, losses {one.test.losses}, {fact}"
        for one, fact in zip(comparisons, facts, strict=True)
    )
    return Figure(id, metric, alt, data, layout)


def _costs(id: str, metric: str, compared: Compared) -> Figure:
    points: dict[tuple[float, float], list[tuple[int, Evaluation, str]]] = {}
    for number, arm in enumerate(compared.arms, 1):
        mean = arm.mean(metric)
        if not math.isnan(mean.value):
            calls = arm.cost.asked / max(1, len(arm.rows))
            said = f"{arm.name}: {calls:.1f} calls, {percent(mean)}"
            points.setdefault((calls, 100 * mean.value), []).append((number, arm, said))
    points = dict(sorted(points.items()))
    here = list(points.values())
    data = dots(
        [x for x, _ in points],
        [y for _, y in points],
        ["<br>".join(plain(said) for _, _, said in arms) for arms in here],
        mode="markers+text",
        text=[", ".join(str(number) for number, _, _ in arms) for arms in here],
        textposition=["middle left" if n % 2 else "middle right" for n in range(len(points))],
        marker=_markers([arms[0][1] for arms in here], compared.baseline),
    )
    layout = plane("LM calls a question", "mean, %", 320)
    layout["xaxis"]["rangemode"] = "tozero"
    alt = "; ".join(f"{number} {said}" for arms in here for number, _, said in arms)
    return Figure(id, metric, alt, [data], layout)


def _markers(arms: Sequence[Evaluation], baseline: str) -> dict[str, Any]:
    base = [arm.name == baseline for arm in arms]
    return {
        "size": 11,
        "symbol": ["diamond" if one else "circle" for one in base],
        "color": [BASELINE if one else ARM for one in base],
    }


def _whiskers(found: Sequence[Mean]) -> dict[str, Any]:
    """The intervals as error bars; none where there is no interval."""
    up, down = (
        [0.0 if math.isnan(end) else 100 * abs(mean.value - end) for mean, end in ends]
        for ends in ([(mean, mean.high) for mean in found], [(mean, mean.low) for mean in found])
    )
    look = {"color": BASELINE, "thickness": 1.5, "width": 4}
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}


def _p(one: Comparison) -> str:
    return p_value(one.test.p_two_sided, ALPHA) if one.test.n else "nothing scored for both"
