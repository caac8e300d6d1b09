"""A search: its questions, LM and retrievers, all open, and the programs and prompts of its arms."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import dspy

from querywright.data.splits import Splits, data_hash, left_over
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import Metric
from querywright.metrics.feedback import feedback_metric
from querywright.metrics.judge import JudgedMetric
from querywright.models.budget import Budget
from querywright.models.lm import engine_of, lm_digest
from querywright.models.store import Store
from querywright.models.usage import Cost
from querywright.optimize.evaluate import DEFAULT_METRICS, Evaluation, Progress, evaluate, evaluate_all, metric_value
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.judge_files import SavedJudge
from querywright.optimize.judging import judged_metrics
from querywright.optimize.objectives import Objective
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.program_state import state_of
from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.search.prompts import Variant, make_variant, with_variant
from querywright.optimize.search.sampling import make_sampler
from querywright.optimize.search.space import Space, build_space, reads_for
from querywright.optimize.search.spec import PromptSpec, SearchSpec
from querywright.optimize.search.trials import ArmConfig
from querywright.programs import RAG, make_program, technique_class
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.replay import ReplayRetriever
from querywright.retrieval.rerank import Reranker

PROMPTS = "prompts"
"""The kind of compiled prompts in the store."""


@dataclass
class Search:
    """All that trials need, open. Answers are kept in the store, or not at all.

    Args:
        spec: What is searched, and how much is tried.
        splits: The questions: prompts are made on train, arms are tried on dev, what dev chose is evaluated on test.
        reader: Name of the reader, as ``reader_for`` settles it; None if no reader runs.
        lm: What techniques and readers ask.
        open_retriever: Opens the retriever of an engine's name; each is opened once.
        store: Where answers and compiled prompts are kept; None to keep none.
        local: Where rankings are kept, which cost no call; None to keep none.
        reader_check: Further questions, which only closed book and oracle evidence answer.
        reranker: Scores passages, for techniques that rerank. None: the technique's own way.
        writers: LMs to choose from, by name, that techniques ask instead of ``lm``; an LM that is None is ``lm``.
        knobs: Knobs of techniques, as a retriever narrows them, by technique.
        judges: Saved judges, which replace the built-in ones of the same name.
        judge_lm: What judges ask; its calls are in the same ledger. None: ``lm``.
        budget: What all calls are paid from; None for no limit.
        progress: Called as work proceeds.
        tell: Called with what makes a result mean nothing.
    """

    spec: SearchSpec
    splits: Splits
    reader: str | None
    lm: dspy.LM
    open_retriever: Callable[[str], Any]
    store: Store | None = None
    local: Store | None = None
    reader_check: Sequence[Question] = ()
    reranker: Reranker | None = None
    writers: Mapping[str, dspy.LM | None] = field(default_factory=dict)
    knobs: Mapping[str, Sequence[Knob]] = field(default_factory=dict)
    judges: Sequence[SavedJudge] = ()
    judge_lm: dspy.LM | None = None
    budget: Budget | None = None
    progress: Progress | None = None
    tell: Callable[[str], object] = field(default=lambda _: None)
    space: Space = field(init=False)
    _retrievers: dict[str, ReplayRetriever] = field(default_factory=dict)
    _made: dict[str, Variant | Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Build the space of arms."""
        self.change(self.spec)

    def change(self, spec: SearchSpec) -> None:
        """Search something else, with all that is open and made."""
        self.spec, self.space = spec, build_space(spec, self.reader, self.knobs, [*self.writers])

    @property
    def threads(self) -> int:
        """Questions under way at a time."""
        return self.spec.threads or engine_of(self.lm).threads

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives, the one that decides first."""
        return self.spec.aims

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics that trials are scored by: those of the objectives, and the usual ones."""
        names = [metric for objective in self.objectives for metric in objective.metrics]
        return {**DEFAULT_METRICS, **{name: self._metrics[name] for name in names}}

    @cached_property
    def _metrics(self) -> dict[str, Metric]:
        """All metrics of objectives and prompts; those of one judge share what it says."""
        names = [metric for objective in self.objectives for metric in objective.metrics]
        names += [one.metric for one in self.spec.prompts.values() if one.metric is not None]
        asked = self.judge_lm or self.lm
        return judged_metrics(names, lm=asked, judges=self.judges, threads=max(8, self.threads))

    @property
    def judging(self) -> dict[str, JudgedMetric]:
        """The judges at work, by name."""
        return self.judges_of(self._metrics)

    def judges_of(self, metrics: Iterable[str]) -> dict[str, JudgedMetric]:
        """The judges that give these metrics, by name."""
        found = map(self._metrics.get, metrics)
        return {one.judge.NAME: one for one in found if isinstance(one, JudgedMetric)}

    @property
    def judge_facts(self) -> list[dict[str, str]]:
        """What must be known of each judge at work: its prompt, its LM, and how far it may be believed."""
        lm, digest = self.judge_lm or self.lm, lm_digest(self.judge_lm or self.lm)
        given = {one.judge.NAME: one for one in self.judges}
        return [
            {
                "judge": name,
                "digest": metric.judge.digest(),
                "lm": lm.model,
                "lm_digest": digest,
                "standing": given.get(name, SavedJudge(metric.judge)).standing(lm.model, digest),
            }
            for name, metric in self.judging.items()
        ]

    @property
    def judged(self) -> Cost:
        """What the judges spent."""
        return sum((one.spent.total for one in self.judging.values()), Cost())

    @property
    def total(self) -> Cost:
        """What all else spent."""
        every: Cost = engine_of(self.lm).ledger.total
        return every - self.judged

    @property
    def data(self) -> dict[str, Sequence[Question]]:
        """The questions of each part: train, dev and test, and those of the reader check where there are any."""
        further = {"reader_check": self.reader_check} if self.reader_check else {}
        return {**self.splits._asdict(), **further}

    def retriever(self, engine: str) -> ReplayRetriever:
        """Return the retriever of an engine, which repeats known results without a search."""
        if engine not in self._retrievers:
            inner, deepest = self.open_retriever(engine), self.space.deepest(engine)
            self._retrievers[engine] = ReplayRetriever(inner, store=self.local, deepest=deepest)
        return self._retrievers[engine]

    def program(self, arm: ArmConfig, *, reads: bool | None = None) -> RAG:
        """Return the program of an arm, by default with its reader if objectives need one.

        It raises as ``compile_prompts``.
        """
        reader = arm.reader if (self.spec.reads if reads is None else reads) else None
        made = make_program(
            arm.technique,
            self.retriever(arm.engine),
            reader=reader,
            reranker=self.reranker if technique_class(arm.technique).USES_RERANKER else None,
            writer_lm=None if arm.writer is None else self.writers[arm.writer],
            **arm.knobs,
        )
        variant = self.variant(arm)
        return made if variant is None else with_variant(made, variant)

    def variant(self, arm: ArmConfig) -> Variant | None:
        """Return the prompts of an arm, compiled once; None for untuned prompts. Errors as in ``compile_prompts``."""
        prompt = self.spec.prompt_of(arm.prompt)
        if prompt is None:
            return None
        written = replace(self.space.untuned(arm.technique), writer=arm.writer)
        program = self.program(written, reads=self.spec.reads or reads_for(prompt))
        return self.compile_prompts(prompt, f"{arm.technique}, {arm.prompt}", program)

    def compile_prompts(self, prompt: PromptSpec, called: str, program: RAG) -> Variant:
        """Compile prompts for a program on train, once: the store keeps them by all that they depend on.

        The seed of a variant follows from its name.

        Raises:
            OptimizerError: They came to nothing, now or before.
            TooManyFailuresError: Too many questions failed.
        """
        searched = program.technique.retriever
        rests_on = [
            prompt.model_dump(mode="json"),
            called,
            state_of(program).model_dump(mode="json"),
            None if searched is None else searched.fingerprint,
            data_hash(self.splits.train),
            [engine_of(one).identity for one in (self.lm, program.technique.writer_lm) if one is not None],
            {name: self.lm.kwargs.get(name) for name in ("temperature", "max_tokens")},
            self.objectives[0].name,
            [(one["digest"], one["lm_digest"]) for one in self.judge_facts],
            self.spec.seed,
        ]
        key = hashlib.sha256(json.dumps(rests_on, sort_keys=True, default=str).encode()).hexdigest()
        say: Any = self.progress

        def make() -> bytes:
            made = make_variant(
                prompt,
                called,
                program,
                self.splits.train,
                metric=(metric := self._metric(prompt)),
                feedback=feedback_metric(metric, [*self.judges_of(self._aims(prompt)).values()]),
                lm=self.lm,
                seed=self.spec.seed,
                threads=self.threads,
                max_failures=self.spec.max_failures,
                progress=None if say is None else lambda done, total: say(f"prompts {called}", done, total),
            )
            return made.model_dump_json().encode()

        if key not in self._made:
            try:
                kept = make() if self.store is None else self.store.get_or_compute(PROMPTS, key, make)
                self._made[key] = Variant.model_validate_json(kept)
            except (OptimizerError, TooManyFailuresError) as error:
                self._made[key] = error
        made = self._made[key]
        if isinstance(made, Exception):
            raise made
        return made

    def evaluate(self, program: RAG, questions: Sequence[Question], name: str, **options: Any) -> Evaluation:
        """A program's results, as ``evaluate`` gives them, with the study's metrics and threads."""
        return evaluate(program, questions, name=name, **{**self._given, **options})

    def evaluate_all(
        self,
        programs: Mapping[str, RAG],
        questions: Sequence[Question],
        on_out: Callable[[str, TooManyFailuresError], object],
    ) -> dict[str, Evaluation]:
        """Return the results of several programs, as ``evaluate_all`` does, with the study's metrics and threads."""
        return evaluate_all(programs, questions, on_out=on_out, **self._given)

    @property
    def _given(self) -> dict[str, Any]:
        own = {"metrics": self.metrics, "progress": self.progress, "max_failures": self.spec.max_failures}
        return {"lm": self.lm, "threads": self.threads, **own}

    def spent_since(self, before: Cost) -> Cost:
        """Return what was spent since ``total`` was ``before``."""
        return self.total - before

    def _metric(self, prompt: PromptSpec) -> Metric:
        """What prompts are compiled for: their own metric, or the mean of the first objective's."""
        metrics = {name: self._metrics[name] for name in self._aims(prompt)}

        def metric(example: Any, prediction: Any, trace: Any = None) -> float:
            return sum(metric_value(name, one, example, prediction) for name, one in metrics.items()) / len(metrics)

        return metric

    def _aims(self, prompt: PromptSpec) -> Sequence[str]:
        return self.objectives[0].metrics if prompt.metric is None else [prompt.metric]


def optuna_study(spec: SearchSpec, storage: Any = None) -> Any:
    """Return Optuna's study of a search, made if the storage has none of its name.

    Args:
        spec: What is searched.
        storage: Optuna's storage. None: memory.
    """
    import optuna

    sampler = make_sampler(spec.sampler.name, spec.sampler.arguments, spec.seed)
    directions: Any = [aim.direction for aim in spec.aims]
    with quiet_optuna():
        return optuna.create_study(
            storage=storage, study_name=spec.name, directions=directions, sampler=sampler, load_if_exists=True
        )


def further_questions(
    count: int, asked: Sequence[Question], splits: Splits, reader: str | None, seed: int = 0
) -> list[Question]:
    """Return the first questions that the split leaves over, without those that occur in it, or twice, by id or text.

    Raises:
        InputError: There is no reader, or there are too few questions.
    """
    if not count:
        return []
    if reader is None:
        raise InputError("reader_check needs a reader; give one, or leave it out")
    left = left_over(asked, splits, seed)
    if len(left) < count:
        raise InputError(
            f"reader_check: asks for {count} further questions, but sizes leave {len(left)} over "
            "that stand in none of the sets, nor twice; give smaller sizes, or fewer"
        )
    return left[:count]
