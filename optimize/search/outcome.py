"""The evaluation on test: one comparison of the program chosen on dev with the baseline decides the verdict."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from querywright.models.usage import Cost
from querywright.optimize.comparison import (
    CLOSED_BOOK,
    ORACLE,
    SECOND,
    closed_book,
    options_used,
    oracle_evidence,
    unequal_budgets,
    unequal_engines,
    unequal_inputs,
)
from querywright.optimize.evaluate import Evaluation, Row, finite
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.notes import passage_warnings, score_notes
from querywright.optimize.objectives import Objective, objective_named
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.results import BASELINE, Candidate, PairedComparison, by_judges, configuration
from querywright.optimize.search.core import Search
from querywright.optimize.search.prompts import Variant, with_reader_prompts
from querywright.optimize.search.selection import Selection, beats, best_of, choose
from querywright.optimize.search.spec import UNTUNED
from querywright.optimize.search.trials import ArmConfig, TrialRecord, cheapest
from querywright.optimize.significance import Verdict, family, figures, verdict_on
from querywright.optimize.tables import pool_notes
from querywright.programs import RAG, Ensemble, make_reader, technique_class

FRONT = 4
"""Maximum number of additional programs on the front to evaluate on test and save."""

SECOND_TESTED = f"compare with the second baseline (querywright compare {SECOND} ARTIFACT)"
"""The remedy if programs use the options and the baseline does not; a search has no second baseline."""

DEFAULT_METRICS = ("decision_useful", "accuracy")
"""Metrics to compare in addition to the objective's metrics."""


