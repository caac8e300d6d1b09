"""The parts of a study's report; each says so where there is nothing to show yet."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from querywright.models.usage import Cost
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.html_figures import Panel
from querywright.optimize.html_page import table
from querywright.optimize.html_text import text
from querywright.optimize.study import figures
from querywright.optimize.study.importance import Importance
from querywright.optimize.study.status import Aim, Known, arm_name, best, changed_knobs, ended, interval, of_technique
from querywright.optimize.study.tables import best_rows, ranked, shown, technique_rows

TEXTS = ("arm", "knobs", "values tried", "knob", "why")

_SECRETS = (
    (re.compile(r"(\w://)[^\s'\"]*@"), r"\1...@"),
    (re.compile(r"([?&](?:password|passwd|pwd|token|key)=)[^&\s'\"]+", re.IGNORECASE), r"\1..."),
)


def hidden(value: str) -> str:
    """The text without user names and passwords of the addresses in it."""
    for pattern, kept in _SECRETS:
        value = pattern.sub(kept, value)
    return value


def panels(drawn: Sequence[Panel]) -> str:
    """Figures side by side where there is room."""
    return f'<div class="panels">{"".join(panel.html() for panel in drawn)}</div>'


def how_far(snapshot: Known) -> str:
    """One sentence on a study that has no outcome yet."""
    done, planned = len(ended(snapshot.trials)), snapshot.spec.trials
    under_way = len(ended(snapshot.trials, "running"))
    if done >= planned:
        return f"All {planned} trials have ended; nothing was chosen and tested yet"
    return (
        f"{done} of {planned} trials have ended, {under_way} under way or broken off; nothing was chosen and tested yet"
    )


def outcome_part(snapshot: Known, aim: Aim) -> str:
    """What came of it, in a sentence, and how far the value of the chosen trial is to be believed."""
    outcome = snapshot.outcome or {}
    sentence, verdict = outcome.get("sentence"), outcome.get("verdict")
    said = [f'<p class="outcome"><b>{text(str(sentence or how_far(snapshot)).rstrip("."))}.</b></p>']
    if verdict or outcome.get("recommended"):
        recommended = text(str(outcome.get("recommended") or "nothing"))
        said.append(f"<p>Recommended: <b>{recommended}</b>. Verdict: {text(str(verdict or 'none'))}.</p>")
    if outcome.get("failed_on_test"):
        said.append(f"<p>Out, for too many questions of test failed: {text(', '.join(outcome['failed_on_test']))}.</p>")
    leader = best(snapshot.trials, aim)
    if leader is not None:
        said.append(
            f"<p>Best on dev by {text(aim.name)}: trial {leader.number}, {text(arm_name(leader.arm))}, "
            f"{text(shown(interval(leader, aim), aim))} on {len(leader.dev.rows) if leader.dev else 0} questions.</p>"
        )
    return "".join(said) + _curse(outcome.get("corrected"), aim)


def _curse(corrected: Mapping[str, Any] | None, aim: Aim) -> str:
    if not corrected or corrected.get("dev") is None or corrected.get("corrected") is None:
        return ""
    dev, fair = (_value(float(corrected[name]), aim) for name in ("dev", "corrected"))
    arms = f" of {corrected['arms']} arms" if corrected.get("arms") else ""
    return (
        f"<p>The best{text(arms)} on dev is partly the luckiest: its {text(dev)} would be expected to be about "
        f"<b>{text(fair)}</b> on new questions (the winner's curse).</p>"
    )


def best_part(snapshot: Known, aims: Sequence[Aim]) -> str:
    """The best arms on dev, each once."""
    rows = best_rows(ranked(snapshot.trials, aims[0]), aims)
    if not rows:
        return "<p>No trial is complete yet.</p>"
    return "<p>Chosen among many, so the top is too good to be true; test says what is.</p>" + table(
        "Best arms on dev", rows, heads=("trial",), prose=TEXTS
    )


def front_part(snapshot: Known, aims: Sequence[Aim], drawn: Sequence[Panel], kept: Sequence[int]) -> str:
    """The trials that no other one beats in every objective."""
    rows = best_rows([one for one in snapshot.trials if one.number in kept], aims, len(kept))
    if not rows:
        return "<p>No trial is complete yet.</p>"
    said = "<p>No trial is as good as one of these in every objective and better in one.</p>"
    return said + panels(drawn) + table("The front", rows, heads=("trial",), prose=TEXTS)


def mattered_part(found: Sequence[Importance], drawn: Sequence[Panel], aim: Aim) -> str:
    """How much each parameter tells the best trials from the others."""
    silent = "".join(
        f"<li>{text('The whole study' if one.of is None else one.of)}: {text(one.why)}.</li>"
        for one in found
        if one.why
    )
    said = (
        f"<p>How much each parameter tells the best trials by {text(aim.name)} from the others (PED-ANOVA, shares of "
        "100 %). It says where a difference lies, not which value is better; from few trials it is a hint.</p>"
    )
    return said + panels(drawn) + (f"<ul>{silent}</ul>" if silent else "")


def techniques_part(snapshot: Known, aim: Aim, drawn: Sequence[Panel]) -> str:
    """The values of each technique's trials."""
    rows = technique_rows(snapshot, aim)
    return panels(drawn) + table("Techniques", rows, heads=("technique",), prose=TEXTS)


