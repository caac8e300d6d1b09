"""The questions and passages of a study, opened without a model."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from querywright.data import read_questions, split_questions
from querywright.data.splits import Splits, left_over
from querywright.data.types import Passage, Question
from querywright.errors import InputError
from querywright.optimize.judge_files import resolve_judge
from querywright.optimize.objectives import check_judges, check_objectives
from querywright.optimize.study.reading import read_spec
from querywright.optimize.study.space import Space, build_space
from querywright.optimize.study.spec import StudySpec
from querywright.programs import technique_class
from querywright.programs.readers import reader_for
from querywright.retrieval.checks import Tell, tell_passages
from querywright.retrieval.engines import passages_in, passing_in
from querywright.retrieval.filters import check_passes

SAMPLE = 200

_logger = logging.getLogger(__name__)


class CheckedStudy(NamedTuple):
    """A study that was read and checked, with its data, some passages of its collection, and none of its models."""

    spec: StudySpec
    splits: Splits
    space: Space
    passages: Sequence[Passage]


def checked_study(
    source: Path | str | Mapping[str, Any], home: Path | None = None, *, tell: Tell = _logger.warning
) -> CheckedStudy:
    """Read and check a study, from its file or a mapping, and open its data.

    Args:
        source: The file or the mapping.
        home: The workspace. Default: ``querywright.home.home()``.
        tell: Called with labels that the search cannot satisfy. Default: a warning of the log.

    Raises:
        InputError: Something is wrong with the study, its questions or its collection.
    """
    spec = read_spec(source)
    splits, reader, _ = data_of(spec)
    held = passages_in(spec.collection, home)
    passed = check_passes(spec.where, partial(passing_in, spec.collection, home=home), held.values)
    tell_passages([question for part in splits for question in part], held.values(), spec.where, passed, tell)
    ids = sorted(held)
    chosen = sorted(random.Random(spec.seed).sample(ids, min(SAMPLE, len(ids))))
    return CheckedStudy(spec, splits, build_space(spec, reader), [held[one] for one in chosen])


def data_of(spec: StudySpec) -> tuple[Splits, str | None, list[Question]]:
    """The splits of a study; its reader, None where none reads; further questions of the reader check.

    Raises:
        DataError: A question is wrong, or lacks the options that a technique or reader compares.
        InputError: The questions or the reader cannot carry an objective.
    """
    needing = [name for name in spec.techniques if technique_class(name).NEEDS_OPTIONS]
    needing += ["the reader multiple_choice"] if spec.reader == "multiple_choice" else []
    asked = read_questions(
        spec.questions, columns=spec.columns or None, limit=spec.limit, split=spec.split, labels=spec.labels,
        multiple_choice=" and ".join(needing),
    )  # fmt: skip
    splits, reader = split_questions(asked, seed=spec.seed, sizes=spec.sizes), reader_for(asked, spec.reader)
    check_objectives(spec.objectives, splits, reader)
    measured = [*(one.metric for one in spec.prompts.values() if one.metric), *spec.objectives]
    check_judges(measured, [*map(resolve_judge, spec.judges)], asks=spec.judge_lm is not None)
    return splits, reader, further_questions(spec.reader_check, asked, splits, reader, spec.seed)


def further_questions(
    count: int, asked: Sequence[Question], splits: Splits, reader: str | None, seed: int = 0
) -> list[Question]:
    """So many questions of the reader check: the first that the split leaves over, none there or twice, by id or text.

    Raises:
        InputError: There is no reader, or there are too few questions.
    """
    if not count:
        return []
    if reader is None:
        raise InputError("reader_check needs a reader; give one, or leave it out")
    left = left_over(asked, splits, seed)
    if len(left) < count:
        raise InputError(
            f"reader_check: asks for {count} further questions, but sizes leave {len(left)} over "
            "that stand in none of the sets, nor twice; give smaller sizes, or fewer"
        )
    return left[:count]
