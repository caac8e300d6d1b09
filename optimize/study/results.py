"""The state and the results of a study as plain data, as table rows, and as one HTML page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.files import write_file
from querywright.metrics.statistics import Mean
from querywright.models.usage import Cost
from querywright.optimize.comparison import CLOSED_BOOK, Comparison
from querywright.optimize.evaluate import Evaluation, Row, finite, mean_json
from querywright.optimize.figures import ARM, NEUTRAL, Figure, Plot, span
from querywright.optimize.objectives import Objective
from querywright.optimize.report import comparison_page
from querywright.optimize.results import BASELINE, CHOSEN_ON_DEV, PairedComparison, as_comparison, by_judges
from querywright.optimize.search.trials import (
    TrialRecord,
    arm_name,
    best,
    changed_knobs,
    cheapest,
    ended,
    front,
    interval,
    ranked,
)
from querywright.optimize.slices import slice_results
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.tables import percent, write_table
from querywright.retrieval.checks import TO_LABEL

BEST_SHOWN = 8
STATES = ("complete", "pruned", "failed", "running")
_COST = ("calls", "saved", "retries", "failures", "repairs", "input_tokens", "output_tokens", "dollars")
_FACTS = ("same_as", "worker", "began", "ended", "message")


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a study over all workers and runs: LM calls made and cached, tokens, and US dollars."""

    calls: int = 0
    saved: int = 0
    tokens: int = 0
    dollars: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of a study's storage.

    Args:
        spec: The study.
        trials: The trials, by number.
        spent: The cost over all workers and runs.
        outcome: All results, once the evaluation on test is done; None before.
    """

    spec: StudySpec
    trials: tuple[TrialRecord, ...] = ()
    spent: Spent = Spent()
    outcome: Mapping[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether the evaluation on test is done and the programs are saved."""
        return self.outcome is not None

    @property
    def evaluations(self) -> list[Evaluation]:
        """The results on test; empty until the study is finished."""
        return [
            Evaluation(one["arm"], tuple(map(Row.from_json, one["rows"])), one["seconds"])
            for one in (self.outcome or {}).get("test", ())
        ]

    @property
    def comparisons(self) -> list[PairedComparison]:
        """The planned comparisons on test, with the stored corrected p-values."""
        by_name, found = {one.name: one for one in self.evaluations}, []
        for one in (self.outcome or {}).get("comparisons", ()):
            raw = by_name[one["arm"]].against(by_name[one["other"]], one["metric"])
            test = replace(raw, p_two_sided=math.nan if one["p_holm"] is None else one["p_holm"])
            found.append(
                PairedComparison(one["family"], one["metric"], one["arm"], one["other"], test, one["sentence"])
            )
        return found

    @property
    def compared(self) -> Comparison | None:
        """The programs on test compared with the baseline; None until the study is finished."""
        evaluations = self.evaluations
        if self.outcome is None or not evaluations:
            return None
        asked = {one["id"]: one for one in self.outcome["questions"]}
        columns, values = self.spec.slices, self.outcome.get("slices", {})
        questions = [
            Question(
                one["id"], one["question"], tuple(one.get("options") or ()), one.get("answer"),
                tuple(one.get("aliases") or ()), slices=values.get(one["id"], {}),
            )
            for one in (asked[row.id] for row in evaluations[0].rows)
        ]  # fmt: skip
        compared = as_comparison(evaluations, self.comparisons)
        sliced = slice_results(
            compared.arms, questions, columns, baseline=BASELINE, closed_book=compared.reference(CLOSED_BOOK)
        )
        # studies of earlier versions have no hints and remarks
        told: Any = {name: tuple(self.outcome.get(name, ())) for name in ("hints", "notes", "remarks")}
        return replace(compared, questions=tuple(questions), slices=sliced, **told)

    @property
    def by_technique(self) -> dict[str, list[TrialRecord]]:
        """The trials of each technique, by technique name."""
        return {name: [one for one in self.trials if one.arm.technique == name] for name in self.spec.techniques}


def status(snapshot: Snapshot) -> dict[str, Any]:
    """Return the progress and the results of a study as a JSON object."""
    trials, spec, spent, outcome = snapshot.trials, snapshot.spec, snapshot.spent, snapshot.outcome or {}
    aims, first = spec.aims, spec.aims[0]
    made = {"calls": spent.calls, "tokens": spent.tokens, "dollars": round(spent.dollars, 6)}
    return {
        "name": spec.name,
        "finished": snapshot.finished,
        "trials": {"planned": spec.trials, **_counts(trials)},
        "objectives": {aim.name: aim.direction for aim in aims},
        "techniques": [
            {"technique": name, "trials": len(own), **_counts(own), "best": _trial(best(own, first), aims)}
            for name, own in snapshot.by_technique.items()
        ],
        "best": _trial(best(trials, first), aims),
        "front": front(trials, aims) if len(aims) > 1 else None,
        "cheapest": _trial(cheapest(trials, aims), aims) if len(aims) > 1 else None,
        "spent": {
            **{name: {"made": value, "limit": getattr(spec.budget, name)} for name, value in made.items()},
            "saved": spent.saved,
        },
        **{name: outcome.get(name) for name in ("verdict", "sentence", "recommended")},
    }


