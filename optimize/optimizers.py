"""The optimizers that a study can name: DSPy's teleprompters, with the arguments of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import dspy
from dspy.teleprompt import BootstrapFewShotWithOptuna
from dspy.utils.exceptions import AdapterParseError, LMError

from querywright.errors import InputError, TechniqueError, unknown
from querywright.metrics.feedback import feedback_metric
from querywright.models.adapter import PromptAdapter
from querywright.optimize.optimizer_run import OptimizerError, OptimizerRun, demonstrations, learnt_from
from querywright.optimize.program_state import shaped
from querywright.programs import RAG, Ensemble
from querywright.programs.ensemble import MOST_MEMBERS
from querywright.programs.hyperparameters import Knob, Value

Arguments = Mapping[str, Any]

_THRESHOLD = Knob(
    "metric_threshold", 1.0, "minimum metric value for a run to become a demonstration", low=0.0, high=1.0
)
_VALIDATION = Knob(
    "validation", 0.5, "share of the training questions used to choose between prompts", low=0.1, high=0.9
)
_LABELLED = Knob("max_labeled_demos", 0, "number of labeled questions to add to the demonstrations", low=0, high=32)
_ROUNDS = Knob("max_rounds", 1, "attempts per question; later attempts are sampled", low=1, high=10)
_DEMOS = Knob("max_bootstrapped_demos", 2, "maximum demonstrations per predictor", low=1, high=32)
_CANDIDATES = Knob("num_candidate_programs", 4, "number of demonstration sets to try", low=1, high=64)
_TEMPERATURE = Knob("init_temperature", 1.0, "temperature for writing instructions", low=0.0, high=2.0)

_SUMMED_UP = 5
"""Number of training questions that MIPROv2 summarizes in one batch."""

_OURS = {_THRESHOLD.name, _VALIDATION.name}
"""Arguments that this module uses; the others are passed to DSPy's class."""


class Bound(NamedTuple):
    """An upper bound on an optimizer's work: program runs on one question, and additional LM calls that write
    instructions.
    """

    runs: int
    proposals: int = 0


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer, which makes prompts.

    Args:
        compile: The function that makes the prompts; its name is the optimizer's name.
        bound: Returns an upper bound on the optimizer's work, given the number of training questions, the number of
            predictors, and the arguments.
        options: The optimizer's arguments, with our defaults, which suit 6 to 10 training questions.
    """

    compile: Callable[[OptimizerRun], RAG]
    bound: Callable[[int, int, Arguments], Bound]
    options: tuple[Knob, ...]

    @property
    def name(self) -> str:
        """The optimizer's name in a study."""
        return self.compile.__name__

    def check(self, arguments: Arguments | None = None) -> dict[str, Value]:
        """Return the arguments with defaults filled in.

        Raises:
            InputError: A name is unknown, or a value has the wrong type or is out of range.
        """
        known = {option.name: option for option in self.options}
        values = {option.name: option.default for option in self.options}
        for name, value in (arguments or {}).items():
            if name not in known:
                raise InputError(unknown(f"argument of {self.name}", name, known))
            try:
                values[name] = known[name].check(value)
            except TechniqueError as error:
                raise InputError(f"{self.name}: {error}") from error
        return values

    def parse(self, texts: Mapping[str, str]) -> dict[str, Value]:
        """Parse the arguments from strings. Raises the same errors as ``check``."""
        known = {option.name: option for option in self.options}
        values = {name: known[name].parse(text) if name in known else text for name, text in texts.items()}
        self.check(values)
        return values

    def most_calls(
        self,
        n_train: int,
        n_predictors: int,
        arguments: Arguments | None = None,
        *,
        calls_per_run: int | None = None,
    ) -> int:
        """Return the maximum number of LM calls: program runs times calls per run (by default one per predictor), plus
        the calls that write instructions.

        The second request after an unreadable answer does not count, and identical calls are made only once.
        """
        bound = self.bound(n_train, n_predictors, self.check(arguments))
        return bound.runs * (n_predictors if calls_per_run is None else calls_per_run) + bound.proposals


