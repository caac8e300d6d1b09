"""Compiling: one technique is searched next to the baseline, on questions, a retriever and an LM that are open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy

from querywright.data.splits import Splits, marks
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.lm import engine_of
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
"""The optimizer that makes sets of demonstrations."""

READERS_OWN = "labelled_few_shot"
"""The optimizer that shows labels unchanged, which only a reader predicts."""


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
    """Tune a technique on labelled questions and compare it with the baseline.

    A DSPy optimizer bootstraps demonstration sets for the technique's predictors on train. Optuna searches knobs and
    demonstration sets together on dev, the untuned technique and the baseline among the arms; the reader's
    demonstrations are then chosen on dev by accuracy, "none" among them. The best arm is evaluated on test once, with
    closed book, the baseline, the untuned technique and, with labelled evidence, the oracle; all with the same
    reader. Two arms are always compared on the questions that both scored. An arm on which too many questions failed is
    out, and named; none ends early, so that the technique is evaluated on test even if it loses. Every choice follows
    from the seed, and every answer is in the store: an interrupted compilation that is started again asks only for what
    is missing and ends as an undisturbed one would have ended.

    Arguments and errors are those of ``querywright.compile``, with everything open: LMs made by ``resolve_lm`` that
    share a store and a ledger, judges, a reranker, and further questions that only check the reader.
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
    # The final table: from no passages to perfect ones, then what the reader's demonstrations did.
    order = (CLOSED_BOOK, BASELINE, f"{technique} {UNTUNED}", f"{technique} compiled", ORACLE)
    places = {name: place for place, name in enumerate(order)}
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
    )


def _check_questions(search: Search) -> None:
    """Refuse questions that cannot carry an objective, or that the reader check shares with a split."""
    check_objectives(search.spec.objectives, search.splits, search.reader)
    if search.reader_check and search.reader is None:
        raise InputError("reader_check needs a reader; give one, or no reader_check")
    seen = {mark for part in search.splits for question in part for mark in marks(question)}
    shared = []
    for question in search.reader_check:
        shared += [question.id] if seen & marks(question) else []
        seen |= marks(question)
    if shared:
        raise InputError(
            "a question of reader_check must not stand in train, dev or test, nor twice, by id or text, but these do: "
            f"{', '.join(sorted(shared))}; leave them out"
        )


def _spec_of(technique: str, reader: str | None, knobs: Mapping[str, Any], settings: CompileSettings) -> SearchSpec:
    """The search of a compilation: one technique, and every way to prompts that may be tried."""
    if settings.trials < 1:
        raise InputError(f"trials must be 1 or more, but got {settings.trials}")
    last = {"part": "reader", "metric": "accuracy", "last": True}
    made = settings.teleprompter
    if made == OPTIMIZER:
        asks_lm = technique_class(technique).LM_STAGES > 0
        prompts = _sets("demos", settings.demo_sizes if asks_lm else (), {}, settings.arguments)
    else:
        optimizer_named(made)
        own = last if made == READERS_OWN else {}
        prompts = {made: {"optimizer": made, "arguments": dict(settings.arguments), **own}}
    prompts |= _sets("reader_demos", () if reader is None else settings.reader_demo_sizes, last)
    searched = {name: value for name, value in knobs.items() if name != "max_passages"}
    fixed = {"fixed": {"max_passages": knobs["max_passages"]}} if "max_passages" in knobs else {}
    given = {
        "name": "compile",
        "reader": reader or "none",
        **{name: getattr(settings, name) for name in ("seed", "threads", "max_failures")},
        "objectives": list(settings.objectives),
        "techniques": {technique: {"knobs": searched}},
        "prompts": prompts,
        **fixed,
        "each_prompt": True,
        "pruner": "none",
        "trials": 2 + len(prompts) + settings.trials,
    }
    return read_search(SearchSpec, given, "the compilation")


def _sets(
    name: str, sizes: Sequence[int], more: Mapping[str, Any], arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A prompt for each set of demonstrations; a size that repeats is a further set of its own."""
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
    """The technique's demonstration sets, without copies of earlier ones, and by name why there is none."""
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
    """The search with the prompts that could be made; ``trials`` are the technique's, and the baseline comes on top."""
    own = spec.techniques[technique].model_copy(update={"prompts": list(variants)})
    count = max(trials, 1 + len(variants)) + (technique != PLAIN)
    return spec.model_copy(update={"techniques": {**spec.techniques, technique: own}, "trials": count})


def _names(search: Search, technique: str, trials: Sequence[TrialRecord]) -> dict[int, str]:
    """How each trial's arm is called."""
    written = search.space.untuned(technique)
    return {one.number: UNTUNED if one.number and one.arm == written else one.name for one in trials} | {0: BASELINE}
