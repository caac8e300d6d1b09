"""Where answers are lost, as parts of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from querywright.data.types import Question
from querywright.optimize.diagnosis import MEANING, Diagnosis, Stage
from querywright.optimize.html_figures import Panel, across, arm_label, drawn, lined, plain
from querywright.optimize.html_questions import LINE
from querywright.optimize.html_text import box, cut, text

STAGE_COLOURS = {
    Stage.RIGHT: "#15805f",
    Stage.NOT_INDEXED: "#a6761d",
    Stage.NOT_FOUND: "#c2500a",
    Stage.CUT: "#e6ab02",
    Stage.NOT_USED: "#80b1d3",
    Stage.MISREAD: "#7570b3",
    Stage.UNKNOWN: "#a0a4aa",
}


def stages(diagnosis: Diagnosis, numbers: Mapping[str, int]) -> Panel:
    """What became of the questions of each arm, with closed book and oracle as lines.

    Args:
        diagnosis: Where answers are lost.
        numbers: The number of each arm.
    """
    import plotly.graph_objects as go

    names = list(diagnosis.arms)
    counts = {name: diagnosis.counts(name) for name in names}
    bars = []
    for stage in Stage:
        found = [counts[name][stage] for name in names]
        if any(found):
            bars.append(
                go.Bar(
                    x=found,
                    y=list(range(len(names))),
                    orientation="h",
                    marker={"color": STAGE_COLOURS[stage]},
                    text=[str(count) if count else "" for count in found],
                    textposition="inside",
                    insidetextanchor="middle",
                    textangle=0,
                    customdata=[f"{plain(name)}: {stage}, {counts[name][stage]}" for name in names],
                    hovertemplate="%{customdata}<extra></extra>",
                )
            )
    asked = max((len(lost) for lost in diagnosis.arms.values()), default=0)
    layout = lined([arm_label(numbers.get(name), name) for name in names], "questions")
    layout["barmode"] = "stack"
    if asked <= 10:
        layout["xaxis"]["dtick"] = 1
    layout["margin"]["t"] += 32  # the names of the lines
    layout["height"] += 32
    layout["shapes"], layout["annotations"] = _reader_lines(diagnosis, asked)
    alt = "; ".join(
        f"{name}: " + ", ".join(f"{stage} {counts[name][stage]}" for stage in Stage if counts[name][stage])
        for name in names
    )
    return Panel("figure-stages", "What became of the questions", alt, drawn(bars, layout))


def diagnosis_html(diagnosis: Diagnosis, panel: Panel, numbers: Mapping[str, int]) -> str:
    """The part that tells where answers are lost: the figure, and its numbers as a table that explains the stages.

    Args:
        diagnosis: Where answers are lost.
        panel: The figure.
        numbers: The number of each arm.
    """
    counts = {name: diagnosis.counts(name) for name in diagnosis.arms}
    rows = "".join(
        f'<tr><th scope="row"><span class="swatch" style="background:{STAGE_COLOURS[stage]}"></span>'
        f"{text(stage)}</th>"
        + "".join(f"<td>{found[stage]}</td>" for found in counts.values())
        + f'<td class="prose">{text(MEANING[stage])}</td></tr>'
        for stage in Stage
    )
    heads = "".join(
        f'<th scope="col"><abbr title="{text(name)}">{numbers.get(name, text(name))}</abbr></th>' for name in counts
    )
    table = (
        f'<table class="stages"><thead><tr><th scope="col">stage</th>{heads}<th scope="col">what it means</th></tr>'
        f"</thead><tbody>{rows}</tbody></table>"
    )
    n = max((len(lost) for lost in diagnosis.arms.values()), default=0)
    needs = "one helpful passage"
    if diagnosis.jointly:
        needs = "all helpful passages together" + (
            f" for {diagnosis.jointly} of {n} questions, else one of them" if diagnosis.jointly < n else ""
        )
    alone = "; ".join(f"{name} {right} of {n}" for name, right, n in _reader_alone(diagnosis))
    return (
        f"<p>An answer is right by {text(diagnosis.metric)}; the evidence of a question is {needs}.</p>"
        + (
            f"<p>Questions that the same reader has right without any passage (closed book) and with the deciding "
            f"passages (oracle): {alone}.</p>"
            if alone
            else ""
        )
        + panel.html()
        + box("Questions by stage", table)
    )


def telling_html(diagnosis: Diagnosis, questions: Sequence[Question]) -> str:
    """The questions that tell most, each opened to what the arms made of it."""
    places = {question.id: place for place, question in enumerate(questions)}
    told = [places[key] for key in diagnosis.telling if key in places]
    if not told:
        return "<p>No question tells the arms apart.</p>"
    return "<p>The arms differ on these, or the deciding passages would have helped.</p>" + "".join(
        f'<details class="telling" open data-question="{place}">'
        f"<summary>{text(cut(questions[place].question, LINE))}</summary></details>"
        for place in told
    )


def _reader_alone(diagnosis: Diagnosis) -> list[tuple[str, int, int]]:
    """Closed book and oracle, where they were asked: name, questions that the reader has right, questions scored."""
    first = next(iter(diagnosis.arms.values()), ())
    known = {
        "closed book": [lost.closed_book for lost in first if lost.closed_book is not None],
        "oracle": [lost.oracle for lost in first if lost.oracle is not None],
    }
    return [(name, right.count(True), len(right)) for name, right in known.items() if right]


def _reader_lines(diagnosis: Diagnosis, asked: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    shapes, notes = [], []
    for place, (name, right, _) in enumerate(_reader_alone(diagnosis)):
        shapes.append(across(right))
        notes.append(
            {
                "x": right,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "yshift": 16 * place,
                "xanchor": "left" if right < asked / 2 else "right",
                "text": f"{name} {right}",
                "showarrow": False,
            }
        )
    return shapes, notes
