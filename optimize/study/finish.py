"""The last word of a study: test met once, dead knobs named, programs saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from querywright.data.splits import data_hash
from querywright.metrics.statistics import p_value
from querywright.models.ledger import Cost
from querywright.optimize.comparison import Compared, compare
from querywright.optimize.contrasts import ALPHA, family
from querywright.optimize.evaluate import Evaluation, finite
from querywright.optimize.final import verdict_on
from querywright.optimize.references import closed_book, oracle_evidence
from querywright.optimize.report import percent, save_program, today
from querywright.optimize.results import NO_REWRITING, Comparison
from querywright.optimize.study.bench import Bench, Variant
from querywright.optimize.study.dead_knobs import dead_knobs
from querywright.optimize.study.select import Chosen
from querywright.optimize.study.spec import AS_WRITTEN
from querywright.optimize.study.types import ArmConfig, TrialRecord
from querywright.programs import RAG, make_reader

FRONT = 4
"""Programs of the front that meet test and are saved, besides the best one, at most."""

GOLDEN = 3
"""Golden questions of a saved program."""

VariantOf = Callable[[ArmConfig], Variant | None]


def finish(
    bench: Bench,
    chosen: Chosen,
    trials: Sequence[TrialRecord],
    variant_of: VariantOf,
    folder: Path,
    *,
    command: str,
    progress: Any = None,
) -> dict[str, Any]:
    """Hold what dev chose against no rewriting on test, and save it.

    What was met once stands in the folder's ``test``, so a study that is stopped here goes on where it was.

    Args:
        bench: What is open.
        chosen: What dev decided.
        trials: Of the study.
        variant_of: The prompts of an arm.
        folder: The study's.
        command: What makes the study again, for the report.
        progress: Called as work proceeds.

    Returns:
        All that is said of the outcome, as plain data.
    """
    before = bench.ledger.total
    arms = _final_arms(bench, chosen)
    programs = {name: bench.program(arm, variant_of(arm), reads=True) for name, arm in arms.items()}
    reader = chosen.plain.arm.reader if chosen.plain.arm is not None else None
    references: dict[str, RAG] = {}
    if reader is not None:
        references["closed book"] = closed_book(make_reader(reader))
        budget = {"max_passages": arms[NO_REWRITING].knobs["max_passages"]}
        oracle = oracle_evidence(bench.retriever("dense"), bench.splits.test, make_reader(reader), budget)
        if oracle is not None:
            references["oracle evidence"] = oracle
    compared = compare(
        programs,
        bench.splits.test,
        lm=bench.lm,
        folder=folder / "test",
        baseline=NO_REWRITING,
        references=references,
        metrics=bench.metrics,
        threads=bench.spec.threads,
        max_failures=bench.spec.max_failures,
        progress=progress,
    )
    test_cost = bench.spent_since(before)
    best_name = _name_of(chosen.best, arms)
    verdict, sentence, comparisons = _verdict(bench, chosen, compared, best_name)
    looked_at = [one.arm for one in (chosen.best, *chosen.front) if one is not None and one.arm is not None]
    by_technique = {arm.technique: arm for arm in reversed(looked_at)}
    dead = [one for arm in by_technique.values() for one in dead_knobs(bench, arm, variant_of(arm))]
    recommended = NO_REWRITING if chosen.winner is chosen.plain else best_name
    outcome = {
        "recommended": recommended,
        "verdict": verdict,
        "sentence": sentence,
        "best": None if chosen.best is None else _of_trial(chosen.best, best_name),
        "plain": _of_trial(chosen.plain, NO_REWRITING),
        "front": [one.number for one in chosen.front],
        "arms": {name: arm.to_json() for name, arm in arms.items()},
        "corrected": None if chosen.corrected is None else asdict(chosen.corrected),
        "test": [one.to_json(rows=True) for one in (*compared.arms, *compared.references)],
        "comparisons": [one.to_json() for one in comparisons],
        "dead_knobs": dead,
        "costs": _costs(trials, test_cost),
        "command": command,
        "seeds": {"study": bench.spec.seed},
        "questions": [one.to_json() for one in (*bench.splits.dev, *bench.splits.test)],
        "data": {name: {"n": len(part), "sha256": data_hash(part)} for name, part in bench.splits._asdict().items()},
    }
    outcome["prompts"] = _prompts(bench, trials, variant_of)
    _save(bench, chosen, arms, programs, compared, outcome, folder)
    return outcome


def _final_arms(bench: Bench, chosen: Chosen) -> dict[str, ArmConfig]:
    """The programs that meet test, by name: no rewriting, the best, the same technique as written, the front."""
    assert chosen.plain.arm is not None
    arms = {NO_REWRITING: chosen.plain.arm}
    if chosen.best is not None and chosen.best.arm is not None:
        best = chosen.best.arm
        arms[f"{best.technique} tuned"] = best
        written = replace(bench.space.as_written(best.technique), reader=best.reader)
        if written.key not in {arm.key for arm in arms.values()}:
            arms[f"{best.technique} as written"] = written
    if len(bench.objectives) > 1:
        for record in chosen.front:
            known = {arm.key for arm in arms.values()}
            if record.arm is not None and record.arm.key not in known and sum("front" in name for name in arms) < FRONT:
                arms[f"front, trial {record.number}"] = record.arm
    return arms


def _name_of(record: TrialRecord | None, arms: Mapping[str, ArmConfig]) -> str:
    if record is None or record.arm is None:
        return ""
    return next(name for name, arm in arms.items() if arm.key == record.arm.key)


def _verdict(bench: Bench, chosen: Chosen, compared: Compared, best: str) -> tuple[str, str, list[Comparison]]:
    """The word, the sentence, and the planned comparisons, corrected together."""
    arms = {one.name: one for one in compared.arms}
    metrics = list(dict.fromkeys([*bench.objectives[0].metrics, *compared.arm(NO_REWRITING).metrics]))
    others = [name for name in arms if name != NO_REWRITING]
    comparisons = [
        one
        for metric in metrics
        for one in family(metric, [(metric, name, NO_REWRITING) for name in others], arms)
    ]  # fmt: skip
    references = {one.name: one for one in (*compared.arms, *compared.references)}
    pair = ("oracle evidence", "closed book")
    comparisons += family("reader check", [("accuracy", *pair)], references, prefix="reader check: ")
    first = bench.objectives[0]
    if chosen.best is None:
        return "no rewriting", "No other arm could be scored on dev, so no rewriting is what was saved", comparisons
    if chosen.too_few:
        return "too few questions", f"{chosen.too_few}, so no rewriting is what was saved", comparisons
    if chosen.winner is chosen.plain:
        mine, plain = (one.values.get(first.name, float("nan")) for one in (chosen.best, chosen.plain))
        said = "" if chosen.test is None else f"; {_figures(chosen)}"
        return (
            "no rewriting",
            f"Nothing was better than no rewriting on dev ({first.name}: best {_percent(mine)} against "
            f"{_percent(plain)} per cent{said}), so no rewriting is what was saved",
            comparisons,
        )
    tests = {
        one.metric: one.test for one in comparisons if one.arm == best and one.metric in first.metrics
    }  # fmt: skip
    word, sentence = verdict_on(tests)
    return word, sentence, comparisons


def _figures(chosen: Chosen) -> str:
    test = chosen.test
    assert test is not None
    return f"{test.wins} won, {test.losses} lost of {test.n}, {p_value(test.p_two_sided, ALPHA)}"


def _percent(value: float) -> str:
    return "-" if finite(value) is None else f"{100 * value:.1f}"


def _of_trial(record: TrialRecord, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "number": record.number,
        "arm": None if record.arm is None else record.arm.to_json(),
        "values": {key: finite(value) for key, value in record.values.items()},
    }


def _costs(trials: Sequence[TrialRecord], test: Cost) -> dict[str, Any]:
    """What each stage cost; searching and compiling prompts are optimisation, test is inference."""
    prompts = sum((one.prompt_spent for one in trials), Cost())
    searching = sum((one.spent for one in trials), Cost()) - prompts
    return {"search": searching.to_json(), "prompts": prompts.to_json(), "test": test.to_json()}


def _prompts(bench: Bench, trials: Sequence[TrialRecord], variant_of: VariantOf) -> dict[str, Any]:
    """By technique and variant each predictor's prompt before and after."""
    from querywright.optimize.artifacts.state import predictor_states

    found: dict[str, Any] = {}
    for record in trials:
        arm = record.arm
        if arm is None or arm.prompt == AS_WRITTEN or record.state not in ("complete", "pruned"):
            continue
        name = f"{arm.technique}, {arm.prompt}"
        variant = variant_of(arm)
        if name in found or variant is None:
            continue
        written = ArmConfig(arm.technique, arm.engine, arm.knobs, AS_WRITTEN, arm.reader)
        before = predictor_states(bench.program(written))
        after = predictor_states(bench.program(arm, variant))
        found[name] = {
            predictor: {
                "before": before[predictor].instructions if predictor in before else "",
                "after": state.instructions,
                "demos_before": len(before[predictor].demos) if predictor in before else 0,
                "demos_after": len(state.demos),
                "demos": state.demos[:4],
            }
            for predictor, state in after.items()
        }
    return found


