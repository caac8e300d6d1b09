"""What a worker has open: questions, LM, budget and retrievers; and the programs and prompts of arms."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import dspy

from querywright.data.splits import Splits, data_hash
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.home import home as working_folder
from querywright.metrics.dspy_metrics import Metric
from querywright.metrics.feedback import feedback_metric
from querywright.metrics.judge import JudgedMetric
from querywright.models.budget import Budget
from querywright.models.lm import engine_of, lm_digest, resolve_lm, with_key, writer_beside
from querywright.models.rewriters import rewriter_of
from querywright.models.store import Store, open_store
from querywright.models.usage import Cost, Ledger
from querywright.optimize.artifacts.writers import keep_rewriter
from querywright.optimize.evaluate import DEFAULT_METRICS, Evaluation, Progress, evaluate, evaluate_all, metric_value
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.judge_files import SavedJudge, resolve_judge
from querywright.optimize.judging import judged_metrics
from querywright.optimize.objectives import Objective, objectives_of
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.program_state import state_of
from querywright.optimize.study.data import data_of
from querywright.optimize.study.prompts import Variant, make_variant, with_variant
from querywright.optimize.study.space import Space, build_space, reads_for
from querywright.optimize.study.spec import PromptSpec, StudySpec
from querywright.optimize.study.types import ArmConfig
from querywright.programs import RAG, make_program, technique_class
from querywright.retrieval.engines import LEXICAL, open_retriever
from querywright.retrieval.replay import ReplayRetriever
from querywright.retrieval.rerank import Reranker

PROMPTS = "prompts"
"""The kind of compiled prompts in the store."""


@dataclass
class Bench:
    """All that a trial needs. What was answered is kept in the store, or not at all.

    Args:
        store: Where answers and compiled prompts are kept; None to keep none.
        local: Where vectors and rankings are kept, which cost no call; None to keep none.
        home: The working folder; None where all retrievers are open.
        reader_check: Further questions, met by closed book and oracle evidence alone.
        reranker: Scores passages, for techniques that rerank. None: the technique's own way.
        writers: What techniques ask in place of the LM, and readers do not, by the names in the study; None is the LM.
        judges: Judges that stand in the place of those of their name.
        judge_lm: What judges are asked of; its calls are in the same ledger. None: the LM.
        retrievers: Open retrievers by engine.
        budget: What all calls are paid from; None where nothing limits them here.
        progress: Called as work proceeds.
        tell: Called with what makes a result mean nothing.
    """

    spec: StudySpec
    splits: Splits
    space: Space
    lm: dspy.LM
    store: Store | None = None
    local: Store | None = None
    home: Path | None = None
    reader_check: Sequence[Question] = ()
    reranker: Reranker | None = None
    writers: dict[str | None, dspy.LM | None] = field(default_factory=dict)
    judges: Sequence[SavedJudge] = ()
    judge_lm: dspy.LM | None = None
    retrievers: dict[str, Any] = field(default_factory=dict)
    budget: Budget | None = None
    progress: Progress | None = None
    tell: Callable[[str], object] = field(default=lambda _: None)
    _made: dict[str, Variant | Exception] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """Questions under way at a time."""
        return self.spec.threads or engine_of(self.lm).threads

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives of the study."""
        return objectives_of(self.spec.objectives)

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

    def retriever(self, engine: str) -> Any:
        """The retriever of an engine; what it found once it finds again without a search."""
        if engine not in self.retrievers:
            from querywright.models.embedder import resolve_embedder

            embedder = None if engine in LEXICAL else resolve_embedder(self.spec.embedder, store=self.local)
            given: Any = {"engine": engine, "embedder": embedder, "home": self.home, "where": self.spec.where}
            inner = open_retriever(self.spec.collection, **given)
            self.retrievers[engine] = ReplayRetriever(inner, store=self.local, deepest=self.space.deepest(engine))
        return self.retrievers[engine]

    def program(self, arm: ArmConfig, *, reads: bool | None = None) -> RAG:
        """The program of an arm, by default with its reader where objectives need one; it raises as ``compiled``."""
        reader = arm.reader if (self.spec.reads if reads is None else reads) else None
        made = make_program(
            arm.technique,
            self.retriever(arm.engine),
            reader=reader,
            reranker=self.reranker if technique_class(arm.technique).USES_RERANKER else None,
            writer_lm=self.writers.get(arm.writer),
            **arm.knobs,
        )
        variant = self.variant(arm)
        return made if variant is None else with_variant(made, variant)

    def variant(self, arm: ArmConfig) -> Variant | None:
        """The prompts of an arm, compiled once; None as written. It raises what ``compiled`` raises."""
        prompt = self.spec.prompt_of(arm.prompt)
        if prompt is None:
            return None
        written = replace(self.space.as_written(arm.technique), writer=arm.writer)
        program = self.program(written, reads=self.spec.reads or reads_for(prompt))
        return self.compiled(prompt, f"{arm.technique}, {arm.prompt}", program)

    def compiled(self, prompt: PromptSpec, called: str, program: RAG) -> Variant:
        """Prompts for a program that are compiled on train, once: they are kept in the store by all that they rest on.

        A variant has a seed of its own, by what it is called.

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

    def evaluated(self, program: RAG, questions: Sequence[Question], name: str, **options: Any) -> Evaluation:
        """A program's results, as ``evaluate`` gives them, with the study's metrics and threads."""
        return evaluate(program, questions, name=name, **{**self._given, **options})

    def evaluated_all(
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
        return {"lm": self.lm, "threads": self.threads, "deadline": self.spec.deadline, **own}

    def spent_since(self, before: Cost) -> Cost:
        """What was spent since ``total`` was ``before``."""
        return self.total - before

    def _metric(self, prompt: PromptSpec) -> Metric:
        """What prompts are compiled for: their own metric, or the mean of the first objective's."""
        metrics = {name: self._metrics[name] for name in self._aims(prompt)}

        def metric(example: Any, prediction: Any, trace: Any = None) -> float:
            return sum(metric_value(name, one, example, prediction) for name, one in metrics.items()) / len(metrics)

        return metric

    def _aims(self, prompt: PromptSpec) -> Sequence[str]:
        return self.objectives[0].metrics if prompt.metric is None else [prompt.metric]