OPTIMIZERS: dict[str, Optimizer] = {}
"""The optimizers by name. Optimizers that choose between prompts reserve some training questions for this choice; no
optimizer sees dev or test. Demonstrations come from runs that reach ``metric_threshold``.
"""


def _optimizer(
    bound: Callable[[int, int, Arguments], Bound], *options: Knob
) -> Callable[[Callable[[OptimizerRun], RAG]], Callable[[OptimizerRun], RAG]]:
    """Add an optimizer under its name."""

    def enter(way: Callable[[OptimizerRun], RAG]) -> Callable[[OptimizerRun], RAG]:
        OPTIMIZERS[way.__name__] = Optimizer(way, bound, options)
        return way

    return enter


def _once(n: int, predictors: int, given: Arguments) -> Bound:
    return Bound(n * given["max_rounds"] * given.get("size", 1))


def _choosing(n_train: int, given: Arguments) -> tuple[int, int]:
    """Return the number of questions to learn from and the number to choose on."""
    kept = learnt_from(n_train, given["validation"])
    return kept, n_train - kept


@_optimizer(lambda n, predictors, given: Bound(0), Knob("k", 4, "number of labeled questions to show", low=1, high=64))
def labelled_few_shot(work: OptimizerRun) -> RAG:
    """Run DSPy's ``LabeledFewShot``: training questions with their labels. It makes no LM calls."""
    optimizer = dspy.LabeledFewShot(k=int(work.arguments["k"]))
    program = work.with_prompts_of(optimizer.compile(work.student(), trainset=work.examples()))
    if not _shown(work, program):
        raise OptimizerError(
            f"labelled_few_shot found no demonstrations: no predictor of {work.program.technique.NAME} (part: "
            f"{work.part}) writes a field for which the questions have labels; use bootstrap_few_shot"
        )
    return program


@_optimizer(_once, _DEMOS, _LABELLED, _ROUNDS, _THRESHOLD)
def bootstrap_few_shot(work: OptimizerRun) -> RAG:
    """Run DSPy's ``BootstrapFewShot``."""
    return _bootstrapped(work, int(work.arguments["max_bootstrapped_demos"]))


@_optimizer(
    _once,
    Knob("k", 2, "number of demonstrations to show with each question", low=1, high=32),
    Knob("pool", 64, "maximum number of demonstrations to keep", low=1, high=512),
    _ROUNDS,
    _THRESHOLD,
)
def knn_few_shot(work: OptimizerRun) -> RAG:
    """Do the same as DSPy's ``KNNFewShot``, in a program that can be saved: keep all traces and show the nearest."""
    found = _bootstrapped(work, min(len(work.train), int(work.arguments["pool"])))
    return shaped(found, nearest=int(work.arguments["k"]), members=0)


def _random_bound(n: int, predictors: int, given: Arguments) -> Bound:
    learn, choose = _choosing(n, given)
    tried = given["num_candidate_programs"]
    return Bound((tried + 1) * learn * given["max_rounds"] + (tried + 3) * choose)


@_optimizer(_random_bound, _CANDIDATES, _DEMOS, _LABELLED, _ROUNDS, _THRESHOLD, _VALIDATION)
def random_search(work: OptimizerRun) -> RAG:
    """Run DSPy's ``BootstrapFewShotWithRandomSearch``."""
    return _compiled(work, dspy.BootstrapFewShotWithRandomSearch, work.scores_or_accepts, num_threads=work.threads)


def _optuna_bound(n: int, predictors: int, given: Arguments) -> Bound:
    learn, choose = _choosing(n, given)
    return Bound(learn * given["max_rounds"] + given["num_candidate_programs"] * choose)


@_optimizer(
    _optuna_bound,
    _CANDIDATES,
    Knob("max_demos", 4, "number of candidate demonstrations per predictor; the optimizer chooses one", low=1, high=32),
    _LABELLED,
    _ROUNDS,
    _THRESHOLD,
    _VALIDATION,
)
def bootstrap_optuna(work: OptimizerRun) -> RAG:
    """Run DSPy's ``BootstrapFewShotWithOptuna`` in memory, with a seed."""
    return _compiled(work, _SeededOptuna, work.scores_or_accepts, num_threads=work.threads, seed=work.number("optuna"))


