"""Compiling: a study of one technique beside no rewriting, on questions, a retriever and an LM that are open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dspy

from querywright.data.splits import Splits
from querywright.data.types import Question
from querywright.models.memo import remembering
from querywright.models.usage import Cost
from querywright.optimize.compilation import bench_of, check_compilation, check_shared, study_of
from querywright.optimize.evaluate import Progress
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.results import (
    AS_WRITTEN,
    NO_REWRITING,
    Arm,
    Comparison,
    Compiled,
    CompileSettings,
    objective_value,
)
from querywright.optimize.study.building import build_space
from querywright.optimize.study.records import record_of
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.select import choose
from querywright.optimize.study.space import seeded_sampler
from querywright.optimize.study.spec import BUDGET
from querywright.optimize.study.storage import StudyStorage, memory_storage
from querywright.optimize.study.testing import meet_test
from querywright.optimize.study.trial import Worker
from querywright.optimize.study.types import TrialRecord
from querywright.optimize.study.working import work
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.rerank import Reranker


def compile_program(
    technique: str,
    splits: Splits,
    *,
    retriever: Any,
    lm: dspy.LM,
    reader: str | None = "multiple_choice",
    knobs: Mapping[str, Any] | None = None,
    settings: CompileSettings | None = None,
    reader_check: Sequence[Question] = (),
    reranker: Reranker | None = None,
    rewriter: dspy.LM | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Tune a technique on labelled questions and hold it against no rewriting.

    A study of one technique, kept in memory. A DSPy optimizer bootstraps demonstration sets for the technique's
    predictors on train. Optuna searches knobs and demonstration sets together on dev, the technique as written and no
    rewriting among the arms; the reader's demonstrations are then chosen on dev by accuracy, "none" among them. The
    best arm meets test once, beside closed book, no rewriting, the technique as written and, with labelled evidence,
    the oracle; all with the same reader. Two arms are always compared on the questions that both scored. An arm on
    which too many questions failed is out, and named; none ends early, so that the technique meets test even where it
    loses.

    Everything that an LM answered is kept in the LM's store, and every choice follows from the seed: an
    interrupted compilation that is started again asks only for what is missing and ends where an undisturbed one
    would have ended.

    Args:
        technique: A name in ``TECHNIQUES``.
        splits: Train, dev and test questions.
        retriever: What is searched.
        lm: An LM made by ``resolve_lm``; with a store, so that nothing is asked twice.
        reader: ``multiple_choice``, ``short_answer``, or None to tune retrieval alone.
        knobs: Values that are fixed and not searched; ``max_passages`` is the budget of every arm. Default 5.
        settings: How much is tried.
        reader_check: Further labelled questions, met by closed book and oracle evidence alone: whether the reader
            reads takes more questions to show than whether the technique finds. Default none.
        reranker: Scores passages, for a technique that reranks. Default None: the technique's own way.
        rewriter: What the technique asks, and the reader does not: an LM made by ``resolve_lm`` with the store and the
            ledger of ``lm``. Default None: ``lm``.
        progress: Called as work proceeds.

    Returns:
        The recommended program and everything it was chosen from.

    Raises:
        InputError: The data cannot carry the objective, a question of the reader check stands in a split, or a
            name or value is wrong.
        OutageError: The LM is out of reach; answers so far are kept, nothing is chosen.
        BudgetError: The limit of LM calls is reached; answers so far are kept, nothing is chosen.
        TooManyFailuresError: Too many questions failed while demonstrations were bootstrapped, of no rewriting, or of
            what dev chose on test.
        QuerywrightError: Most arms failed.
    """
    settings = settings or CompileSettings()
    fixed = {"max_passages": BUDGET, **(knobs or {})}
    check_compilation(technique, splits, reader, fixed, settings, reader_check, reranker)
    check_shared(technique, lm, rewriter)
    spec = study_of(technique, lm, reader, fixed, settings)
    bench = bench_of(spec, technique, splits, as_retriever(retriever), lm, reader_check, reranker, rewriter)
    costs: dict[str, Cost] = {}
    with memory_storage(spec.name) as storage:
        worker = _worker(bench, storage, progress)
        with _stage(bench, costs, "prompts"), remembering(bench.memo):
            variants, nothing = _bootstrap(worker, technique)
        _narrow(bench, technique, variants, settings.n_trials)
        with _stage(bench, costs, "search"):
            work(bench, storage, "1", progress)
        trials = [record_of(one) for one in worker.study.get_trials(deepcopy=False)]
        chosen = choose(trials, bench.objectives, len(splits.test))
        with remembering(bench.memo):
            tested = meet_test(worker, chosen)

    names = _names(bench, technique, trials)
    complete = [one for one in trials if one.state == "complete" and one.same_as is None]
    arms = {one.number: _arm(one, names[one.number]) for one in complete}
    best = chosen.best or chosen.plain
    return Compiled(
        program=tested.programs[tested.recommended],
        technique=technique,
        recommended=names[chosen.winner.number],
        arms=tuple(arms.values()),
        compiled=arms[best.number],
        reader_demos=tested.last.variant is not None,
        test=_in_order((*tested.rows, *tested.references), technique),
        comparisons=tested.comparisons,
        verdict=tested.verdict,
        sentence=tested.sentence,
        costs={**costs, **tested.costs},
        settings=settings,
        n_demo_sets=len(variants),
        failed={
            **{names[one.number]: one.message for one in trials if one.state == "failed"},
            **{_reader_named(name): said for name, said in tested.last.failed.items()},
            **{f"{name} on test": said for name, said in tested.failed.items()},
        },
        nothing={**nothing, **tested.last.nothing},
        reader_check=tuple(reader_check),
        dead_knobs=tuple(str(one["knob"]) for one in tested.dead_knobs),
        corrected=None if chosen.corrected is None else (chosen.corrected.dev, chosen.corrected.corrected),
    )


