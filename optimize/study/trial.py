"""A worker: takes trials, new or of a worker that died, tries their arms on dev, and keeps what came of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from querywright.data.types import Question
from querywright.errors import BudgetError, QuerywrightError
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.failures import Failures, TooManyFailuresError
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.select import surviving, worse_than
from querywright.optimize.study.space import seeded_sampler
from querywright.optimize.study.status import minutes_busy
from querywright.optimize.study.storage import StudyStorage
from querywright.optimize.study.types import ARM, RESULT, ArmConfig, TrialRecord
from querywright.programs import RAG

SPEC = "spec"
"""The attribute of a study that holds what it was begun with."""

BLOCKS = 5
"""Times that a trial is looked at before it has met all questions."""

SMALLEST_BLOCK = 8
"""Questions between two looks at least."""

IDLE_SECONDS = 0.2
"""Between two looks of a worker that has nothing to do."""

MOST_FAILED = 5
"""Failed trials, more than the others, that end a study: something is wrong with all of them."""


@dataclass(slots=True)
class Worker:
    """Runs the trials of a study, beside any number of others.

    A trial that is run twice, because its first worker was killed, finds all that was answered, and the same.

    Args:
        bench: What it has open.
        storage: Where trials are kept.
        name: How it is called, such as ``1``.
        looked: Called after each trial and while there is nothing to do.
    """

    bench: Bench
    storage: StudyStorage
    name: str = "1"
    looked: Callable[[], None] = lambda: None
    study: Any = field(init=False)
    _ended: dict[int, TrialRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Open Optuna's study."""
        spec = self.bench.spec
        sampler = seeded_sampler(spec.sampler, spec.seed, self.bench.space)
        self.study = self.storage.study([objective.direction for objective in self.bench.objectives], sampler)

    def work(self) -> None:
        """Try arms until every trial has ended, this worker's and the others'.

        Raises:
            OutageError: The LM is out of reach; the trial goes on when the study is resumed.
            BudgetError: The budget is spent; the trial goes on when the study is resumed.
            TooManyFailuresError: No rewriting failed; it is tried again when the study is resumed.
            QuerywrightError: Most trials fail, or another run gave the study more trials.
        """
        while True:
            taken = self._take()
            if taken is not None:
                trial, lock = taken
                with lock:
                    self.run(trial)
                self._see_failures()
            elif sum(one.state.is_finished() for one in self._trials()) >= self.bench.spec.trials:
                return
            else:
                time.sleep(IDLE_SECONDS)
            self.looked()

    def finished(self) -> list[TrialRecord]:
        """The records of all trials that ended, each read once."""
        for one in self._trials():
            if one.number not in self._ended and one.state.is_finished():
                self._ended[one.number] = TrialRecord.of(one)
        return [self._ended[number] for number in sorted(self._ended)]

    def see_trials(self) -> None:
        """End this run when another was given more trials: who is late and what is tested follows from their number.

        Raises:
            QuerywrightError: Another was.
        """
        mine = self.bench.spec.trials
        trials = self.storage.attribute(SPEC, {}).get("trials", mine)
        if trials != mine:
            raise QuerywrightError(
                f"another run gave this study {trials} trials, and goes on with them; this one knew of {mine}"
            )

    def _trials(self) -> list[Any]:
        found: list[Any] = self.study.get_trials(deepcopy=False)
        return found

    def _take(self) -> tuple[Any, contextlib.ExitStack] | None:
        """A trial and its lock, of a worker that died or a new one; None while others are at work at all there are."""
        import optuna

        space, most = self.bench.space, self.bench.spec.trials
        with self.storage.hold("ask"):
            self.see_trials()
            trials = self._trials()
            for one in trials:
                lock = None if one.state.is_finished() else self.storage.take(f"trial-{one.number}")
                if lock is not None:
                    if not self.storage.trials.get_trial(one._trial_id).state.is_finished():
                        return optuna.trial.Trial(self.study, one._trial_id), lock
                    lock.close()  # its worker ended it since
            number = len(trials)
            early = [one for one in trials if not space.is_late(one.number)]
            if number >= most or (space.is_late(number) and any(not one.state.is_finished() for one in early)):
                return None  # who survives is known when the first phase has ended
            trial = self.study.ask()
            lock = self.storage.take(f"trial-{trial.number}")
            if lock is None:
                raise QuerywrightError(f"trial {trial.number} is new, but locked by another process; run it again")
            return trial, lock

    def run(self, trial: Any) -> TrialRecord:
        """Try what a trial proposes and keep what came of it.

        Args:
            trial: An Optuna trial that is running, and this worker's.
        """
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        bench, number, finished = self.bench, trial.number, self.finished()
        began, before, late = time.time(), bench.ledger.total, bench.space.is_late(trial.number)
        survivors: list[str] = []
        if late:
            early = [one for one in finished if not bench.space.is_late(one.number)]
            survivors = surviving(early, bench.objectives[0], bench.spec.survivors) or list(bench.space.chosen)
        arm = bench.space.suggest(trial, number, survivors=survivors)
        trial.set_user_attr(ARM, arm.to_json())
        record = TrialRecord(number, "running", arm, late=late, began=began, worker=self.name)
        same = next((one for one in finished if one.arm is not None and one.arm.key == arm.key), None)
        if same is not None:
            first = same.number if same.same_as is None else same.same_as
            record = replace(
                record, state=same.state, values=same.values, dev=same.dev, same_as=first, message=same.message
            )
        else:
            try:
                record = self._tried(record, arm, finished)
            except (TooManyFailuresError, OptimizerError) as error:
                if arm.is_plain and arm.knobs == bench.space.as_written(arm.technique).knobs:
                    raise  # every arm is held against it, so it is tried again when the study goes on
                record = replace(record, state="failed", message=str(error)[:500])
        record = replace(record, ended=time.time(), spent=bench.spent_since(before))
        with contextlib.suppress(UpdateFinishedTrialError):  # another took it up, and came to the same
            trial.set_user_attr(RESULT, record.to_json())
            if record.state == "complete":
                values = [record.values[objective.name] for objective in bench.objectives]
                self.study.tell(trial, values, skip_if_finished=True)
            else:
                # Optuna forgets failed trials and would propose them again; pruned ones it counts among the worst.
                self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        return record

    def _tried(self, record: TrialRecord, arm: ArmConfig, finished: Sequence[TrialRecord]) -> TrialRecord:
        bench, before = self.bench, self.bench.ledger.total
        program = bench.program(arm)
        record = replace(record, prompt_spent=bench.spent_since(before))
        dev, better = self._on_dev(record, program, [one for one in finished if one.state == "complete"])
        if better is not None:
            message = f"worse than trial {better.number} on {len(dev.rows)} questions"
            return replace(record, state="pruned", dev=dev, message=message)
        values = {objective.name: objective.value(dev) for objective in bench.objectives}
        if any(value != value for value in values.values()):
            return replace(record, state="failed", dev=dev, message="no question could be scored")
        return replace(record, state="complete", dev=dev, values=values)

    def _on_dev(
        self, record: TrialRecord, program: RAG, rivals: Sequence[TrialRecord]
    ) -> tuple[Evaluation, TrialRecord | None]:
        """Results on dev, and the trial that showed this one to be worse before it had met all questions."""
        bench, questions = self.bench, self.bench.splits.dev
        failures = Failures(record.name, len(questions), bench.spec.max_failures)
        prunes = bench.spec.pruner == "paired" and bool(rivals)
        done = Evaluation(record.name, (), 0.0)
        ticking = self.within_minutes(time.time())
        for block in _blocks(questions) if prunes else [questions]:
            place = (record.number * 7) % len(block)  # workers that begin together do not wait for the same answers
            turned = [*block[place:], *block[:place]]
            met = bench.evaluated(program, turned, record.name, failures=failures, progress=ticking)
            by_id = {row.id: row for row in met.rows}
            rows: tuple[Row, ...] = (*done.rows, *(by_id[question.id] for question in block))
            done = Evaluation(record.name, rows, done.seconds + met.seconds)
            better = worse_than(done, rivals, bench.objectives) if prunes and len(rows) < len(questions) else None
            if better is not None:
                return done, better
        return done, None

    def within_minutes(self, began: float) -> Callable[[str, int, int], None]:
        """Tells how work proceeds, as long as the budget of minutes lasts; the other budgets are looked at by the LM.

        Args:
            began: When this work began, Unix time.

        Raises:
            BudgetError: By what is returned, when it does not last.
        """
        limit, say = self.bench.spec.budget.minutes, self.bench.progress
        busy = 0.0 if limit is None else minutes_busy(self.finished())

        def told(what: str, done: int, total: int) -> None:
            if limit is not None and busy + (time.time() - began) / 60 >= limit:
                raise BudgetError(
                    f"the study's budget of {limit:g} minutes is spent; what was answered so far is kept. Raise "
                    "budget.minutes in its file, or resume it with --budget-minutes"
                )
            if say is not None:
                say(what, done, total)

        return told

    def _see_failures(self) -> None:
        """End a study most of whose trials fail.

        Raises:
            QuerywrightError: They do.
        """
        ended = self.finished()
        failed = [one for one in ended if one.state == "failed"]
        if len(failed) >= MOST_FAILED and 2 * len(failed) > len(ended):
            raise QuerywrightError(f"{len(failed)} of {len(ended)} trials failed; the last: {failed[-1].message}")


def _blocks(questions: Sequence[Question]) -> list[Sequence[Question]]:
    size = max(SMALLEST_BLOCK, -(-len(questions) // BLOCKS))
    return [questions[start : start + size] for start in range(0, len(questions), size)]