class _SeededOptuna(BootstrapFewShotWithOptuna):
    """DSPy's optimizer with a seeded sampler. A predictor that was not called in any run has nothing to choose from."""

    def compile(self, student: Any, *, max_demos: int, trainset: list[Any], valset: list[Any], seed: int) -> Any:
        import optuna

        self.trainset, self.valset, self.student = trainset, valset, student.reset_copy()
        bootstrap = dspy.BootstrapFewShot(
            metric=self.metric,
            max_bootstrapped_demos=max_demos,
            max_labeled_demos=self.max_labeled_demos,
            max_rounds=self.max_rounds,
        )
        self.compiled_teleprompter = bootstrap.compile(self.student, trainset=trainset)
        for predictor in self.compiled_teleprompter.predictors():
            # An empty demonstration can be chosen but is never shown.
            predictor.demos = demonstrations(predictor, predictor.demos) or [{}]
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        study.optimize(self.objective, n_trials=self.num_candidate_sets)
        return study.best_trial.user_attrs["program"]


def _copro_bound(n: int, predictors: int, given: Arguments) -> Bound:
    """Return the bound: at depth d, each predictor's candidates from all depths so far are scored on all questions."""
    breadth, depth = given["breadth"], given["depth"]
    scored = predictors * breadth * depth * (depth + 1) // 2
    return Bound(scored * n, predictors * (breadth * depth - 1))


@_optimizer(
    _copro_bound,
    Knob("breadth", 3, "instructions per predictor at each depth", low=2, high=20),
    Knob("depth", 2, "number of rounds of proposing instructions", low=1, high=10),
    _TEMPERATURE,
)
def copro(work: OptimizerRun) -> RAG:
    """Run DSPy's ``COPRO``: the LM proposes instructions, which are scored on all training questions."""
    quietly = {"num_threads": work.threads, "display_progress": False, "display_table": 0}
    return _compiled(work, dspy.COPRO, work.score, eval_kwargs=quietly)


