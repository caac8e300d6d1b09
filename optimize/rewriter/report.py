"""What a training found: the card that travels with a rewriter, and one HTML page that opens anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from querywright.data.types import Question
from querywright.optimize import html_figures
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.html import scores
from querywright.optimize.html_figures import Panel
from querywright.optimize.html_page import page, table
from querywright.optimize.html_text import cut, json_block, text
from querywright.optimize.report import percent
from querywright.optimize.rewriter.curves import Lines, reinforce_panels, warmup_panels
from querywright.optimize.rewriter.evaluation import IN_USE, TRAINED, UNTRAINED

EXAMPLES = 8
"""Questions that got better, and as many that got worse."""
LINE = 300
"""Characters shown of a question or query."""


def rewriter_card(name: str, card: Mapping[str, Any], dev: Compared, test: Compared | None) -> str:
    """The README.md of a rewriter.

    Args:
        name: Of its folder.
        card: The content of ``card.json``.
        dev: Arms on dev.
        test: Arms on test, or None where there are no test questions.
    """
    said = [f"**{card['standing'][part]['warning']}** ({part})." for part in _parts(card) if _warned(card, part)]
    warned = "\n".join(f"- {one}" for one in card["guards"]["warnings"])
    tables = "\n".join(
        f"On {part}, mean in per cent with its 95 % interval:\n\n{_table(found)}\n\n"
        + "\n".join(f"- {one.sentence}" for one in found.comparisons if one.arm in (TRAINED, IN_USE))
        + "\n"
        for part, found in (("dev", dev), ("test", test))
        if found is not None
    )
    sizes = ", ".join(f"{part} {one['n']}" for part, one in card["data"].items())
    guards = f"\nGuards:\n\n{warned}\n" if warned else ""
    learnt = card["techniques"]
    for_them = ", ".join(f"`{one}`" for one in learnt)
    chosen = f" (chosen by `{card['technique']}`)" if len(learnt) > 1 else ""
    return f"""# {name}

A rewriter for {for_them}{chosen} on the base model `{card["base"]}`, trained by querywright on {card["created"]}:
{", ".join(card["stages"]) or "no stage"}; recipe {card["recipe"]["name"]}, measure {card["metric"]}.
{" ".join(said)}

{card["standing"]["dev"]["sentence"]}.

Questions: {sizes}; collection {card["collection"]}. Seed {card["settings"]["seed"]}.

{tables}{guards}
Use it: `querywright ask "..." --technique {card["technique"]} --rewriter path/to/{name}`
"""


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
    drawn: list[Panel] = []

    def panels(found: Sequence[Panel]) -> str:
        drawn.extend(found)
        return f'<div class="panels">{"".join(panel.html() for panel in found)}</div>'

    parts = {}
    for part, found in (("test", test), ("dev", dev)):
        if found is None:
            continue
        sentences = "".join(f"<li>{text(one.sentence)}</li>" for one in found.comparisons)
        parts[f"On {part}"] = f"<ul>{sentences}</ul>{scores(found)}" + panels(
            [_renamed(panel, part) for panel in (*html_figures.means(found), *html_figures.differences(found))]
        )
    curves = [*warmup_panels(warmup), *reinforce_panels(reinforcement)]
    if curves:
        parts["Curves"] = panels(curves)
    parts["Guards"] = _guards(card["guards"])
    examples = _examples(dev, questions, card["metric"])
    if examples:
        parts["Before and after"] = (
            "<p>Dev questions whose measure changed most, either way: what the untrained model searched for, and what "
            "the trained one does.</p>"
            + table("Before and after", examples, heads=("question",), prose=("question", "before", "after"))
        )
    parts["How it was made"] = table("Settings", _settings(card), heads=("setting",))
    notes = [card["standing"][part]["sentence"] for part in _parts(card)]
    notes += [f"{part}: {card['standing'][part]['warning']}" for part in _parts(card) if _warned(card, part)]
    facts = {
        "technique": str(card["technique"]),
        "learnt": ", ".join(card["techniques"]),
        "base": str(card["base"]),
        "recipe": str(card["recipe"]["name"]),
        "measure": str(card["metric"]),
        "collection": str(card["collection"]),
        **{f"{part} questions": str(one["n"]) for part, one in card["data"].items()},
    }
    figures = {panel.id: panel.figure for panel in drawn}
    blocks = [json_block("report-data", {}), json_block("report-figures", figures)]
    return page(f"Rewriter {name}", facts, notes, parts, blocks)


def _parts(card: Mapping[str, Any]) -> list[str]:
    return [part for part in ("dev", "test") if card["standing"].get(part)]


def _warned(card: Mapping[str, Any], part: str) -> bool:
    return bool(card["standing"][part]["warning"])


def _renamed(panel: Panel, part: str) -> Panel:
    return Panel(f"{panel.id}-{part}", panel.title, panel.alt, panel.figure)


def _table(found: Compared) -> str:
    metrics = found.arm(found.baseline).metrics
    head = f"| arm | n | {' | '.join(metrics)} |\n| --- | --- |{' --- |' * len(metrics)}\n"
    return head + "\n".join(
        f"| {arm.name} | {len(arm.rows)} | " + " | ".join(percent(arm.mean(metric)) for metric in metrics) + " |"
        for arm in found.arms
    )


def _guards(guards: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys([*guards["before"], *guards["after"]]))
    said = "".join(f"<li>{text(one)}</li>" for one in guards["warnings"])
    rows = [
        {"guard": name, "before": _number(guards["before"].get(name)), "after": _number(guards["after"].get(name))}
        for name in names
    ]
    shown = table("Guards", rows, heads=("guard",)) if rows else ""
    return (f"<ul>{said}</ul>" if said else "<p>None of them warns.</p>") + shown


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) and math.isfinite(value) else "-"


def _examples(found: Compared, questions: Sequence[Question], metric: str) -> list[dict[str, str]]:
    """The dev questions with the greatest change, the best and the worst."""
    names = {arm.name for arm in found.arms}
    if not {UNTRAINED, TRAINED} <= names:
        return []
    before, after = found.arm(UNTRAINED), found.arm(TRAINED)
    plain = found.arm(found.baseline).values(metric)
    changes = [
        (new - old, place)
        for place, (old, new) in enumerate(zip(before.values(metric), after.values(metric), strict=True))
        if not math.isnan(new - old)
    ]
    ordered = sorted(changes, key=lambda one: (-one[0], one[1]))
    chosen = dict.fromkeys(place for _, place in [*ordered[:EXAMPLES], *ordered[-EXAMPLES:]])
    return [
        {
            "question": cut(questions[place].question, LINE),
            "before": _written(before, place),
            "after": _written(after, place),
            f"{metric}: as written": _number(plain[place]),
            "before, value": _number(before.values(metric)[place]),
            "after, value": _number(after.values(metric)[place]),
        }
        for place in chosen
    ]


def _written(arm: Evaluation, place: int) -> str:
    queries = [cut(query, LINE) for _, query in arm.rows[place].queries]
    return " | ".join(queries) or "(nothing searched)"


def _settings(card: Mapping[str, Any]) -> list[dict[str, str]]:
    flat = {**card["settings"], **{f"recipe: {name}": value for name, value in card["recipe"].items()}}
    flat |= {f"{stage}: {name}": value for stage, of in card["stages"].items() for name, value in of.items()}
    return [{"setting": name, "value": cut(str(value), LINE)} for name, value in flat.items()]
