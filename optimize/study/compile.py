"""Compiling: a study of one technique beside no rewriting, on questions, a retriever and an LM that are open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dspy

from querywright.data.splits import Splits, marks
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.lm import engine_of
from querywright.optimize.comparison import CLOSED_BOOK, ORACLE
from querywright.optimize.evaluate import Progress
from querywright.optimize.judge_files import SavedJudge
from querywright.optimize.live import stands
from querywright.optimize.objectives import check_objectives
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.optimizers import optimizer_named
from querywright.optimize.results import AS_WRITTEN, NO_REWRITING, Candidate, CompileResult, CompileSettings
from querywright.optimize.study.holdout import meet_test
from querywright.optimize.study.reading import read_spec
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.space import build_space
from querywright.optimize.study.spec import PLAIN, StudySpec
from querywright.optimize.study.status import standing
from querywright.optimize.study.storage import memory_storage
from querywright.optimize.study.trial import Worker
from querywright.optimize.study.types import TrialRecord
from querywright.programs import make_program, technique_class
from querywright.programs.readers import reader_for
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.replay import ReplayRetriever
from querywright.retrieval.rerank import Reranker

OPTIMIZER = "bootstrap_few_shot"
"""What makes sets of demonstrations."""

READERS_OWN = "labelled_few_shot"
"""What shows labels as they are, which only a reader gives."""

GIVEN = "given"
"""Stands in the study for what has no name because it is open already."""


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
    """Tune a technique on labelled questions and hold it against no rewriting.

    A study of one technique, kept in memory. A DSPy optimizer bootstraps demonstration sets for the technique's
    predictors on train. Optuna searches knobs and demonstration sets together on dev, the technique as written and no
    rewriting among the arms; the reader's demonstrations are then chosen on dev by accuracy, "none" among them. The
    best arm meets test once, beside closed book, no rewriting, the technique as written and, with labelled evidence,
    the oracle; all with the same reader. Two arms are always compared on the questions that both scored. An arm on
    which too many questions failed is out, and named; none ends early, so that the technique meets test even where it
    loses. Every choice follows from the seed, and every answer is in the store: an interrupted compilation that is
    started again asks only for what is missing and ends where an undisturbed one would have ended.

    Arguments, and what is raised, are those of ``querywright.compile``, all of them open: LMs made by ``resolve_lm``
    that share a store and a ledger, judges, a reranker, and further questions that only check the reader.
    """
    settings = settings or CompileSettings()
    reader = reader_for([one for part in splits for one in part], reader)
    spec = _study_of(technique, lm, writer_lm, reader, knobs or {}, settings)
    bench = _bench_of(spec, technique, splits, as_retriever(retriever), lm, reranker)
    bench.reader_check, bench.progress, bench.tell = reader_check, progress, tell
    bench.writers = {one.name: writer_lm for one in spec.writers}
    bench.judges, bench.judge_lm = judges, judge_lm
    _check_given(bench)
    with memory_storage(spec.name) as storage:
        start = bench.total
        variants, nothing = _bootstrap(bench, technique)
        costs, start = {"prompts": bench.spent_since(start)}, bench.total
        _narrow(bench, technique, variants, settings.trials)
        worker = Worker(bench, storage)
        worker.looked = lambda: stands(progress, partial(standing, worker.records(), bench.spec, len(splits.dev)))
        worker.work()
        costs["search"] = bench.spent_since(start)
        trials = worker.finished()
    tested = meet_test(bench, trials)
    chosen = tested.chosen
    judged = {"judges": bench.judged} if bench.judging else {}

    names = _names(bench, technique, trials)
    arms = {
        one.number: Candidate(names[one.number], dict(one.arm.knobs), one.arm.prompt, one.dev)
        for one in trials
        if one.state == "complete" and one.same_as is None
    }
    failed = {names[one.number]: one.message for one in trials if one.state == "failed"}
    for name, said in tested.reader_prompts.failed.items():
        failed[f"reader {name}" if name == AS_WRITTEN else f"reader with {name}"] = said
    # The final table: from no passages to perfect ones, then what the reader's demonstrations did.
    order = (CLOSED_BOOK, NO_REWRITING, f"{technique} as written", f"{technique} compiled", ORACLE)
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
        judges=tuple(bench.judge_facts),
    )


def _check_given(bench: Bench) -> None:
    """Refuse questions, which are no part of a study's file."""
    check_objectives(bench.spec.objectives, bench.splits, bench.space.reader)
    if bench.reader_check and bench.space.reader is None:
        raise InputError("reader_check needs a reader; give one, or no reader_check")
    seen = {mark for part in bench.splits for question in part for mark in marks(question)}
    shared = []
    for question in bench.reader_check:
        shared += [question.id] if seen & marks(question) else []
        seen |= marks(question)
    if shared:
        raise InputError(
            "a question of reader_check must not stand in train, dev or test, nor twice, by id or text, but these do: "
            f"{', '.join(sorted(shared))}; leave them out"
        )


