"""Compile a technique: search its prompts and knobs, using an open retriever and LM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy

from querywright.data.splits import Splits, marks
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.lm import engine_of
from querywright.optimize.artifacts.save import copied_lines
from querywright.optimize.comparison import CLOSED_BOOK, ORACLE
from querywright.optimize.evaluate import Progress
from querywright.optimize.judge_files import SavedJudge
from querywright.optimize.objectives import check_objectives
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.optimizers import optimizer_named
from querywright.optimize.results import BASELINE, UNTUNED, Candidate, CompileResult, CompileSettings
from querywright.optimize.search.checks import read_search
from querywright.optimize.search.core import Search
from querywright.optimize.search.outcome import run_test
from querywright.optimize.search.spec import PLAIN, SearchSpec
from querywright.optimize.search.trials import TrialRecord
from querywright.optimize.search.worker import run_search
from querywright.programs import make_program, technique_class
from querywright.programs.readers import reader_for
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.rerank import Reranker

OPTIMIZER = "bootstrap_few_shot"
"""The default optimizer, which makes sets of demonstrations."""

READERS_OWN = "labelled_few_shot"
"""The optimizer whose demonstrations show labeled answers; it is only for readers, because only readers write answers.
"""


def compile_program(
    technique: str,
    splits: Splits,
    *,
    retriever: Any,
    lm: dspy.LM,
    reader: str | None = "auto",
    knobs: Mapping[str, Any] | None = None,
    settings: CompileSettings | None = None,
    reader_check: Sequence[Question] = (),
    reranker: Reranker | None = None,
    writer_lm: dspy.LM | None = None,
    judges: Sequence[SavedJudge] = (),
    judge_lm: dspy.LM | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> CompileResult:
    """Tune a technique on labeled questions and compare it with the baseline.

    On train, a DSPy optimizer makes sets of demonstrations for the technique's predictors. On dev, Optuna searches
    knobs and sets of demonstrations. Each program that it evaluates is an *arm*; the untuned technique and the baseline
    are arms, too. Then the reader's demonstrations, or none, are chosen on dev by accuracy. The best arm is evaluated
    once on test, together with the baseline, the untuned technique, closed book, and, if evidence is labeled, oracle
    evidence; all of them use the same reader. Two arms are always compared on the questions that both scored. An arm
    with too many failed questions is left out and reported. No trial is pruned, so that the technique is evaluated on
    test even if it loses. Every choice follows from the seed, and every answer is stored, so an interrupted compilation
    resumes with the same result.

    The arguments and errors are those of ``querywright.compile``, but everything is already open: LMs from
    ``resolve_lm`` that share a store and a ledger, judges, a reranker, and additional questions that only check the
    reader.
    """
    settings = settings or CompileSettings()
    reader = reader_for([one for part in splits for one in part], reader)
    index, store = as_retriever(retriever), engine_of(lm).store
    spec = _spec_of(technique, reader, knobs or {}, settings)
    kind = technique_class(technique)
    searched = make_program(technique, index, reranker=reranker if kind.USES_RERANKER else None, reader=None)
    retrievers = {"dense": index if kind.ENGINE is None else getattr(index, "plain", index)}
    retrievers |= {} if kind.ENGINE is None else {kind.ENGINE: index}
    search = Search(
        spec,
        splits,
        reader,
        lm,
        retrievers.__getitem__,
        store=store,
        local=store,
        reader_check=reader_check,
        reranker=reranker,
        writers={} if writer_lm is None else {writer_lm.model: writer_lm},
        knobs={technique: searched.technique.searched_knobs},
        judges=judges,
        judge_lm=judge_lm,
        progress=progress,
        tell=tell,
    )
    _check_questions(search)
    start = search.total
    variants, nothing = _make_prompts(search, technique)
    costs, start = {"prompts": search.spent_since(start)}, search.total
    search.change(_with_prompts(spec, technique, variants, settings.trials))
    trials = run_search(search).finished()
    costs["search"] = search.spent_since(start)
    tested = run_test(search, trials)
    chosen = tested.chosen
    judged = {"judges": search.judged} if search.judging else {}

    names = _names(search, technique, trials)
    arms = {
        one.number: Candidate(names[one.number], dict(one.arm.knobs), one.arm.prompt, one.dev)
        for one in trials
        if one.state == "complete" and one.same_as is None
    }
    failed = {names[one.number]: one.message for one in trials if one.state == "failed"}
    for name, said in tested.reader_prompts.failed.items():
        failed[f"{UNTUNED} reader" if name == UNTUNED else f"reader with {name}"] = said
    # Order of the final table: from no passages to oracle evidence, then the untuned reader.
    order = (CLOSED_BOOK, BASELINE, f"{technique} {UNTUNED}", f"{technique} compiled", ORACLE)
    places = {name: place for place, name in enumerate(order)}
    copied = {name.partition(", ")[2]: tuple(map(str, found)) for name, found in search.copied.items()}
    return CompileResult(
        program=tested.programs[tested.recommended],
        technique=technique,
        recommended=names[chosen.winner.number],
        arms=tuple(arms.values()),
        compiled=arms[(chosen.best or chosen.plain).number],
        reader_demos=tested.reader_prompts.variant is not None,
        test=tuple(sorted(tested.rows, key=lambda one: places.get(one.name, len(places)))),
        comparisons=tested.comparisons,
        verdict=tested.verdict,
        sentence=tested.sentence,
        costs={**costs, **tested.costs, **judged},
        settings=settings,
        n_demo_sets=len(variants),
        failed={**failed, **{f"{name} on test": said for name, said in tested.failed.items()}},
        nothing={**nothing, **tested.reader_prompts.nothing},
        reader_check=tuple(reader_check),
        corrected=None if chosen.corrected is None else (chosen.corrected["dev"], chosen.corrected["corrected"]),
        judges=tuple(search.judge_facts),
        copied=copied,
        hints=tested.hints,
        notes=(*tested.notes, *(copied_lines(copied, allowed=True) if settings.allow_copies else ())),
        remarks=tested.remarks,
    )


def _check_questions(search: Search) -> None:
    """Raise if the questions do not suit an objective, or if the reader check and a split share a question."""
    check_objectives(search.spec.objectives, search.splits, search.reader)
    if search.reader_check and search.reader is None:
        raise InputError("reader_check requires a reader; pass a reader or remove reader_check")
    seen = {mark for part in search.splits for question in part for mark in marks(question)}
    shared = []
    for question in search.reader_check:
        shared += [question.id] if seen & marks(question) else []
        seen |= marks(question)
    if shared:
        raise InputError(
            "these reader_check questions are repeated in reader_check or also occur in train, dev, or test (same ID "
            f"or text): {', '.join(sorted(shared))}; remove them from reader_check"
        )


def _spec_of(technique: str, reader: str | None, knobs: Mapping[str, Any], settings: CompileSettings) -> SearchSpec:
    """Return a compilation's search: one technique with all prompt variants."""
    if settings.trials < 1:
        raise InputError(f"trials must be 1 or more, but got {settings.trials}")
    last = {"part": "reader", "metric": "accuracy", "last": True}
    made = settings.teleprompter
    if made == OPTIMIZER:
        asks_lm = make_program(technique, None, reader=None).predictors()  # a custom program may have none
        prompts = _sets("demos", settings.demo_sizes if asks_lm else (), {}, settings.arguments)
    else:
        optimizer_named(made)
        own = last if made == READERS_OWN else {}
        prompts = {made: {"optimizer": made, "arguments": dict(settings.arguments), **own}}
    prompts |= _sets("reader_demos", () if reader is None else settings.reader_demo_sizes, last)
    fixed = {"fixed": {"max_passages": _most(knobs["max_passages"])}} if "max_passages" in knobs else {}
    given = {
        "name": "compile",
        "reader": reader or "none",
        **{name: getattr(settings, name) for name in ("seed", "threads", "max_failures")},
        "objectives": list(settings.objectives),
        "techniques": {technique: {"knobs": dict(knobs)}},
        "prompts": prompts,
        **fixed,
        "each_prompt": True,
        "allow_copies": settings.allow_copies,
        "pruner": "none",
        "trials": 2 + len(prompts) + settings.trials,
    }
    return read_search(SearchSpec, given, "the compilation")


