"""The end of a study: test is met once, programs are saved, and all that came of it is kept as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from querywright.data.splits import data_hash
from querywright.models.usage import Cost
from querywright.optimize.artifacts.save import save_program
from querywright.optimize.evaluate import finite
from querywright.optimize.report import render
from querywright.optimize.results import BASELINE, by_judges, today
from querywright.optimize.search.core import Search
from querywright.optimize.search.outcome import TestOutcome, run_test
from querywright.optimize.search.trials import TrialRecord

GOLDEN = 3
"""Golden questions of a saved program."""

RECOMMENDED, RUNNER_UP = "recommended", "runner-up"
"""Names of the artifacts of the recommended program and of the program it was compared with."""

_MADE = (
    "recommended",
    "verdict",
    "sentence",
    "corrected",
    "comparisons",
    "costs",
    "seeds",
    "data",
    "judges",
)
"""What an artifact says of the study that made it."""


def finish(search: Search, trials: Sequence[TrialRecord], folder: Path, *, command: str) -> dict[str, Any]:
    """Compare the best arm of dev with the baseline on test, save programs in a study's folder, and return plain data.

    Started again, it ends the same. The command makes the study again, for the report.
    """
    began = search.judged
    tested = run_test(search, trials)
    chosen = tested.chosen
    prompts = sum((one.prompt_spent for one in trials), Cost())
    costs = {"search": sum((one.spent for one in trials), Cost()) - prompts, "prompts": prompts, **tested.costs}
    if search.judging:
        costs["judges"] = sum((one.judged for one in trials), search.judged - began)
    outcome: dict[str, Any] = {
        "recommended": tested.recommended,
        "verdict": tested.verdict,
        "sentence": tested.sentence,
        "best": None if chosen.best is None else _of_trial(chosen.best, tested.best),
        "plain": _of_trial(chosen.plain, BASELINE),
        "front": [one.number for one in chosen.front],
        "arms": {name: arm.to_json() for name, arm in tested.arms.items()},
        "corrected": chosen.corrected,
        "reader_prompts": tested.reader_prompts.to_json(),
        "failed_on_test": dict(tested.failed),
        "test": [one.to_json(rows=True) for one in tested.rows],
        "comparisons": [one.to_json() for one in tested.comparisons],
        "judges": search.judge_facts,
        "costs": {name: cost.to_json() for name, cost in costs.items()},
        "command": command,
        "seeds": {"study": search.spec.seed},
        "questions": [one.to_json() for one in (*search.splits.dev, *search.splits.test, *search.reader_check)],
        "data": {name: {"n": len(part), "sha256": data_hash(part)} for name, part in search.data.items()},
    }
    before = search.total
    _save(search, tested, outcome, folder)
    outcome["costs"]["saving"] = search.spent_since(before).to_json()
    return outcome


def _of_trial(record: TrialRecord, name: str) -> dict[str, Any]:
    values = {key: finite(value) for key, value in record.values.items()}
    return {"name": name, "number": record.number, "arm": record.arm.to_json(), "values": values}


def _save(search: Search, tested: TestOutcome, outcome: dict[str, Any], folder: Path) -> None:
    """Save the recommended program, the program it was compared with, and the rest of the front, an artifact each."""
    made = {"study": search.spec.name, **{key: outcome[key] for key in _MADE}}
    made["reader_prompts"] = tested.reader_prompts.name
    about = f"from the study `{search.spec.name}` of {today()} for the LM `{search.lm.model}`."
    for name, arm in tested.arms.items():
        if name.startswith("front"):
            called = name.replace(", trial ", "-")
        elif name in {tested.recommended, tested.best, BASELINE}:
            called = RECOMMENDED if name == tested.recommended else RUNNER_UP
        else:
            continue  # untuned
        advice = "" if name == tested.recommended else f" What the study recommends is **{tested.recommended}**."
        card = render(
            "program.md",
            name=called,
            program=tested.programs[name],
            made=f" ({name}), {about}{advice}",
            sentence=tested.sentence,
            said=(),
            tested=tested.rows,
            note=by_judges(search.judge_facts),
            metrics=list(dict.fromkeys(metric for one in tested.rows for metric in one.metrics)),
            sentences=(),
        )
        save_program(
            folder / "artifacts" / called,
            tested.programs[name],
            lm=search.lm,
            asked=search.splits.dev[:GOLDEN],
            threads=search.threads,
            made={**made, "arm": arm.to_json(), "name": name},
            card=card,
        )
