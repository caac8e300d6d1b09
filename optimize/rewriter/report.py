"""What a training found: the card that travels with a rewriter, and one HTML page that opens anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from querywright.data.types import Question
from querywright.optimize import figures
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.figures import ARM, BASELINE, COLOURS, LEGEND, LOSS, WIN, Figure, plane
from querywright.optimize.report import page, render, score_rows
from querywright.optimize.rewriter.evaluation import IN_USE, TRAINED, UNTRAINED
from querywright.optimize.tables import cut, percent

EXAMPLES = 8
"""Questions that got better, and as many that got worse."""
LINE = 300
"""Characters shown of a question or query."""

SHARES = ("empty", "copied", "over_long", "leaking", "unreadable", "cut", "equal", "distinct_2")
"""The guards that are shares."""

SMOOTH = 0.2
"""Weight of the newest value in the drawn mean."""

Lines = Sequence[Mapping[str, Any]]
"""Lines of a log."""

Points = list[tuple[float, float]]
"""Values by step."""


def rewriter_card(name: str, card: Mapping[str, Any], dev: Compared, test: Compared | None) -> str:
    """The README.md of a rewriter.

    Args:
        name: Of its folder.
        card: The content of ``card.json``.
        dev: Arms on dev.
        test: Arms on test, or None where there are no test questions.
    """
    learnt = [f"`{one}`" for one in card["techniques"]]
    parts = [
        {
            "name": part,
            "metrics": (metrics := found.arm(found.baseline).metrics),
            "rows": [[one.name, len(one.rows), *(percent(one.mean(name)) for name in metrics)] for one in found.arms],
            "sentences": [one.sentence for one in found.comparisons if one.arm in (TRAINED, IN_USE)],
        }
        for part, found in (("dev", dev), ("test", test))
        if found is not None
    ]
    return render(
        "rewriter.md",
        name=name,
        card=card,
        learnt=", ".join(learnt),
        chosen=f" (chosen by `{card['technique']}`)" if len(learnt) > 1 else "",
        said=[f"**{warning}** ({part})." for part, _, warning in _standings(card) if warning],
        parts=parts,
    )


def rewriter_html(
    name: str,
    card: Mapping[str, Any],
    dev: Compared,
    test: Compared | None,
    questions: Sequence[Question],
    *,
    warmup: Lines = (),
    reinforcement: Lines = (),
) -> str:
    """The page of a training; the same input gives the same text.

    Args:
        name: Of the rewriter.
        card: The content of ``card.json``.
        dev: Arms on dev.
        test: Arms on test, or None.
        questions: The dev questions, in the order of the rows.
        warmup: Log of the warm-up.
        reinforcement: Log of the reinforcement.
    """
    measured = {part: found for part, found in (("test", test), ("dev", dev)) if found is not None}
    settings = {**card["settings"], **{f"recipe: {name}": value for name, value in card["recipe"].items()}}
    settings |= {f"{stage}: {name}": value for stage, of in card["stages"].items() for name, value in of.items()}
    notes = [sentence for _, sentence, _ in _standings(card)]
    return page(
        "training.html",
        title=f"Rewriter {name}",
        facts={
            "technique": str(card["technique"]),
            "learnt": ", ".join(card["techniques"]),
            "base": str(card["base"]),
            "recipe": str(card["recipe"]["name"]),
            "measure": str(card["metric"]),
            "collection": str(card["collection"]),
            **{f"{part} questions": str(one["n"]) for part, one in card["data"].items()},
        },
        notes=notes + [f"{part}: {warning}" for part, _, warning in _standings(card) if warning],
        figures={
            **{
                part: [*figures.means(found, f"-{part}"), *figures.differences(found, f"-{part}")]
                for part, found in measured.items()
            },
            "curves": _curves(warmup, reinforcement),
        },
        parts_measured={
            part: {"sentences": [one.sentence for one in found.comparisons], "scores": score_rows(found)}
            for part, found in measured.items()
        },
        guards=card["guards"],
        examples=_examples(dev, questions, card["metric"]),
        settings=[{"setting": name, "value": cut(str(value), LINE)} for name, value in settings.items()],
    )


def _standings(card: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    """By part of the data the sentence of the test, and what must be said of a rewriter that is no gain."""
    known = {part: card["standing"].get(part) for part in ("dev", "test")}
    return [(part, one["sentence"], one["warning"]) for part, one in known.items() if one]


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) and math.isfinite(value) else "-"


def _examples(found: Compared, questions: Sequence[Question], metric: str) -> list[dict[str, str]]:
    """The dev questions with the greatest change, the best and the worst."""
    if not {UNTRAINED, TRAINED} <= {arm.name for arm in found.arms}:
        return []
    before, after = found.arm(UNTRAINED), found.arm(TRAINED)
    plain, old, new = (one.values(metric) for one in (found.arm(found.baseline), before, after))
    places = [place for place in range(len(old)) if not math.isnan(new[place] - old[place])]
    ordered = sorted(places, key=lambda place: (old[place] - new[place], place))
    return [
        {
            "question": cut(questions[place].question, LINE),
            "before": _searched(before, place),
            "after": _searched(after, place),
            f"{metric}: as written": _number(plain[place]),
            "before, value": _number(old[place]),
            "after, value": _number(new[place]),
        }
        for place in dict.fromkeys([*ordered[:EXAMPLES], *ordered[-EXAMPLES:]])
    ]


def _searched(arm: Evaluation, place: int) -> str:
    return " | ".join(cut(query, LINE) for _, query in arm.rows[place].queries) or "(nothing searched)"


def _curves(warmup: Lines, reinforcement: Lines) -> list[Figure]:
    """Losses of the warm-up; reward, measure on dev, KL, length and diversity of the reinforcement, by step.

    Args:
        warmup: A line a step, and a line a look at dev.
        reinforcement: The same.
    """
    (warm, losses), (steps, looks) = (
        tuple([line for line in log if line["kind"] == kind] for kind in ("step", "dev"))
        for log in (warmup, reinforcement)
    )
    loss = {"train": _points(warm, "loss"), "dev": _points(losses, "loss")}
    reward = {"mean of a step": _points(steps, "reward"), "smoothed": _smoothed(_points(steps, "reward"))}
    measure = {"rewriter": _points(looks, "value"), "question as written": _points(looks, "plain")}
    guarded = [{"step": line["step"], **line["guards"]} for line in steps]
    shares = {name: _points(guarded, name) for name in SHARES}
    drawn: list[tuple[str, str, Mapping[str, Points], Sequence[str]]] = [
        ("warmup", "Warm-up: loss a token", loss, (ARM, WIN)),
        ("reward", "Reward of the drawn rewrites", reward, (BASELINE, ARM)),
        ("dev", "Measure on dev, greedy", measure, (ARM, BASELINE)),
        ("kl", "KL to the warmed-up model, a token", {"KL": _points(steps, "kl")}, (LOSS,)),
        ("length", "Tokens of a completion", {"tokens": _points(steps, "tokens")}, (ARM,)),
        ("guards", "Guards: shares of the drawn rewrites", shares, COLOURS),
    ]
    return [figure for one in drawn for figure in _curve(*one)]


def _points(lines: Lines, key: str) -> Points:
    known = [line for line in lines if line.get("step") is not None and line.get(key) is not None]
    return [(float(line["step"]), float(line[key])) for line in known]


def _smoothed(points: Points) -> Points:
    mean, made = None, []
    for step, value in points:
        mean = value if mean is None else mean + SMOOTH * (value - mean)
        made.append((step, mean))
    return made


def _curve(name: str, title: str, series: Mapping[str, Points], colours: Sequence[str]) -> list[Figure]:
    told = {what: points for what, points in series.items() if points}
    if not told:
        return []
    data = [
        {
            "type": "scatter",
            "x": [x for x, _ in points],
            "y": [y for _, y in points],
            "mode": "lines+markers" if len(points) < 30 else "lines",
            "name": what,
            "line": {"color": colours[place % len(colours)], "width": 2},
        }
        for place, (what, points) in enumerate(told.items())
    ]
    layout = plane("step", height=300) | (LEGEND if len(told) > 1 else {})
    alt = "; ".join(f"{what}: from {points[0][1]:.3g} to {points[-1][1]:.3g}" for what, points in told.items())
    return [Figure(f"figure-{name}", title, data, layout, alt)]
