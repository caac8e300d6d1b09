"""Settings and inputs of a training, and the checks that run before anything is asked or loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

import dspy

from querywright.data.splits import Splits, asked_of
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import metric_named, needs
from querywright.models.embedded import EmbeddedSettings
from querywright.models.hf import EMBEDDED
from querywright.optimize.rewriter.episodes import REWRITER_LIMITS
from querywright.optimize.rewriter.evidence import check_taught
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.policy import device_of
from querywright.programs import RAG, make_program, technique_class
from querywright.programs.qb_rag import QBRAG

COLLECT, WARMUP, REINFORCE = "collect", "warmup", "reinforce"
STAGES = (COLLECT, WARMUP, REINFORCE)

EVIDENCE: Literal["evidence"] = "evidence"
Teacher: TypeAlias = dspy.LM | Literal["evidence"]
"""Writes the rewrites that the warm-up learns from."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Settings of a training.

    Args:
        technique: Name of the technique whose rewrites are learned.
        knobs: Values of its knobs that differ from their defaults.
        base: ``embedded``, a folder, or a model of the Hugging Face hub.
        metric: Measures what the rewrites find.
        seed: Seed of all draws.
        candidates: Rewrites that the teacher writes per question; the first is greedy.
        temperature: Temperature of the others, more than 0.
        epochs: Epochs of the warm-up.
        warmup_lr: Learning rate of the warm-up.
        warmup_batch: Pairs per step of the warm-up.
        least_pairs: Pairs that the warm-up needs.
        steps: Steps of the reinforcement.
        lr: Learning rate of the reinforcement.
        batch: Questions per step of the reinforcement.
        group: Samples per question, 2 or more; each is compared with the mean of the others.
        room: Tokens of a completion at most.
        kl: Price per nat of drifting from the model at the start of the reinforcement, 0 or more.
        top_k: Number of likeliest tokens to draw from; 0 for all.
        look_each: Steps of the reinforcement between two measurements on dev, each of which is a checkpoint.
        patience: Measurements without a better one after which the reinforcement ends.
        rank: Rank of the LoRA adapter.

    Raises:
        InputError: A number is out of range.
    """

    technique: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    base: str = EMBEDDED
    stages: tuple[str, ...] = STAGES
    metric: str = "ndcg@10"
    seed: int = 0
    candidates: int = 4
    temperature: float = 0.8
    epochs: int = 3
    warmup_lr: float = 2e-4
    warmup_batch: int = 16
    least_pairs: int = 16
    steps: int = 200
    lr: float = 1e-4
    batch: int = 8
    group: int = 8
    room: int = 128
    kl: float = 0.02
    top_k: int = 100
    look_each: int = 20
    patience: int = 5
    rank: int = 16
    device: str = "auto"
    threads: int = 4

    def __post_init__(self) -> None:
        for name, value in ((one.name, getattr(self, one.name)) for one in fields(self)):
            if isinstance(value, (int, float)):
                may_be_zero = name in ("seed", "kl", "top_k")
                if not (0 <= value < math.inf and (value or may_be_zero)):
                    least = "0 or more" if may_be_zero else "more than 0"
                    raise InputError(f"{name} of a training must be {least}, but got {value}")
        if self.group == 1:
            raise InputError("group of a training must be 2 or more, but got 1: samples are compared with each other")

    @property
    def limits(self) -> EmbeddedSettings | None:
        """The limits of texts and lists that the base can write; None for no limits."""
        return REWRITER_LIMITS if self.base == EMBEDDED else None


@dataclass(frozen=True, slots=True)
class Given:
    """Inputs of a training, already open.

    Args:
        teacher: Writes rewrites; None if nothing is collected.
        pairs: Pairs for the warm-up, in addition to collected pairs.
        open_lm: Opens the LM of a name such as ``rewriter:PATH``, to measure the rewriter as it is used. If None, it is
            measured in the training library only.
    """

    splits: Splits
    retriever: Any
    collection: str
    teacher: Teacher | None = None
    pairs: Sequence[Pair] = ()
    open_lm: Callable[[str], dspy.LM] | None = None

    def program(self, settings: TrainSettings) -> RAG:
        """Return the technique to train, without a reader."""
        return make_program(settings.technique, self.retriever, **settings.knobs)


def check_stages(stages: Sequence[str]) -> tuple[str, ...]:
    """Return the stages in their order."""
    if not stages or set(stages) - set(STAGES) or len(set(stages)) < len(stages):
        raise InputError(f"--stages takes each stage once, of {','.join(STAGES)}, but got {','.join(stages)!r}")
    return tuple(one for one in STAGES if one in stages)


def check_training(settings: TrainSettings, given: Given, *, collecting: bool = False) -> None:
    """Raise ``InputError`` if the training cannot succeed, before anything is asked or loaded."""
    stages = (COLLECT,) if collecting else check_stages(settings.stages)
    collects, pairs, splits = COLLECT in stages, given.pairs, given.splits
    for name in ("train",) if collecting else ("train", "dev"):
        if not getattr(splits, name):
            raise InputError(f"there is no {name} question: 1 more is needed; give more questions or other --sizes")
    if collects and given.teacher is None:
        raise InputError(
            f"no teacher writes rewrites for the base {settings.base!r}: give --teacher NAME, or leave out the stage "
            "collect (--stages)"
        )
    if collecting and settings.technique == QBRAG.NAME:  # its pairs are of passages, which nothing rewrites or rewards
        if given.teacher != EVIDENCE:
            raise InputError(
                f"{QBRAG.NAME} searches questions that were written for passages, and learns them from the questions "
                f"of people; give --teacher {EVIDENCE}"
            )
        return
    technique = technique_class(settings.technique)(None, **settings.knobs)
    if not technique.predictors():
        raise InputError(
            f"{settings.technique} writes nothing with an LM, so there is nothing to train; take a technique that "
            "rewrites, such as rrr, multi_query or hcqr"
        )
    if collects and given.teacher == EVIDENCE:
        check_taught(technique)
    metric_named(settings.metric)
    if "reader" in needs(settings.metric):
        raise InputError(
            f"{settings.metric} needs a reader; a rewriter is measured by what it retrieves, such as ndcg@10"
        )
    device_of(settings.device)
    leaking = _leaking(pairs, splits, given.collection)
    if leaking:
        raise InputError(
            f"{leaking} of the {len(pairs)} pairs of --pairs are of dev or test questions, which must not be learned "
            "from: give the --seed and --sizes that the pairs were collected with, or other pairs"
        )
    least = settings.least_pairs + 1  # one more to choose the epoch by
    if WARMUP in stages and not collects and len(pairs) < least:
        raise InputError(
            f"the warm-up learns from collected rewrites and needs {least} pairs or more, but --pairs has "
            f"{len(pairs)}: {least - len(pairs)} more needed; add the stage collect, or collect from more questions"
        )
    for name in ("train",) if collecting else ("train", "dev") if {COLLECT, REINFORCE} & {*stages} else ("dev",):
        _check_labels(settings.metric, needs(settings.metric), name, getattr(splits, name))


def teacher_name(teacher: Teacher | None) -> str | None:
    """Return the name of a teacher."""
    return teacher if teacher is None or isinstance(teacher, str) else teacher.model


def _check_labels(metric: str, wanted: Collection[str], part: str, questions: Sequence[Question]) -> None:
    """Raise if no question of a part has the labels that the metric needs."""
    for name, label, present in (
        ("evidence", "labelled evidence", any(one.evidence for one in questions)),
        ("answer", "right answers", any(one.answers for one in questions)),
    ):
        if name in wanted and not present:
            raise InputError(
                f"{metric} needs {label}, but none of the {len(questions)} {part} questions has any; label them, or "
                "take another --metric (ndcg@10 needs evidence, hit answers)"
            )


def _leaking(pairs: Sequence[Pair], splits: Splits, collection: str) -> int:
    """Count the pairs of dev or test questions: by id within the collection, by text and options across collections.

    A question that train has as well is learned from whether or not pairs are given, so it does not count by its text.
    """
    held_out = [*splits.dev, *splits.test]
    ids, asked = {one.id for one in held_out}, {asked_of(one) for one in held_out}
    asked -= {asked_of(one) for one in splits.train}
    by_id = [one.data in ("", collection) and one.technique != QBRAG.NAME and one.question in ids for one in pairs]
    return sum(same or bool(asked & set(one.asked.split())) for one, same in zip(pairs, by_id, strict=True))
