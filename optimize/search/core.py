"""An open search: its questions, LM, and retrievers, and the programs and prompts of its arms."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import dspy

from querywright.data.splits import Splits, data_hash, left_over
from querywright.data.types import Passage, Question
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import Metric
from querywright.metrics.feedback import feedback_metric
from querywright.metrics.judge import JudgedMetric
from querywright.models.budget import Budget
from querywright.models.lm import engine_of, lm_digest
from querywright.models.store import Store
from querywright.models.usage import Cost
from querywright.optimize.comparison import held_by
from querywright.optimize.contexts import quiet_optuna
from querywright.optimize.copies import Copy, copies_sentence, find_copies
from querywright.optimize.evaluate import DEFAULT_METRICS, Evaluation, Progress, evaluate, evaluate_all, metric_value
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.judge_files import SavedJudge
from querywright.optimize.judging import judged_metrics
from querywright.optimize.objectives import Objective, check_price
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.program_state import state_of
from querywright.optimize.search.prompts import Variant, make_variant, with_variant
from querywright.optimize.search.sampling import make_sampler
from querywright.optimize.search.space import Space, build_space, reads_for
from querywright.optimize.search.spec import PromptSpec, SearchSpec
from querywright.optimize.search.trials import ArmConfig
from querywright.programs import RAG, make_program, technique_class
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.engines import ENGINES, opened
from querywright.retrieval.replay import ReplayRetriever
from querywright.retrieval.rerank import Reranker

PROMPTS = "prompts"
"""The kind of store entry used for compiled prompts."""

COPIED = "copy training text"
"""Wording for the message about prompts that are left out because they copy training text."""

SEEN = 10
"""Number of passages per training question that are compared with an optimizer's prompts."""


