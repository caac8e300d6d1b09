"""The figures of the report, as plotly draws them; colours of text and lines are the page's."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from querywright.metrics.statistics import Mean, p_value
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.html_text import clean, text
from querywright.optimize.report import percent
from querywright.optimize.results import Comparison
from querywright.optimize.significance import ALPHA

ARM, BASELINE, WIN, LOSS = "#3b82c4", "#8a8f98", "#15805f", "#c2500a"

LINE_HEIGHT = 46
"""Pixels an arm."""

LABEL = 20
"""Characters in a line of an arm's label."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure and what is said about it.

    Args:
        id: Of its element.
        title: Stands above it.
        alt: What it shows, for those who do not see it.
        figure: Data and layout.
    """

    id: str
    title: str
    alt: str
    figure: dict[str, Any]

    def html(self) -> str:
        """The element that it is drawn in."""
        shown = text(f"{self.title}. {self.alt}")
        return (
            f"<figure><figcaption>{text(self.title)}</figcaption>"
            f'<div id="{self.id}" class="figure" role="img" aria-label="{shown}"></div></figure>'
        )


def metrics_of(compared: Compared) -> list[str]:
    """The metrics that scored a question of some arm, in the order of the arms."""
    return list(dict.fromkeys(metric for arm in compared.arms for metric in arm.metrics))


def means(compared: Compared) -> list[Panel]:
    """Every arm's mean with its interval, a panel a metric."""
    return [_means(place, metric, compared) for place, metric in enumerate(metrics_of(compared))]


def differences(compared: Compared) -> list[Panel]:
    """Questions won and lost against the baseline, a panel a metric."""
    by_metric = {
        metric: [one for one in compared.comparisons if one.metric == metric] for metric in metrics_of(compared)
    }
    return [
        _differences(place, metric, comparisons, compared)
        for place, (metric, comparisons) in enumerate(by_metric.items())
        if comparisons
    ]


def costs(compared: Compared) -> list[Panel]:
    """Score over LM calls a question, a panel a metric."""
    return [_costs(place, metric, compared) for place, metric in enumerate(metrics_of(compared))]


def lined(labels: Sequence[str], x_title: str) -> dict[str, Any]:
    """The layout of a figure with an arm a line."""
    return {
        "template": "none",
        "height": 76 + LINE_HEIGHT * len(labels),
        "margin": {"l": 10, "r": 28, "t": 14, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "showlegend": False,
        "dragmode": False,
        "hovermode": "closest",
        "xaxis": {"title": {"text": x_title}, "fixedrange": True, "zeroline": False, "automargin": True},
        "yaxis": {
            "tickvals": list(range(len(labels))),
            "ticktext": list(labels),
            "range": [len(labels) - 0.5, -0.6],
            "fixedrange": True,
            "zeroline": False,
            "showgrid": False,
            "automargin": True,
            "ticklabelstandoff": 6,
        },
    }


def across(x: float) -> dict[str, Any]:
    """A dotted line over all arms at x."""
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": BASELINE, "width": 2, "dash": "dot"},
    }


def arm_label(number: int | None, name: str) -> str:
    """The arm's number and name in at most two lines."""
    shown = clean(name) if number is None else f"{number} {clean(name)}"
    first, *rest = textwrap.wrap(shown, LABEL) or [""]
    lines = [first, *rest[:1]] if len(rest) < 2 else [first, rest[0][: LABEL - 2] + " …"]
    return "<br>".join(escape(line, quote=False) for line in lines)


def plain(value: str) -> str:
    """Text in which plotly sees no markup, in lines for a hover label."""
    return "<br>".join(escape(line, quote=False) for line in textwrap.wrap(clean(value), 60))


def drawn(data: Sequence[Any], layout: dict[str, Any]) -> dict[str, Any]:
    """Data and layout, checked by plotly, as plain data."""
    import plotly.graph_objects as go

    return dict(go.Figure(data=list(data), layout=layout).to_plotly_json())


def _means(place: int, metric: str, compared: Compared) -> Panel:
    import plotly.graph_objects as go

    found = [(line, arm, arm.mean(metric)) for line, arm in enumerate(compared.arms)]
    scored = [(line, arm, mean) for line, arm, mean in found if not math.isnan(mean.value)]
    dots = go.Scatter(
        x=[100 * mean.value for _, _, mean in scored],
        y=[line for line, _, _ in scored],
        mode="markers+text",
        text=[f"{100 * mean.value:.1f}" for _, _, mean in scored],
        textposition="top center",
        cliponaxis=False,
        marker=_markers([arm for _, arm, _ in scored], compared.baseline),
        error_x=_whiskers([mean for _, _, mean in scored]),
        customdata=[plain(f"{arm.name}: {percent(mean)}") for _, arm, mean in scored],
        hovertemplate="%{customdata}<extra></extra>",
    )
    layout = lined(_labels(compared), "mean, %")
    base = compared.arm(compared.baseline).mean(metric).value
    if not math.isnan(base):
        layout["shapes"] = [across(100 * base)]
    alt = "; ".join(f"{arm.name}: {percent(mean)}" for _, arm, mean in found)
    return Panel(f"figure-mean-{place}", metric, alt, drawn([dots], layout))


