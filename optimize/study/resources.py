"""What a worker has open: data, LM, retrievers, and what was answered already."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dspy

from querywright.data.splits import Splits
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.home import home as working_folder
from querywright.metrics.dspy_metrics import Metric, metric_named
from querywright.models.lm import resolve_lm
from querywright.models.memo import MOST_STEPS, Memo
from querywright.models.store import Store, open_store
from querywright.models.usage import Cost, Ledger
from querywright.optimize.artifacts.rewriters import keep_rewriter, open_rewriter
from querywright.optimize.evaluate import DEFAULT_METRICS
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.prompts import with_variant
from querywright.optimize.study.space import Space
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.types import ArmConfig
from querywright.programs import RAG, Technique, make_program, takes_rewriter, technique_class
from querywright.programs.hyperparameters import Value
from querywright.retrieval.engines import LEXICAL, open_retriever
from querywright.retrieval.replay import ReplayRetriever
from querywright.retrieval.rerank import Reranker

Variant = Mapping[str, Any]
"""Prompts of a variant as plain data, as ``make_variant`` gives them."""


@dataclass(slots=True)
class Bench:
    """All that a trial needs. What was answered is kept: used lately, in ``memo``; all of it, in the store or there.

    Args:
        spec: The study.
        splits: Its questions.
        space: Its search space.
        objectives: Its objectives.
        lm: The LM.
        ledger: Where its calls are entered.
        store: Where answers, vectors and rankings are kept.
        home: The working folder; None where all retrievers are open.
        reader_check: Further questions, met by closed book and oracle evidence alone.
        reranker: Scores passages, for techniques that rerank. None: the technique's own way.
        rewriter: What techniques that write ask in place of the LM, and readers do not; its calls are in the same
            ledger. None: the LM.
        retrievers: Open retrievers by engine.
        programs: Programs by technique, engine, prompt and reader, with the knobs at their defaults.
    """

    spec: StudySpec
    splits: Splits
    space: Space
    objectives: tuple[Objective, ...]
    lm: dspy.LM
    ledger: Ledger
    store: Store | None = None
    home: Path | None = None
    reader_check: Sequence[Question] = ()
    reranker: Reranker | None = None
    rewriter: dspy.LM | None = None
    memo: Memo = field(init=False)
    retrievers: dict[str, Any] = field(default_factory=dict)
    programs: dict[tuple[Any, ...], RAG] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin to remember."""
        self.memo = Memo(None if self.store is None else MOST_STEPS)

    @property
    def reads(self) -> bool:
        """Whether trials have a reader."""
        return any(objective.reads for objective in self.objectives)

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics that trials are scored by: those of the objectives, and the usual ones."""
        names = [metric for objective in self.objectives for metric in objective.metrics]
        return {**DEFAULT_METRICS, **{name: metric_named(name) for name in names}}

    def retriever(self, engine: str) -> Any:
        """The retriever of an engine; what it found once it finds again without a search."""
        if engine not in self.retrievers:
            from querywright.models.embedder import resolve_embedder

            embedder = None if engine in LEXICAL else resolve_embedder(self.spec.embedder, store=self.store)
            inner = open_retriever(self.spec.collection, engine=engine, embedder=embedder, home=self.home)
            self.retrievers[engine] = ReplayRetriever(inner, store=self.store, deepest=self.space.deepest(engine))
        return self.retrievers[engine]

    def program(self, arm: ArmConfig, variant: Variant | None = None, *, reads: bool | None = None) -> RAG:
        """The program of an arm; equal but for their knobs, programs share prompts.

        Args:
            arm: What it is.
            variant: Its prompts; None for prompts as they are written.
            reads: Whether it has the reader. Default: as the objectives need.
        """
        reader = arm.reader if (self.reads if reads is None else reads) else None
        key = (arm.technique, arm.engine, arm.prompt, reader)
        if key not in self.programs:
            kind = technique_class(arm.technique)
            made = make_program(
                arm.technique,
                self.retriever(arm.engine),
                reader=reader,
                reranker=self.reranker if kind.USES_RERANKER else None,
                rewriter=self.rewriter if takes_rewriter(kind) else None,
            )
            self.programs[key] = made if variant is None else with_variant(made, variant)
        return with_knobs(self.programs[key], arm.knobs)

    def spent_since(self, before: Cost) -> Cost:
        """What was spent since the ledger stood at ``before``."""
        return self.ledger.total - before


def with_knobs(program: RAG, knobs: Mapping[str, Value]) -> RAG:
    """A copy of a program with other numbers and the same prompts, the members of an ensemble included."""
    other = copy.deepcopy(program)
    for technique in (part for _, part in other.named_sub_modules() if isinstance(part, Technique)):
        technique.knobs.update(knobs)
    return other


def open_lm(spec: StudySpec, store: Store, ledger: Ledger, purse: Any = None) -> dspy.LM:
    """The LM of a study.

    Args:
        spec: Names it.
        store: Where its answers are kept.
        ledger: Where its calls are entered.
        purse: Is asked before every call; None for no limit.

    Raises:
        InputError: The variable that holds its key is empty.
    """
    key = None
    if spec.api_key_env is not None:
        key = os.environ.get(spec.api_key_env)
        if not key:
            raise InputError(f"the variable {spec.api_key_env!r} holds no key; set it, or change api_key_env")
    return resolve_lm(spec.lm, store=store, ledger=ledger, budget=purse, api_base=spec.api_base, api_key=key)


def open_study_rewriter(
    spec: StudySpec, home: Path | None, store: Store, ledger: Ledger, purse: Any = None
) -> dspy.LM | None:
    """The rewriter of a study, whose calls are stored, counted and paid for as the LM's are; None where it has none.

    A copy is kept in the working folder, for the programs that the study saves.

    Args:
        spec: Names its folder.
        home: The working folder.
        store: As of ``open_lm``.
        ledger: As of ``open_lm``.
        purse: As of ``open_lm``.

    Raises:
        InputError: It is no rewriter.
    """
    if spec.rewriter is None:
        return None
    folder = Path(spec.rewriter)
    keep_rewriter(folder, home)  # what runs is the one that was given: its base may lie beside it
    return open_rewriter(folder, store=store, ledger=ledger, budget=purse)


def open_store_at(home: Path | None) -> tuple[Path, Store]:
    """The working folder and its store; libraries of ours write to the same folder from now on."""
    folder = working_folder(home)
    os.environ["QUERYWRIGHT_HOME"] = str(folder.resolve())
    return folder, open_store(folder)