@dataclass(slots=True)
class ReaderPrompts:
    """The choice of the reader's prompts.

    Args:
        name: The name of the variant; ``untuned`` if no variant was better, or none was tried.
        variant: The prompts of the variant; None if they are untuned.
        tried: Accuracy on dev by variant, including ``untuned``; empty if no variant was tried.
        failed: Error messages for variants with too many failed questions.
        nothing: Error messages for variants that could not be made.
    """

    name: str = UNTUNED
    variant: Variant | None = None
    tried: dict[str, float | None] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    nothing: dict[str, str] = field(default_factory=dict)

    def put_into(self, program: RAG) -> RAG:
        """Return the program with the reader's chosen prompts."""
        return program if self.variant is None else with_reader_prompts(program, self.variant)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as a JSON object."""
        made = None if self.variant is None else self.variant.model_dump(mode="json")
        return {**asdict(replace(self, variant=None)), "variant": made}


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """The results on test.

    Args:
        chosen: The choice on dev.
        arms: The evaluated arms by name: the baseline, the best arm, its untuned technique, and the front.
        programs: The arms' programs, with the reader's chosen prompts.
        best: Name of the best arm other than the baseline; empty if there is none.
        recommended: Name of the arm chosen on dev.
        rows: Results of every program; closed book and oracle evidence are last.
        comparisons: The planned comparisons.
        verdict: The result of the comparisons in one word.
        sentence: The result as a sentence with figures.
        reader_prompts: The choice of the reader's prompts.
        costs: Costs, keyed by stage.
        failed: Error messages for programs with too many failed test questions; these programs have no row.
        hints: Warnings about the passages that the programs showed.
        notes: What readers should know before they trust the results, such as a judge's calibration.
        remarks: Lines to print below a table of the results.
    """

    chosen: Selection
    arms: Mapping[str, ArmConfig]
    programs: Mapping[str, RAG]
    best: str
    recommended: str
    rows: tuple[Evaluation, ...]
    comparisons: tuple[PairedComparison, ...]
    verdict: Verdict
    sentence: str
    reader_prompts: ReaderPrompts
    costs: Mapping[str, Cost]
    failed: Mapping[str, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def run_test(search: Search, trials: Sequence[TrialRecord]) -> TestOutcome:
    """Choose the best arm and the reader's prompts on dev, and evaluate the final programs once on test.

    All arms share the reader with its chosen prompts. If these prompts are tuned, the recommended program with the
    untuned reader is added as a row. Closed book and oracle evidence check the reader, and also run on the reader
    check's questions. If a program fails but the verdict does not depend on it, it has no row.

    Raises:
        TooManyFailuresError: The baseline or the arm chosen on dev failed on too many questions.
        QuerywrightError: The baseline has no result, the LM cannot be reached, or the budget is spent.
    """
    chosen = choose(trials, search.objectives, len(search.splits.test))
    start = search.total
    prompts = _reader_prompts(search, chosen.winner.arm)
    costs = {"reader": search.spent_since(start)}
    arms, best = _final_arms(search, chosen, {one.arm.key for one in trials if one.state == "failed"})
    recommended = BASELINE if chosen.winner is chosen.plain else best
    written = {name: search.program(arm, reads=True) for name, arm in arms.items()}
    programs = {name: prompts.put_into(program) for name, program in written.items()}
    as_read = {} if prompts.variant is None else {f"{recommended}, untuned reader": written[recommended]}
    failed: dict[str, str] = {}

    def out(name: str, error: TooManyFailuresError) -> None:
        if name in {BASELINE, recommended}:
            raise error
        failed[name] = str(error)[:500]

    references = {name: prompts.put_into(one) for name, one in _references(search, arms[BASELINE]).items()}
    start = search.total
    rows = search.evaluate_all({**programs, **as_read}, search.splits.test, out)
    spent, middle = search.spent_since(start), search.total
    rows |= search.evaluate_all(references, [*search.splits.test, *search.reader_check], out)
    costs |= {"reader check": search.spent_since(middle), "test": spent}
    comparisons = _planned(rows, search.objectives[0], arms, best, recommended)
    engine = search.engine_shown(chosen.winner.arm)
    verdict, sentence = verdict_of(chosen, search.objectives[0], comparisons, best, engine)
    sentence += by_judges(
        [one for one in search.judge_facts if one["judge"] in search.judges_of(search.objectives[0].metrics)]
    )
    programs = {name: program for name, program in programs.items() if name in rows}
    tested = [rows[name] for name in programs]
    hints = _passage_warnings(search, trials, [(arms[one.name].technique, one) for one in tested])
    for line in hints:
        search.tell(line)
    options, second = options_used(programs, search.splits.test, BASELINE)
    notes = [
        *unequal_budgets(programs),
        *unequal_inputs(options, BASELINE, second, SECOND_TESTED),
        *unequal_engines(
            programs,
            {name: search.engine_shown(arms[name]) for name in programs},
            BASELINE,
            "querywright compare ARTIFACT --baseline plain@{}",
        ),
        *(one["standing"] for one in search.judge_facts),
    ]
    count = len(search.reader_check)
    notes += [f"additional questions for closed book and oracle evidence: {count}"] if count else []
    notes += _untried(search, trials)
    remarks = score_notes(programs, tested, search.splits.test, lm=search.lm.model, slices=search.spec.slices)
    return TestOutcome(
        chosen=chosen,
        arms={name: arm for name, arm in arms.items() if name in rows},
        programs=programs,
        best=best,
        recommended=recommended,
        rows=tuple(rows.values()),
        comparisons=tuple(comparisons),
        verdict=verdict,
        sentence=sentence,
        reader_prompts=prompts,
        costs=costs,
        failed=failed,
        hints=tuple(hints),
        notes=tuple(notes),
        remarks=(*remarks, *pool_notes(tested, search.splits.test)),
    )


def _untried(search: Search, trials: Sequence[TrialRecord]) -> list[str]:
    """Return a line that lists the engines of techniques that no trial used."""
    tried = {(one.arm.technique, one.arm.engine) for one in trials}
    names = [
        f"{one.name}@{engine}"
        for one in search.space.techniques
        for engine in one.engines
        if (one.name, engine) not in tried
    ]
    if not names:
        return []
    listed = ", ".join(names)
    return [f"not tried in {len(trials)} trials: {listed}; to try more combinations, increase the number of trials"]


def _passage_warnings(
    search: Search, trials: Sequence[TrialRecord], tested: Iterable[tuple[str, Evaluation]]
) -> list[str]:
    """Return warnings about each technique's passages in all trials on dev and on test."""
    rows: dict[str, list[Row]] = {}
    for technique, one in (*((one.arm.technique, one.dev) for one in trials), *tested):
        rows.setdefault(technique, []).extend(one.rows)
    engines = {one.arm.engine for one in trials if one.dev.rows}
    return passage_warnings(
        [Evaluation(technique, tuple(found), 0.0) for technique, found in rows.items()], map(search.retriever, engines)
    )


