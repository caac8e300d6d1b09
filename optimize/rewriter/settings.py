"""What a training is given, and what of it is refused before anything is asked or loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
from querywright.optimize.rewriter.recipes import OURS, Recipe, check_numbers
from querywright.programs import RAG, make_program, technique_class
from querywright.programs.qb_rag import QBRAG

COLLECT, WARMUP, REINFORCE = "collect", "warmup", "reinforce"
STAGES = (COLLECT, WARMUP, REINFORCE)
RUN = "run.json"
"""The file of a working folder that says what is trained there."""

EVIDENCE: Literal["evidence"] = "evidence"
Teacher: TypeAlias = dspy.LM | Literal["evidence"]
"""Who rewrites."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a rewriter is trained: what ``querywright rewriter train`` has as options, beside these.

    Args:
        knobs: Values of the technique's knobs that differ from their defaults.
        temperature: Of the sampled candidates, more than 0; the first one is greedy.
        warmup_batch: Pairs a step of the warm-up.
        least_pairs: Pairs that the warm-up must have.
        rank: Of the LoRA adapter; None trains all weights.

    Raises:
        InputError: A number is out of range.
    """

    technique: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    base: str = EMBEDDED
    stages: tuple[str, ...] = STAGES
    recipe: Recipe = OURS
    metric: str = "ndcg@10"
    seed: int = 0
    candidates: int = 4
    temperature: float = 0.8
    ties: bool = False
    epochs: int = 3
    warmup_lr: float = 2e-4
    warmup_batch: int = 16
    least_pairs: int = 16
    look_each: int = 20
    patience: int = 5
    rank: int | None = 16
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 4

    def __post_init__(self) -> None:
        check_numbers(self, "a training", ("seed",))

    @property
    def limits(self) -> EmbeddedSettings | None:
        """What the base can write; None: anything."""
        return REWRITER_LIMITS if self.base == EMBEDDED else None


@dataclass(frozen=True, slots=True)
class Given:
    """What a training works with, open already.

    Args:
        teacher: Collects rewrites; None where pairs are given, or nothing is collected.
        pairs: Pairs to warm up on, besides those that are collected.
        open_lm: Gives the LM of a name such as ``rewriter:PATH``, to measure the rewriter as it will be used. None: it
            is measured in training alone.
    """

    splits: Splits
    retriever: Any
    collection: str
    teacher: Teacher | None = None
    pairs: Sequence[Pair] = ()
    reader: str | None = None
    reader_lm: dspy.LM | None = None
    open_lm: Callable[[str], dspy.LM] | None = None

    def program(self, settings: TrainSettings, *, reads: bool = True) -> RAG:
        """What is trained: the technique, with the reader where the recipe rewards answers."""
        reader = self.reader if reads and settings.recipe.needs_reader else None
        return make_program(settings.technique, self.retriever, reader=reader, **settings.knobs)


def check_stages(stages: Sequence[str]) -> tuple[str, ...]:
    """The stages, in their order."""
    if not stages or set(stages) - set(STAGES) or len(set(stages)) < len(stages):
        raise InputError(f"--stages takes each stage once, of {','.join(STAGES)}, but got {','.join(stages)!r}")
    return tuple(one for one in STAGES if one in stages)


def check_training(settings: TrainSettings, given: Given, *, collecting: bool = False) -> None:
    """Refuse what cannot be trained, before anything is asked or loaded."""
    stages = (COLLECT,) if collecting else check_stages(settings.stages)
    collects, pairs, splits = COLLECT in stages, given.pairs, given.splits
    for name in ("train",) if collecting else ("train", "dev"):
        if not getattr(splits, name):
            raise InputError(f"there is no {name} question: 1 more is needed; give more questions or other --sizes")
    if collects and given.teacher is None:
        raise InputError(
            f"there is nothing to collect rewrites from for the base {settings.base!r}: give --teacher NAME, or leave "
            "the stage collect out (--stages)"
        )
    if collecting and settings.technique == QBRAG.NAME:  # of passages: nothing is rewritten there, or rewarded
        if given.teacher != EVIDENCE:
            raise InputError(
                f"{QBRAG.NAME} searches questions that were written for passages; those that people asked are learnt "
                f"from, so give --teacher {EVIDENCE}"
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
    device_of(settings.device, settings.dtype)
    if not collecting:
        _check_labels(settings.metric, needs(settings.metric), "dev", splits.dev)
    leaking = _leaking(pairs, splits, given.collection)
    if leaking:
        raise InputError(
            f"{leaking} of the {len(pairs)} pairs of --pairs are of dev or test questions, which must not be learnt "
            "from: give the --seed and --sizes that the pairs were collected with, or other pairs"
        )
    least = settings.least_pairs + 1  # and one that the epoch is chosen by
    if WARMUP in stages and not collects and len(pairs) < least:
        raise InputError(
            f"the warm-up learns from collected rewrites and needs {least} pairs or more, but --pairs has "
            f"{len(pairs)}: {least - len(pairs)} more needed; add the stage collect, or collect from more questions"
        )
    rewarded = ("train", "dev") if REINFORCE in stages else ("train",) if collects else ()
    for name in rewarded:
        _check_rewarded(settings, name, getattr(splits, name), given)


def teacher_name(teacher: Teacher | None) -> str | None:
    """What a teacher is called."""
    return teacher if teacher is None or isinstance(teacher, str) else teacher.model


def _check_rewarded(settings: TrainSettings, part: str, questions: Sequence[Question], given: Given) -> None:
    """Raise where the recipe could reward nothing of the questions of a part."""
    recipe = settings.recipe
    if not recipe.needs_reader:
        _check_labels(settings.metric, needs(settings.metric), part, questions)
    elif given.reader is None or given.reader_lm is None:
        raise InputError(f"the recipe {recipe.name} rewards answers and needs a reader; give --reader and --lm")
    else:
        _check_labels(f"the recipe {recipe.name}", {"answer"}, part, questions)


def _check_labels(what: str, wanted: Collection[str], part: str, questions: Sequence[Question]) -> None:
    """Raise where none of the questions of a part has what something is worked out from."""
    for name, told, here in (
        ("evidence", "labelled evidence", any(one.evidence for one in questions)),
        ("answer", "right answers", any(one.answers for one in questions)),
    ):
        if name in wanted and not here:
            raise InputError(
                f"{what} needs {told}, but none of the {len(questions)} {part} questions has any; label them, or take "
                "another --metric (ndcg@10 needs evidence, hit answers) or --recipe"
            )


def _leaking(pairs: Sequence[Pair], splits: Splits, collection: str) -> int:
    """How many pairs are of dev or test questions: by id within the collection, by text and options also across them.

    What is asked in train as well is the splits' own affair: it is learnt from whether or not pairs are given.
    """
    held_out = [*splits.dev, *splits.test]
    ids, asked = {one.id for one in held_out}, {asked_of(one) for one in held_out}
    asked -= {asked_of(one) for one in splits.train}
    by_id = [one.data in ("", collection) and one.technique != QBRAG.NAME and one.question in ids for one in pairs]
    return sum(same or bool(asked & set(one.asked.split())) for one, same in zip(pairs, by_id, strict=True))
