"""The last word of a study: test met once, dead knobs named, programs saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from querywright.data.splits import data_hash
from querywright.models.usage import Cost
from querywright.optimize.artifacts.save import save_program
from querywright.optimize.evaluate import Evaluation, finite
from querywright.optimize.results import NO_REWRITING, today
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.select import Chosen
from querywright.optimize.study.spec import AS_WRITTEN
from querywright.optimize.study.testing import Tested, meet_test
from querywright.optimize.study.trial import Worker
from querywright.optimize.study.types import ArmConfig, TrialRecord
from querywright.optimize.tables import percent
from querywright.programs import RAG

GOLDEN = 3
"""Golden questions of a saved program."""


def finish(
    worker: Worker, chosen: Chosen, trials: Sequence[TrialRecord], folder: Path, *, command: str
) -> dict[str, Any]:
    """Hold what dev chose against no rewriting on test, and save it.

    Args:
        worker: Has what is open, and the prompts.
        chosen: What dev decided.
        trials: Of the study.
        folder: The study's.
        command: What makes the study again, for the report.

    Returns:
        All that is said of the outcome, as plain data.
    """
    bench = worker.bench
    tested = meet_test(worker, chosen)
    data = {**bench.splits._asdict(), "reader_check": bench.reader_check}
    outcome: dict[str, Any] = {
        "recommended": tested.recommended,
        "verdict": tested.verdict,
        "sentence": tested.sentence,
        "best": None if chosen.best is None else _of_trial(chosen.best, tested.best),
        "plain": _of_trial(chosen.plain, NO_REWRITING),
        "front": [one.number for one in chosen.front],
        "arms": {name: arm.to_json() for name, arm in tested.arms.items()},
        "corrected": None if chosen.corrected is None else asdict(chosen.corrected),
        "reader_prompts": tested.last.to_json(),
        "failed_on_test": dict(tested.failed),
        "test": [one.to_json(rows=True) for one in (*tested.rows, *tested.references)],
        "comparisons": [one.to_json() for one in tested.comparisons],
        "dead_knobs": [dict(one) for one in tested.dead_knobs],
        "costs": _costs(trials, tested),
        "command": command,
        "seeds": {"study": bench.spec.seed},
        "questions": [one.to_json() for one in (*bench.splits.dev, *bench.splits.test, *bench.reader_check)],
        "data": {name: {"n": len(part), "sha256": data_hash(part)} for name, part in data.items() if part},
    }
    outcome["prompts"] = _prompts(worker, trials) | _last_prompts(worker, tested)
    before = bench.ledger.total
    _save(bench, tested, outcome, folder)
    costs = {**outcome["costs"], "saving": bench.spent_since(before).to_json()}
    return {**outcome, "costs": costs}


def _of_trial(record: TrialRecord, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "number": record.number,
        "arm": None if record.arm is None else record.arm.to_json(),
        "values": {key: finite(value) for key, value in record.values.items()},
    }


def _costs(trials: Sequence[TrialRecord], tested: Tested) -> dict[str, Any]:
    """What each stage cost but saving; searching and compiling prompts are optimisation, test is inference."""
    prompts = sum((one.prompt_spent for one in trials), Cost())
    searching = sum((one.spent for one in trials), Cost()) - prompts
    stages = {"search": searching, "prompts": prompts, **tested.costs}
    return {name: cost.to_json() for name, cost in stages.items()}


def _prompts(worker: Worker, trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """By technique and variant each predictor's prompt before and after."""
    from querywright.optimize.program_state import predictor_states

    bench = worker.bench
    found: dict[str, Any] = {}
    for record in trials:
        arm = record.arm
        if arm is None or arm.prompt == AS_WRITTEN or record.state not in ("complete", "pruned"):
            continue
        name = f"{arm.technique}, {arm.prompt}"
        if name in found:
            continue
        variant, _ = worker.variant(arm)
        written = ArmConfig(arm.technique, arm.engine, arm.knobs, AS_WRITTEN, arm.reader)
        before = predictor_states(bench.program(written))
        after = predictor_states(bench.program(arm, variant))
        found[name] = _changes(before, after)
    return found


def _last_prompts(worker: Worker, tested: Tested) -> dict[str, Any]:
    """The reader's prompts before and after, where some were chosen last."""
    from querywright.optimize.program_state import predictor_states

    if tested.last.variant is None:
        return {}
    arm = tested.arms[tested.recommended]
    before = predictor_states(worker.bench.program(arm, worker.variant(arm)[0], reads=True))
    after = predictor_states(tested.programs[tested.recommended])
    reading = {name: state for name, state in after.items() if ".reader." in f".{name}"}
    return {f"reader, {tested.last.name}": _changes(before, reading)}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Each predictor's prompt before and after."""
    return {
        predictor: {
            "before": before[predictor].instructions if predictor in before else "",
            "after": state.instructions,
            "demos_before": len(before[predictor].demos) if predictor in before else 0,
            "demos_after": len(state.demos),
            "demos": state.demos[:4],
        }
        for predictor, state in after.items()
    }


def _save(bench: Bench, tested: Tested, outcome: Mapping[str, Any], folder: Path) -> None:
    """One artifact each for the best arm, no rewriting and the front."""
    kept = ("recommended", "verdict", "sentence", "corrected", "comparisons", "costs", "seeds", "data", "dead_knobs")
    made = {"study": bench.spec.name, **{key: outcome[key] for key in kept}, "reader_prompts": tested.last.name}
    for name, arm in tested.arms.items():
        if name.endswith(" as written"):
            continue
        front = name.partition(", reader ")[0].replace(", trial ", "-")
        called = {NO_REWRITING: "no-rewriting"}.get(name, front if "front" in name else "best")
        program = tested.programs[name]
        text = _card(called, name, bench, program, tested)
        save_program(
            folder / "artifacts" / called,
            program,
            lm=bench.lm,
            asked=bench.splits.dev[:GOLDEN],
            threads=bench.spec.threads,
            made={**made, "arm": arm.to_json(), "name": name},
            card=text,
        )


def _card(called: str, name: str, bench: Bench, program: RAG, tested: Tested) -> str:
    knobs = "\n".join(f"| {key} | {value} |" for key, value in program.technique.knobs.items())
    rows: list[Evaluation] = [*tested.rows, *tested.references]
    metrics = list(dict.fromkeys(metric for one in rows for metric in one.metrics))
    test = "\n".join(
        f"| {one.name} | {len(one.rows)} | " + " | ".join(percent(one.mean(metric)) for metric in metrics) + " |"
        for one in rows
    )
    advice = "" if name == tested.recommended else f" What the study recommends is **{tested.recommended}**."
    origin = f"from the study `{bench.spec.name}` of {today()} for the LM `{bench.lm.model}`"
    return f"""# {called}

{program.technique.TITLE} ({name}), {origin}.{advice}

**{tested.sentence}.**

| knob | value |
| --- | --- |
{knobs}

On test, met once; mean and 95 % interval:

| arm | n | {" | ".join(metrics)} |
| --- | --- |{" --- |" * len(metrics)}
{test}

Load it with `querywright.load("path/to/{called}")`: the path of this folder, as your program sees it.
"""