def _reader_prompts(search: Search, arm: ArmConfig) -> ReaderPrompts:
    """Return the reader's prompts with the highest accuracy on dev.

    If too many questions fail with the untuned reader, the best other variant is chosen.
    """
    chosen, accuracy = ReaderPrompts(), objective_named("accuracy")
    if not search.spec.last_prompts or arm.reader is None:
        return chosen
    program = search.program(arm, reads=True)
    single = search.program(replace(arm, prompt=UNTUNED), reads=True) if isinstance(program, Ensemble) else program
    variants: dict[str, Variant | None] = {UNTUNED: None}

    def met(programs: Mapping[str, RAG]) -> dict[str, Evaluation]:
        called = {"the untuned reader" if name == UNTUNED else f"the reader with {name}": name for name in programs}

        def out(arm: str, error: TooManyFailuresError) -> None:
            chosen.failed[called[arm]] = str(error)[:500]

        found = search.evaluate_all({arm: programs[name] for arm, name in called.items()}, search.splits.dev, out)
        return {called[arm]: one for arm, one in found.items()}

    found = met({UNTUNED: program})
    if any(math.isnan(accuracy.value(one)) for one in found.values()):
        return ReaderPrompts()
    tried: dict[str, RAG] = {}
    for name in search.spec.last_prompts:
        prompt = search.spec.prompt_of(name)
        assert prompt is not None
        try:
            variant = search.compile_prompts(prompt, f"reader, {name}", single)
        except OptimizerError as error:
            chosen.nothing[name] = str(error)[:500]
        except TooManyFailuresError as error:
            chosen.failed[name] = str(error)[:500]
        else:
            if not any(one is not None and one.predictors == variant.predictors for one in variants.values()):
                variants[name] = variant
                tried[name] = with_reader_prompts(program, variant)
    found |= met(tried)
    read = [Candidate(name, {}, name, one) for name, one in found.items()]
    if read:
        best, first = best_of(read, accuracy), read[0]
        chosen.name = UNTUNED
        if first.name != UNTUNED or beats(best.dev, first.dev, accuracy):
            chosen.name = best.name
        chosen.variant = variants[chosen.name]
        chosen.tried = {one.name: finite(accuracy.value(one.dev)) for one in read}
    return chosen


def _final_arms(search: Search, chosen: Selection, failed: Collection[str]) -> tuple[dict[str, ArmConfig], str]:
    """Return the arms to test by name (baseline, best, its untuned technique, front), and the name of the best.

    No arm is evaluated twice: if the best arm is the untuned technique, that technique has only one row.
    """
    arms, called = {BASELINE: chosen.plain.arm}, ""

    def named(arm: ArmConfig) -> str:
        chose = arm.engine != chosen.plain.arm.engine and technique_class(arm.technique).ENGINE is None
        return f"{arm.technique}@{arm.engine}" if chose else arm.technique

    if chosen.best is not None:
        best = chosen.best.arm
        called = f"{named(best)} compiled"
        arms[called] = best
        written = replace(search.space.untuned(best.technique), writer=best.writer)
        if written.key not in {*failed, *(arm.key for arm in arms.values())}:
            arms[f"{named(written)} {UNTUNED}"] = written
    known = {arm.key for arm in arms.values()}
    kept = chosen.front if len(search.objectives) > 1 else ()
    cheap = cheapest(kept, search.objectives)
    first = sorted(kept, key=lambda one: one is not cheap)  # the cheapest is always evaluated
    front = [(f"front, {one.name}", one.arm) for one in first if one.arm.key not in known]
    return {**arms, **dict(front[:FRONT])}, called


