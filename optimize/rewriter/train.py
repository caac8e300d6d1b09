"""A complete training run: warm up the model on pairs, train it with reinforcement learning, and measure it in use.

At the end, the run writes the rewriter to its folder. To resume an interrupted training run from the last checkpoint of
its stage, repeat the same call.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from querywright.data.splits import Splits, data_hash
from querywright.errors import InputError
from querywright.files import json_digest, jsonable, locked
from querywright.models.hf import load_base
from querywright.models.rewriters import Rewriter, save_weights, write_rewriter
from querywright.optimize.comparison import Comparison, compare
from querywright.optimize.evaluate import Progress
from querywright.optimize.judging import judged_metrics
from querywright.optimize.report import render
from querywright.optimize.results import BASELINE, today
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.settings import TrainingInputs, TrainSettings, check_training
from querywright.optimize.rewriter.stages import REINFORCE, WARMUP, adapt, reinforce, warm_up
from querywright.optimize.significance import verdict_on
from querywright.optimize.tables import percent
from querywright.programs import make_program

UNTRAINED, TRAINED = "untrained", "trained"
"""Names of two arms: the technique with the embedded model, and the technique with the rewriter."""

METRICS = ("exact_recovery@1", "recall@5", "ndcg@10", "decision_useful")
"""Metrics for every rewriter if evidence is labeled."""

DEEPEST = 10
"""Number of passages that the deepest of these metrics counts."""

_WARNINGS = {
    "loss": "WORSE than the unchanged question: do not use this rewriter",
    "no gain shown": "no gain over the unchanged question was shown",
}

DEV_PAIRS = 0.1
"""Share of the questions whose pairs are used to choose the warm-up epoch."""


def train(
    settings: TrainSettings, inputs: TrainingInputs, *, out: Path, work: Path, progress: Progress | None = None
) -> Rewriter:
    """Train a rewriter.

    Args:
        settings: Settings.
        inputs: Inputs.
        out: Folder of the rewriter.
        work: Folder for the checkpoints of all training runs. Each run has a subfolder named after its settings and
            data, which is deleted when the run ends.
        progress: Called with the name of the task, the amount done, and the total amount.

    Returns:
        The rewriter; its card compares it with the baseline on dev and, if there are test questions, on test.

    Raises:
        InputError: An input is wrong or too small, or another process is running the same training.
        TrainingError: The loss is not finite, or a question fails in reinforcement learning.
        OSError: A file cannot be written; repeat the call to resume from the last checkpoint.
    """
    check_training(settings, inputs)
    folder = work / f"{out.name}-{_digest(settings, inputs)[:12]}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(
        folder / "training.lock", InputError("another process is running this training; wait until that process ends")
    ):
        result = _trained(settings, inputs, out, folder, progress)
    shutil.rmtree(folder)
    return result


def _trained(
    settings: TrainSettings, inputs: TrainingInputs, out: Path, work: Path, progress: Progress | None
) -> Rewriter:
    base = load_base()
    base = base._replace(model=adapt(base, settings.rank, settings.seed))
    warmup, curve = warm_up(base, *split_pairs(inputs.pairs, settings.seed), work / WARMUP, settings, progress)
    sources = Counter(f"{pair.technique}, {pair.data}" if pair.data else pair.technique for pair in inputs.pairs)
    stages = {WARMUP: warmup | {"given": dict(sorted(sources.items()))}}
    techniques = {pair.technique for pair in inputs.pairs}
    if settings.steps:
        splits, program = inputs.splits, inputs.program(settings)
        stages[REINFORCE], more = reinforce(
            base, splits.train, splits.dev, work / REINFORCE, settings, program, progress
        )
        curve, techniques = [*curve, *more], techniques | {settings.technique}
    weights = work / "weights"
    save_weights(base.model, weights)
    facts: dict[str, Any] = {
        "techniques": sorted(techniques),
        "recipe": REINFORCE if settings.steps else "warm-up",
        "created": today(),
    }
    write_rewriter(work / out.name, weights, card={}, readme="", **facts)
    found = _compared(settings, inputs, f"rewriter:{work / out.name}", progress)
    card = _card(settings, inputs, facts["techniques"], stages, found)
    readme = rewriter_card(out.name, card, found)
    return write_rewriter(out, weights, card=card, readme=readme, curve=jsonable(curve), **facts)


def _compared(
    settings: TrainSettings, inputs: TrainingInputs, rewriter: str, progress: Progress | None
) -> dict[str, Comparison]:
    """Compare the technique with the baseline on dev and test, using the rewriter and then the embedded model."""
    labelled = any(question.evidence for question in inputs.splits.dev)
    metrics = judged_metrics(list(dict.fromkeys([settings.metric, *(METRICS if labelled else ())])))
    embedded = inputs.open_lm("embedded")
    writers = {UNTRAINED: embedded, TRAINED: inputs.open_lm(rewriter)}
    programs = {
        name: make_program(settings.technique, inputs.retriever, writer_lm=lm, **settings.knobs)
        for name, lm in writers.items()
    }
    passages = programs[TRAINED].technique.max_passages
    programs = {BASELINE: make_program("plain", inputs.retriever, max_passages=passages), **programs}
    return {
        name: compare(
            programs, part, lm=embedded, baseline=BASELINE, references=False, metrics=metrics,
            threads=settings.threads, progress=progress,
        )
        for name, part in (("dev", inputs.splits.dev), ("test", inputs.splits.test))
        if part
    }  # fmt: skip


def _card(
    settings: TrainSettings,
    inputs: TrainingInputs,
    techniques: Sequence[str],
    stages: Mapping[str, Mapping[str, Any]],
    found: Mapping[str, Comparison],
) -> dict[str, Any]:
    flat = stages.get(REINFORCE, {}).get("flat")
    notes = [f"{flat} of {stages[REINFORCE]['steps']} reinforcement learning steps had no effect"] if flat else []
    card: dict[str, Any] = jsonable(
        {
            "created": today(),
            "technique": settings.technique,
            "techniques": techniques,
            "knobs": settings.knobs,
            "base": "embedded",
            "metric": settings.metric,
            "collection": inputs.collection,
            "fingerprint": inputs.retriever.fingerprint,
            "data": data_facts(inputs.splits),
            "settings": asdict(settings),
            "stages": stages,
            "standing": {name: standing(one, settings.metric) for name, one in found.items()},
            "notes": notes,
            **{name: one.to_json() for name, one in found.items()},
        }
    )
    return card


def standing(found: Comparison, metric: str) -> dict[str, str | None]:
    """Return how the rewriter compares with the baseline on a metric.

    Returns:
        ``verdict`` (``gain``, ``no gain shown``, ``loss``, or ``not measured`` if no question could be scored), the
        ``sentence`` of the paired test, and ``warning``, a sentence unless the verdict is a gain.
    """
    one = next((one for one in found.comparisons if (one.metric, one.arm) == (metric, TRAINED)), None)
    if one is None or not one.test.n:
        sentence = f"{metric}: no question was scored"
        return {"verdict": "not measured", "sentence": sentence, "warning": _WARNINGS["no gain shown"]}
    word, _ = verdict_on({metric: one.test})
    lower = ", and its mean is lower" if word == "no gain shown" and one.test.difference < 0 else ""
    warning = _WARNINGS[word] + lower if word in _WARNINGS else None
    return {"verdict": word, "sentence": one.sentence, "warning": warning}


def rewriter_card(name: str, card: Mapping[str, Any], measured: Mapping[str, Comparison]) -> str:
    """Return a rewriter's README.md, made from its folder's name, its ``card.json``, and its arms on dev and test."""
    parts = [
        {
            "name": part,
            "metrics": (metrics := found.arm(found.baseline).metrics),
            "rows": [[one.name, len(one.rows), *(percent(one.mean(name)) for name in metrics)] for one in found.arms],
            "sentences": [one.sentence for one in found.comparisons if one.arm == TRAINED],
        }
        for part, found in measured.items()
    ]
    return render("rewriter.md", name=name, card=card, parts=parts)


def split_pairs(pairs: Sequence[Pair], seed: int) -> tuple[list[Pair], list[Pair]]:
    """Return pairs to learn from, and pairs from different questions to choose the epoch."""
    mixed = {key: sha256(f"{seed}\0pairs\0{key[0]}".encode()).hexdigest() for key in sorted({one.key for one in pairs})}
    keys = sorted(mixed, key=lambda key: mixed[key])
    chosen = set(keys[: max(1, round(DEV_PAIRS * len(keys)))])
    return [one for one in pairs if one.key not in chosen], [one for one in pairs if one.key in chosen]


def data_facts(splits: Splits) -> dict[str, dict[str, Any]]:
    """Return the number of questions and their hash, by split."""
    return {name: {"n": len(part), "sha256": data_hash(part)} for name, part in splits._asdict().items() if part}


def _digest(settings: TrainSettings, inputs: TrainingInputs) -> str:
    """Return a digest of everything that a training run depends on."""
    facts = asdict(settings) | {
        "threads": None,
        "data": data_facts(inputs.splits),
        "collection": inputs.collection,
        "fingerprint": inputs.retriever.fingerprint,
        "pairs": [asdict(pair) for pair in inputs.pairs],
    }
    return json_digest(jsonable(facts))
