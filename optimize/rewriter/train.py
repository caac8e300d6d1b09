"""A whole training: warm the model up on pairs, reinforce it, measure it in use, and write the rewriter.

An interrupted training resumes with the same call, from the last checkpoint of its stage.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from querywright.data.splits import Splits, data_hash
from querywright.errors import InputError
from querywright.files import json_digest, jsonable, locked
from querywright.models.hf import load_base
from querywright.models.rewriters import save_weights, write_rewriter
from querywright.optimize.comparison import Compared, compare
from querywright.optimize.evaluate import Progress
from querywright.optimize.judging import judged_metrics
from querywright.optimize.results import NO_REWRITING, today
from querywright.optimize.rewriter.episodes import REWRITER_LIMITS
from querywright.optimize.rewriter.evaluation import (
    METRICS,
    TRAINED,
    UNTRAINED,
    rewriter_card,
    standing,
)
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.settings import TrainingInputs, TrainSettings, check_training
from querywright.optimize.rewriter.stages import REINFORCE, WARMUP, adapt, reinforce, warm_up
from querywright.programs import make_program

LOCK = "training.lock"
DEV_PAIRS = 0.1
"""Share of the questions whose pairs choose the epoch of the warm-up."""
_OF_THE_CARD = ("technique", "knobs", "metric", "threads")
"""Settings that the card has at another place, or that belong to the machine."""


class TrainingResult(NamedTuple):
    """Result of a training: the rewriter's folder, the content of its ``card.json``, and its comparisons with the
    baseline on dev and on test (None if there are no test questions).
    """

    folder: Path
    card: Mapping[str, Any]
    dev: Compared
    test: Compared | None


def train(
    settings: TrainSettings, inputs: TrainingInputs, *, out: Path, work: Path, progress: Progress | None = None
) -> TrainingResult:
    """Train a rewriter.

    Args:
        settings: Settings.
        inputs: Inputs.
        out: Folder of the rewriter.
        work: Folder of the checkpoints of all trainings. Each training has a folder in it, named by its settings and
            data, which is deleted at its end.
        progress: Called with the name of the work, how much is done, and how much there is.

    Raises:
        InputError: An input is wrong or too small, or another process runs the same training.
        TrainingError: The loss is not finite, or a question fails in the reinforcement.
        OSError: A file cannot be written; the same training resumes from its last checkpoint.
    """
    check_training(settings, inputs)
    folder = work / f"{out.name}-{_digest(settings, inputs)[:12]}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder / LOCK, InputError("another process runs this training; wait until it has ended")):
        result = _trained(settings, inputs, out, folder, progress)
    shutil.rmtree(folder)
    return result


def _trained(
    settings: TrainSettings, inputs: TrainingInputs, out: Path, work: Path, progress: Progress | None
) -> TrainingResult:
    base = load_base()
    base = base._replace(model=adapt(base, settings.rank, settings.seed))
    stages: dict[str, dict[str, Any]] = {}
    stages[WARMUP], curve = warm_up(base, *split_pairs(inputs.pairs, settings.seed), work / WARMUP, settings, progress)
    sources = Counter(f"{pair.technique}, {pair.data}" if pair.data else pair.technique for pair in inputs.pairs)
    stages[WARMUP]["given"] = dict(sorted(sources.items()))
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
        "max_chars": REWRITER_LIMITS.max_chars,
        "max_items": REWRITER_LIMITS.max_items,
    }
    write_rewriter(work / out.name, weights, card={}, readme="", **facts)
    found = _compared(settings, inputs, f"rewriter:{work / out.name}", progress)
    card = _card(settings, inputs, facts["techniques"], stages, found)
    readme = rewriter_card(out.name, card, found)
    write_rewriter(out, weights, card=card, readme=readme, curve=jsonable(curve), **facts)
    return TrainingResult(out, card, found["dev"], found.get("test"))


def _compared(
    settings: TrainSettings, inputs: TrainingInputs, rewriter: str, progress: Progress | None
) -> dict[str, Compared]:
    """Compare the technique with the rewriter and with the embedded model with the baseline, on dev and test."""
    assert inputs.open_lm is not None
    labelled = any(question.evidence for question in inputs.splits.dev)
    metrics = judged_metrics(list(dict.fromkeys([settings.metric, *(METRICS if labelled else ())])))
    embedded = inputs.open_lm("embedded")
    writers = {UNTRAINED: embedded, TRAINED: inputs.open_lm(rewriter)}
    programs = {
        name: make_program(settings.technique, inputs.retriever, writer_lm=lm, **settings.knobs)
        for name, lm in writers.items()
    }
    passages = programs[TRAINED].technique.max_passages
    programs = {NO_REWRITING: make_program("plain", inputs.retriever, max_passages=passages), **programs}
    return {
        name: compare(
            programs, part, lm=embedded, baseline=NO_REWRITING, references=False, metrics=metrics,
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
    found: Mapping[str, Compared],
) -> dict[str, Any]:
    flat = stages.get(REINFORCE, {}).get("flat")
    notes = [f"{flat} of {stages[REINFORCE]['steps']} steps of the reinforcement taught nothing"] if flat else []
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
            "settings": {name: value for name, value in asdict(settings).items() if name not in _OF_THE_CARD},
            "stages": stages,
            "standing": {name: standing(one, settings.metric) for name, one in found.items()},
            "notes": notes,
            **{name: one.to_json() for name, one in found.items()},
        }
    )
    return card


def split_pairs(pairs: Sequence[Pair], seed: int) -> tuple[list[Pair], list[Pair]]:
    """Return pairs to learn from, and pairs of other questions to choose the epoch by."""

    def order(key: tuple[str, str]) -> tuple[str, tuple[str, str]]:
        return sha256(f"{seed}\0pairs\0{key[0]}".encode()).hexdigest(), key

    keys = sorted({pair.key for pair in pairs}, key=order)
    chosen = set(keys[: max(1, round(DEV_PAIRS * len(keys)))])
    return [one for one in pairs if one.key not in chosen], [one for one in pairs if one.key in chosen]


def data_facts(splits: Splits) -> dict[str, dict[str, Any]]:
    """Return the number of questions and their hash, by part."""
    return {name: {"n": len(part), "sha256": data_hash(part)} for name, part in splits._asdict().items() if part}


def _digest(settings: TrainSettings, inputs: TrainingInputs) -> str:
    """Return a digest of all that a training depends on."""
    facts = asdict(settings) | {
        "threads": None,
        "data": data_facts(inputs.splits),
        "collection": inputs.collection,
        "fingerprint": inputs.retriever.fingerprint,
        "pairs": [asdict(pair) for pair in inputs.pairs],
    }
    return json_digest(jsonable(facts))