def _planned(
    met: Mapping[str, Evaluation], objective: Objective, arms: Mapping[str, ArmConfig], best: str, recommended: str
) -> list[PairedComparison]:
    """Return the planned comparisons.

    Holm's method corrects these comparisons together, as one family: the best arm with the baseline and with its
    untuned technique, the front with the baseline, and the recommended program with its untuned reader. The comparison
    of oracle evidence with closed book is a separate family, because it checks the reader and not a technique.
    """
    pairs = [(best, BASELINE), *((best, name) for name in arms if name.endswith(f" {UNTUNED}"))]
    pairs += [(name, BASELINE) for name in arms if name.startswith("front, ")]
    planned = [
        (metric, arm, other)
        for metric in dict.fromkeys([*objective.metrics, *DEFAULT_METRICS])
        for arm, other in pairs
        if arm in arms and other in arms
    ]
    planned.append(("accuracy", recommended, f"{recommended}, untuned reader"))
    return [
        *family("technique", planned, met),
        *family("reader check", [("accuracy", ORACLE, CLOSED_BOOK)], met, prefix="reader check: "),
    ]


def verdict_of(
    chosen: Selection, objective: Objective, comparisons: Sequence[PairedComparison], best: str, engine: str
) -> tuple[Verdict, str]:
    """Return a search's result in one word, and as a sentence with figures.

    A gain is a significant lead over the baseline on test in one of the objective's metrics. If the objective has two
    metrics, a loss in one of them counts as a loss.

    Args:
        chosen: The choice on dev.
        objective: The first objective.
        comparisons: The planned comparisons.
        best: The name of the best arm.
        engine: The winner's engine, or the name of its retriever.
    """
    if chosen.best is None:
        why = "No other arm has a result on dev"
        if chosen.repeated:
            why = (
                f"No other arm was evaluated on dev, because each other trial ({chosen.repeated}) had the knobs and "
                "prompts of the baseline"
            )
        remedy = ". Run more trials, or list the values of a knob" if chosen.repeated else ""
        return "baseline", f"{why}, so the baseline is recommended{remedy}"
    if chosen.too_few:
        return "too few questions", f"{chosen.too_few}, so the baseline is recommended"
    if chosen.winner is chosen.plain:
        mine, plain = objective.paired(chosen.best.dev, chosen.plain.dev)
        ours, other = (f"{100 * objective.value(one):.1f}".replace("nan", "-") for one in (mine, plain))
        said = f"; {figures(mine.against(plain, objective.metrics[0]))}" if mine.rows else ""
        scored, total = len(objective.scores(mine)), len(chosen.plain.dev.rows)
        where = "" if scored == total else f", on the {scored} of {total} questions for which both have a score"
        return (
            "baseline",
            f"On dev, no program was better than the baseline ({objective.name} in percent{where}: best program "
            f"{ours}, baseline {other}{said}), so the baseline is recommended; test was evaluated afterward and does "
            "not change this recommendation",
        )
    held = [one for one in comparisons if (one.arm, one.other) == (best, BASELINE)]
    tests = {one.metric: one.test for one in held if one.metric in objective.metrics}
    arm = chosen.winner.arm
    writer = [] if arm.writer is None else [f"writer {arm.writer}"]
    said = configuration(technique_class(arm.technique), engine, arm.knobs)
    return verdict_on(tests, ", ".join([arm.technique, said, *writer]))


def _references(search: Search, plain: ArmConfig) -> dict[str, RAG]:
    """Return closed book and oracle evidence if there is a reader."""
    if plain.reader is None:
        return {}
    asked = [*search.splits.test, *search.reader_check]
    budget = {"max_passages": plain.knobs["max_passages"]}
    oracle = oracle_evidence(search.retriever(plain.engine), asked, make_reader(plain.reader), budget)
    found = {CLOSED_BOOK: closed_book(make_reader(plain.reader))}
    return found if oracle is None else {**found, ORACLE: oracle}
