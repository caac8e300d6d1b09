"""What a run found, as plain data and as the card that travels with an artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from querywright.data.splits import Splits, data_hash
from querywright.data.types import Question
from querywright.metrics.statistics import Mean
from querywright.optimize.artifacts.files import Golden, Manifest, write_artifact
from querywright.optimize.evaluate import Evaluation, evaluate, finite
from querywright.optimize.results import Compiled, objective_metrics, objective_value
from querywright.programs import RAG
from querywright.retrieval.engines import opened

CARD_METRICS = ("accuracy", "decision_useful")
"""What a card shows besides the metrics of the objective."""


def compiled_json(compiled: Compiled) -> dict[str, Any]:
    """Everything that a compilation found, without single questions, as a JSON object."""
    settings = compiled.settings
    return {
        "technique": compiled.technique,
        "recommended": compiled.recommended,
        "verdict": compiled.verdict,
        "verdict_sentence": compiled.sentence,
        "objective": settings.objective,
        "seed": settings.seed,
        "n_trials": settings.n_trials,
        "demonstration_sets": compiled.n_demo_sets,
        "reader_demonstrations": compiled.reader_demos,
        "arms": [
            {
                "arm": arm.name,
                "knobs": dict(arm.knobs),
                "prompt": arm.prompt,
                "objective": finite(objective_value(arm.dev, settings.objective)),
                "dev": arm.dev.to_json(),
            }
            for arm in compiled.arms
        ],
        "failed_arms": dict(compiled.failed),
        "failed_prompts": dict(compiled.nothing),
        "dead_knobs": list(compiled.dead_knobs),
        "corrected": None
        if compiled.corrected is None
        else {"dev": compiled.corrected[0], "corrected": compiled.corrected[1]},
        "compiled": compiled.compiled.name,
        "reader_check": len(compiled.reader_check),
        "test": [evaluation.to_json() for evaluation in compiled.test],
        "comparisons": [one.to_json() for one in compiled.comparisons],
        "cost": {stage: cost.to_json() for stage, cost in compiled.costs.items()},
    }


def save_compiled(
    path: str | Path,
    compiled: Compiled,
    splits: Splits,
    *,
    lm: Any,
    threads: int,
    n_golden: int = 3,
) -> Manifest:
    """Write the recommended program of a compilation as an artifact.

    Args:
        path: The artifact's folder.
        compiled: The compilation.
        splits: The questions that it was made with.
        lm: The LM that it was made with.
        threads: Questions under way at a time while the golden answers are taken.
        n_golden: Golden questions, taken from dev. Default 3.
    """
    made = compiled_json(compiled)
    made["data"] = {
        name: {"n": len(part), "sha256": data_hash(part)}
        for name, part in {**splits._asdict(), "reader_check": compiled.reader_check}.items()
        if part
    }
    created = today()
    text = card(Path(path).resolve().name, compiled, lm.model, created, made["data"])
    asked = splits.dev[:n_golden]
    return save_program(path, compiled.program, lm=lm, asked=asked, threads=threads, made=made, card=text)


def today() -> str:
    """The day, ISO 8601."""
    return datetime.now(UTC).date().isoformat()


def save_program(
    path: str | Path,
    program: RAG,
    *,
    lm: Any,
    asked: Sequence[Question],
    threads: int,
    made: Mapping[str, Any],
    card: str,
) -> Manifest:
    """Write a program as an artifact, with what it makes of some questions now.

    Args:
        path: The artifact's folder.
        program: What is saved.
        lm: The LM that it was made with.
        asked: Golden questions.
        threads: Questions under way at a time while their answers are taken.
        made: How it was made, as plain data.
        card: The text of its README.md.
    """
    answered = evaluate(program, asked, lm=lm, name="golden answers", threads=threads)
    golden = [
        Golden(
            question=question.question,
            options=list(question.options),
            answer=row.answer,
            passages=list(row.passages),
        )
        for question, row in zip(asked, answered.rows, strict=True)
        if row.failure is None
    ]
    searched = program.technique.searched
    source = opened(searched)
    reranker = program.technique.reranker
    return write_artifact(
        path,
        program,
        lm=lm.model,
        embedder=source.embedder,
        collection=source.collection,
        engine=source.engine,
        reranker=None if reranker is None else reranker.id,
        fingerprint=searched.fingerprint,
        created=today(),
        made=made,
        golden=golden,
        card=card,
    )


def card(name: str, compiled: Compiled, lm: str, created: str, data: Mapping[str, Any]) -> str:
    """The README.md of an artifact."""
    program = compiled.program
    knobs = "\n".join(f"| {key} | {value} |" for key, value in program.technique.knobs.items())
    sizes = ", ".join(f"{part.replace('_', ' ')} {of['n']}" for part, of in data.items())
    own = [metric for metric in objective_metrics(compiled.settings.objective) if metric not in CARD_METRICS]
    metrics = [*own, *CARD_METRICS]
    test = "\n".join(
        f"| {row.name} | {len(row.rows)} | " + " | ".join(percent(row.mean(m)) for m in metrics) + " |"
        for row in compiled.test
    )
    verdicts = "\n".join(f"- {one.sentence}" for one in compiled.comparisons)
    reader = "chosen" if compiled.reader_demos else "none"
    return f"""# {name}

{program.technique.TITLE}, compiled by querywright on {created} for the LM `{lm}`.

**{compiled.sentence}.**

Chosen on dev from {len(compiled.arms)} arms by {compiled.settings.objective}: **{compiled.recommended}**.
Questions: {sizes}. Demonstrations of the reader: {reader}.

| knob | value |
| --- | --- |
{knobs}

On test, met once, every arm with the same reader unless its name says otherwise; mean and 95 % interval:

| arm | n | {" | ".join(metrics)} |
| --- | --- |{" --- |" * len(metrics)}
{test}

{verdicts}

Load it with `querywright.load("path/to/{name}")`: the path of this folder, as your program sees it.
"""


def percent(mean: Mean) -> str:
    """A mean in per cent with its interval; ``-`` where nothing was scored."""
    if math.isnan(mean.value):
        return "-"
    text = f"{100 * mean.value:.1f}"
    if not math.isnan(mean.low):
        text += f" [{100 * mean.low:.0f}, {100 * mean.high:.0f}]"
    return text + (f" ({mean.unscored} unscored)" if mean.unscored else "")


def table_rows(evaluations: Sequence[Evaluation]) -> list[dict[str, str]]:
    """One row an arm for people to read; the columns are those that some arm has a value for."""
    metrics = list(dict.fromkeys(name for one in evaluations for name in one.metrics))
    rows = []
    for one in evaluations:
        n = max(1, len(one.rows))
        row = {"arm": one.name, "n": str(len(one.rows))}
        row.update({metric: percent(one.mean(metric)) if metric in one.metrics else "-" for metric in metrics})
        row["LM calls / question"] = f"{one.cost.asked / n:.1f}"
        row["LM calls made"] = str(one.cost.calls)
        row["seconds"] = f"{one.seconds:.1f}"
        row["p50 / p95 s"] = " / ".join(_seconds(one.latency(quantile)) for quantile in (0.5, 0.95))
        row["fallbacks"] = _share(one.fallback_rate)
        row["invalid"] = _share(one.invalid_rate)
        failures = sum(one.failures.values())
        row["failed"] = str(failures) if not failures else ", ".join(f"{k} {v}" for k, v in one.failures.items())
        rows.append(row)
    return rows


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.0f} %"
