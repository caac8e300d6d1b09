"""What a training found: the card that travels with a rewriter, and one HTML page that opens anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from querywright.optimize import figures
from querywright.optimize.comparison import Compared
from querywright.optimize.figures import COLOURS, Figure, Plot, span
from querywright.optimize.report import browser, page, render, score_rows
from querywright.optimize.rewriter.evaluation import IN_USE, SHARES, TRAINED
from querywright.optimize.tables import cut, percent

LINE = 300
"""Characters shown of a setting."""

Lines = Sequence[Mapping[str, Any]]
"""Lines of a log."""

_CURVES: Sequence[tuple[str, str, str, Mapping[str, str]]] = (
    ("warmup", "step", "Warm-up: loss a token", {"train": "loss"}),
    ("warmup", "dev", "Warm-up: loss a token on dev, by epoch", {"dev": "loss"}),
    ("reinforce", "dev", "Measure on dev, greedy", {"rewriter": "value", "question as written": "plain"}),
    ("reinforce", "step", "Reward of the drawn rewrites", {"mean of a step": "reward"}),
    ("reinforce", "step", "KL to the warmed-up model, a token", {"KL": "kl"}),
    ("reinforce", "step", "Tokens of a completion", {"tokens": "tokens"}),
    ("reinforce", "step", "Guards: shares of the drawn rewrites", {one: one for one in (*SHARES, "distinct_2")}),
)
"""Of each figure the stage, the kind of line in its log, the title, and by curve what it draws."""


def rewriter_card(name: str, card: Mapping[str, Any], measured: Mapping[str, Compared]) -> str:
    """The README.md of the rewriter in a folder of that name, from its ``card.json`` and the arms on dev and test."""
    learnt = [f"`{one}`" for one in card["techniques"]]
    parts = [
        {
            "name": part,
            "metrics": (metrics := found.arm(found.baseline).metrics),
            "rows": [[one.name, len(one.rows), *(percent(one.mean(name)) for name in metrics)] for one in found.arms],
            "sentences": [one.sentence for one in found.comparisons if one.arm in (TRAINED, IN_USE)],
        }
        for part, found in measured.items()
    ]
    return render(
        "rewriter.md",
        name=name,
        card=card,
        learnt=", ".join(learnt),
        chosen=f" (chosen by `{card['technique']}`)" if len(learnt) > 1 else "",
        said=[f"**{one['warning']}** ({part})." for part, one in card["standing"].items() if one["warning"]],
        parts=parts,
    )


def rewriter_html(
    name: str, card: Mapping[str, Any], measured: Mapping[str, Compared], logs: Mapping[str, Lines]
) -> str:
    """The page of a training, from the name and ``card.json`` of the rewriter, the arms on dev and test, and the logs
    of ``warmup`` and ``reinforce``; the same input gives the same text.
    """
    settings = {**card["settings"], **{f"recipe: {name}": value for name, value in card["recipe"].items()}}
    settings |= {f"{stage}: {name}": value for stage, of in card["stages"].items() for name, value in of.items()}
    standings, named = card["standing"].items(), ("technique", "techniques", "base", "metric", "collection")
    warned = [f"{part}: {one['warning']}" for part, one in standings if one["warning"]]
    drawn = {
        part: [*figures.means(found, f"-{part}"), *figures.differences(found, f"-{part}")]
        for part, found in measured.items()
    }
    return page(
        "training.html",
        kind="training",
        title=f"Rewriter {name}",
        facts={
            **{name: card[name] if isinstance(card[name], str) else ", ".join(card[name]) for name in named},
            "recipe": card["recipe"]["name"],
            **{f"{part} questions": str(one["n"]) for part, one in card["data"].items()},
        },
        notes=[*(one["sentence"] for _, one in standings), *warned],
        figures={**drawn, "curves": [one for number in range(len(_CURVES)) for one in _curve(number, logs)]},
        data=browser(measured["dev"], card["metric"]),
        parts_measured={
            part: {"sentences": [one.sentence for one in found.comparisons], "scores": score_rows(found)}
            for part, found in measured.items()
        },
        guards=card["guards"],
        settings=[{"setting": name, "value": cut(str(value), LINE)} for name, value in settings.items()],
    )


def _curve(number: int, logs: Mapping[str, Lines]) -> list[Figure]:
    """A figure of values by step; none where nothing was logged."""
    stage, kind, title, curves = _CURVES[number]
    lines = [{**line, **line.get("guards", {})} for line in logs.get(stage, ()) if line["kind"] == kind]
    found = {
        what: [(line["step"], line[key]) for line in lines if line.get(key) is not None] for what, key in curves.items()
    }
    drawn = {what: points for what, points in found.items() if points}
    if not drawn:
        return []
    ends = [span([point[side] for points in drawn.values() for point in points]) for side in (0, 1)]
    plot, legend = Plot(ends[0], ends[1], height=210, x_title="step"), dict(zip(drawn, COLOURS, strict=False))
    for what, points in drawn.items():
        plot.line(points, legend[what])
        for x, y in points:
            plot.dot(x, y, f"{what}: {y:.3g}", legend[what])
    told = "; ".join(f"{what}: from {points[0][1]:.3g} to {points[-1][1]:.3g}" for what, points in drawn.items())
    shown = legend if len(legend) > 1 else {}
    return [Figure(f"figure-curve-{number}", title, plot.svg(), told, legend=shown)]
