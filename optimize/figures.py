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

LEGEND: dict[str, Any] = {"showlegend": True, "margin": {"t": 44}}
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
        data: Traces as plotly takes them; their names, and what is said where the pointer is, as plain text.
        layout: As plotly takes it.
        summary: What it shows, for those who do not see it. Default all that is said where the pointer is.
    """

    id: str
    title: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    summary: str = ""

    @property
    def alt(self) -> str:
        """What it shows, for those who do not see it."""
        return self.summary or "; ".join(said for trace in self.data for said in trace.get("customdata", ()))

    @property
    def drawn(self) -> dict[str, Any]:
        """What plotly is given; nothing in a text is markup to it."""
        data = [
            {**one, **({"name": _plain(one["name"])} if "name" in one else {})}
            | ({"customdata": [_plain(said) for said in one["customdata"]]} if "customdata" in one else {})
            for one in self.data
        ]
        return {"data": data, "layout": self.layout}


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
    look = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    data = [
        bars(found, STAGE_COLOURS[stage], [f"{name}: {stage}, {one[stage]}" for name, one in counts.items()], **look)
        for stage in Stage
        if any(found := [one[stage] for one in counts.values()])
    ]
    layout = lined(labels, "questions")
    layout |= {"barmode": "stack", "margin": {"t": 46}, "height": layout["height"] + 32}  # the names of the lines
    if asked <= 10:
        layout["xaxis"]["dtick"] = 1
    layout["shapes"] = [across(right) for _, right, _ in diagnosis.alone]
    layout["annotations"] = [
        {"x": right, "y": 1, "yref": "paper", "yanchor": "bottom", "yshift": 16 * place, "showarrow": False}
        | {"xanchor": "left" if right < asked / 2 else "right", "text": f"{name} {right}"}
        for place, (name, right, _) in enumerate(diagnosis.alone)
    ]
    return Figure("figure-stages", "What became of the questions", data, layout)


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


def bars(x: Sequence[float], colour: str, said: Sequence[str], **more: Any) -> dict[str, Any]:
    """A bar a line, with its length on it and a text where the pointer is."""
    text = {"text": [f"{abs(length):.0f}" if length else "" for length in x], "customdata": list(said)}
    place = {"x": list(x), "y": list(range(len(x))), "orientation": "h"}
    return {"type": "bar", "marker": {"color": colour}, **place, **text, **more}


def dots(x: Sequence[float], y: Sequence[float], said: Sequence[str], **more: Any) -> dict[str, Any]:
    """Points, with a text where the pointer is."""
    return {"type": "scatter", "mode": "markers", "x": list(x), "y": list(y), "customdata": list(said), **more}


def arm_label(number: int | None, name: str) -> str:
    """The arm's number and name in at most two lines."""
    shown = clean(name) if number is None else f"{number} {clean(name)}"
    first, *rest = textwrap.wrap(shown, LABEL) or [""]
    lines = [first, *rest[:1]] if len(rest) < 2 else [first, rest[0][: LABEL - 2] + " …"]
    return "<br>".join(escape(line, quote=False) for line in lines)


def _plain(value: str) -> str:
    """Text in which plotly sees no markup, in lines for a hover label."""
    return "<br>".join(escape(line, quote=False) for line in textwrap.wrap(clean(value), 60))


def _means(id: str, metric: str, compared: Compared) -> Figure:
    means = [arm.mean(metric) for arm in compared.arms]
    lines = [line for line, mean in enumerate(means) if not math.isnan(mean.value)]
    scored = [means[line] for line in lines]
    data = dots(
        [100 * mean.value for mean in scored],
        lines,
        [f"{compared.arms[line].name}: {percent(means[line])}" for line in lines],
        mode="markers+text",
        text=[f"{100 * mean.value:.1f}" for mean in scored],
        textposition="top center",
        marker=_markers([compared.arms[line] for line in lines], compared.baseline),
        error_x={
            "type": "data",
            "symmetric": False,
            "color": BASELINE,
            "thickness": 1.5,
            "width": 4,
            "array": [_whisker(mean, mean.high) for mean in scored],
            "arrayminus": [_whisker(mean, mean.low) for mean in scored],
        },
    )
    labels = [
        arm_label(number, arm.name) + ("<br>(baseline)" if arm.name == compared.baseline else "")
        for number, arm in enumerate(compared.arms, 1)
    ]
    base = compared.arm(compared.baseline).mean(metric).value
    layout = lined(labels, "mean, %") | {"shapes": [] if math.isnan(base) else [across(100 * base)]}
    return Figure(id, metric, [data], layout)


