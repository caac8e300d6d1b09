"""One trial: from parameters to an arm, its prompts, its results on dev, and what the storage keeps of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from querywright.data.types import Question
from querywright.metrics.dspy_metrics import Metric, metric_named
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row, evaluate
from querywright.optimize.failures import Failures, TooManyFailuresError
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.study.building import prompt_of, reads_for
from querywright.optimize.study.prompts import make_variant
from querywright.optimize.study.prune import values_of, worse_than
from querywright.optimize.study.records import ARM, RESULT, record_of, result_json
from querywright.optimize.study.resources import Bench, Variant
from querywright.optimize.study.spec import PromptSpec
from querywright.optimize.study.storage import StudyStorage
from querywright.optimize.study.types import ArmConfig, TrialRecord
from querywright.programs import RAG

BLOCKS = 5
"""Times that a trial is looked at before it has met all questions."""

SMALLEST_BLOCK = 8
"""Questions between two looks at least."""

PROMPTS_SECONDS = 6 * 3600.0
"""How long a worker waits for another that is compiling the prompts that it needs."""

FAILED = "failed"
"""Stands in the place of prompts that could not be compiled, with what was wrong."""

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Worker:
    """Runs trials.

    Args:
        bench: What it has open.
        storage: Where trials are kept.
        study: Optuna's.
        name: How it is called, such as ``1``.
        progress: Called as work proceeds.
    """

    bench: Bench
    storage: StudyStorage
    study: Any
    name: str
    progress: Progress | None = None
    _ended: dict[int, TrialRecord] = field(default_factory=dict)

    def run(self, trial: Any, survivors: Sequence[str], check: Callable[[], None] = lambda: None) -> TrialRecord:
        """Try what a trial proposes and write down what came of it.

        Args:
            trial: An Optuna trial that is running, and this worker's.
            survivors: Techniques of the late trials.
            check: Raises when the trial may be another worker's by now; nothing is written down then.

        Raises:
            OutageError: The LM is out of reach; the trial goes on when the study is resumed.
            TooManyFailuresError: No rewriting failed; it is tried again when the study is resumed.
            BudgetError: The budget is spent; the trial goes on when the study is resumed.
        """
        known = record_of(self.study._storage.get_trial(trial._trial_id))
        if known.state != "running":  # it was written down, but its worker ended before it told Optuna
            return self._tell(trial, known)
        began, before = time.time(), self.bench.ledger.total
        arm = self.bench.space.suggest(trial, trial.number, survivors=survivors)
        trial.set_user_attr(ARM, arm.to_json())
        late = self.bench.space.is_late(trial.number)
        record = TrialRecord(trial.number, "running", arm, late=late, began=known.began or began, worker=self.name)
        same = self._same(arm)
        if same is not None:
            same_as = replace(record, state=same.state, values=same.values, dev=same.dev, same_as=same.number)
            record = replace(same_as, message=same.message)
        else:
            try:
                record = self._tried(record, arm)
            except (TooManyFailuresError, OptimizerError) as error:
                if arm.is_plain and arm.knobs == self.bench.space.as_written(arm.technique).knobs:
                    raise  # every arm is held against it, so it is tried again when the study goes on
                record = replace(record, state="failed", message=str(error)[:500])
        record = replace(record, ended=time.time(), spent=self.bench.spent_since(before))
        check()
        trial.set_user_attr(RESULT, result_json(record))
        return self._tell(trial, record)

    def _same(self, arm: ArmConfig) -> TrialRecord | None:
        """An earlier trial of the same arm."""
        for one in self.finished():
            if one.arm is not None and one.arm.key == arm.key and one.same_as is None:
                return one
        return None

    def finished(self, trials: Sequence[Any] | None = None) -> list[TrialRecord]:
        """The records of all trials that ended, each read once.

        Args:
            trials: Optuna's, where they are at hand.
        """
        for one in self.study.get_trials(deepcopy=False) if trials is None else trials:
            if one.number not in self._ended and RESULT in one.user_attrs:
                self._ended[one.number] = record_of(one)
        return [self._ended[number] for number in sorted(self._ended)]

    def _tried(self, record: TrialRecord, arm: ArmConfig) -> TrialRecord:
        variant, prompt_spent = self.variant(arm)
        record = replace(record, prompt_spent=prompt_spent)
        rivals = [one for one in self.finished() if one.state == "complete"]
        dev, better = self._evaluated(record.name, self.bench.program(arm, variant), rivals, turn=record.number)
        values = values_of(dev, self.bench.objectives)
        if better is not None:
            message = f"worse than trial {better.number} on {len(dev.rows)} questions"
            return replace(record, state="pruned", dev=dev, message=message)
        if any(value != value for value in values.values()):
            return replace(record, state="failed", dev=dev, message="no question could be scored")
        return replace(record, state="complete", dev=dev, values=values)

    def variant(self, arm: ArmConfig) -> tuple[Variant | None, Cost]:
        """The prompts of an arm, compiled once in a study, and what compiling them cost here."""
        found = prompt_of(self.bench.spec, arm.prompt)
        if found is None:
            return None, Cost()
        prompt = self.bench.spec.prompts[found[0]]
        name = f"prompt:{arm.technique}:{arm.prompt}"
        if reads_for(prompt):
            name += f":{arm.reader}"  # each reader has prompts of its own
        bench = self.bench
        written = replace(bench.space.as_written(arm.technique), reader=arm.reader)
        program = bench.program(written, reads=bench.reads or reads_for(prompt))
        return self.made_once(name, prompt, f"{arm.technique}, {arm.prompt}", program)

    def made_once(self, name: str, prompt: PromptSpec, called: str, program: RAG) -> tuple[Variant, Cost]:
        """Prompts that a study compiles once, and what compiling them cost here.

        Args:
            name: What they are kept under.
            prompt: The way to them.
            called: The variant, which has a seed of its own.
            program: What they are compiled for.

        Raises:
            OptimizerError: They came to nothing, now or before.
            TooManyFailuresError: Too many questions failed.
        """
        known = self._known(name)
        if known is not None:
            return known, Cost()
        with self.storage.claims.wait(name, PROMPTS_SECONDS):
            known = self._known(name)
            if known is not None:
                return known, Cost()
            before = self.bench.ledger.total
            try:
                made = self._made(prompt, called, program)
            except (TooManyFailuresError, OptimizerError) as error:
                self.storage.set_attribute(name, {FAILED: str(error)[:500]})
                raise
            self.storage.set_attribute(name, made)
            return made, self.bench.spent_since(before)

    def _known(self, name: str) -> Variant | None:
        """Prompts that were compiled before; None where they were not.

        Raises:
            OptimizerError: They were tried, and came to nothing.
        """
        known: Variant | None = self.storage.attribute(name)
        if known is not None and FAILED in known:
            raise OptimizerError(str(known[FAILED]))
        return known

    def _made(self, prompt: PromptSpec, called: str, program: RAG) -> Variant:
        """The prompts of a variant, compiled on train."""
        bench, say = self.bench, self.progress
        return make_variant(
            prompt,
            called,
            program,
            bench.splits.train,
            metric=_metric(bench, prompt),
            lm=bench.lm,
            seed=bench.spec.seed,
            threads=bench.spec.threads,
            max_failures=bench.spec.max_failures,
            progress=None if say is None else lambda done, total: say(f"prompts {called}", done, total),
        )

    def _evaluated(
        self, name: str, program: RAG, rivals: Sequence[TrialRecord], *, turn: int
    ) -> tuple[Evaluation, TrialRecord | None]:
        """Results on dev, and the trial that showed this one to be worse before it had met all questions."""
        bench, questions = self.bench, self.bench.splits.dev
        failures = Failures(name, len(questions), bench.spec.max_failures)
        prunes = bench.spec.pruner == "paired" and bool(rivals)
        rows: list[Row] = []
        seconds = 0.0
        for block in _blocks(questions) if prunes else [questions]:
            met = evaluate(
                program,
                _turned(block, turn),
                lm=bench.lm,
                name=name,
                metrics=bench.metrics,
                threads=bench.spec.threads,
                failures=failures,
                progress=self.progress,
            )
            by_id = {row.id: row for row in met.rows}
            rows += [by_id[question.id] for question in block]
            seconds += met.seconds
            done = Evaluation(name, tuple(rows), seconds)
            better = worse_than(done, rivals, bench.objectives) if prunes and len(rows) < len(questions) else None
            if better is not None:
                return done, better
        return Evaluation(name, tuple(rows), seconds), None

    def _tell(self, trial: Any, record: TrialRecord) -> TrialRecord:
        from optuna.trial import TrialState

        values = [record.values.get(objective.name) for objective in self.bench.objectives]
        if record.state == "complete":
            self.study.tell(trial, values)
        else:
            # Optuna forgets failed trials and would propose them again; pruned ones it counts among the worst.
            self.study.tell(trial, state=TrialState.PRUNED)
        return record


def _metric(bench: Bench, prompt: PromptSpec) -> Metric:
    """What prompts are compiled for: their own metric, or the mean of the first objective's."""
    if prompt.metric is not None:
        return metric_named(prompt.metric)
    metrics = [bench.metrics[name] for name in bench.objectives[0].metrics]

    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        return sum(one(example, prediction, trace) for one in metrics) / len(metrics)

    return metric


def _blocks(questions: Sequence[Question]) -> list[Sequence[Question]]:
    size = max(SMALLEST_BLOCK, -(-len(questions) // BLOCKS))
    return [questions[start : start + size] for start in range(0, len(questions), size)]


def _turned(block: Sequence[Question], turn: int) -> list[Question]:
    """The block from another question on, so that workers that begin together do not wait for the same answers."""
    place = (turn * 7) % len(block) if block else 0
    return [*block[place:], *block[:place]]
