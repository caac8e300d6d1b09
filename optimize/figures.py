"""Figures for reports: SVG in the page's text color, without scripts or network requests."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from markupsafe import Markup

from querywright.metrics.statistics import p_value
from querywright.optimize.comparison import Comparison
from querywright.optimize.diagnosis import Diagnosis, Stage
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.results import BASELINE, in_words
from querywright.optimize.significance import ALPHA
from querywright.optimize.tables import clean, percent

ARM, NEUTRAL, WIN, LOSS = "#3b82c4", "#8a8f98", "#15805f", "#c2500a"

STAGE_COLOURS: Mapping[Stage, str] = {
    Stage.RIGHT: "#15805f",
    Stage.NOT_INDEXED: "#a6761d",
    Stage.NOT_FOUND: "#c2500a",
    Stage.CUT: "#e6ab02",
    Stage.NOT_USED: "#80b1d3",
    Stage.MISREAD: "#7570b3",
    Stage.UNKNOWN: "#a0a4aa",
}

WIDTH, RIGHT, LABELS, LINE_HEIGHT, LABEL = 400, 24, 136, 44, 18
"""Width of a figure, space to the right of the plot, space for program names, height per program, and characters per
line of a name.
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, with a text alternative.

    Args:
        id: Id of the HTML element.
        title: Caption.
        svg: The drawing.
        alt: Text alternative.
        metric: The metric for which the page shows the figure; empty to show it always.
        legend: Colors, keyed by meaning.
    """

    id: str
    title: str
    svg: Markup
    alt: str
    metric: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)


class Plot:
    """A figure under construction, in data units: x from left to right, y from bottom to top.

    Args:
        x: Range of x.
        y: Range of y.
        x_title: Title of the x axis.
        y_title: Title of the y axis.
        labels: Names of rows, each one or more lines of text. If given, y counts the rows from 0 downward.
        ticks: Whether the x axis has ticks.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float] = (0, 1),
        *,
        x_title: str = "",
        y_title: str = "",
        labels: Sequence[Sequence[str]] = (),
        ticks: bool = True,
    ) -> None:
        self.left, self.top = LABELS if labels else 48, 26
        height: float = 240
        if labels:
            height, y = LINE_HEIGHT * len(labels), (len(labels) - 0.5, -0.5)
        self._x, self._y, self.height = x, y, height
        self._parts: list[str] = []
        for value in _ticks(*x) if ticks else ():
            self._rule(value, value, *y)
            self._text(self.x(value), self.top + height + 16, _number(value))
        for value in () if labels else _ticks(*y):
            self._rule(*x, value, value)
            self._text(self.left - 6, self.y(value) + 4, _number(value), "end")
        for line, lines in enumerate(labels):
            first = self.y(line) + 4 - 7 * (len(lines) - 1)
            for place, text in enumerate(lines):
                self._text(self.left - 8, first + 14 * place, text, "end", 12 if place < 2 else 11)
        self._text((self.left + WIDTH - RIGHT) / 2, self.top + height + (34 if ticks else 18), x_title)
        self._text(0, 11, y_title, "start")

    def x(self, value: float) -> float:
        """Return the horizontal position of a value."""
        return self.left + (value - self._x[0]) / ((self._x[1] - self._x[0]) or 1) * (WIDTH - RIGHT - self.left)

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return self.top + self.height * (self._y[1] - value) / ((self._y[1] - self._y[0]) or 1)

    def dot(
        self, x: float, y: float, said: str, colour: str, *, shape: str = "circle", text: str = "", side: int = 0
    ) -> None:
        """Draw a point (``circle`` or ``diamond``) with a tooltip, and text above it, left of it (-1), or right of it
        (1).
        """
        a, b = self.x(x), self.y(y)
        path = {"circle": "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0", "diamond": "m-6 0l6-6l6 6l-6 6z"}[shape]
        self._parts.append(f'<path d="M{a:.1f} {b:.1f}{path}" fill="{colour}">{_title(said)}</path>')
        self._text(a + 9 * side, b + (4 if side else -10), text, {-1: "end", 0: "middle", 1: "start"}[side])

    def bar(
        self, start: float, end: float, line: float, said: str, colour: str, *, text: str = "", side: int = 0
    ) -> None:
        """Draw a bar in a row with a tooltip, and text in it, left of it (-1), or right of it (1)."""
        a, b = sorted((self.x(start), self.x(end)))
        top, high = self.y(line) - 10, 20
        size = f'x="{a:.1f}" y="{top:.1f}" width="{b - a:.1f}" height="{high}"'
        self._parts.append(f'<rect {size} fill="{colour}">{_title(said)}</rect>')
        if side or b - a > 8 * len(text):
            ink = "currentColor" if side else "#111" if colour in _LIGHT else "#fff"
            anchor = {-1: "end", 0: "middle", 1: "start"}[side]
            self._text((a + b) / 2 if not side else (a if side < 0 else b) + 5 * side, top + 14, text, anchor, ink=ink)

    def line(self, points: Iterable[tuple[float, float]], colour: str, *, dash: bool = False) -> None:
        """Connect points with a line."""
        path = "".join(f"{'L' if n else 'M'}{self.x(x):.1f} {self.y(y):.1f}" for n, (x, y) in enumerate(points))
        dashed = ' stroke-dasharray="2 4"' if dash else ""
        self._parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>')

    def across(self, x: float, text: str = "", *, above: int = 0) -> None:
        """Draw a dotted vertical line across all rows, with its name above it."""
        self.line([(x, self._y[0]), (x, self._y[1])], NEUTRAL, dash=True)
        self._text(self.x(x), 18 - 14 * above, text, "end" if self.x(x) > WIDTH / 2 else "start")

    def svg(self, above: int = 0) -> Markup:
        """Return the drawing, with room for ``above`` lines of text above it."""
        up, whole = 14 * above, self.top + self.height + 42
        box = f'viewBox="0 {-up} {WIDTH} {whole + up:.0f}" width="{WIDTH}" style="max-width:100%;height:auto"'
        return Markup(f'<svg {box} font-family="system-ui, sans-serif">{"".join(self._parts)}</svg>')

    def _rule(self, x0: float, x1: float, y0: float, y1: float) -> None:
        at = f'x1="{self.x(x0):.1f}" x2="{self.x(x1):.1f}" y1="{self.y(y0):.1f}" y2="{self.y(y1):.1f}"'
        self._parts.append(f'<line {at} stroke="currentColor" stroke-opacity=".16"/>')

    def _text(
        self, x: float, y: float, text: str, anchor: str = "middle", size: int = 12, *, ink: str = "currentColor"
    ) -> None:
        if text:
            look = f'text-anchor="{anchor}" font-size="{size}" fill="{ink}"'
            self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(clean(text))}</text>')