def open_bench(spec: StudySpec, home: Path | None, url: str | None = None, budget: str | None = None) -> Bench:
    """Open all that the trials of a study need.

    PostgreSQL, if its address is given, keeps answers and the budget for several hosts, else the working folder does.
    The budget's name is that of the count which all workers and runs of the study share; without one there is no limit.

    Raises:
        InputError: The variable that holds the LM's key is empty, or something that is named cannot be used.
    """
    folder = working_folder(home)
    os.environ["QUERYWRIGHT_HOME"] = str(folder.resolve())  # libraries of ours write to the same folder
    local = open_store(folder)
    store = local if url is None else open_store(url=url)
    limits = spec.budget.model_dump(include={"calls", "tokens", "dollars"})
    remedy = "Raise the budget in the study's file and run it again, or resume it with a larger one"
    purse = None if budget is None else Budget(store, budget, **limits, remedy=remedy)
    common: dict[str, Any] = {"store": store, "ledger": Ledger(), "budget": purse, "limits": spec.limits}
    lm = resolve_lm(spec.lm, api_base=spec.api_base, api_key=_key(spec.api_key_env), **common)
    judge_lm = None
    if spec.judge_lm is not None:
        judge_lm = resolve_lm(
            spec.judge_lm, api_base=spec.judge_api_base, api_key=_key(spec.judge_api_key_env), **common
        )
    for one in filter(None, (lm, judge_lm)):
        with_key(one)
    writers = open_writers(spec, lm)
    for rewriter in filter(None, map(rewriter_of, writers.values())):
        keep_rewriter(rewriter.path, home)  # a copy, for the programs that are saved
    splits, reader, further = data_of(spec)
    given: dict[str, Any] = {"store": store, "local": local, "home": folder, "budget": purse, "judge_lm": judge_lm}
    given["judges"] = [*map(resolve_judge, spec.judges)]
    return Bench(spec, splits, build_space(spec, reader), lm, reader_check=further, writers=writers, **given)


def open_writers(spec: StudySpec, lm: dspy.LM) -> dict[str | None, dspy.LM | None]:
    """The LMs that write in a study, by name, beside the one that reads, which None stands for."""
    found: dict[str | None, dspy.LM | None] = {}
    for one in spec.writers:
        named: Any = one.lm
        if one.api_base or one.api_key_env:
            key = _key(one.api_key_env)
            named = resolve_lm(one.lm, api_base=one.api_base, api_key=key, limits=spec.limits)
        found[one.name] = writer_beside(lm, named)
    return found


def _key(variable: str | None) -> str | None:
    """The key that a variable holds; None where none is named."""
    key = None if variable is None else os.environ.get(variable)
    if variable is not None and not key:
        raise InputError(f"the variable {variable!r} holds no key; set it, or name another one in the study's file")
    return key