def _most(budget: Any) -> Any:
    """Return the number of passages that the baseline shows: the most that an arm of the technique may show."""
    values = [budget["high"]] if isinstance(budget, Mapping) and "high" in budget else budget
    return max(values) if isinstance(values, list) and values else values


def _sets(
    name: str, sizes: Sequence[int], more: Mapping[str, Any], arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a prompt variant for each set of demonstrations.

    If a size is repeated, each repetition gets its own set.
    """
    found = {}
    for place, size in enumerate(sizes):
        again = sizes[:place].count(size)
        called = f"{name}_{size}_{again + 1}" if again else f"{name}_{size}"
        found[called] = {
            "optimizer": OPTIMIZER,
            "arguments": {"max_bootstrapped_demos": size, **(arguments or {})},
            **more,
        }
    return found


def _make_prompts(search: Search, technique: str) -> tuple[list[str], dict[str, str]]:
    """Return the names of the technique's distinct prompt variants, and the errors for those that could not be made."""
    found: dict[str, Any] = {}
    nothing: dict[str, str] = {}
    for name in search.space[technique].prompts[1:]:
        try:
            variant = search.variant(replace(search.space.untuned(technique), prompt=name))
        except OptimizerError as error:
            nothing[name] = str(error)[:500]
            continue
        if variant is not None and variant.predictors not in found.values():
            found[name] = variant.predictors
    return list(found), nothing


def _with_prompts(spec: SearchSpec, technique: str, variants: Sequence[str], trials: int) -> SearchSpec:
    """Return the search with these prompt variants; ``trials`` counts only the technique's own trials."""
    own = spec.techniques[technique].model_copy(update={"prompts": list(variants)})
    count = max(trials, 1 + len(variants)) + (technique != PLAIN)
    return spec.model_copy(update={"techniques": {**spec.techniques, technique: own}, "trials": count})


def _names(search: Search, technique: str, trials: Sequence[TrialRecord]) -> dict[int, str]:
    """Return the name of each trial's arm, by trial number."""
    written = search.space.untuned(technique)
    return {one.number: UNTUNED if one.number and one.arm == written else one.name for one in trials} | {0: BASELINE}
