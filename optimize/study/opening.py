"""Opening what a study names: its questions and passages without a model, then all that its trials need."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from querywright.data import read_questions, split_questions
from querywright.data.splits import Splits, left_over
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.home import home as workspace_folder
from querywright.models.budget import Budget
from querywright.models.lm import resolve_lm, with_key, writer_beside
from querywright.models.rewriters import rewriter_of
from querywright.models.store import Store, open_store
from querywright.models.usage import Ledger
from querywright.optimize.artifacts.writers import keep_rewriter
from querywright.optimize.judge_files import resolve_judge
from querywright.optimize.objectives import check_judges, check_objectives
from querywright.optimize.search.core import Search
from querywright.optimize.search.space import Space, build_space
from querywright.optimize.study.reading import read_spec
from querywright.optimize.study.spec import StudySpec
from querywright.programs import technique_class
from querywright.programs.readers import reader_for
from querywright.retrieval.checks import Tell, tell_passages
from querywright.retrieval.engines import LEXICAL, open_retriever, passages_in, passing_in
from querywright.retrieval.filters import check_passes

_logger = logging.getLogger(__name__)


class StudyData(NamedTuple):
    """A study that was read and checked, with its data and none of its models."""

    spec: StudySpec
    splits: Splits
    space: Space


def checked_study(
    source: Path | str | Mapping[str, Any], home: Path | None = None, *, tell: Tell = _logger.warning
) -> StudyData:
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
    return StudyData(spec, splits, build_space(spec, reader, writers=spec.writer_names))


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


def open_search(spec: StudySpec, home: Path | None, url: str | None = None, budget: str | None = None) -> Search:
    """Open all that the trials of a study need.

    Args:
        spec: The study.
        home: The workspace.
        url: The address of the PostgreSQL that keeps answers and the budget for several hosts. None: the workspace.
        budget: The name of the count that all workers and runs of the study share. None: no limit.

    Raises:
        InputError: The variable that holds the LM's key is empty, or something that is named cannot be used.
    """
    folder = workspace_folder(home)
    os.environ["QUERYWRIGHT_HOME"] = str(folder.resolve())  # libraries of ours write to the same folder
    local = open_store(folder)
    store = local if url is None else open_store(url=url)
    limits = spec.budget.model_dump(include={"calls", "tokens", "dollars"})
    remedy = "Raise the budget in the study's file and run it again, or resume it with a larger one"
    purse = None if budget is None else Budget(store, budget, **limits, remedy=remedy)
    common: dict[str, Any] = {"store": store, "ledger": Ledger(), "budget": purse, "limits": spec.limits}
    lm = resolve_lm(spec.lm, api_base=spec.api_base, api_key=_key(spec.api_key_env), **common)
    judge_lm = None
    if spec.judge_lm is not None:
        judge_lm = resolve_lm(
            spec.judge_lm, api_base=spec.judge_api_base, api_key=_key(spec.judge_api_key_env), **common
        )
    for one in filter(None, (lm, judge_lm)):
        with_key(one)
    writers = open_writers(spec, lm)
    for rewriter in filter(None, map(rewriter_of, writers.values())):
        keep_rewriter(rewriter.path, home)  # a copy, for the programs that are saved
    splits, reader, further = data_of(spec)
    return Search(
        spec,
        splits,
        reader,
        lm,
        lambda engine: _retriever(spec, engine, folder, local),
        store=store,
        local=local,
        reader_check=further,
        writers=writers,
        judges=[*map(resolve_judge, spec.judges)],
        judge_lm=judge_lm,
        budget=purse,
    )


def _retriever(spec: StudySpec, engine: str, home: Path, store: Store) -> Any:
    from querywright.models.embedder import resolve_embedder

    embedder = None if engine in LEXICAL else resolve_embedder(spec.embedder, store=store)
    return open_retriever(spec.collection, engine=engine, embedder=embedder, home=home, where=spec.where)


def open_writers(spec: StudySpec, lm: dspy.LM) -> dict[str, dspy.LM | None]:
    """The LMs that write in a study, by name; None for the one that reads."""
    found: dict[str, dspy.LM | None] = {}
    for one in spec.writers:
        named: Any = one.lm
        if one.api_base or one.api_key_env:
            key = _key(one.api_key_env)
            named = resolve_lm(one.lm, api_base=one.api_base, api_key=key, limits=spec.limits)
        found[one.name] = writer_beside(lm, named)
    return found


def _key(variable: str | None) -> str | None:
    """The key that a variable holds; None where none is named."""
    key = None if variable is None else os.environ.get(variable)
    if variable is not None and not key:
        raise InputError(f"the variable {variable!r} holds no key; set it, or name another one in the study's file")
    return key