def _differences(id: str, metric: str, comparisons: Sequence[Comparison], compared: Compared) -> Figure:
    numbers = {arm.name: number for number, arm in enumerate(compared.arms, 1)}
    wins, losses = ([getattr(one.test, what) for one in comparisons] for what in ("wins", "losses"))
    data = [
        bars(
            x,
            colour,
            [one.sentence for one in comparisons],
            text=[str(abs(count)) for count in x],
            textposition="outside",
            hovertemplate=f"{what}: %{{text}}<br>%{{customdata}}<extra></extra>",
        )
        for what, colour, x in (("losses", LOSS, [-count for count in losses]), ("wins", WIN, wins))
    ]
    facts = [f"{_p(one)}, ties {one.test.ties}" for one in comparisons]
    labels = [
        f'{arm_label(numbers[one.arm], one.arm)}<br><span style="font-size:11px">{fact}</span>'
        for one, fact in zip(comparisons, facts, strict=True)
    ]
    most = 1.25 * max(1, *wins, *losses)
    layout: dict[str, Any] = {**lined(labels, "losses ◂   ▸ wins"), "barmode": "relative"}
    layout["xaxis"] |= {"range": [-most, most], "showticklabels": False, "showgrid": False}
    summary = "; ".join(
        f"{one.arm}: wins {one.test.wins}, losses {one.test.losses}, {fact}"
        for one, fact in zip(comparisons, facts, strict=True)
    )
    return Figure(id, metric, data, layout, summary)


def _costs(id: str, metric: str, compared: Compared) -> Figure:
    points: dict[tuple[float, float], list[tuple[int, Evaluation, str]]] = {}
    for number, arm in enumerate(compared.arms, 1):
        mean = arm.mean(metric)
        if not math.isnan(mean.value):
            calls = arm.cost.asked / max(1, len(arm.rows))
            said = f"{number} {arm.name}: {calls:.1f} calls, {percent(mean)}"
            points.setdefault((calls, 100 * mean.value), []).append((number, arm, said))
    found = sorted(points.items(), key=lambda one: one[0])
    data = dots(
        [x for (x, _), _ in found],
        [y for (_, y), _ in found],
        ["; ".join(said for _, _, said in arms) for _, arms in found],
        mode="markers+text",
        text=[", ".join(str(number) for number, _, _ in arms) for _, arms in found],
        textposition=["middle left" if n % 2 else "middle right" for n in range(len(found))],
        marker=_markers([arms[0][1] for _, arms in found], compared.baseline),
    )
    layout = plane("LM calls a question", "mean, %", 320)
    layout["xaxis"]["rangemode"] = "tozero"
    return Figure(id, metric, [data], layout)


def _markers(arms: Sequence[Evaluation], baseline: str) -> dict[str, Any]:
    base = [arm.name == baseline for arm in arms]
    return {
        "size": 11,
        "symbol": ["diamond" if one else "circle" for one in base],
        "color": [BASELINE if one else ARM for one in base],
    }


def _whisker(mean: Mean, end: float) -> float:
    """From the mean to an end of its interval, in per cent; 0 where there is no interval."""
    return 0.0 if math.isnan(end) else 100 * abs(mean.value - end)


def _p(one: Comparison) -> str:
    return p_value(one.test.p_two_sided, ALPHA) if one.test.n else "nothing scored for both"
