"""The figures of a training's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from querywright.optimize.html_figures import ARM, BASELINE, LOSS, WIN, Panel, drawn, plain

Lines = Sequence[Mapping[str, Any]]
"""Lines of a log."""

SHARES = ("empty", "copied", "over_long", "leaking", "unreadable", "cut", "equal", "distinct_2")
"""The guards that are shares."""

SMOOTH = 0.2
"""Weight of the newest value in the drawn mean."""


def warmup_panels(log: Lines) -> list[Panel]:
    """The losses of the warm-up.

    Args:
        log: A line a step, and a line a look at dev.
    """
    series = {
        what: _points([line for line in log if line["kind"] == kind], "loss")
        for what, kind in (("train", "step"), ("dev", "dev"))
    }
    panel = _panel("warmup", "Warm-up: loss a token", "step", series, (ARM, WIN))
    return [] if panel is None else [panel]


def reinforce_panels(log: Lines) -> list[Panel]:
    """Reward, measure on dev, KL, length and diversity by step.

    Args:
        log: A line a step, and a line an evaluation on dev.
    """
    steps, looks = ([line for line in log if line["kind"] == kind] for kind in ("step", "dev"))
    found = [
        _panel(
            "reward",
            "Reward of the drawn rewrites",
            "step",
            {"mean of a step": _points(steps, "reward"), "smoothed": _smoothed(_points(steps, "reward"))},
            (BASELINE, ARM),
        ),
        _panel(
            "dev",
            "Measure on dev, greedy",
            "step",
            {"rewriter": _points(looks, "value"), "question as written": _points(looks, "plain")},
            (ARM, BASELINE),
        ),
        _panel("kl", "KL to the warmed-up model, a token", "step", {"KL": _points(steps, "kl")}, (LOSS,)),
        _panel("length", "Tokens of a completion", "step", {"tokens": _points(steps, "tokens")}, (ARM,)),
        _panel(
            "guards",
            "Guards: shares of the drawn rewrites",
            "step",
            {
                name: _points([line["guards"] for line in steps], name, at=[line["step"] for line in steps])
                for name in SHARES
            },
            ("#3b82c4", "#d1720b", "#15805f", "#a05fb4", "#b8860b", "#c2410c", "#5b7c99", "#7d8f2a"),
        ),
    ]
    return [panel for panel in found if panel is not None]


Points = list[tuple[float, float]]


def _points(lines: Lines, key: str, at: Sequence[float] | None = None) -> Points:
    steps = [line.get("step") for line in lines] if at is None else at
    return [
        (float(step), float(line[key]))
        for step, line in zip(steps, lines, strict=True)
        if step is not None and line.get(key) is not None
    ]


def _smoothed(points: Points) -> Points:
    mean, made = None, []
    for step, value in points:
        mean = value if mean is None else mean + SMOOTH * (value - mean)
        made.append((step, mean))
    return made


def _panel(name: str, title: str, axis: str, series: Mapping[str, Points], colours: Sequence[str]) -> Panel | None:
    import plotly.graph_objects as go

    told = {what: points for what, points in series.items() if points}
    if not told:
        return None
    traces = [
        go.Scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            mode="lines+markers" if len(points) < 30 else "lines",
            name=plain(what),
            line={"color": colours[place % len(colours)], "width": 2},
        )
        for place, (what, points) in enumerate(told.items())
    ]
    axes = {"fixedrange": True, "zeroline": False, "automargin": True}
    layout = {
        "template": "none",
        "height": 300,
        "margin": {"l": 10, "r": 20, "t": 14, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "showlegend": len(told) > 1,
        "legend": {"orientation": "h", "y": -0.25},
        "dragmode": False,
        "hovermode": "closest",
        "xaxis": {**axes, "title": {"text": axis}},
        "yaxis": axes,
    }
    alt = "; ".join(f"{what}: from {points[0][1]:.3g} to {points[-1][1]:.3g}" for what, points in told.items())
    return Panel(f"figure-{name}", title, alt, drawn(traces, layout))
