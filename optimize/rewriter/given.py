"""What a training works with and what it makes, as data; all that its result depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from querywright import __version__
from querywright.data.splits import Splits, split_questions
from querywright.data.types import Question
from querywright.models.rewriter_bases import describe_base
from querywright.optimize.comparison import Compared
from querywright.optimize.rewriter.collect import Teacher, teacher_name
from querywright.optimize.rewriter.evaluation import METRICS
from querywright.optimize.rewriter.pairs import pair_json
from querywright.optimize.rewriter.rollouts import seed_of
from querywright.optimize.rewriter.settings import FORMAT, TrainSettings, data_facts
from querywright.optimize.rewriter.types import Pair
from querywright.optimize.study.settling import spec_in

OpenLM = Callable[[str], dspy.LM]
"""Gives the LM of a name, such as ``rewriter:PATH``."""

DEV_PAIRS = 0.1
"""Share of the questions whose pairs the warm-up is measured by."""


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
        teacher: Collects rewrites; None where a study or pairs are given, or nothing is collected.
        pairs: Pairs to warm up on, besides those that are collected.
        study: The folder of a study whose rewrites are taken.
        home: The working folder, which has the study's answers.
        reader: Name of the reader, for recipes that reward answers.
        reader_lm: Its LM.
        open_lm: Opens the rewriter as it will be used, to measure it so. None: it is measured in training alone.
    """

    splits: Splits
    retriever: Any
    collection: str
    teacher: Teacher | None = None
    pairs: Sequence[Pair] = ()
    study: Path | None = None
    home: Path | None = None
    reader: str | None = None
    reader_lm: dspy.LM | None = None
    open_lm: OpenLM | None = None


def measured_by(metric: str, questions: Sequence[Question]) -> list[str]:
    """The metrics of a training: the one it is for first, and those that the questions allow."""
    labelled = any(question.evidence for question in questions)
    return list(dict.fromkeys([metric, *(METRICS if labelled else ())]))


def split_pairs(pairs: Sequence[Pair], seed: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from, and pairs to choose the epoch by, of other questions.

    Args:
        pairs: All of them.
        seed: Of the choice.
    """
    keys = sorted({_whose(pair) for pair in pairs}, key=lambda key: (seed_of(seed, "pairs", key[0]), key))
    chosen = set(keys[: max(1, round(DEV_PAIRS * len(keys)))] if len(keys) > 1 else ())
    return [one for one in pairs if _whose(one) not in chosen], [one for one in pairs if _whose(one) in chosen]


def _whose(pair: Pair) -> tuple[str, str]:
    """The question of a pair; ids are those of its data."""
    return pair.question, pair.data


def splits_after(study: Path, questions: Sequence[Question]) -> Splits:
    """Train, dev and test of a training that learns from the answers of a study.

    The study's trials met its dev questions, so the first half of these is learnt from, as are its train questions. The
    other half is dev; test is the study's.

    Args:
        study: The study's folder, whose seed and sizes hold.
        questions: All that it was given.

    Raises:
        InputError: There is no such study.
        DataError: There are fewer questions than the study's sizes.
    """
    spec = spec_in(study)
    train, dev, test = split_questions(questions, seed=spec.seed, sizes=spec.sizes)
    half = len(dev) // 2
    return Splits([*train, *dev[:half]], dev[half:], test)


def facts_of(settings: TrainSettings, given: Given) -> dict[str, Any]:
    """All that the result of a training depends on.

    Args:
        settings: How.
        given: What with.
    """
    told = {name: value for name, value in settings.to_json().items() if name not in ("base", "device")}
    for part, free in (("collect", "threads"), ("warmup", "keep_each"), ("reinforce", "keep_each")):
        told[part] = {name: value for name, value in told[part].items() if name != free}
    lines = json.dumps([pair_json(pair) for pair in given.pairs], sort_keys=True)
    return {
        "format": FORMAT,
        "version": __version__,
        "settings": told,
        "base": describe_base(settings.base).model_dump(),
        "data": data_facts(given.splits),
        "collection": given.collection,
        "fingerprint": given.retriever.fingerprint,
        "teacher": None if given.teacher is None else teacher_name(given.teacher),
        "study": None if given.study is None else given.study.name,
        "reader": given.reader,
        "reader_lm": None if given.reader_lm is None else given.reader_lm.model,
        "pairs": {"n": len(given.pairs), "sha256": hashlib.sha256(lines.encode()).hexdigest()},
    }
