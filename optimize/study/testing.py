"""The test of a study: what dev chose is held against no rewriting once, and a verdict follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from querywright.data.types import Question
from querywright.metrics.statistics import p_value
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, evaluate, finite
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.references import closed_book, oracle_evidence
from querywright.optimize.results import NO_REWRITING, Comparison
from querywright.optimize.significance import ALPHA, family
from querywright.optimize.study.dead_knobs import dead_knobs
from querywright.optimize.study.last import LastPrompts, choose_last
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.select import Chosen
from querywright.optimize.study.trial import Worker
from querywright.optimize.study.types import ArmConfig, TrialRecord
from querywright.optimize.verdict import READER_CHECK, Verdict, verdict_on
from querywright.programs import RAG, make_reader

FRONT = 4
"""Programs of the front that meet test and are saved, besides the best one, at most."""

DEFAULT_METRICS = ("decision_useful", "accuracy")
"""Metrics that are compared besides those of the objective."""


@dataclass(frozen=True, slots=True)
class Tested:
    """What came of the test.

    Args:
        arms: What met it, by name: no rewriting, the best arm, the same technique as written, the front.
        programs: Their programs, with the reader's prompts that were chosen last.
        best: Name of the best arm other than no rewriting; empty where there is none.
        recommended: Name of the arm that dev chose.
        rows: Results of every program, those without an arm included.
        references: Results of the programs that check the reader.
        comparisons: The planned comparisons.
        verdict: What came of it, as a word,
        sentence: and as a plain sentence with figures.
        last: The reader's prompts that were chosen last.
        dead_knobs: Knobs that change nothing, as ``dead_knobs`` gives them.
        costs: Cost by stage: ``reader``, ``reader check`` and ``test``.
        failed: Programs on which too many questions of the test failed, and what they said. They have no row.
    """

    arms: Mapping[str, ArmConfig]
    programs: Mapping[str, RAG]
    best: str
    recommended: str
    rows: tuple[Evaluation, ...]
    references: tuple[Evaluation, ...]
    comparisons: tuple[Comparison, ...]
    verdict: Verdict
    sentence: str
    last: LastPrompts
    dead_knobs: tuple[Mapping[str, Any], ...]
    costs: Mapping[str, Cost]
    failed: Mapping[str, str] = field(default_factory=dict)


def meet_test(worker: Worker, chosen: Chosen) -> Tested:
    """Choose what is left to choose on dev, then let every program of the final table meet test, once.

    All arms of one reader read alike: with the prompts that were chosen last for it, or as it is written. What they do
    is seen in one more row, the recommended program with its reader as written. An arm of another reader reads as that
    one is written, is named after it, and is held against no arm of a different reader. Closed book and oracle evidence
    check the reader, and meet the questions of the reader check besides. What the verdict does not rest on may
    fail: it is named and has no row.

    Args:
        worker: Has what is open, and the prompts.
        chosen: What dev decided.

    Raises:
        OutageError: The LM is out of reach.
        BudgetError: The budget is spent.
        TooManyFailuresError: No rewriting or what dev chose failed on too many questions.
    """
    bench = worker.bench
    costs: dict[str, Cost] = {}

    def paid(stage: str, before: Cost) -> None:
        costs[stage] = bench.spent_since(before)

    before = bench.ledger.total
    assert chosen.winner.arm is not None
    last = choose_last(worker, chosen.winner.arm)
    paid("reader", before)
    dead = _dead_knobs(worker, chosen)
    out = {one.arm.key for one in worker.finished() if one.state == "failed" and one.arm is not None}
    arms = _with_readers(final_arms(bench, chosen, out))
    best = _name_of(chosen.best, arms)
    recommended = NO_REWRITING if chosen.winner is chosen.plain else best
    written = {name: bench.program(arm, worker.variant(arm)[0], reads=True) for name, arm in arms.items()}
    programs = {name: last.put_into(program) for name, program in written.items()}
    shown = dict(programs)
    if last.variant is not None:
        shown[_reader_as_written(recommended)] = written[recommended]

    before = bench.ledger.total
    needed = {NO_REWRITING, recommended}
    failed: dict[str, str] = {}
    met = _meet(worker, shown, bench.splits.test, needed, failed)
    paid("test", before)
    before = bench.ledger.total
    references = {name: last.put_into(one) for name, one in _references(bench, arms[NO_REWRITING]).items()}
    checked = _meet(worker, references, [*bench.splits.test, *bench.reader_check], needed, failed)
    paid("reader check", before)

    comparisons = planned_comparisons({**met, **checked}, bench.objectives[0], arms, best, recommended)
    verdict, sentence = verdict_of(chosen, bench.objectives[0], comparisons, best)
    if recommended != NO_REWRITING and arms[best].reader != arms[NO_REWRITING].reader:
        sentence = (
            f"Chosen on dev; no rewriting has a result with the reader {arms[NO_REWRITING].reader} alone, so nothing "
            f"is said of a gain with {arms[best].reader}"
        )
    return Tested(
        arms={name: arm for name, arm in arms.items() if name in met},
        programs={name: program for name, program in programs.items() if name in met},
        best=best,
        recommended=recommended,
        rows=tuple(met.values()),
        references=tuple(checked.values()),
        comparisons=tuple(comparisons),
        verdict=verdict,
        sentence=sentence,
        last=last,
        dead_knobs=dead,
        costs={stage: costs[stage] for stage in ("reader", "reader check", "test")},
        failed=failed,
    )


def final_arms(bench: Bench, chosen: Chosen, out: Collection[str] = ()) -> dict[str, ArmConfig]:
    """The programs that meet test, by name: no rewriting, the best, the same technique as written, the front.

    No arm meets it twice: where the best one is the technique as written, it is the only row of that technique.

    Args:
        bench: Has the arms as written.
        chosen: What dev decided.
        out: Keys of arms on which too many questions of dev failed; they do not meet test.
    """
    assert chosen.plain.arm is not None
    arms = {NO_REWRITING: chosen.plain.arm}
    if chosen.best is not None and chosen.best.arm is not None:
        best = chosen.best.arm
        arms[f"{best.technique} compiled"] = best
        written = replace(bench.space.as_written(best.technique), reader=best.reader)
        if written.key not in {*out, *(arm.key for arm in arms.values())}:
            arms[_as_written(best.technique)] = written
    if len(bench.objectives) > 1:
        for record in chosen.front:
            known = {arm.key for arm in arms.values()}
            if record.arm is not None and record.arm.key not in known and sum("front" in name for name in arms) < FRONT:
                arms[f"front, trial {record.number}"] = record.arm
    return arms


def planned_comparisons(
    met: Mapping[str, Evaluation], objective: Objective, arms: Mapping[str, ArmConfig], best: str, recommended: str
) -> list[Comparison]:
    """The planned comparisons, whichever way they fall.

    Those of the arms are Holm-corrected together: the best one against no rewriting and against itself as written, the
    front against no rewriting, and what the reader's prompts did; arms of different readers are not compared. Oracle
    evidence against closed book is a check of the reader and no claim about a technique, so it is a family of its own
    and corrects nothing else.

    Args:
        met: Results on test by name.
        objective: The first one of the study.
        arms: The arms by name.
        best: Name of the best one; empty where there is none.
        recommended: Name of what dev chose.
    """
    metrics = dict.fromkeys([*objective.metrics, *DEFAULT_METRICS])
    front = [name for name in arms if name.startswith("front, ")]
    written = [_as_written(best.removesuffix(" compiled"))]
    planned = [
        (metric, arm, other)
        for metric in metrics
        for arm, other in [
            *((best, other) for other in (NO_REWRITING, *written)),
            *((arm, NO_REWRITING) for arm in front),
        ]
        if arm in arms and other in arms and arms[arm].reader == arms[other].reader
    ]
    planned.append(("accuracy", recommended, _reader_as_written(recommended)))
    return [
        *family("technique", planned, met),
        *family("reader check", [("accuracy", *READER_CHECK)], met, prefix="reader check: "),
    ]


def verdict_of(
    chosen: Chosen, objective: Objective, comparisons: Sequence[Comparison], best: str
) -> tuple[Verdict, str]:
    """What came of a study, as a word and as one plain sentence with figures.

    A gain is a significant lead over no rewriting on test in a metric of the objective; with two metrics a loss in one
    of them is a loss.

    Args:
        chosen: What dev decided.
        objective: The first one of the study.
        comparisons: Those of the test.
        best: Name of the best arm.
    """
    if chosen.best is None:
        return "no rewriting", "No other arm has a result on dev, so no rewriting is what was saved"
    if chosen.too_few:
        return "too few questions", f"{chosen.too_few}, so no rewriting is what was saved"
    if chosen.winner is chosen.plain:
        mine, plain = chosen.values
        said = "" if chosen.test is None else f"; {_figures(chosen)}"
        return (
            "no rewriting",
            f"Nothing was better than no rewriting on dev ({objective.name}: best {_percent(mine)} against "
            f"{_percent(plain)} per cent{said}), so no rewriting is what was saved",
        )
    return verdict_on(
        {
            one.metric: one.test
            for one in comparisons
            if (one.arm, one.other) == (best, NO_REWRITING) and one.metric in objective.metrics
        }
    )


def _meet(
    worker: Worker,
    programs: Mapping[str, RAG],
    questions: Sequence[Question],
    needed: Collection[str],
    failed: dict[str, str],
) -> dict[str, Evaluation]:
    """Results by name; a program that is not needed and fails on too many questions is entered in ``failed``."""
    bench = worker.bench
    met: dict[str, Evaluation] = {}
    for name, program in programs.items():
        try:
            met[name] = evaluate(
                program,
                questions,
                lm=bench.lm,
                name=name,
                metrics=bench.metrics,
                threads=bench.spec.threads,
                max_failures=bench.spec.max_failures,
                progress=worker.progress,
            )
        except TooManyFailuresError as error:
            if name in needed:
                raise
            failed[name] = str(error)[:500]
    return met


def _references(bench: Bench, plain: ArmConfig) -> dict[str, RAG]:
    """Closed book and oracle evidence, where there is a reader."""
    if plain.reader is None:
        return {}
    found = {"closed book": closed_book(make_reader(plain.reader))}
    asked = [*bench.splits.test, *bench.reader_check]
    budget = {"max_passages": plain.knobs["max_passages"]}
    oracle = oracle_evidence(bench.retriever("dense"), asked, make_reader(plain.reader), budget)
    return found if oracle is None else {**found, "oracle evidence": oracle}


def _dead_knobs(worker: Worker, chosen: Chosen) -> tuple[Mapping[str, Any], ...]:
    looked_at = [one.arm for one in (chosen.best, *chosen.front) if one is not None and one.arm is not None]
    by_technique = {arm.technique: arm for arm in reversed(looked_at)}
    found = (dead_knobs(worker.bench, arm, worker.variant(arm)[0]) for arm in by_technique.values())
    return tuple(one for several in found for one in several)


def _with_readers(arms: Mapping[str, ArmConfig]) -> dict[str, ArmConfig]:
    """The arms with the reader in the names of the front, where readers differ."""
    if len({arm.reader for arm in arms.values()}) == 1:
        return dict(arms)
    return {
        f"{name}, reader {arm.reader}" if name.startswith("front, ") else name: arm for name, arm in arms.items()
    }  # fmt: skip


def _name_of(record: TrialRecord | None, arms: Mapping[str, ArmConfig]) -> str:
    if record is None or record.arm is None:
        return ""
    return next(name for name, arm in arms.items() if arm.key == record.arm.key)


def _as_written(technique: str) -> str:
    return f"{technique} as written"


def _reader_as_written(arm: str) -> str:
    return f"{arm}, reader as written"


def _figures(chosen: Chosen) -> str:
    test = chosen.test
    assert test is not None
    return f"{test.wins} won, {test.losses} lost of {test.n}, {p_value(test.p_two_sided, ALPHA)}"


def _percent(value: float) -> str:
    return "-" if finite(value) is None else f"{100 * value:.1f}"
