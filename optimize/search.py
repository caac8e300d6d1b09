"""Compiling: demonstrations and knobs tuned together, chosen on dev, and held against no rewriting on test."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import dspy

from querywright.data.splits import Splits
from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import METRICS
from querywright.metrics.statistics import PairedTest, holm, verdict
from querywright.models.ledger import Cost
from querywright.models.lm import engine_of
from querywright.optimize.demonstrations import Demos, bootstrap_sets, with_demos
from querywright.optimize.evaluate import (
    DEFAULT_METRICS,
    Evaluation,
    Progress,
    TooManyFailuresError,
    evaluate,
    metrics_by_name,
)
from querywright.programs import RAG, OracleEvidence, make_program, make_reader, technique_class
from querywright.programs.knobs import Knob
from querywright.retrieval.callable import as_retriever

Objective = Literal["decision_useful", "accuracy", "both"]

RECOMMENDED = "no rewriting, reader with demonstrations"
"""Name on test of plain retrieval whose reader was tuned."""

T = TypeVar("T")

_STEP = 0.25
"""Between two values of a knob that is no whole number, where its range and its default allow it."""


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """How much is tried.

    Args:
        objective: What the technique is tuned for on dev: ``decision_useful`` (needs labelled evidence; no answer
            is read while searching), ``accuracy``, or ``both`` (their mean).
        n_trials: Trials of the search over knobs and demonstration sets, 1 or more. Default 30.
        demo_sizes: Demonstrations in each set that the teleprompter is asked for. Default 1 and 2.
        reader_demo_sizes: The same for the reader, whose sets are tuned for accuracy. Default 1.
        seed: Of the order of training questions and of the sampler. Default 0.
        threads: Questions under way at a time. Default 4.
        max_failures: Share of the questions of an arm that may fail. Default 0.05.
    """

    objective: Objective = "decision_useful"
    n_trials: int = 30
    demo_sizes: tuple[int, ...] = (1, 2)
    reader_demo_sizes: tuple[int, ...] = (1,)
    seed: int = 0
    threads: int = 4
    max_failures: float = 0.05


@dataclass(frozen=True, slots=True)
class Arm:
    """A program that stood for selection.

    Args:
        name: ``no rewriting``, ``as written`` or ``trial N``.
        knobs: The values of its knobs.
        demo_set: Which demonstration set it uses, or None.
        dev: Its results on dev.
    """

    name: str
    knobs: Mapping[str, Any]
    demo_set: int | None
    dev: Evaluation


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms on test.

    Args:
        metric: What is compared.
        arm: The first arm.
        other: The second arm.
        test: The paired test; its two-sided p is Holm-corrected over the compilation's planned comparisons.
        sentence: What it shows.
    """

    metric: str
    arm: str
    other: str
    test: PairedTest
    sentence: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compilation found.

    Args:
        program: The recommended program: the winner on dev.
        technique: The technique that was compiled.
        recommended: Name of the arm that won on dev.
        arms: All arms, in the order in which they were tried.
        compiled: The best arm of the technique itself, on dev.
        reader_demos: Whether demonstrations for the reader were chosen.
        test: Results on test of every program in the final table.
        comparisons: The planned comparisons on test.
        costs: Cost of each stage.
        settings: How much was tried.
        n_demo_sets: Demonstration sets that were found for the technique.
        failed: Arms that are out of the question because too many of their prompts did not fit the LM's context,
            with what they said.
    """

    program: RAG
    technique: str
    recommended: str
    arms: tuple[Arm, ...]
    compiled: Arm
    reader_demos: bool
    test: tuple[Evaluation, ...]
    comparisons: tuple[Comparison, ...]
    costs: Mapping[str, Cost]
    settings: CompileSettings
    n_demo_sets: int
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    """The state of one compilation."""

    technique: str
    splits: Splits
    retriever: Any
    lm: dspy.LM
    reader: str | None
    knobs: Mapping[str, Any]
    settings: CompileSettings
    progress: Progress | None
    arms: list[Arm] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    tried: dict[str, Arm] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def program(self, technique: str, *, reads: bool, knobs: Mapping[str, Any]) -> RAG:
        return make_program(technique, self.retriever, reader=self.reader if reads else None, **knobs)

    def evaluate(self, program: RAG, questions: Sequence[Question], name: str) -> Evaluation:
        return evaluate(
            program,
            questions,
            lm=self.lm,
            name=name,
            metrics=DEFAULT_METRICS,
            threads=self.settings.threads,
            max_failures=self.settings.max_failures,
            progress=self.progress,
        )

    def fits(self, name: str, work: Callable[[], T]) -> T | None:
        """The result, or None (and the arm noted as failed) when too many prompts did not fit the LM's context."""
        try:
            return work()
        except TooManyFailuresError as error:
            if set(error.kinds) != {"prompt_too_long"}:
                raise
            self.failed[name] = str(error)
            return None

    def stage(self, name: str, work: Callable[[], T]) -> T:
        ledger = engine_of(self.lm).ledger
        before = ledger.total
        try:
            return work()
        finally:
            self.costs[name] = self.costs.get(name, Cost()) + (ledger.total - before)

    def say(self, what: str) -> Callable[[int, int], None] | None:
        if self.progress is None:
            return None
        progress = self.progress
        return lambda done, total: progress(what, done, total)


