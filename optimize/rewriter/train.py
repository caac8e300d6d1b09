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