def _study_of(
    technique: str,
    lm: dspy.LM,
    writer: dspy.LM | None,
    reader: str | None,
    knobs: Mapping[str, Any],
    settings: CompileSettings,
) -> StudySpec:
    """The study of a compilation, checked as any other."""
    if settings.trials < 1:
        raise InputError(f"trials must be 1 or more, but got {settings.trials}")
    bare = technique_class(technique).LM_STAGES == 0
    last = {"part": "reader", "metric": "accuracy", "last": True}
    made = settings.teleprompter
    if made == OPTIMIZER:
        own_prompts = _sets("demos", () if bare else settings.demo_sizes, {}, settings.arguments)
    else:
        optimizer_named(made)
        own_prompts = {made: {"optimizer": made, "arguments": dict(settings.arguments)}}
        own_prompts[made] |= last if made == READERS_OWN else {"late": False}
    prompts = {
        **own_prompts,
        **_sets("reader_demos", () if reader is None else settings.reader_demo_sizes, last),
    }
    own = dict(knobs)
    fixed = {"fixed": {"max_passages": own.pop("max_passages")}} if "max_passages" in own else {}
    return read_spec(
        {
            "name": "compile",
            **dict.fromkeys(("questions", "collection", "embedder"), GIVEN),
            "lm": lm.model,
            "writers": [] if writer is None else [writer.model],
            "reader": reader or "none",
            **{name: getattr(settings, name) for name in ("seed", "threads", "max_failures", "deadline")},
            "objectives": list(settings.objectives),
            "techniques": {technique: {"knobs": own}},
            "prompts": prompts,
            **fixed,
            "each_prompt": True,
            "pruner": "none",
            "trials": 2 + len(prompts) + settings.trials,
        }
    )


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


def _bench_of(
    spec: StudySpec, technique: str, splits: Splits, retriever: Any, lm: dspy.LM, reranker: Reranker | None
) -> Bench:
    """All that a trial needs, from what is open; no rewriting does without an index of the technique's own."""
    kind, store = technique_class(technique), engine_of(lm).store
    searched = make_program(technique, retriever, reranker=reranker if kind.USES_RERANKER else None, reader=None)
    space = build_space(spec, reader_for((), spec.reader), {technique: searched.technique.searched_knobs})
    opened = {"dense": retriever if kind.ENGINE is None else getattr(retriever, "plain", retriever)}
    opened |= {} if kind.ENGINE is None else {kind.ENGINE: retriever}
    known = {name: ReplayRetriever(one, store=store, deepest=space.deepest(name)) for name, one in opened.items()}
    return Bench(spec, splits, space, lm, store, reranker=reranker, retrievers=known)


def _bootstrap(bench: Bench, technique: str) -> tuple[list[str], dict[str, str]]:
    """The technique's demonstration sets, and why there is none of a name; one that equals an earlier is no choice."""
    found: dict[str, Any] = {}
    nothing: dict[str, str] = {}
    for name in bench.space[technique].early[1:]:
        try:
            variant = bench.variant(replace(bench.space.as_written(technique), prompt=name))
        except OptimizerError as error:
            nothing[name] = str(error)[:500]
            continue
        if variant is not None and variant.predictors not in found.values():
            found[name] = variant.predictors
    return list(found), nothing


def _narrow(bench: Bench, technique: str, variants: Sequence[str], trials: int) -> None:
    """Leave the prompts that there are; ``trials`` are the technique's, and no rewriting comes on top."""
    trials = max(trials, 1 + len(variants)) + (technique != PLAIN)
    own = bench.spec.techniques[technique].model_copy(update={"prompts": list(variants)})
    techniques = {**bench.spec.techniques, technique: own}
    bench.spec = bench.spec.model_copy(update={"techniques": techniques, "trials": trials})
    left = replace(bench.space[technique], early=(AS_WRITTEN, *variants))
    spaces = tuple(left if one.name == technique else one for one in bench.space.techniques)
    bench.space = replace(bench.space, techniques=spaces, trials=trials)


def _names(bench: Bench, technique: str, trials: Sequence[TrialRecord]) -> dict[int, str]:
    """How each trial's arm is called."""
    written = bench.space.as_written(technique)
    return {one.number: AS_WRITTEN if one.number and one.arm == written else one.name for one in trials} | {
        0: NO_REWRITING
    }