def compile_program(
    technique: str,
    splits: Splits,
    *,
    retriever: Any,
    lm: dspy.LM,
    reader: str | None = "multiple_choice",
    knobs: Mapping[str, Any] | None = None,
    settings: CompileSettings | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Tune a technique on labelled questions and hold it against no rewriting.

    Three stages. A DSPy teleprompter bootstraps demonstration sets for the technique's predictors on train. Optuna
    searches knobs and demonstration sets together on dev, the technique as written and no rewriting among the
    arms; the reader's demonstrations are then chosen on dev by accuracy, "none" among them. The winner meets test
    once, beside closed book, no rewriting, the technique as written and, with labelled evidence, the oracle.

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
        progress: Called as work proceeds.

    Returns:
        The recommended program and everything it was chosen from.

    Raises:
        InputError: The data cannot carry the objective, or a name or value is wrong.
        OutageError: The LM is out of reach; answers so far are kept, nothing is chosen.
        BudgetError: The limit of LM calls is reached; answers so far are kept, nothing is chosen.
        TooManyFailuresError: Too many questions failed, and not because an arm's prompts were too long.
    """
    settings = settings or CompileSettings()
    fixed = {"max_passages": 5, **(knobs or {})}
    run = _Run(technique, splits, as_retriever(retriever), lm, reader, fixed, settings, progress)
    _check(run)

    sets = run.stage("bootstrap", lambda: _bootstrap(run))
    run.stage("search", lambda: _search(run, sets))
    plain, *others = run.arms
    best = max(others, key=lambda arm: _rank(arm, settings.objective))
    winner = best if _beats(best, plain, settings.objective) else plain
    program = _with_arm(run, winner, sets, reads=True)
    reader_demos: Demos = {}
    if reader is not None and settings.reader_demo_sizes:
        reader_demos = run.stage("reader", lambda: _choose_reader_demos(run, program))
    program = with_demos(program, reader_demos)

    compiled = with_demos(_with_arm(run, best, sets, reads=True), reader_demos)
    # The table has the winner as "compiled" or "no rewriting", but for plain retrieval whose reader was tuned.
    recommended = program if winner is plain and reader_demos else None
    test = run.stage("test", lambda: _test(run, compiled, recommended))
    return Compiled(
        program=program,
        technique=technique,
        recommended=winner.name,
        arms=tuple(run.arms),
        compiled=best,
        reader_demos=bool(reader_demos),
        test=tuple(test),
        comparisons=tuple(_compare(test, technique)),
        costs=run.costs,
        settings=settings,
        n_demo_sets=len(sets),
        failed=run.failed,
    )


def _check(run: _Run) -> None:
    settings = run.settings
    known = get_args(Objective)
    if settings.objective not in known:
        raise InputError(f"the objective must be one of {', '.join(known)}, but got {settings.objective!r}")
    for what in ("n_trials", "threads"):
        if getattr(settings, what) < 1:
            raise InputError(f"{what} must be 1 or more, but got {getattr(settings, what)}")
    if not 0 <= settings.max_failures <= 1:
        raise InputError(f"max_failures is a share from 0 to 1, but got {settings.max_failures}")
    technique = technique_class(run.technique)
    if "max_passages" not in {knob.name for knob in technique.KNOBS}:
        raise InputError(f"{run.technique} finds no passages, so there is nothing to compile; choose a technique")
    technique(None, **run.knobs)
    if run.reader is not None:
        make_reader(run.reader)
    for name, part in zip(("train", "dev", "test"), run.splits, strict=True):
        if not part:
            raise InputError(f"the {name} split is empty; give more questions or another share")
    if settings.objective != "accuracy" and not any(question.evidence for question in run.splits.dev):
        raise InputError(
            f"the objective {settings.objective} needs labelled evidence, but no dev question has any; "
            "use the objective accuracy"
        )
    if settings.objective != "decision_useful":
        if run.reader is None:
            raise InputError(f"the objective {settings.objective} needs a reader")
        if not any(question.answer for question in run.splits.dev):
            raise InputError(f"the objective {settings.objective} needs answers, but no dev question has one")


def _bootstrap(run: _Run) -> list[Demos]:
    """Demonstration sets of the technique; a trace is kept when it found or led to what decides."""
    if not technique_class(run.technique).LM_STAGES:
        return []
    by_evidence = run.settings.objective != "accuracy"
    program = run.program(run.technique, reads=not by_evidence, knobs=run.knobs)
    return bootstrap_sets(
        program,
        run.splits.train,
        _found_deciding if by_evidence else METRICS["accuracy"],
        lm=run.lm,
        sizes=run.settings.demo_sizes,
        part="technique",
        seed=run.settings.seed,
        max_failures=run.settings.max_failures,
        progress=run.say("demonstrations"),
    )


def _found_deciding(example: Any, prediction: Any, trace: Any = None) -> float:
    """1.0 if a passage that entails the answer was found."""
    evidence = example.evidence or {}
    return float(any(evidence.get(passage.id) == Label.ENTAILED for passage in prediction.passages))


def _search(run: _Run, sets: Sequence[Demos]) -> None:
    """Optuna over demonstration sets and knobs; arms are appended in the order in which they were tried."""
    import optuna

    _try(run, "no rewriting", "plain", {"max_passages": run.knobs["max_passages"]}, None, sets)
    space = [knob for knob in technique_class(run.technique).KNOBS if knob.search and knob.name not in run.knobs]
    space.sort(key=lambda knob: len(knob.when))  # a knob comes after those that it depends on
    with _quiet_optuna():
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=run.settings.seed))
        for demo_set in range(-1, len(sets)):
            study.enqueue_trial({"demonstrations": demo_set, **{knob.name: knob.default for knob in space}})
        n_trials = max(run.settings.n_trials, 1 + len(sets))
        study.optimize(lambda trial: _trial(run, trial, space, sets), n_trials=n_trials)


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep Optuna's own account of trials, and of the error that ended one, off the terminal."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _trial(run: _Run, trial: Any, space: Sequence[Knob], sets: Sequence[Demos]) -> float:
    """The objective of an arm; NaN, which is a failed trial to Optuna, when it cannot be scored."""
    demo_set = trial.suggest_categorical("demonstrations", list(range(-1, len(sets)))) if sets else -1
    given = dict(technique_class(run.technique)(None, **run.knobs).knobs)
    values: dict[str, Any] = {}
    for knob in space:
        if knob.acts({**given, **values}):
            values[knob.name] = suggest(trial, knob)
    name = "as written" if trial.number == 0 else f"trial {trial.number}"
    knobs, chosen = {**run.knobs, **values}, None if demo_set < 0 else demo_set
    if trial.number == 0:
        arm: Arm | None = _try(run, name, run.technique, knobs, chosen, sets)
    else:
        arm = run.fits(name, lambda: _try(run, name, run.technique, knobs, chosen, sets))
    return math.nan if arm is None else objective_value(arm.dev, run.settings.objective)


def suggest(trial: Any, knob: Knob) -> Any:
    """A knob's value in a trial; whole numbers over a wide range by their logarithm."""
    if knob.choices or isinstance(knob.default, bool):
        return trial.suggest_categorical(knob.name, list(knob.choices) or [False, True])
    if isinstance(knob.default, int):
        wide = knob.low is not None and knob.high is not None and knob.low > 0 and knob.high / knob.low >= 50
        return trial.suggest_int(knob.name, int(knob.low or 0), int(knob.high or 0), log=wide)
    low, high = float(knob.low or 0.0), float(knob.high or 0.0)
    in_steps = all((end - low) % _STEP == 0 for end in (high, float(knob.default)))
    return trial.suggest_float(knob.name, low, high, step=_STEP if in_steps else None)


def _try(
    run: _Run,
    name: str,
    technique: str,
    knobs: Mapping[str, Any],
    demo_set: int | None,
    sets: Sequence[Demos],
) -> Arm:
    """Evaluate an arm on dev once; the same arm under another name is not run again."""
    key = repr((technique, sorted(knobs.items()), demo_set))
    known = run.tried.get(key)
    if known is not None:
        return known
    reads = run.settings.objective != "decision_useful"
    program = run.program(technique, reads=reads, knobs=knobs)
    if demo_set is not None:
        program = with_demos(program, sets[demo_set])
    arm = Arm(name, dict(program.technique.knobs), demo_set, run.evaluate(program, run.splits.dev, name))
    run.tried[key] = arm
    run.arms.append(arm)
    return arm


def _with_arm(run: _Run, arm: Arm, sets: Sequence[Demos], *, reads: bool) -> RAG:
    technique = "plain" if arm.name == "no rewriting" else run.technique
    program = run.program(technique, reads=reads, knobs=arm.knobs)
    return program if arm.demo_set is None else with_demos(program, sets[arm.demo_set])


def objective_value(evaluation: Evaluation, objective: Objective) -> float:
    """The value that the search maximises, in [0, 1]; NaN when nothing could be scored."""
    if objective == "both":
        values = [evaluation.mean(metric).value for metric in ("decision_useful", "accuracy")]
        return sum(values) / 2
    return evaluation.mean(objective).value


def _rank(arm: Arm, objective: Objective) -> tuple[float, float, float]:
    """What decides between arms of the technique.

    The objective, then the share of questions with a deciding passage, then cost.
    """
    value = objective_value(arm.dev, objective)
    entailed = arm.dev.label_share(Label.ENTAILED)
    return (
        -math.inf if math.isnan(value) else round(value, 9),
        0.0 if math.isnan(entailed) else round(entailed, 9),
        -float(arm.dev.cost.asked),
    )


def _beats(arm: Arm, plain: Arm, objective: Objective) -> bool:
    """Only a better value is worth the technique's LM calls; no value beats any."""
    value, other = (objective_value(one.dev, objective) for one in (arm, plain))
    return round(value, 9) > round(other, 9) or (math.isnan(other) and not math.isnan(value))


def _choose_reader_demos(run: _Run, program: RAG) -> Demos:
    """Demonstrations of the reader, or none when no set reads dev more accurately."""
    without = run.evaluate(program, run.splits.dev, "reader without demonstrations")
    best: Demos = {}
    best_value = without.mean("accuracy").value
    if math.isnan(best_value):
        return {}
    sets = bootstrap_sets(
        program,
        run.splits.train,
        METRICS["accuracy"],
        lm=run.lm,
        sizes=run.settings.reader_demo_sizes,
        part="reader",
        seed=run.settings.seed + 1,
        max_failures=run.settings.max_failures,
        progress=run.say("demonstrations of the reader"),
    )
    for number, demos in enumerate(sets):
        name, shown = f"reader with demonstration set {number}", with_demos(program, demos)
        evaluation = run.fits(name, functools.partial(run.evaluate, shown, run.splits.dev, name))
        value = math.nan if evaluation is None else evaluation.mean("accuracy").value
        if value > best_value:
            best, best_value = demos, value
    return best


def _test(run: _Run, compiled: RAG, recommended: RAG | None) -> list[Evaluation]:
    budget = {"max_passages": run.knobs["max_passages"]}
    programs: dict[str, RAG] = {}
    if run.reader is not None:
        programs["closed book"] = run.program("closed_book", reads=True, knobs={})
    programs["no rewriting"] = run.program("plain", reads=True, knobs=budget)
    programs[f"{run.technique} as written"] = run.program(run.technique, reads=True, knobs=run.knobs)
    programs[f"{run.technique} compiled"] = compiled
    if recommended is not None:
        programs[RECOMMENDED] = recommended
    oracle = _oracle(run, budget)
    if oracle is not None:
        programs["oracle evidence"] = oracle
    return [run.evaluate(program, run.splits.test, name) for name, program in programs.items()]


def _oracle(run: _Run, budget: Mapping[str, Any]) -> RAG | None:
    """The deciding passages themselves, where the retriever can give passages by id."""
    get = getattr(run.retriever, "get", None)
    if run.reader is None or get is None or not any(question.evidence for question in run.splits.test):
        return None
    ids = sorted({key for question in run.splits.test for key in question.evidence})
    passages = {passage.id: passage for passage in get([key for key in ids if key in run.retriever])}
    return RAG(OracleEvidence(passages, run.splits.test, **budget), make_reader(run.reader))


def _compare(test: Sequence[Evaluation], technique: str) -> list[Comparison]:
    """The planned comparisons, Holm-corrected together, whichever way they fall."""
    arms = {evaluation.name: evaluation for evaluation in test}
    pairs = [
        (metric, f"{technique} compiled", other)
        for metric in ("decision_useful", "accuracy")
        for other in ("no rewriting", f"{technique} as written")
    ]
    pairs += [("accuracy", RECOMMENDED, "no rewriting"), ("accuracy", "oracle evidence", "closed book")]
    tests = [
        (metric, a, b, arms[a].against(arms[b], metric))
        for metric, a, b in pairs
        if a in arms and b in arms and metric in arms[a].metrics
    ]
    corrected = holm([test.p_two_sided for *_, test in tests])
    comparisons = []
    for (metric, a, b, raw), p in zip(tests, corrected, strict=True):
        result = replace(raw, p_two_sided=p)
        comparisons.append(Comparison(metric, a, b, result, f"{metric}: {verdict(result, a=a, b=b)}"))
    return comparisons


__all__ = [
    "Arm",
    "Comparison",
    "CompileSettings",
    "Compiled",
    "Objective",
    "compile_program",
    "metrics_by_name",
    "objective_value",
    "suggest",
]