def course_part(snapshot: Known, drawn: Sequence[Panel]) -> str:
    """The search, trial by trial, and every trial in a table."""
    if not snapshot.trials:
        return "<p>No trial was begun yet.</p>"
    said = (
        "<p>The line is the best so far. A cross is a trial that was pruned, at its value on the questions that it "
        "met. Late trials, of the techniques that survived, stand on grey.</p>"
        if drawn
        else "<p>No trial is complete yet.</p>"
    )
    rows = [
        {
            "trial": str(one.number),
            "arm": arm_name(one.arm),
            "state": one.state + (", late" if one.late else ""),
            **{name: f"{value:.4g}" for name, value in one.values.items()},
            "questions": "-" if one.dev is None else str(len(one.dev.rows)),
            "LM calls": f"{one.spent.calls} made, {one.spent.saved} saved",
            "seconds": "-" if one.began is None or one.ended is None else f"{one.ended - one.began:.1f}",
            "knobs": changed_knobs(one.arm),
            "why": hidden(one.message) or ("-" if one.same_as is None else f"the same arm as trial {one.same_as}"),
        }
        for one in snapshot.trials
    ]
    columns = list(dict.fromkeys(name for row in rows for name in (*list(row)[:3], *snapshot.spec.objectives, *row)))
    held = table(
        "All trials",
        [{name: row.get(name, "-") for name in columns} for row in rows],
        heads=("trial",),
        prose=TEXTS,
    )
    return f'{said}{panels(drawn)}<details class="telling"><summary>All {len(rows)} trials</summary>{held}</details>'


def stages(snapshot: Known) -> dict[str, Cost]:
    """What each stage cost: as the outcome has it, else what the trials took so far."""
    costs = (snapshot.outcome or {}).get("costs")
    if costs:
        return {str(name): Cost.from_json(cost) for name, cost in costs.items()}
    spent, prompts = (
        sum((getattr(one, name) for one in snapshot.trials), Cost()) for name in ("spent", "prompt_spent")
    )
    return {"search": spent - prompts, "prompts": prompts}


def by_technique(snapshot: Known, names: Sequence[str]) -> dict[str, Cost]:
    """What the trials of each technique cost."""
    return {name: sum((one.spent for one in of_technique(snapshot.trials, name)), Cost()) for name in names}


def cost_part(snapshot: Known, aim: Aim, names: Sequence[str], drawn: Sequence[Panel]) -> str:
    """What the study cost and saved, and what a point gained over no rewriting cost in each technique."""
    spent = snapshot.spent
    dollars = f"; {spent.dollars:.4f} US dollars estimated" if spent.dollars else ""
    said = (
        f"<p>LM calls: {spent.calls} made, {spent.saved} saved; {spent.tokens} tokens{dollars}; {spent.minutes:.1f} "
        "minutes, over all workers and runs.</p>"
    )
    plain = next((one for one in ended(snapshot.trials, "complete") if one.arm and one.arm.is_plain), None)
    base = math.nan if plain is None else plain.values.get(aim.name, math.nan)
    costs = by_technique(snapshot, names)
    rows = []
    for name in names:
        leader = best(of_technique(snapshot.trials, name), aim)
        gain = math.nan if leader is None else leader.values[aim.name] - base
        gain = gain if aim.direction == "maximize" else -gain
        rows.append(
            {
                "technique": name,
                "LM calls made": str(costs[name].calls),
                "saved": str(costs[name].saved),
                "tokens": str(costs[name].tokens),
                "best": "-" if leader is None else _value(leader.values[aim.name], aim),
                "gained over no rewriting": "-" if math.isnan(gain) else _gain(gain, aim),
                "calls made a point": f"{costs[name].calls / (100 * gain):.0f}" if aim.metrics and gain > 0 else "-",
            }
        )
    return (
        said
        + panels(drawn)
        + "<p>A point is one per cent on dev more than no rewriting, by the best trial of a technique.</p>"
        + table("What each technique cost", rows, heads=("technique",))
    )