def _save(
    bench: Bench,
    chosen: Chosen,
    arms: Mapping[str, ArmConfig],
    programs: Mapping[str, RAG],
    compared: Compared,
    outcome: Mapping[str, Any],
    folder: Path,
) -> None:
    """One artifact each for the best arm, no rewriting and the front."""
    kept = ("recommended", "verdict", "sentence", "corrected", "comparisons", "costs", "seeds", "data", "dead_knobs")
    made = {"study": bench.spec.name, **{key: outcome[key] for key in kept}}
    for name, arm in arms.items():
        if name.endswith(" as written"):
            continue
        called = {NO_REWRITING: "no-rewriting"}.get(name, name.replace(", trial ", "-") if "front" in name else "best")
        program = programs[name]
        text = _card(called, name, bench, program, compared, outcome)
        save_program(
            folder / "artifacts" / called,
            program,
            lm=bench.lm,
            asked=bench.splits.dev[:GOLDEN],
            threads=bench.spec.threads,
            made={**made, "arm": arm.to_json(), "name": name},
            card=text,
        )


def _card(called: str, name: str, bench: Bench, program: RAG, compared: Compared, outcome: Mapping[str, Any]) -> str:
    knobs = "\n".join(f"| {key} | {value} |" for key, value in program.technique.knobs.items())
    rows: list[Evaluation] = [*compared.arms, *compared.references]
    metrics = list(dict.fromkeys(metric for one in rows for metric in one.metrics))
    test = "\n".join(
        f"| {one.name} | {len(one.rows)} | " + " | ".join(percent(one.mean(metric)) for metric in metrics) + " |"
        for one in rows
    )
    advice = "" if name == outcome["recommended"] else f" What the study recommends is **{outcome['recommended']}**."
    origin = f"from the study `{bench.spec.name}` of {today()} for the LM `{bench.lm.model}`"
    return f"""# {called}

{program.technique.TITLE} ({name}), {origin}.{advice}

**{outcome["sentence"]}.**

| knob | value |
| --- | --- |
{knobs}

On test, met once; mean and 95 % interval:

| arm | n | {" | ".join(metrics)} |
| --- | --- |{" --- |" * len(metrics)}
{test}

Load it with `querywright.load("path/to/{called}")`: the path of this folder, as your program sees it.
"""