def _mipro_bound(n: int, predictors: int, given: Arguments) -> Bound:
    learn, choose = _choosing(n, given)
    sets = max(1, given["num_candidates"] - 1)
    runs = sets * learn + (1 + given["num_trials"]) * choose
    summary = (2 + learn // _SUMMED_UP) if given["data_aware_proposer"] else 0
    each = 3 if given["program_aware_proposer"] else 1
    return Bound(runs, summary + each * max(3, given["num_candidates"]) * predictors)


@_optimizer(
    _mipro_bound,
    Knob("num_candidates", 3, "number of instructions and of demonstration sets per predictor", low=2, high=20),
    Knob("num_trials", 6, "number of combinations to try", low=1, high=200),
    _DEMOS,
    _LABELLED,
    Knob("program_aware_proposer", False, "whether to show the program's source code"),
    Knob("data_aware_proposer", True, "whether to summarize the training questions"),
    Knob("tip_aware_proposer", True, "whether to include a writing tip"),
    Knob("fewshot_aware_proposer", True, "whether to show demonstrations"),
    _TEMPERATURE,
    _THRESHOLD,
    _VALIDATION,
)
def mipro(work: OptimizerRun) -> RAG:
    """Run DSPy's ``MIPROv2``: choose instructions and demonstrations together, without writing to disk."""
    quietly = {"track_stats": False, "log_dir": None, "num_threads": work.threads}
    asked = {"auto": None, "minibatch": False, "view_data_batch_size": _SUMMED_UP, "seed": work.number("mipro")}
    return _compiled(work, dspy.MIPROv2, work.scores_or_accepts, **asked, **quietly)


def _simba_bound(n: int, predictors: int, given: Arguments) -> Bound:
    batch, tried, steps = min(given["bsize"], n), given["num_candidates"], given["max_steps"]
    each = batch * tried + batch * (tried + 1)
    return Bound(steps * each + (min(steps, tried) + 1) * n, steps * min(batch, tried + 1))


@_optimizer(
    _simba_bound,
    Knob("bsize", 4, "questions per step", low=1, high=256),
    Knob("num_candidates", 3, "programs to try per step", low=2, high=20),
    Knob("max_steps", 2, "steps", low=1, high=50),
    Knob("max_demos", 2, "maximum demonstrations per predictor", low=0, high=32),
    Knob("temperature_for_sampling", 0.2, "how often to run programs with lower scores", low=0.01, high=10.0),
    Knob("temperature_for_candidates", 0.2, "how often to improve programs with lower scores", low=0.01, high=10.0),
)
def simba(work: OptimizerRun) -> RAG:
    """Run DSPy's ``SIMBA``: derive rules and demonstrations from better and worse runs on the same question."""
    batch = min(int(work.arguments["bsize"]), len(work.train))
    more: dict[str, Any] = {"bsize": batch, "demo_input_field_maxlen": 20_000, "num_threads": work.threads}
    return _compiled(work, dspy.SIMBA, work.score, seed=work.number("simba"), **more)


def _gepa_bound(n: int, predictors: int, given: Arguments) -> Bound:
    """Return the bound. If the limit is reached during a round, the round is still finished: two small batches and all
    questions to choose on.
    """
    _, choose = _choosing(n, given)
    runs = max(given["max_metric_calls"], choose) + 2 * given["reflection_minibatch_size"] + choose
    return Bound(runs, 2 * (runs // max(1, given["reflection_minibatch_size"]) + 1))


@_optimizer(
    _gepa_bound,
    Knob("max_metric_calls", 60, "maximum number of program runs, one question each", low=1, high=100_000),
    Knob("reflection_minibatch_size", 3, "questions per new instruction", low=1, high=50),
    Knob("candidate_selection_strategy", "pareto", "which candidates to improve", choices=("pareto", "current_best")),
    Knob("component_selector", "round_robin", "which predictors to change", choices=("round_robin", "all")),
    Knob("temperature", 1.0, "temperature for writing instructions", low=0.0, high=2.0),
    Knob("max_chars", 2000, "maximum length of an instruction, in characters", low=50, high=50_000),
    _VALIDATION,
)
def gepa(work: OptimizerRun) -> RAG:
    """Run DSPy's ``GEPA``: write instructions from feedback in words, without writing to disk."""
    learn, _ = _choosing(len(work.train), work.arguments)
    batch = min(int(work.arguments["reflection_minibatch_size"]), learn)
    quietly = {"log_dir": None, "track_stats": False, "warn_on_score_mismatch": False, "use_merge": False}
    settings = {"num_threads": work.threads, "seed": work.number("gepa"), "reflection_minibatch_size": batch}
    return _compiled(work, _AskingGEPA, work.feedback or feedback_metric(work.metric), **settings, **quietly)


class _AskingGEPA(dspy.GEPA):  # pyright: ignore[reportGeneralTypeIssues]
    """DSPy's optimizer with the project's adapter for proposals; if a proposal fails, its round changes nothing."""

    def __init__(self, metric: Any, temperature: float, max_chars: int, **options: Any) -> None:
        from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer

        base: Any = InstructionProposer

        class Proposer(base):
            def __call__(self, *given: Any, **named: Any) -> dict[str, str]:
                try:
                    return dict(super().__call__(*given, **named))
                except (
                    AdapterParseError,
                    LMError,
                    ValueError,
                ):  # unreadable, or the prompt or an instruction is too long
                    return {}

        super().__init__(
            metric=metric,
            reflection_lm=dspy.settings.lm.copy(temperature=temperature),
            instruction_proposer=Proposer(adapter=PromptAdapter(), max_chars=max_chars),
            **options,
        )


@_optimizer(
    _once,
    Knob("size", 3, "number of programs in the ensemble", low=2, high=MOST_MEMBERS),
    _DEMOS,
    _ROUNDS,
    _THRESHOLD,
)
def ensemble(work: OptimizerRun) -> RAG:
    """Do the same as DSPy's ``Ensemble``, in a program that can be saved; members differ in their demonstrations."""
    members: dict[str, RAG] = {}
    for place in range(int(work.arguments["size"])):
        found = _traced(work, int(work.arguments["max_bootstrapped_demos"]), place)
        if shown := _shown(work, found):
            members.setdefault(repr(shown), found)
    if len(members) < 2:
        raise OptimizerError(
            f"ensemble requires 2 different sets of demonstrations, but got {len(members)} from {len(work.train)} "
            "training questions; add training questions, or use a different optimizer"
        )
    return Ensemble(list(members.values()))


def _compiled(work: OptimizerRun, optimizer: Callable[..., Any], metric: Callable[..., Any], **more: Any) -> RAG:
    """Return the program that one of DSPy's optimizers makes for this metric.

    The run's arguments, overridden by ``more``, are passed to ``compile`` if it accepts them, otherwise to the class.
    """
    learn, choose = work.learn_and_choose() if _VALIDATION.name in work.arguments else (work.examples(), None)
    given = {name: value for name, value in work.arguments.items() if name not in _OURS} | more
    given |= {"trainset": learn} | ({} if choose is None else {"valset": choose})
    called = inspect.signature(optimizer.compile).parameters  # type: ignore[attr-defined]
    with work.watched(metric) as watched:
        made = optimizer(metric=watched, **{name: value for name, value in given.items() if name not in called})
        tuned = made.compile(work.student(), **{name: value for name, value in given.items() if name in called})
    return work.with_prompts_of(tuned)


def _bootstrapped(work: OptimizerRun, size: int) -> RAG:
    """Return the program with 1 to ``size`` demonstrations from its own successful runs."""
    found = _traced(work, size)
    if not _shown(work, found):
        raise OptimizerError(
            f"{work.name} found no demonstrations: the program did not reach a metric value of "
            f"{work.arguments['metric_threshold']} on any of the {len(work.train)} training questions; add training "
            "questions, lower metric_threshold, or use a different optimizer"
        )
    return found


def _traced(work: OptimizerRun, size: int, place: int = 0) -> RAG:
    """Return the program that ``BootstrapFewShot`` makes from the training questions, shuffled with seed ``place``."""
    with work.watched(work.accepts) as metric:
        optimizer = dspy.BootstrapFewShot(
            metric=metric,
            max_bootstrapped_demos=size,
            max_labeled_demos=int(work.arguments.get("max_labeled_demos", 0)),
            max_rounds=int(work.arguments["max_rounds"]),
        )
        tuned = optimizer.compile(work.student(), trainset=work.examples(place))
    return work.with_prompts_of(tuned)


def _shown(work: OptimizerRun, program: RAG) -> list[Any]:
    """Return the demonstrations in the part that may change, by predictor; empty if no predictor has any."""
    found = [predictor.demos for name, predictor in program.named_predictors() if name.startswith(work.prefix)]
    return found if any(found) else []


def optimizer_named(name: str) -> Optimizer:
    """Return the optimizer with the given name.

    Raises:
        InputError: There is no such optimizer.
    """
    if name not in OPTIMIZERS:
        raise InputError(unknown("optimizer", name, OPTIMIZERS))
    return OPTIMIZERS[name]


def run_optimizer(work: OptimizerRun) -> RAG:
    """Tune the prompts of a program on training questions; the program itself is not changed.

    Errors that DSPy's optimizer would ignore are not ignored: an outage, a spent budget, or more failed questions than
    allowed stop it at once. A question counts only once, however often it fails. Samples have seeds, so that a repeated
    run finds them in the cache. Nothing is written to disk. ``knn_few_shot`` returns a program with ``nearest``, and
    ``ensemble`` returns an ``Ensemble``.

    Raises:
        OptimizerError: The optimizer failed.
        InputError: A name or value is wrong, or there are too few questions.
    """
    optimizer = optimizer_named(work.name)
    given = optimizer.check(work.arguments)
    tuned = sum(name.startswith(work.prefix) for name, _ in work.program.named_predictors())
    runs = optimizer.bound(len(work.train), tuned, given).runs
    return optimizer.compile(replace(work, arguments=given, runs=runs))