@dataclass
class Search:
    """Everything that trials need.

    Args:
        spec: The specification of the search.
        splits: The questions: train for prompts, dev for trials, test for the final evaluation.
        reader: Name of the reader from ``reader_for``; None if no reader runs.
        lm: The LM that techniques and readers call.
        open_retriever: Opens a retriever by engine name; called once for each name.
        store: Stores answers and compiled prompts. Default None: nothing is stored.
        local: Stores rankings. Default None: no rankings are stored.
        reader_check: Questions that are used only for closed book and oracle evidence.
        reranker: Scores passages, for techniques that rerank. Default None: the technique's LM.
        writers: LMs by name that techniques may use instead of ``lm``; None means ``lm``.
        knobs: The knobs whose values depend on the retriever, by technique.
        judges: Saved judges, which replace the built-in judges with the same name.
        judge_lm: The judges' LM, with the same ledger. Default None: ``lm``.
        budget: Limits all LM calls. Default None: no limit.
        hints: The warnings about labels, for the report.
        progress: Called as work proceeds.
        tell: Called with each warning.
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
    hints: Sequence[str] = ()
    progress: Progress | None = None
    tell: Callable[[str], object] = field(default=lambda _: None)
    copied: dict[str, list[Copy]] = field(default_factory=dict)
    """The training texts that were copied into prompts, by the prompts' name."""
    space: Space = field(init=False)
    _retrievers: dict[str, ReplayRetriever] = field(default_factory=dict)
    _made: dict[str, Variant | Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Build the search space."""
        check_price(self.spec.objectives, self.lm)
        self.change(self.spec)

    def change(self, spec: SearchSpec) -> None:
        """Change the specification; retrievers and prompts stay open."""
        self.spec, self.space = spec, build_space(spec, self.reader, self.knobs, [*self.writers])

    @property
    def threads(self) -> int:
        """Number of questions to evaluate at a time."""
        return self.spec.threads or engine_of(self.lm).threads

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives; the first one decides."""
        return self.spec.aims

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics for trials: the metrics in the objectives, and the default metrics."""
        names = [metric for objective in self.objectives for metric in objective.metrics]
        return {**DEFAULT_METRICS, **{name: self._metrics[name] for name in names}}

    @cached_property
    def _metrics(self) -> dict[str, Metric]:
        """The metrics for objectives and prompts; metrics that use the same judge share its judgments."""
        names = [metric for objective in self.objectives for metric in objective.metrics]
        names += [one.metric for one in self.spec.prompts.values() if one.metric is not None]
        asked = self.judge_lm or self.lm
        return judged_metrics(names, lm=asked, judges=self.judges, threads=max(8, self.threads))

    @property
    def judging(self) -> dict[str, JudgedMetric]:
        """The judges for the objectives and prompts, by name."""
        return self.judges_of(self._metrics)

    def judges_of(self, metrics: Iterable[str]) -> dict[str, JudgedMetric]:
        """Return the judges that these metrics use, keyed by name."""
        found = map(self._metrics.get, metrics)
        return {one.judge.NAME: one for one in found if isinstance(one, JudgedMetric)}

    @property
    def judge_facts(self) -> list[dict[str, str]]:
        """Each judge's prompt, LM, and calibration."""
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
        """The cost of judging."""
        return sum((one.spent.total for one in self.judging.values()), Cost())

    @property
    def total(self) -> Cost:
        """The cost of everything except judging."""
        every: Cost = engine_of(self.lm).ledger.total
        return every - self.judged

    @property
    def data(self) -> dict[str, Sequence[Question]]:
        """The questions in train, dev, and test, and in the reader check if it has any."""
        further = {"reader_check": self.reader_check} if self.reader_check else {}
        return {**self.splits._asdict(), **further}

    def retriever(self, engine: str) -> ReplayRetriever:
        """Return the retriever for an engine; the retriever stores its rankings."""
        if engine not in self._retrievers:
            inner, deepest = self.open_retriever(engine), self.space.deepest(engine)
            self._retrievers[engine] = ReplayRetriever(inner, store=self.local, deepest=deepest)
        return self._retrievers[engine]

    def engine_shown(self, arm: ArmConfig) -> str:
        """Return the engine that an arm searches with, or the name that the user chose for its retriever.

        A compilation calls its only retriever ``dense``, whatever engine it was opened with.
        """
        named = arm.engine not in ENGINES
        return arm.engine if named else opened(self.retriever(arm.engine))["engine"] or arm.engine

    def program(self, arm: ArmConfig, *, reads: bool | None = None) -> RAG:
        """Return an arm's program. Raises the same errors as ``compile_prompts``.

        Args:
            arm: The arm.
            reads: Whether the program includes the reader. Default: only if an objective needs it.
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
        """Return an arm's compiled prompts; None for untuned prompts. Raises the same errors as ``compile_prompts``."""
        prompt = self.spec.prompt_of(arm.prompt)
        if prompt is None:
            return None
        written = replace(self.space.untuned(arm.technique), writer=arm.writer)
        program = self.program(written, reads=self.spec.reads or reads_for(prompt))
        return self.compile_prompts(prompt, f"{arm.technique}, {arm.prompt}", program)

    def compile_prompts(self, prompt: PromptSpec, called: str, program: RAG) -> Variant:
        """Return a prompt variant for a program, compiled on train or read from the store.

        Args:
            prompt: The specification of the variant.
            called: The variant's name, which determines its seed.
            program: The program, which does not change.

        Raises:
            OptimizerError: The optimizer found no prompts (now or in an earlier run), or the prompts copy training
                text.
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
                self._made[key] = variant = Variant.model_validate_json(kept)
                self._check_copies(prompt, called, program, variant)
            except (OptimizerError, TooManyFailuresError) as error:
                self._made[key] = error
        made = self._made[key]
        if isinstance(made, Exception):
            raise made
        return made

    def _check_copies(self, prompt: PromptSpec, called: str, program: RAG, variant: Variant) -> None:
        """Record the training texts that an optimizer's prompts copy; if there are any, raise unless copies are
        allowed.
        """
        if prompt.optimizer is None:
            return
        untuned = {name: one.instructions for name, one in state_of(program).predictors.items()} | prompt.instructions
        known = set(untuned.values())
        rewritten = any(one.instructions not in known for one in variant.predictors.values())
        passages = self._seen_passages(program) if rewritten else []
        train, held_out = self.splits.train, [*self.splits.dev, *self.splits.test]
        copies = find_copies(variant.predictors, known, train, held_out=held_out, passages=passages)
        if copies:
            self.copied[called] = copies
        if copies and not self.spec.allow_copies:
            raise OptimizerError(
                f"these prompts {COPIED}, so they were excluded ({copies_sentence(copies)}); add training questions, "
                "or pass allow_copies (--allow-copies) to keep the prompts"
            )

    def _seen_passages(self, program: RAG) -> list[Passage]:
        """Return the training questions' evidence, and the passages that a search with the questions finds."""
        retriever = program.technique.retriever
        if retriever is None:
            return []
        labelled = held_by(retriever, {key for one in self.splits.train for key in one.evidence}) or {}
        rankings = retriever.search([one.question for one in self.splits.train], SEEN)
        found = {hit.passage.id: hit.passage for hits in rankings for hit in hits}
        return [*(found | labelled).values()]

    def evaluate(self, program: RAG, questions: Sequence[Question], name: str, **options: Any) -> Evaluation:
        """Return a program's results, like ``evaluate``, with the search's metrics and threads."""
        return evaluate(program, questions, name=name, **{**self._given, **options})

    def evaluate_all(
        self,
        programs: Mapping[str, RAG],
        questions: Sequence[Question],
        on_out: Callable[[str, TooManyFailuresError], object],
    ) -> dict[str, Evaluation]:
        """Return the results of several programs, with the search's metrics and threads."""
        return evaluate_all(programs, questions, on_out=on_out, **self._given)

    @property
    def _given(self) -> dict[str, Any]:
        own = {"metrics": self.metrics, "progress": self.progress, "max_failures": self.spec.max_failures}
        return {"lm": self.lm, "threads": self.threads, **own}

    def spent_since(self, before: Cost) -> Cost:
        """Return the cost added to ``total`` since it was ``before``."""
        return self.total - before

    def _metric(self, prompt: PromptSpec) -> Metric:
        """Return an optimizer's metric: the prompt variant's metric, or the first objective."""
        metrics = {name: self._metrics[name] for name in self._aims(prompt)}

        def metric(example: Any, prediction: Any, trace: Any = None) -> float:
            return sum(metric_value(name, one, example, prediction) for name, one in metrics.items()) / len(metrics)

        return metric

    def _aims(self, prompt: PromptSpec) -> Sequence[str]:
        return self.objectives[0].metrics if prompt.metric is None else [prompt.metric]


def optuna_study(spec: SearchSpec, storage: Any = None) -> Any:
    """Return Optuna's study for a search; create it if the storage does not have one with that name.

    Args:
        spec: The search.
        storage: Optuna's storage. Default None: memory.
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
    """Return the first questions that are not in the split, without duplicates (same id or same text).

    Args:
        count: Number of questions.
        asked: All questions.
        splits: The split.
        reader: The name of the reader; None if no reader runs.
        seed: Seed for the split. Default 0.

    Raises:
        InputError: There is no reader, or there are too few questions.
    """
    if not count:
        return []
    if reader is None:
        raise InputError("reader_check requires a reader; pass a reader or remove reader_check")
    left = left_over(asked, splits, seed)
    if len(left) < count:
        raise InputError(
            f"reader_check is {count}, but sizes leaves only {len(left)} unique questions over; use smaller sizes or a "
            "smaller reader_check"
        )
    return left[:count]
