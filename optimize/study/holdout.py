"""The test of a study: what dev chose is held against no rewriting once, and a verdict follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from querywright.data.types import Question
from querywright.errors import QuerywrightError
from querywright.models.cached import stored_only
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, finite
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.references import CLOSED_BOOK, ORACLE, closed_book, oracle_evidence
from querywright.optimize.results import NO_REWRITING, Comparison
from querywright.optimize.significance import READER_CHECK, Verdict, family, figures, verdict_on
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.reader_prompts import ReaderPrompts, choose_reader_prompts
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.select import Chosen
from querywright.optimize.study.types import ArmConfig
from querywright.programs import RAG, make_reader
from querywright.programs.hyperparameters import Value

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
        reader_prompts: The reader's prompts that were chosen last.
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
    reader_prompts: ReaderPrompts
    dead_knobs: tuple[Mapping[str, Any], ...]
    costs: Mapping[str, Cost]
    failed: Mapping[str, str] = field(default_factory=dict)


def meet_test(bench: Bench, chosen: Chosen, out: Collection[str] = ()) -> Tested:
    """Choose what is left to choose on dev, then let every program of the final table meet test, once.

    All arms of one reader read alike: with the prompts that were chosen last for it, or as it is written. What they do
    is seen in one more row, the recommended program with its reader as written. An arm of another reader reads as that
    one is written, is named after it, and is held against no arm of a different reader. Closed book and oracle evidence
    check the reader, and meet the questions of the reader check besides. What the verdict does not rest on may
    fail: it is named and has no row.

    Args:
        bench: Has what is open, and the prompts.
        chosen: What dev decided.
        out: Keys of arms on which too many questions of dev failed; they do not meet test.

    Raises:
        OutageError: The LM is out of reach.
        BudgetError: The budget is spent.
        TooManyFailuresError: No rewriting or what dev chose failed on too many questions.
    """
    assert chosen.winner.arm is not None
    before = bench.ledger.total
    prompts = choose_reader_prompts(bench, chosen.winner.arm)
    costs = {"reader": bench.spent_since(before)}
    looked_at = [one.arm for one in (chosen.best, *chosen.front) if one is not None and one.arm is not None]
    by_technique = {arm.technique: arm for arm in reversed(looked_at)}
    dead = tuple(found for arm in by_technique.values() for found in dead_knobs(bench, arm))
    arms = final_arms(bench, chosen, out)
    key = None if chosen.best is None or chosen.best.arm is None else chosen.best.arm.key
    best = next((name for name, arm in arms.items() if arm.key == key), "")
    recommended = NO_REWRITING if chosen.winner is chosen.plain else best
    as_read = f"{recommended}, reader as written"
    written = {name: bench.program(arm, reads=True) for name, arm in arms.items()}
    programs = {name: prompts.put_into(program) for name, program in written.items()}
    shown = dict(programs) if prompts.variant is None else {**programs, as_read: written[recommended]}
    references = {name: prompts.put_into(one) for name, one in _references(bench, arms[NO_REWRITING]).items()}
    failed: dict[str, str] = {}

    def met(programs: Mapping[str, RAG], questions: Sequence[Question]) -> dict[str, Evaluation]:
        found = {}
        for name, program in programs.items():
            try:
                found[name] = bench.evaluated(program, questions, name)
            except TooManyFailuresError as error:
                if name in {NO_REWRITING, recommended}:
                    raise
                failed[name] = str(error)[:500]
        return found

    before = bench.ledger.total
    rows = met(shown, bench.splits.test)
    tested = bench.ledger.total
    checked = met(references, [*bench.splits.test, *bench.reader_check])
    costs |= {"reader check": bench.spent_since(tested), "test": tested - before}
    objective = bench.objectives[0]
    comparisons = planned_comparisons({**rows, **checked}, objective, arms, best, recommended)
    verdict, sentence = verdict_of(chosen, objective, comparisons, best)
    if recommended != NO_REWRITING and arms[best].reader != arms[NO_REWRITING].reader:
        sentence = (
            f"Chosen on dev; no rewriting has a result with the reader {arms[NO_REWRITING].reader} alone, so nothing "
            f"is said of a gain with {arms[best].reader}"
        )
    return Tested(
        arms={name: arm for name, arm in arms.items() if name in rows},
        programs={name: program for name, program in programs.items() if name in rows},
        best=best,
        recommended=recommended,
        rows=tuple(rows.values()),
        references=tuple(checked.values()),
        comparisons=tuple(comparisons),
        verdict=verdict,
        sentence=sentence,
        reader_prompts=prompts,
        dead_knobs=dead,
        costs=costs,
        failed=failed,
    )


def final_arms(bench: Bench, chosen: Chosen, out: Collection[str] = ()) -> dict[str, ArmConfig]:
    """The programs that meet test, by name: no rewriting, the best, the same technique as written, the front.

    No arm meets it twice: where the best one is the technique as written, it is the only row of that technique. Those
    of the front are named after their reader where readers differ.

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
            arms[f"{best.technique} as written"] = written
    known = {arm.key for arm in arms.values()}
    front: dict[str, ArmConfig] = {}
    for record in chosen.front if len(bench.objectives) > 1 else ():
        if record.arm is not None and record.arm.key not in known and len(front) < FRONT:
            front[f"front, {record.name}"] = record.arm
    if len({arm.reader for arm in (*arms.values(), *front.values())}) > 1:
        front = {f"{name}, reader {arm.reader}": arm for name, arm in front.items()}
    return {**arms, **front}


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
    pairs = [(best, NO_REWRITING), (best, f"{best.removesuffix(' compiled')} as written")]
    pairs += [(name, NO_REWRITING) for name in arms if name.startswith("front, ")]
    planned = [
        (metric, arm, other)
        for metric in dict.fromkeys([*objective.metrics, *DEFAULT_METRICS])
        for arm, other in pairs
        if arm in arms and other in arms and arms[arm].reader == arms[other].reader
    ]
    planned.append(("accuracy", recommended, f"{recommended}, reader as written"))
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
        mine, plain = ("-" if finite(value) is None else f"{100 * value:.1f}" for value in chosen.values)
        said = "" if chosen.test is None else f"; {figures(chosen.test)}"
        return (
            "no rewriting",
            f"Nothing was better than no rewriting on dev ({objective.name}: best {mine} against {plain} per "
            f"cent{said}), so no rewriting is what was saved",
        )
    return verdict_on(
        {
            one.metric: one.test
            for one in comparisons
            if (one.arm, one.other) == (best, NO_REWRITING) and one.metric in objective.metrics
        }
    )


