"""Settings and inputs for a training run, and the checks that run before anything is loaded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import dspy

from querywright.data.splits import Splits, asked_of
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import needs, scorable
from querywright.models.lm import resolve_lm
from querywright.optimize.rewriter.evidence import check_taught
from querywright.optimize.rewriter.pairs import Pair
from querywright.programs import RAG, make_program, technique_class

LEAST_PAIRS = 16
"""Minimum number of pairs for the warm-up."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Settings for a training run.

    Args:
        technique: Name of the technique whose rewrites are learned.
        knobs: Values for the technique's knobs that differ from the defaults.
        metric: The retrieval metric used to reward a rewrite.
        seed: Seed for all random choices.
        epochs: Number of warm-up epochs.
        warmup_lr: Learning rate for the warm-up.
        steps: Number of reinforcement learning steps; 0 for none.
        lr: Learning rate for reinforcement learning.
        batch: Questions per reinforcement learning step.
        group: Samples per question, 2 or more; the reward of each sample is compared with the mean of the group.
        rank: Rank of the LoRA adapter.
        threads: Number of questions that the technique answers at a time.

    Raises:
        InputError: A number is out of range.
    """

    technique: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    metric: str = "ndcg@10"
    seed: int = 0
    epochs: int = 3
    warmup_lr: float = 2e-4
    steps: int = 200
    lr: float = 1e-4
    batch: int = 8
    group: int = 8
    rank: int = 16
    threads: int = 4

    def __post_init__(self) -> None:
        for name, value in ((one.name, getattr(self, one.name)) for one in fields(self)):
            if isinstance(value, (int, float)):
                may_be_zero = name in ("seed", "steps")
                if not (0 <= value < math.inf and (value or may_be_zero)):
                    least = "0 or more" if may_be_zero else "more than 0"
                    raise InputError(f"{name} must be {least} to train a rewriter, but got {value}")


@dataclass(frozen=True, slots=True)
class TrainingInputs:
    """Inputs for a training run, already open.

    Args:
        splits: The questions.
        retriever: The retriever that searches the collection.
        collection: Name of the collection.
        pairs: Pairs for the warm-up.
        open_lm: Opens an LM by name, such as ``embedded`` or ``rewriter:PATH``, to measure the rewriter in use.
    """

    splits: Splits
    retriever: Any
    collection: str
    pairs: Sequence[Pair] = ()
    open_lm: Callable[[str], dspy.LM] = resolve_lm

    def program(self, settings: TrainSettings) -> RAG:
        """Return the technique to train, without a reader."""
        return make_program(settings.technique, self.retriever, **settings.knobs)


def check_collection(settings: TrainSettings, inputs: TrainingInputs) -> None:
    """Raise ``InputError`` if no pairs can be collected."""
    check_taught(_technique(settings))
    _check_questions(settings.metric, inputs.splits, "train")


def check_training(settings: TrainSettings, inputs: TrainingInputs) -> None:
    """Raise ``InputError`` if the training cannot succeed, before anything is loaded."""
    pairs, splits = inputs.pairs, inputs.splits
    technique = _technique(settings)
    if settings.steps and technique.LM_STAGES > 1:
        raise InputError(
            f"{settings.technique} calls its LM in several stages, but reinforcement learning supports only "
            "single-call techniques such as rrr; use --steps 0 to run only the warm-up, or use a different technique"
        )
    _check_questions(settings.metric, splits, *(("train",) if settings.steps else ()), "dev")
    leaking = _leaking(pairs, splits, inputs.collection)
    if leaking:
        raise InputError(
            f"--pairs must contain only training questions, but {leaking} of {len(pairs)} pairs use dev or test "
            "questions; use the --seed and --sizes that the pairs were collected with, or different pairs"
        )
    if len(pairs) <= LEAST_PAIRS:  # one additional pair is needed to choose the epoch
        raise InputError(
            f"the warm-up requires at least {LEAST_PAIRS + 1} pairs, but --pairs has {len(pairs)} "
            f"({LEAST_PAIRS + 1 - len(pairs)} too few); collect pairs from more questions (querywright rewriter "
            "collect)"
        )


def _technique(settings: TrainSettings) -> Any:
    """Return the technique without a retriever; raise if it does not use an LM to write."""
    technique = technique_class(settings.technique)(None, **settings.knobs)
    if not technique.predictors():
        raise InputError(
            f"{settings.technique} does not rewrite with an LM, so there is nothing to train; use a technique that "
            "rewrites, such as rrr, multi_query, or hcqr"
        )
    return technique


def _check_questions(metric: str, splits: Splits, *parts: str) -> None:
    """Raise if the metric is not a retrieval metric, or if a split has no question that it can score."""
    if "reader" in needs(metric):
        raise InputError(
            f"the metric must measure retrieval, but {metric} requires a reader; use a metric such as ndcg@10"
        )
    for part in parts:
        questions = getattr(splits, part)
        if not questions:
            raise InputError(
                f"the {part} split must have at least 1 question, but has 0; add questions or use different --sizes"
            )
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # questions that are left out
            scorable(metric, [one.to_example() for one in questions])


def _leaking(pairs: Sequence[Pair], splits: Splits, collection: str) -> int:
    """Count the pairs made from dev or test questions: by id within the collection, by text and options across
    collections.

    A question that is also in train is learned from with or without these pairs, so its text does not count.
    """
    held_out = [*splits.dev, *splits.test]
    ids, asked = {one.id for one in held_out}, {asked_of(one) for one in held_out}
    asked -= {asked_of(one) for one in splits.train}
    return sum(one.asked in asked or (one.data in ("", collection) and one.question in ids) for one in pairs)