def in_use(compared: Compared, aim: Aim) -> str:
    """What a point gained on test costs each time that a program is asked."""
    baseline = compared.arm(compared.baseline)
    if not all(metric in arm.metrics for arm in compared.arms for metric in aim.metrics) or not aim.metrics:
        return ""
    rows = []
    for arm in compared.arms:
        gain = 100 * sum(arm.mean(name).value - baseline.mean(name).value for name in aim.metrics) / len(aim.metrics)
        calls, more = (_a_question(arm), _a_question(arm) - _a_question(baseline))
        rows.append(
            {
                "arm": arm.name,
                "LM calls / question": f"{calls:.1f}",
                "more than no rewriting": f"{more:+.1f}",
                "gained on test": f"{gain:+.1f} points",
                "calls a question a point": f"{more / gain:.2f}" if gain > 0 else "-",
            }
        )
    return f"<p>In use, by {text(aim.name)} on test:</p>" + table("What a point costs in use", rows)


def _a_question(arm: Evaluation) -> float:
    return arm.cost.asked / max(1, len(arm.rows))


def dead_part(snapshot: Known) -> str:
    """Knobs that changed nothing that was found."""
    if snapshot.outcome is None or "dead_knobs" not in snapshot.outcome:
        return "<p>Told when the study has ended.</p>"
    rows = [
        {
            "technique": str(one.get("technique", "-")),
            "knob": str(one.get("knob", "-")),
            "values tried": ", ".join(str(value) for value in one.get("values") or ()),
        }
        for one in snapshot.outcome["dead_knobs"]
    ]
    if not rows:
        return "<p>Every knob that was searched changed what was found.</p>"
    said = "<p>These were searched, and no value of theirs changed what any question found; fix them next time.</p>"
    return said + table("Dead knobs", rows, heads=("technique",), prose=TEXTS)


def repeat_part(snapshot: Known, versions: Mapping[str, str]) -> str:
    """All that it takes to run the study again."""
    outcome, spec = snapshot.outcome or {}, snapshot.spec
    command = hidden(str(outcome.get("command") or f"querywright study run {spec.name}.yaml --out FOLDER"))
    seeds = outcome.get("seeds") or {"study": spec.seed}
    listed = [
        *(f"seed of {name}: {value}" for name, value in seeds.items()),
        *(f"{k} {v}" for k, v in versions.items()),
    ]
    asked = {**spec.to_json(), "storage": hidden(spec.storage)}
    if spec.api_base is not None:
        asked["api_base"] = hidden(spec.api_base)
    written = json.dumps(asked, ensure_ascii=False, indent=2)
    return (
        f"<pre>{text(command)}</pre><ul>{''.join(f'<li>{text(one)}</li>' for one in listed)}</ul>"
        f'<details class="telling"><summary>The study, as it was run</summary><pre>{text(written)}</pre></details>'
    )


def drawn_costs(snapshot: Known, names: Sequence[str]) -> list[Panel]:
    """The figures of what was spent."""
    found = (
        figures.spending("stages", "By stage", stages(snapshot)),
        figures.spending("techniques", "By technique, while searching", by_technique(snapshot, names)),
    )
    return [panel for panel in found if panel is not None]


def _value(value: float, aim: Aim) -> str:
    return f"{100 * value:.1f} %" if aim.metrics else f"{value:.4g}"


def _gain(gain: float, aim: Aim) -> str:
    return f"{100 * gain:+.1f} points" if aim.metrics else f"{gain:+.4g}"
