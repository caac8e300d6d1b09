"""What a compilation is given, checked, as a study whose questions, retriever and LM are open already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from querywright.data.splits import Splits, marks
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.lm import engine_of
from querywright.optimize.optimizers import optimizer_named
from querywright.optimize.results import CompileSettings
from querywright.optimize.study.building import build_space
from querywright.optimize.study.objectives import check_objectives, objective_named, objectives_of
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.spec import PromptSpec, StudySpec, TechniqueSpec
from querywright.programs import check_takes_rewriter, make_program, make_reader, technique_class
from querywright.retrieval.replay import ReplayRetriever
from querywright.retrieval.rerank import Reranker

OPTIMIZER = "bootstrap_few_shot"
"""What makes sets of demonstrations."""

GIVEN = "given"
"""Stands in the study for what has no name because it is open already."""


def check_compilation(
    name: str,
    splits: Splits,
    reader: str | None,
    knobs: Mapping[str, Any],
    settings: CompileSettings,
    reader_check: Sequence[Question],
    reranker: Reranker | None,
) -> None:
    """Refuse what cannot be compiled, before anything is asked.

    Args:
        name: The technique's.
        splits: Train, dev and test questions.
        reader: Name of the reader, or None.
        knobs: Values that are fixed.
        settings: How much is tried.
        reader_check: Further questions of the reader check.
        reranker: Scores passages.

    Raises:
        InputError: The data cannot carry the objective, or a name or value is wrong.
    """
    if objective_named(settings.objective).kind != "quality":
        raise InputError(
            f"the objective of a compilation is one of quality, but got {settings.objective!r}; a study takes it as a "
            "further one"
        )
    for what in ("n_trials", "threads"):
        if getattr(settings, what) < 1:
            raise InputError(f"{what} must be 1 or more, but got {getattr(settings, what)}")
    for what in ("demo_sizes", "reader_demo_sizes"):
        for size in getattr(settings, what):
            try:
                optimizer_named(OPTIMIZER).check({"max_bootstrapped_demos": size})
            except InputError as error:
                raise InputError(f"{what}: {error}") from error
    if not 0 <= settings.max_failures <= 1:
        raise InputError(f"max_failures is a share from 0 to 1, but got {settings.max_failures}")
    technique = technique_class(name)
    if "max_passages" not in {knob.name for knob in technique.KNOBS}:
        raise InputError(f"{name} finds no passages, so there is nothing to compile; choose a technique")
    technique(None, reranker=reranker, **knobs)
    if reader is not None:
        make_reader(reader)
    check_objectives([settings.objective], splits, reader)
    if reader_check and reader is None:
        raise InputError("reader_check needs a reader; give one, or no reader_check")
    seen = {mark for part in splits for question in part for mark in marks(question)}
    shared = []
    for question in reader_check:
        shared += [question.id] if seen & marks(question) else []
        seen |= marks(question)
    if shared:
        raise InputError(
            "a question of reader_check must not stand in train, dev or test, nor twice, by id or text, but these do: "
            f"{', '.join(sorted(shared))}; leave them out"
        )


def check_shared(technique: str, lm: dspy.LM, rewriter: dspy.LM | None) -> None:
    """Refuse a rewriter that the technique has no use for, or whose calls would not be counted, or kept with the LM's.

    Args:
        technique: The technique's name.
        lm: The LM.
        rewriter: The rewriter, or None.

    Raises:
        InputError: It is one of these.
    """
    if rewriter is None:
        return
    check_takes_rewriter(technique_class(technique))
    if engine_of(rewriter).ledger is not engine_of(lm).ledger:
        raise InputError(
            f"the rewriter {rewriter.model!r} has another ledger than the LM, so its calls would not be counted; make "
            "it with resolve_lm(..., store=store, ledger=ledger), the store and the ledger of the LM"
        )
    if engine_of(rewriter).store is not engine_of(lm).store:
        raise InputError(
            f"the rewriter {rewriter.model!r} has another store than the LM, so a second run would find only a part of "
            "the answers; make it with resolve_lm(..., store=store, ledger=ledger), the store and the ledger of the LM"
        )


def study_of(
    technique: str, lm: dspy.LM, reader: str | None, knobs: Mapping[str, Any], settings: CompileSettings
) -> StudySpec:
    """The study of a compilation.

    Args:
        technique: What is compiled.
        lm: Its LM, for its name.
        reader: Name of the reader, or None.
        knobs: Values that are fixed, ``max_passages`` among them.
        settings: How much is tried.
    """
    prompts = {
        name: PromptSpec(optimizer=OPTIMIZER, arguments={"max_bootstrapped_demos": size})
        for name, size in _sets("demos", settings.demo_sizes)
    }
    if reader is not None:
        prompts |= {
            name: PromptSpec(
                optimizer=OPTIMIZER,
                arguments={"max_bootstrapped_demos": size},
                part="reader",
                metric="accuracy",
                last=True,
            )
            for name, size in _sets("reader_demos", settings.reader_demo_sizes)
        }
    own = {name: value for name, value in knobs.items() if name != "max_passages"}
    return StudySpec(
        name="compile",
        questions=GIVEN,
        collection=GIVEN,
        lm=lm.model,
        embedder=GIVEN,
        reader=reader or "none",
        objectives=[settings.objective],
        techniques={technique: TechniqueSpec(knobs=own)},
        prompts=prompts,
        fixed={"max_passages": knobs["max_passages"]},
        each_prompt=True,
        pruner="none",
        seed=settings.seed,
        threads=settings.threads,
        max_failures=settings.max_failures,
    )


def _sets(name: str, sizes: Sequence[int]) -> list[tuple[str, int]]:
    """A name for each set of demonstrations, with its size; a size that repeats is a further set of its own."""
    found: dict[str, int] = {}
    for place, size in enumerate(sizes):
        again = sizes[:place].count(size)
        found[f"{name}_{size}_{again + 1}" if again else f"{name}_{size}"] = size
    return list(found.items())


def bench_of(
    spec: StudySpec,
    technique: str,
    splits: Splits,
    retriever: Any,
    lm: dspy.LM,
    reader_check: Sequence[Question],
    reranker: Reranker | None,
    rewriter: dspy.LM | None = None,
) -> Bench:
    """All that a trial needs, from what is open.

    Args:
        spec: The study.
        technique: What is compiled; no rewriting does without an index of its own.
        splits: Train, dev and test questions.
        retriever: What is searched; what it found is found again without a search.
        lm: The LM.
        reader_check: Further questions of the reader check.
        reranker: Scores passages.
        rewriter: What techniques that write ask in place of the LM.
    """
    guarded = engine_of(lm)
    readers = [None if spec.reader == "none" else str(spec.reader)]
    searched = make_program(technique, retriever, reranker=_reranker(technique, reranker), reader=None)
    space = build_space(spec, readers, {technique: searched.technique.searched_knobs})
    own = technique_class(technique).ENGINE
    plain = retriever if own is None else getattr(retriever, "plain", retriever)
    opened = {"dense": plain} | ({} if own is None else {own: retriever})
    return Bench(
        spec,
        splits,
        space,
        objectives_of(spec.objectives),
        lm,
        guarded.ledger,
        guarded.store,
        reader_check=reader_check,
        reranker=reranker,
        rewriter=rewriter,
        retrievers={
            name: ReplayRetriever(one, store=guarded.store, deepest=space.deepest(name)) for name, one in opened.items()
        },
    )


def _reranker(technique: str, reranker: Reranker | None) -> Reranker | None:
    return reranker if technique_class(technique).USES_RERANKER else None