def _differences(place: int, metric: str, comparisons: Sequence[Comparison], compared: Compared) -> Panel:
    import plotly.graph_objects as go

    numbers = {arm.name: number for number, arm in enumerate(compared.arms, 1)}
    tests = [one.test for one in comparisons]

    def bar(counts: list[int], sign: int, what: str, colour: str) -> Any:
        return go.Bar(
            x=[sign * count for count in counts],
            y=list(range(len(counts))),
            orientation="h",
            marker={"color": colour},
            text=[str(count) for count in counts],
            textposition="outside",
            cliponaxis=False,
            customdata=[plain(one.sentence) for one in comparisons],
            hovertemplate=f"{what}: %{{text}}<br>%{{customdata}}<extra></extra>",
        )

    bars = [
        bar([test.losses for test in tests], -1, "losses", LOSS),
        bar([test.wins for test in tests], 1, "wins", WIN),
    ]
    facts = [f"{_p(one)}, ties {one.test.ties}" for one in comparisons]
    labels = [
        arm_label(numbers[one.arm], one.arm) + f'<br><span style="font-size:11px">{plain(fact)}</span>'
        for one, fact in zip(comparisons, facts, strict=True)
    ]
    most = max(1, *(max(test.wins, test.losses) for test in tests))
    layout = lined(labels, "losses ◂   ▸ wins")
    layout["barmode"] = "relative"
    layout["xaxis"].update({"range": [-1.25 * most, 1.25 * most], "showticklabels": False, "showgrid": False})
    alt = "; ".join(
        f"{one.arm}: wins {one.test.wins}, losses {one.test.losses}, {fact}"
        for one, fact in zip(comparisons, facts, strict=True)
    )
    return Panel(f"figure-difference-{place}", metric, alt, drawn(bars, layout))


def _costs(place: int, metric: str, compared: Compared) -> Panel:
    import plotly.graph_objects as go

    points: dict[tuple[float, float], list[tuple[int, Evaluation, str]]] = {}
    for number, arm in enumerate(compared.arms, 1):
        mean = arm.mean(metric)
        if not math.isnan(mean.value):
            calls = arm.cost.asked / max(1, len(arm.rows))
            said = f"{arm.name}: {calls:.1f} calls, {percent(mean)}"
            points.setdefault((calls, 100 * mean.value), []).append((number, arm, said))
    points = dict(sorted(points.items()))
    here = list(points.values())
    dots = go.Scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        mode="markers+text",
        text=[", ".join(str(number) for number, _, _ in arms) for arms in here],
        textposition=["middle left" if n % 2 else "middle right" for n in range(len(points))],
        cliponaxis=False,
        marker=_markers([arms[0][1] for arms in here], compared.baseline),
        customdata=["<br>".join(plain(said) for _, _, said in arms) for arms in here],
        hovertemplate="%{customdata}<extra></extra>",
    )
    layout = lined([], "LM calls a question")
    layout["height"] = 320
    layout["xaxis"]["rangemode"] = "tozero"
    layout["yaxis"] = {"title": {"text": "mean, %"}, "fixedrange": True, "zeroline": False, "automargin": True}
    alt = "; ".join(f"{number} {said}" for arms in here for number, _, said in arms)
    return Panel(f"figure-cost-{place}", metric, alt, drawn([dots], layout))


def _markers(arms: Sequence[Evaluation], baseline: str) -> dict[str, Any]:
    base = [arm.name == baseline for arm in arms]
    return {
        "size": 11,
        "symbol": ["diamond" if one else "circle" for one in base],
        "color": [BASELINE if one else ARM for one in base],
    }


def _whiskers(found: Sequence[Mean]) -> dict[str, Any]:
    """The intervals as error bars; none where there is no interval."""

    def size(mean: Mean, end: float) -> float:
        return 0.0 if math.isnan(end) else 100 * abs(mean.value - end)

    return {
        "type": "data",
        "symmetric": False,
        "array": [size(mean, mean.high) for mean in found],
        "arrayminus": [size(mean, mean.low) for mean in found],
        "color": BASELINE,
        "thickness": 1.5,
        "width": 4,
    }


def _labels(compared: Compared) -> list[str]:
    return [
        arm_label(number, arm.name) + ("<br>(baseline)" if arm.name == compared.baseline else "")
        for number, arm in enumerate(compared.arms, 1)
    ]


def _p(one: Comparison) -> str:
    return p_value(one.test.p_two_sided, ALPHA) if one.test.n else "nothing scored for both"
