"""The figures of reports, as plotly's own JSON; colours of text and lines are the page's."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from querywright.metrics.statistics import p_value
from querywright.optimize.comparison import Compared
from querywright.optimize.diagnosis import Diagnosis, Stage
from querywright.optimize.evaluate import Evaluation
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
    """A figure, as plotly takes it, and what is said about it.

    Names of traces, and what is said where the pointer is, are plain text. The summary is for those who do not see it;
    by default it is all that is said where the pointer is.
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
    """Every arm's mean with its interval, a figure a metric; ``part`` ends their ids, where a page has several."""
    figures = []
    for place, metric in enumerate(metrics_of(compared)):
        told = [(line, arm, arm.mean(metric)) for line, arm in enumerate(compared.arms)]
        scored = [one for one in told if not math.isnan(one[2].value)]
        whiskers = {
            name: [0.0 if math.isnan(mean.low) else 100 * abs(mean.value - getattr(mean, end)) for *_, mean in scored]
            for name, end in (("array", "high"), ("arrayminus", "low"))
        }
        data = dots(
            [100 * mean.value for *_, mean in scored],
            [line for line, *_ in scored],
            [f"{arm.name}: {percent(mean)}" for _, arm, mean in scored],
            mode="markers+text",
            text=[f"{100 * mean.value:.1f}" for *_, mean in scored],
            textposition="top center",
            marker=_markers([arm for _, arm, _ in scored], compared.baseline),
            error_x={"type": "data", "symmetric": False, "color": BASELINE, "thickness": 1.5, "width": 4, **whiskers},
        )
        labels = [
            arm_label(line + 1, arm.name) + ("<br>(baseline)" if arm.name == compared.baseline else "")
            for line, arm, _ in told
        ]
        base = compared.arm(compared.baseline).mean(metric).value
        layout = lined(labels, "mean, %") | {"shapes": [] if math.isnan(base) else [across(100 * base)]}
        figures.append(Figure(f"figure-mean-{place}{part}", metric, [data], layout))
    return figures


def differences(compared: Compared, part: str = "") -> list[Figure]:
    """Questions won and lost against the baseline, a figure a metric; see ``means``."""
    numbers = {arm.name: number for number, arm in enumerate(compared.arms, 1)}
    figures = []
    for place, metric in enumerate(metrics_of(compared)):
        held = [one for one in compared.comparisons if one.metric == metric]
        if not held:
            continue
        wins, losses = [one.test.wins for one in held], [one.test.losses for one in held]
        data = [
            bars(
                x,
                colour,
                [one.sentence for one in held],
                text=[str(abs(count)) for count in x],
                textposition="outside",
                hovertemplate=f"{what}: %{{text}}<br>%{{customdata}}<extra></extra>",
            )
            for what, colour, x in (("losses", LOSS, [-count for count in losses]), ("wins", WIN, wins))
        ]
        p = [p_value(one.test.p_two_sided, ALPHA) if one.test.n else "nothing scored for both" for one in held]
        one_sided = [f", one-sided {p_value(one.test.p_one_sided, ALPHA)}" if one.test.n else "" for one in held]
        facts = [f"{a}{b}, ties {one.test.ties}" for a, b, one in zip(p, one_sided, held, strict=True)]
        labels = [
            f'{arm_label(numbers[one.arm], one.arm)}<br><span style="font-size:11px">{fact}</span>'
            for one, fact in zip(held, facts, strict=True)
        ]
        most = 1.25 * max(1, *wins, *losses)
        layout: dict[str, Any] = {**lined(labels, "losses ◂   ▸ wins"), "barmode": "relative"}
        layout["xaxis"] |= {"range": [-most, most], "showticklabels": False, "showgrid": False}
        summary = "; ".join(
            f"{one.arm}: wins {one.test.wins}, losses {one.test.losses}, {fact}"
            for one, fact in zip(held, facts, strict=True)
        )
        figures.append(Figure(f"figure-difference-{place}{part}", metric, data, layout, summary))
    return figures


def costs(compared: Compared) -> list[Figure]:
    """Score over LM calls a question, a figure a metric; arms at the same place are one point."""
    figures = []
    for place, metric in enumerate(metrics_of(compared)):
        points: dict[tuple[float, float], list[tuple[int, Evaluation]]] = {}
        for number, arm in enumerate(compared.arms, 1):
            if not math.isnan(value := arm.mean(metric).value):
                points.setdefault((arm.calls_a_question, 100 * value), []).append((number, arm))
        found = sorted(points.items(), key=lambda one: one[0])
        data = dots(
            [x for (x, _), _ in found],
            [y for (_, y), _ in found],
            [
                "; ".join(f"{number} {arm.name}: {x:.1f} calls, {percent(arm.mean(metric))}" for number, arm in arms)
                for (x, _), arms in found
            ],
            mode="markers+text",
            text=[", ".join(str(number) for number, _ in arms) for _, arms in found],
            textposition=["middle left" if n % 2 else "middle right" for n in range(len(found))],
            marker=_markers([arms[0][1] for _, arms in found], compared.baseline),
        )
        layout = plane("LM calls a question", "mean, %", 320)
        layout["xaxis"]["rangemode"] = "tozero"
        figures.append(Figure(f"figure-cost-{place}", metric, [data], layout))
    return figures


def stages(compared: Compared, diagnosis: Diagnosis) -> Figure:
    """What became of the questions of each arm, with closed book and oracle as lines."""
    labels = [arm_label(number, one.name) for number, one in enumerate(compared.arms, 1) if one.name in diagnosis.arms]
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


def _markers(arms: Sequence[Evaluation], baseline: str) -> dict[str, Any]:
    base = [arm.name == baseline for arm in arms]
    return {
        "size": 11,
        "symbol": ["diamond" if one else "circle" for one in base],
        "color": [BASELINE if one else ARM for one in base],
    }