def metrics_of(compared: Comparison) -> list[str]:
    """Return the metrics that scored at least one question in any program, in the order of the programs."""
    return list(dict.fromkeys(metric for arm in compared.arms for metric in arm.metrics))


def means(compared: Comparison) -> list[Figure]:
    """Return a figure per metric with each program's mean and interval."""
    figures = []
    labels = [
        [*arm_label(line, arm.name), *(["(baseline)"] if arm.name == compared.baseline != BASELINE else [])]
        for line, arm in enumerate(compared.arms, 1)
    ]
    for place, metric in enumerate(metrics_of(compared)):
        told = [(line, arm, arm.mean(metric)) for line, arm in enumerate(compared.arms)]
        scored = [one for one in told if not math.isnan(one[2].value)]
        ends = [100 * end for *_, mean in scored for end in (mean.value, mean.low, mean.high) if not math.isnan(end)]
        plot = Plot(span(ends, 0, 100), labels=labels, x_title="mean, %")
        base = compared.arm(compared.baseline).mean(metric).value
        if not math.isnan(base):
            plot.across(100 * base)
        for line, arm, mean in scored:
            if not math.isnan(mean.low):
                plot.line([(100 * mean.low, line), (100 * mean.high, line)], NEUTRAL)
            said = f"{arm.name}: {percent(mean)}"
            plot.dot(100 * mean.value, line, said, text=f"{100 * mean.value:.1f}", **_look(arm, compared.baseline))
        alt = "; ".join(f"{arm.name}: {percent(mean)}" for _, arm, mean in scored)
        figures.append(Figure(f"figure-mean-{place}", f"{metric}, 95% interval", plot.svg(), alt, metric))
    return figures


def differences(compared: Comparison) -> list[Figure]:
    """Return a figure per metric with the questions won and lost compared with the baseline."""
    numbers = {arm.name: number for number, arm in enumerate(compared.arms, 1)}
    figures = []
    for place, metric in enumerate(metrics_of(compared)):
        held = [one for one in compared.comparisons if one.metric == metric and one.other == compared.baseline]
        if not held:
            continue
        p = [p_value(one.test.p_two_sided, ALPHA) if one.test.n else "no question scored for both" for one in held]
        labels = [[*arm_label(numbers[one.arm], one.arm), fact] for one, fact in zip(held, p, strict=True)]
        most = 1.25 * max(1, *(max(one.test.wins, one.test.losses) for one in held))
        plot = Plot((-most, most), labels=labels, x_title="losses ◂   ▸ wins", ticks=False)
        plot.across(0)
        for line, one in enumerate(held):
            plot.bar(0, -one.test.losses, line, one.sentence, LOSS, text=str(one.test.losses), side=-1)
            plot.bar(0, one.test.wins, line, one.sentence, WIN, text=str(one.test.wins), side=1)
        alt = "; ".join(
            f"{one.arm}: wins {one.test.wins}, losses {one.test.losses}, {fact}, ties {one.test.ties}"
            for one, fact in zip(held, p, strict=True)
        )
        title = f"{metric}, compared with {in_words(compared.baseline)}"
        figures.append(Figure(f"figure-difference-{place}", title, plot.svg(), alt, metric))
    return figures


