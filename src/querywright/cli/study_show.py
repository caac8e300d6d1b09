"""What the commands of a study print: how it stands while it runs, tables and verdicts at its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.show import emit, note, say, show_table

if TYPE_CHECKING:
    from querywright.optimize.study.types import Snapshot

DETAILS = (
    *("recommended", "verdict", "sentence", "corrected", "comparisons", "failed_on_test"),
    *("dead_knobs", "costs", "judges", "seeds", "command"),
)


def standing(snapshot: Snapshot) -> tuple[int, int, str]:
    """Trials that ended, trials planned, and how it stands."""
    from querywright.optimize.study.status import status

    found = status(snapshot)
    calls = found["spent"]["calls"]
    limit = "" if calls["limit"] is None else f" of at most {calls['limit']}"
    made = f"LM calls {calls['made']} made{limit}, {found['spent']['saved']} saved"
    trials = found["trials"]
    said = "; ".join(part for part in (_best(found), made, _left(found)) if part)
    return trials["planned"] - trials["left"], trials["planned"], said


def _best(found: Mapping[str, Any]) -> str:
    """The best trial so far, with its interval."""
    best = found["best"]
    if best is None:
        return ""
    figure = f"{best['value']:.4g}"
    if best["low"] is not None and best["high"] is not None:
        value, low, high = (100 * best[name] for name in ("value", "low", "high"))
        figure = f"{value:.1f} [{low:.0f}, {high:.0f}]"
    return f"best so far {figure} (trial {best['number']}, {best['arm']})"


def _left(found: Mapping[str, Any]) -> str:
    """How long it will take; "" where that is not known or nothing is left."""
    minutes = found["minutes_left"]
    if minutes is None or not found["trials"]["left"]:
        return ""
    return f"about {minutes / 60:.1f} h left" if minutes >= 90 else f"about {max(1, round(minutes))} min left"


def study_json(snapshot: Snapshot, files: Mapping[str, str]) -> dict[str, Any]:
    """A study and its outcome, without single questions, as a JSON object."""
    from querywright.optimize.study.status import status

    outcome = snapshot.outcome or {}
    test = [{name: value for name, value in one.items() if name != "rows"} for one in outcome.get("test") or ()]
    details = {name: outcome.get(name) for name in DETAILS}
    return {**status(snapshot), **details, "test": test, "files": dict(files)}


def show_study(snapshot: Snapshot, folder: Path, *, as_json: bool) -> None:
    """Print the end of a study: dev, test, verdicts and cost; or one JSON object."""
    from querywright.optimize.study.status import aims, best_rows, evaluations, ranked
    from querywright.optimize.tables import table_rows

    files = {"report": str(folder / "report.html"), "artifacts": str(folder / "artifacts")}
    objectives, outcome = aims(snapshot.spec), snapshot.outcome or {}

    def shown() -> None:
        rows = best_rows(ranked(snapshot.trials, objectives[0]), objectives)
        if rows:
            show_table(f"dev, best {len(rows)} arms, with the knobs that differ from their defaults", rows)
        met = evaluations(outcome)
        if met:
            notes = ["met once; mean in per cent with its 95 % interval; p-values Holm-corrected", *_verdicts(outcome)]
            notes += [one["standing"] for one in outcome.get("judges", ())]
            title = f"test, {len(met[0].rows)} questions"
            show_table(title, table_rows(met), notes=notes, breaks=("LM calls / question",))
        else:
            for line in _verdicts(outcome):
                say(line)
        say(_cost(snapshot))
        note(f"report: {files['report']}; programs: {files['artifacts']}")

    emit(as_json, study_json(snapshot, files), shown)


def _verdicts(outcome: Mapping[str, Any]) -> list[str]:
    """What came of a study, in sentences."""
    said = [str(one["sentence"]) for one in outcome.get("comparisons") or ()]
    if outcome.get("recommended"):
        said.append(f"recommended: {outcome['recommended']} (chosen on dev)")
    last = outcome.get("reader_prompts") or {}
    if last.get("tried"):
        said.append(f"the reader's prompts, by accuracy on dev: {last['name']}")
    if last.get("failed"):
        said.append(f"out, for too many questions of dev failed: the reader {', '.join(last['failed'])}")
    if outcome.get("failed_on_test"):
        said.append(f"out, for too many questions of test failed: {', '.join(outcome['failed_on_test'])}")
    return [*said, str(outcome["sentence"])] if outcome.get("sentence") else said


def show_status(snapshot: Snapshot) -> None:
    """Print how far a study is."""
    from querywright.optimize.study.status import aims, best_rows, status, technique_rows

    found, objectives = status(snapshot), aims(snapshot.spec)
    trials = found["trials"]
    ended = trials["complete"] + trials["pruned"] + trials["failed"]
    word = "finished" if found["finished"] else "not finished"
    show_table(
        f"{found['name']}: {word}; {ended} of {trials['planned']} trials ended ({trials['pruned']} pruned, "
        f"{trials['failed']} failed), {trials['running']} under way",
        technique_rows(snapshot, objectives[0]),
    )
    front = found["front"]
    if front:
        rows = best_rows([one for one in snapshot.trials if one.number in front], objectives, len(front))
        show_table(f"front of {', '.join(found['objectives'])}", rows)
    limits = {name: one for name, one in found["spent"].items() if isinstance(one, dict) and one["limit"] is not None}
    budget = ", ".join(f"{one['made']:g} of {one['limit']:g} {name}" for name, one in limits.items())
    for line in (_best(found), _left(found), found["sentence"], budget and f"budget: {budget}", _cost(snapshot)):
        if line:
            say(line)


def _cost(snapshot: Snapshot) -> str:
    """What the study cost over all its workers and runs."""
    spent = snapshot.spent
    dollars = f"; {spent.dollars:.4f} US dollars estimated" if spent.dollars else ""
    calls = f"LM calls: {spent.calls} made, {spent.saved} saved"
    return f"{calls}; {spent.tokens} tokens; {spent.minutes:.1f} minutes{dollars}"