def _counts(trials: Sequence[TrialRecord]) -> dict[str, int]:
    return {state: len(ended(trials, state)) for state in STATES}


def _trial(record: TrialRecord | None, aims: Sequence[Objective]) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "number": record.number,
        "arm": arm_name(record.arm),
        "knobs": dict(record.arm.knobs),
        "objective": aims[0].name,
        **mean_json(interval(record, aims[0])),
        "values": {name: finite(value) for name, value in record.values.items()},
    }


def shown(mean: Mean, aim: Objective) -> str:
    """Return a value as text: a percentage with its interval, or a cost."""
    return percent(mean) if aim.metrics else value_text(mean.value, aim)


def cheapest_text(snapshot: Snapshot) -> str:
    """Return a sentence about the cheapest trial within a point of the best; empty with one objective or no trials."""
    aims = snapshot.spec.aims
    found = cheapest(snapshot.trials, aims) if len(aims) > 1 else None
    if found is None:
        return ""
    values = ", ".join(f"{aim.name} {value_text(found.values.get(aim.name, math.nan), aim)}" for aim in aims)
    return f"cheapest trial within a point of the best on dev: trial {found.number}, {arm_name(found.arm)} ({values})"


def value_text(value: float, aim: Objective) -> str:
    """Return the value of an objective as text without an interval; ``-`` if there is no value."""
    if math.isnan(value):
        return "-"
    return f"{100 * value:.1f}%" if aim.metrics else f"{value:.4g}"


def trial_table(
    trials: Sequence[TrialRecord], aims: Sequence[Objective], limit: int = BEST_SHOWN
) -> list[dict[str, str]]:
    """Return a table with a row for each of the first trials; trials with the same arm share a row."""
    distinct = {one.arm.key: one for one in reversed(trials)}
    return [
        {
            "trial": str(one.number),
            "arm": arm_name(one.arm),
            **{aim.name: shown(interval(one, aim), aim) for aim in aims},
            "knobs": changed_knobs(one.arm),
        }
        for one in [one for one in trials if distinct[one.arm.key] is one][:limit]
    ]


def export(snapshot: Snapshot, path: str | Path) -> int:
    """Write the trials of a study as a table.

    A row has ``number``, ``state``, ``technique``, ``engine``, ``prompt``, ``reader``, ``writer``, ``same_as``,
    ``worker``, ``began`` and ``ended`` (Unix time), and ``message``; ``value.NAME``, ``low.NAME``, and ``high.NAME``
    for each objective; the numbers of ``questions`` and ``unscored`` questions; ``spent.NAME`` in calls, tokens, and
    dollars; ``prompt_spent.calls``; ``knob.NAME``; and ``param.NAME``.

    Args:
        snapshot: The study.
        path: The file; its name must end in ``.parquet``, ``.csv``, or ``.jsonl``.

    Returns:
        The number of rows.

    Raises:
        InputError: The file's suffix is not supported, or its folder is missing.
    """
    rows = trial_rows(snapshot)
    write_table(Path(path), rows)
    return len(rows)