def _worker(bench: Bench, storage: StudyStorage, progress: Progress | None) -> Worker:
    sampler = seeded_sampler(bench.spec.sampler, bench.spec.seed, bench.space)
    study = storage.study([objective.direction for objective in bench.objectives], sampler)
    return Worker(bench, storage, study, "1", progress)


def _bootstrap(worker: Worker, technique: str) -> tuple[list[str], dict[str, str]]:
    """The technique's demonstration sets, and why there is none of a name; one that equals an earlier is no choice."""
    space = worker.bench.space
    found: dict[str, Any] = {}
    nothing: dict[str, str] = {}
    for name in space.variants(technique)[1:]:
        arm = space.as_written(technique)
        try:
            variant, _ = worker.variant(replace(arm, prompt=name))
        except OptimizerError as error:
            nothing[name] = str(error)[:500]
            continue
        if variant is not None and variant["predictors"] not in found.values():
            found[name] = variant["predictors"]
    return list(found), nothing


def _narrow(bench: Bench, technique: str, variants: Sequence[str], n_trials: int) -> None:
    """Leave the prompts that there are; ``n_trials`` are the technique's, and no rewriting comes on top."""
    own = bench.spec.techniques[technique]
    trials = max(n_trials, 1 + len(variants)) + (technique != "plain")
    changes = {
        "techniques": {**bench.spec.techniques, technique: own.model_copy(update={"prompts": list(variants)})},
        "trials": trials,
    }
    searched = {technique: bench.space[technique].knobs}
    bench.spec = bench.spec.model_copy(update=changes)
    bench.space = build_space(bench.spec, bench.space.readers, searched)


@contextmanager
def _stage(bench: Bench, costs: dict[str, Cost], name: str) -> Iterator[None]:
    """Enter what the ``with`` block costs."""
    before = bench.ledger.total
    yield
    costs[name] = bench.spent_since(before)


def _names(bench: Bench, technique: str, trials: Sequence[TrialRecord]) -> dict[int, str]:
    """How each trial's arm is called."""
    written = bench.space.as_written(technique).key
    names = {}
    for one in trials:
        is_written = one.arm is not None and one.arm.key == written
        names[one.number] = NO_REWRITING if one.number == 0 else AS_WRITTEN if is_written else one.name
    return names


def _reader_named(prompts: str) -> str:
    return f"reader {prompts}" if prompts == AS_WRITTEN else f"reader with {prompts}"


def _arm(record: TrialRecord, name: str) -> Arm:
    assert record.arm is not None
    assert record.dev is not None
    return Arm(name, dict(record.arm.knobs), record.arm.prompt, record.dev)


def _in_order(rows: Sequence[Any], technique: str) -> tuple[Any, ...]:
    """The final table: from no passages to perfect ones, then what the reader's demonstrations did."""
    order = ("closed book", NO_REWRITING, f"{technique} as written", f"{technique} compiled", "oracle evidence")
    return tuple(sorted(rows, key=lambda one: order.index(one.name) if one.name in order else len(order)))


__all__ = [
    "Arm",
    "Comparison",
    "CompileSettings",
    "Compiled",
    "compile_program",
    "objective_value",
]