def costs(compared: Comparison) -> list[Figure]:
    """Return a figure per metric with scores over LM calls per question; programs at the same position share one point.

    A line joins the front: the programs that no other program beats with as few calls.
    """
    figures = []
    for place, metric in enumerate(metrics_of(compared)):
        points: dict[tuple[float, float], list[tuple[int, Evaluation]]] = {}
        for number, arm in enumerate(compared.arms, 1):
            if not math.isnan(value := arm.mean(metric).value):
                points.setdefault((arm.calls_per_question, 100 * value), []).append((number, arm))
        found = sorted(points, key=lambda at: (at[0], -at[1]))
        front = [at for n, at in enumerate(found) if all(at[1] > other[1] for other in found[:n])]
        right = 1.12 * max((x for x, _ in found), default=0) or 1.0
        high = span([y for _, y in found], 0, 100)
        plot = Plot((-0.12 * right, right), high, x_title="LM calls per question", y_title="mean, %")
        plot.line(front, ARM, dash=True)
        told = []
        for n, at in enumerate(found):
            arms = points[at]
            said = "; ".join(
                f"{number} {arm.name}: {at[0]:.1f} calls, {percent(arm.mean(metric))}" for number, arm in arms
            )
            told.append(said)
            names = ", ".join(str(number) for number, _ in arms)
            plot.dot(*at, said, text=names, side=-1 if n % 2 else 1, **_look(arms[0][1], compared.baseline))
        best = ", ".join(str(number) for at in front for number, _ in points[at])
        figures.append(
            Figure(f"figure-cost-{place}", f"{metric} by LM calls; front: {best}", plot.svg(), "; ".join(told), metric)
        )  # fmt: skip
    return figures


def stages(compared: Comparison, diagnosis: Diagnosis) -> Figure:
    """Return a figure of the question outcomes for each program, with closed book and oracle as lines."""
    numbered = [(number, one.name) for number, one in enumerate(compared.arms, 1) if one.name in diagnosis.arms]
    asked = max((len(lost) for lost in diagnosis.arms.values()), default=0)
    plot, told = Plot((0, asked), labels=[arm_label(*one) for one in numbered], x_title="questions"), []
    for line, (_, name) in enumerate(numbered):
        counts, start = diagnosis.counts(name), 0
        for stage in (one for one in Stage if counts[one]):
            told.append(f"{name}: {stage}, {counts[stage]}")
            plot.bar(
                start, start := start + counts[stage], line, told[-1], STAGE_COLOURS[stage], text=str(counts[stage])
            )
    for above, (name, right, _) in enumerate(diagnosis.alone):
        plot.across(right, f"{name} {right}", above=above)
    return Figure("figure-stages", "Outcomes of the questions", plot.svg(above=2), "; ".join(told))


def arm_label(number: int | None, name: str) -> list[str]:
    """Return a program's number and name in at most two lines."""
    shown = clean(name) if number is None else f"{number} {clean(name)}"
    cut = textwrap.wrap(re.sub(r"(?<=[:,@/.])(?=\S)", "\u2060 ", shown), LABEL)  # break lines after punctuation
    first, *rest = [line.replace("\u2060 ", "").rstrip("\u2060") for line in cut] or [""]
    return [first, *rest] if len(rest) < 2 else [first, rest[0][: LABEL - 2] + " …"]


_LIGHT = {STAGE_COLOURS[stage] for stage in (Stage.CUT, Stage.NOT_USED, Stage.UNKNOWN)}
"""Background colors on which dark text is easier to read than white text."""


def _look(arm: Evaluation, baseline: str) -> Any:
    base = arm.name == baseline
    return {"colour": NEUTRAL if base else ARM, "shape": "diamond" if base else "circle"}


def span(values: Sequence[float], least: float = -math.inf, most: float = math.inf) -> tuple[float, float]:
    """Return the ends of an axis for these values, with a margin, within the possible range."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return max(least, low - room), min(most, high + room)


def _ticks(low: float, high: float) -> list[float]:
    """Return four to six round numbers between two numbers."""
    rough = (high - low) / 5 or 1.0
    size = 10.0 ** math.floor(math.log10(rough))
    step = size * next(one for one in (1, 2, 2.5, 5, 10) if one * size >= rough)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:.6g}" if value else "0"


def _title(said: str) -> str:
    return f"<title>{escape(clean(said))}</title>" if said else ""