def trial_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the rows that ``export`` writes."""
    rows = []
    for one in snapshot.trials:
        row = {name: getattr(one, name) for name in ("number", "state")}
        row |= {name: getattr(one.arm, name) for name in ("technique", "engine", "prompt", "reader", "writer")}
        row |= {name: getattr(one, name) for name in _FACTS}
        for aim in snapshot.spec.aims:
            found = interval(one, aim)
            values = {"value": one.values.get(aim.name, math.nan), "low": found.low, "high": found.high}
            row |= {f"{part}.{aim.name}": value for part, value in values.items()}
        row |= {"questions": len(one.dev.rows), "unscored": interval(one, snapshot.spec.aims[0]).unscored}
        row |= {f"spent.{name}": getattr(one.spent, name) for name in _COST}
        row["prompt_spent.calls"] = one.prompt_spent.calls
        row |= {f"knob.{name}": value for name, value in one.arm.knobs.items()}
        rows.append(row | {f"param.{name}": value for name, value in one.params.items()})
    return rows


def unscored_note(snapshot: Snapshot) -> str:
    """Return a line on trials with scores for different questions; empty if all have scores for the same ones."""
    complete, aim = ended(snapshot.trials, "complete"), snapshot.spec.aims[0]
    if len({frozenset(aim.scores(one.dev)) for one in complete}) < 2:
        return ""
    label = f"; to score all questions, label the unjudged passages ({TO_LABEL})"
    return (
        "trials with unscored questions are compared with others on the questions for which both have a score, so "
        "their order may differ from the order of the scores"
    ) + label * any(row.unjudged for one in complete for row in one.dev.rows)


def write_report(snapshot: Snapshot, path: str | Path) -> None:
    """Write a finished study's page atomically.

    Raises:
        InputError: The study is not finished.
    """
    write_file(Path(path), study_html(snapshot))


def study_html(snapshot: Snapshot) -> str:
    """Return a finished study's page: the comparison on test, and the trials. Raises the same errors as
    ``write_report``.
    """
    spec, trials, outcome, compared = snapshot.spec, snapshot.trials, snapshot.outcome or {}, snapshot.compared
    if compared is None:
        raise InputError(
            f"the study {spec.name!r} is not finished, so it has no report ({len(ended(trials))} of {spec.trials} "
            "trials ended); check `querywright study status`, and resume the study"
        )
    aims, kept = spec.aims, front(trials, spec.aims) if len(spec.aims) > 1 else []
    counts = {state: count for state, count in _counts(trials).items() if count}
    facts = {
        "Questions": Path(spec.questions).name + (f" (first {spec.limit} questions)" if spec.limit else ""),
        "Collection": spec.collection + (f", filtered by {json.dumps(spec.where)}" if spec.where else ""),
        "LM": spec.lm,
        "Writers": ", ".join(spec.writer_names),
        "Reader": spec.reader,
        "Objectives": ", ".join(spec.objectives),
        "Trials": f"{spec.trials}: {', '.join(f'{count} {state}' for state, count in counts.items())}",
        "Seed": str(spec.seed),
    }
    return comparison_page(
        compared,
        title=f"Study {spec.name}{by_judges(outcome.get('judges', ()))}",
        facts={name: text for name, text in facts.items() if text},
        notes=[CHOSEN_ON_DEV, *filter(None, [unscored_note(snapshot)]), *compared.all_notes],
        outcome=f"{outcome['sentence']}; recommended: {outcome['recommended']}",
        command=str(outcome["command"]),
        template="study.html",
        kind="study",
        metric=aims[0].metrics[0],
        study=outcome,
        aim=aims[0],
        best=trial_table(ranked(trials, aims[0]), aims),
        front=trial_table([one for one in trials if one.number in kept], aims, len(kept)),
        cheapest=cheapest_text(snapshot),
        fronts=[_front_figure(trials, aims[0], other, set(kept)) for other in aims[1:]] if kept else [],
        trials=[_report_row(one, spec.objectives) for one in trials],
        spent=snapshot.spent,
        stages=_stages(outcome["costs"]),
        spec=json.dumps(spec.to_json(), ensure_ascii=False, indent=2),
        value_text=value_text,
    )


def _stages(costs: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a row for each stage that called an LM."""
    return [
        {"stage": name, "LM calls": str(cost.calls), "cached": str(cost.saved), "tokens": str(cost.tokens)}
        for name, cost in ((name, Cost.from_json(one)) for name, one in costs.items())
        if cost.asked
    ]


def _report_row(one: TrialRecord, objectives: Sequence[str]) -> dict[str, str]:
    same = "-" if one.same_as is None else f"same arm as trial {one.same_as}"
    return {
        "trial": str(one.number),
        "arm": arm_name(one.arm),
        "state": one.state,
        **{name: f"{one.values[name]:.4g}" if name in one.values else "-" for name in objectives},
        "questions": str(len(one.dev.rows) or "-"),
        "LM calls": f"{one.spent.calls} ({one.spent.saved} cached)",
        "knobs": changed_knobs(one.arm),
        "why": one.message or same,
    }


def _front_figure(trials: Sequence[TrialRecord], aim: Objective, other: Objective, kept: set[int]) -> Figure:
    """Plot one objective against another: show every complete trial, and label and join the trials on the front."""
    drawn = [one for one in ranked(trials, other) if not math.isnan(one.values.get(aim.name, math.nan))]
    at = {
        one.number: [one.values[which.name] * (100 if which.metrics else 1) for which in (other, aim)] for one in drawn
    }
    x_title, y_title = (
        f"{one.name}{', %' if one.metrics else ''} ({'higher' if one.metrics else 'lower'} is better)"
        for one in (other, aim)
    )
    ends = [span([point[side] for point in at.values()]) for side in (0, 1)]
    plot = Plot(ends[0], ends[1], x_title=x_title, y_title=y_title)
    plot.line(sorted((x, y) for number, (x, y) in at.items() if number in kept), ARM, dash=True)
    said = {}
    for one in sorted(drawn, key=lambda one: one.number in kept):
        first, (x, y) = one.number in kept, at[one.number]
        said[one.number] = (
            f"trial {one.number}, {arm_name(one.arm)}: {shown(interval(one, aim), aim)}; {changed_knobs(one.arm)}; "
            f"{other.name} {value_text(one.values[other.name], other)}"
        )
        look: Any = {"shape": "diamond", "text": str(one.number)} if first else {}
        plot.dot(x, y, said[one.number], ARM if first else NEUTRAL, **look)
    alt = f"Front: {'; '.join(text for number, text in said.items() if number in kept)}"
    name = "".join(one if one.isascii() and (one.isalnum() or one == "_") else "-" for one in other.name)
    legend = {"front": ARM, "other trials": NEUTRAL}
    return Figure(f"figure-front-{name}", f"{aim.name} against {other.name}", plot.svg(), alt, legend=legend)