def _references(bench: Bench, plain: ArmConfig) -> dict[str, RAG]:
    """Closed book and oracle evidence, where there is a reader."""
    if plain.reader is None:
        return {}
    asked = [*bench.splits.test, *bench.reader_check]
    budget = {"max_passages": plain.knobs["max_passages"]}
    oracle = oracle_evidence(bench.retriever("dense"), asked, make_reader(plain.reader), budget)
    found = {CLOSED_BOOK: closed_book(make_reader(plain.reader))}
    return found if oracle is None else {**found, ORACLE: oracle}


def dead_knobs(bench: Bench, arm: ArmConfig) -> list[dict[str, Any]]:
    """The searched knobs of an arm that make no difference to any dev question, each tried by itself.

    Nothing is spent: a value that would need a new LM call is left out, and a knob of which only one value could be
    tried is not judged.

    Args:
        bench: What is open.
        arm: The arm whose other knobs stay as they are.

    Returns:
        One object a dead knob: ``technique``, ``knob`` and the ``values`` that were tried.
    """
    found = []
    own = bench.space[arm.technique]
    for knob in own.knobs:
        if not knob.acts(dict(arm.knobs)):
            continue
        domain = own.domains[knob.name]
        values = dict.fromkeys([arm.knobs[knob.name], *(domain.choices or (domain.lowest, domain.highest))])
        passages = {value: _passages(bench, arm, knob.name, value) for value in values}
        outcomes = {value: one for value, one in passages.items() if one is not None}
        if len(outcomes) > 1 and len(set(outcomes.values())) == 1:
            found.append({"technique": arm.technique, "knob": knob.name, "values": list(outcomes)})
    return found


def _passages(bench: Bench, arm: ArmConfig, name: str, value: Value) -> tuple[tuple[str, ...], ...] | None:
    """What the arm finds with another value; None where that would take a new LM call or is not allowed."""
    try:
        program = bench.program(replace(arm, knobs={**arm.knobs, name: value}), reads=False)
        with stored_only():
            met = bench.evaluated(
                program, bench.splits.dev, f"{name}={value}", metrics={}, max_failures=0.0, progress=None
            )
    except QuerywrightError:
        return None
    return tuple(row.passages for row in met.rows)
