"""A whole training: rewrites are collected, the model is warmed up on the best and reinforced, and what it became kept.

Everything stands in one working folder, and each stage is done once: a training that was ended, whichever way, goes on
where it was, to the result of one that was not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from querywright import __version__
from querywright.data.splits import Splits
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import METRICS as NAMED
from querywright.metrics.dspy_metrics import needs
from querywright.optimize.comparison import Compared, meet
from querywright.optimize.evaluate import Evaluation, Progress, metrics_by_name
from querywright.optimize.report import today
from querywright.optimize.rewriter.checkpoints import load_tensors, save_tensors
from querywright.optimize.rewriter.collect import CollectSettings, collect
from querywright.optimize.rewriter.episodes import run_episodes
from querywright.optimize.rewriter.evaluation import (
    METRICS,
    TEACHER,
    TRAINED,
    UNTRAINED,
    WARMED_UP,
    compared,
    evaluation_of,
    kept,
    standing,
    without_rewriting,
)
from querywright.optimize.rewriter.guards import warnings
from querywright.optimize.rewriter.keeping import only_one, read_json, read_lines, write_json, write_whole
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.optimize.rewriter.reinforce import LOG, reinforce
from querywright.optimize.rewriter.report import rewriter_card, rewriter_html
from querywright.optimize.rewriter.rollouts import Sampling, roll_out, seed_of
from querywright.optimize.rewriter.settings import (
    COLLECT,
    REINFORCE,
    WARMUP,
    TrainSettings,
    check_training,
    claim,
    data_facts,
)
from querywright.optimize.rewriter.types import Pair
from querywright.optimize.rewriter.warmup import warm_up
from querywright.programs import make_program


OpenLM = Callable[[str], dspy.LM]
"""Gives the LM of a name, such as ``rewriter:PATH``."""

DEV_PAIRS = 0.1
"""Share of the questions whose pairs the warm-up is measured by."""
WARMUP_LOG = "warmup.jsonl"


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training made.

    Args:
        folder: The rewriter.
        card: The content of its ``card.json``.
        dev: Arms on dev.
        test: Arms on test; None where there are no test questions.
        report: The HTML page.
    """

    folder: Path
    card: Mapping[str, Any]
    dev: Compared
    test: Compared | None
    report: Path


@dataclass(frozen=True, slots=True)
class Given:
    """What a training works with, open already.

    Args:
        splits: Train, dev and test questions.
        retriever: What is searched.
        collection: Its name.
        teacher: Collects rewrites; None where pairs are given or nothing is collected.
        pairs: Pairs to warm up on, besides those that are collected.
        reader: Name of the reader, for recipes that reward answers.
        reader_lm: Its LM.
        open_lm: Opens the rewriter as it will be used, to measure it so. None: it is measured in training alone.
    """

    splits: Splits
    retriever: Any
    collection: str
    teacher: dspy.LM | None = None
    pairs: Sequence[Pair] = ()
    reader: str | None = None
    reader_lm: dspy.LM | None = None
    open_lm: OpenLM | None = None


def train(
    settings: TrainSettings,
    given: Given,
    *,
    out: Path,
    work: Path,
    progress: Progress | None = None,
) -> Trained:
    """Trains a rewriter.

    Args:
        settings: How.
        given: What with.
        out: The folder of the rewriter.
        work: The working folder; made when it is missing, and taken up again.
        progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        InputError: Something given is wrong or too little, or the working folder is another training's.
        TrainingError: The loss is no number, or all rewards are alike.
        OSError: A file cannot be written; what was kept is whole, and the same training goes on from there.
    """
    check_training(settings, given.splits, pairs=bool(given.pairs), reader=given.reader is not None)
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(work):
        claim(work, _facts(settings, given))
        return _Training(settings, given, out, work, progress).go()
