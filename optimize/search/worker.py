"""A worker: takes new trials or a dead worker's trials, evaluates their arms on dev, and stores the results."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from querywright.errors import DataError, QuerywrightError
from querywright.optimize.contexts import quiet_optuna
from querywright.optimize.evaluate import Evaluation, Row, live_arm, stands
from querywright.optimize.failures import Failures, TooManyFailuresError
from querywright.optimize.hints import ceiling, hints, repeats
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.search.core import Search, optuna_study
from querywright.optimize.search.selection import worse_than
from querywright.optimize.search.spec import PLAIN
from querywright.optimize.search.trials import ARM, MET, RESULT, ArmConfig, TrialRecord, standing

BLOCKS = 5
"""Maximum number of blocks of questions; a trial may be pruned after each block."""

SMALLEST_BLOCK = 8
"""Minimum number of questions in a block."""

LOOKS = 100
"""Maximum number of score reports from a running trial."""

LOOK_SECONDS = 1.0
"""Minimum time between two score reports."""

LOCK_SECONDS = 0.1
"""Time between two attempts to acquire a lock."""

IDLE_SECONDS = 0.2
"""Time between two checks by a worker that is waiting for the others."""

MOST_FAILED = 5
"""Minimum number of failed trials before a study stops; more than half of all trials must also have failed."""


class Locks:
    """The locks for a search with a single worker, which can always acquire them."""

    def take(self, name: str) -> contextlib.ExitStack | None:
        """Return the lock with the given name, which its ``with`` block releases; None if another worker has it."""
        return contextlib.ExitStack()

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Wait for the lock with the given name, and hold it in the ``with`` block."""
        while (held := self.take(name)) is None:
            time.sleep(LOCK_SECONDS)
        with held:
            yield


@dataclass(slots=True)
class Worker:
    """Runs the trials of a search, alone or with other workers that share Optuna's storage and the locks.

    If a worker is killed, another worker reruns its trial with the cached answers and gets the same result.

    Args:
        search: The open search.
        study: Optuna's study for the search.
        locks: Locks that all workers share.
        name: The name of the worker.
        check: Called before a trial is taken; it may raise to end this run.
        looked: Called after each trial, periodically during a trial, and while the worker waits.
    """

    search: Search
    study: Any
    locks: Locks = field(default_factory=Locks)
    name: str = "1"
    check: Callable[[], None] = lambda: None
    looked: Callable[[], None] = lambda: None
    _ended: dict[int, TrialRecord] = field(default_factory=dict)
    _last: float = 0.0

    def work(self) -> None:
        """Run trials until all trials of all workers have ended.

        Raises:
            BudgetError: The budget is spent.
            TooManyFailuresError: The baseline failed.
            QuerywrightError: Most trials failed, another run added trials to the study, or the LM cannot be reached.
        """
        spec, splits = self.search.spec, self.search.splits
        aims = [metric for one in self.search.objectives for metric in one.metrics]
        asked = min(len(splits.dev), len(splits.test))
        for line in () if self.finished() else (*repeats(splits), *hints(splits.dev, aims, asked=asked)):
            self.search.tell(line)
        while True:
            ended = self.finished()
            taken = self._take()
            if taken is None and len(ended) >= spec.trials:
                return
            if taken is None:
                self._tell("waiting for other workers", 0)
                time.sleep(IDLE_SECONDS)
            else:
                with taken[1]:
                    self.run(taken[0])
                ended = self.finished()
                failed = [one for one in ended if one.state == "failed"]
                if len(failed) >= MOST_FAILED and 2 * len(failed) > len(ended):
                    last = failed[-1].message
                    raise QuerywrightError(f"{len(failed)} of {len(ended)} trials failed; last error: {last}")
            self.looked()

    def _tell(self, what: str, done: int) -> None:
        """Report progress: all questions in finished trials, and ``done`` questions in the current trial."""
        if self.search.progress is not None:
            total = len(self.search.splits.dev)
            self.search.progress(what, len(self._ended) * total + done, self.search.spec.trials * total)

    def finished(self) -> list[TrialRecord]:
        """Return the records of all trials that have ended."""
        for one in self.study.get_trials(deepcopy=False):
            if one.number not in self._ended and one.state.is_finished():
                self._ended[one.number] = TrialRecord.of(one)
        return [self._ended[number] for number in sorted(self._ended)]

    def records(self) -> list[TrialRecord]:
        """Return the records of all trials whose arm has been chosen, including running trials."""
        under_way = [one for one in self.study.get_trials(deepcopy=False) if not one.state.is_finished()]
        found = [*self.finished(), *(TrialRecord.of(one) for one in under_way if ARM in one.user_attrs)]
        return sorted(found, key=lambda one: one.number)

    def run(self, trial: Any) -> TrialRecord:
        """Evaluate the arm of a trial, which must be running and locked, and store the result."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        search, number, finished = self.search, trial.number, self.finished()
        began, before, judged = time.time(), search.total, search.judged
        arm = search.space.suggest(trial, number)
        trial.set_user_attr(ARM, arm.to_json())
        record = TrialRecord(number, "running", arm, began=began, worker=self.name)
        same = next((one for one in finished if one.arm == arm), None)
        if same is not None:
            first = same.number if same.same_as is None else same.same_as
            taken = {name: getattr(same, name) for name in ("state", "values", "dev", "message")}
            record = replace(record, same_as=first, **taken)
        else:
            self.looked()
            try:
                record = self._tried(record, arm, finished, trial)
            except (TooManyFailuresError, OptimizerError) as error:
                if self._is_baseline(arm):
                    raise  # a resumed study reruns the baseline
                record = replace(record, state="failed", message=str(error)[:500])
        record = replace(record, ended=time.time(), spent=search.spent_since(before), judged=search.judged - judged)
        complete = record.state == "complete"
        values = [record.values[objective.name] for objective in search.objectives] if complete else None
        # A sampler ignores failed trials and would propose them again; it counts pruned trials among the worst.
        state = TrialState.COMPLETE if complete else TrialState.PRUNED
        with contextlib.suppress(UpdateFinishedTrialError):  # another worker ended the trial, with the same result
            trial.set_user_attr(RESULT, record.to_text())
            self.study.tell(trial, values, state=state, skip_if_finished=True)
        if complete and not finished and self._is_baseline(arm) and (line := ceiling(record.dev, search.objectives[0])):
            search.tell(line)
        return record

    def _is_baseline(self, arm: ArmConfig) -> bool:
        """Return whether this arm is the baseline."""
        return arm == self.search.space.untuned(PLAIN)

    def _take(self) -> tuple[Any, contextlib.ExitStack] | None:
        """Return a dead worker's trial or else a new trial, with its lock; None if other workers run the rest."""
        import optuna

        with self.locks.hold("ask"):
            self.check()
            trials = self.study.get_trials(deepcopy=False)
            under_way = [one for one in trials if one.state == optuna.trial.TrialState.RUNNING]
            for one in under_way:
                lock = self.locks.take(f"trial-{one.number}")
                if lock is not None:
                    if not self.study._storage.get_trial(one._trial_id).state.is_finished():
                        return optuna.trial.Trial(self.study, one._trial_id), lock
                    lock.close()  # its worker has ended the trial in the meantime
            if len(trials) >= self.search.spec.trials:
                return None
            trial = self.study.ask()
            lock = self.locks.take(f"trial-{trial.number}")
            assert lock is not None
            return trial, lock

    def _met(self, trial: Any, record: TrialRecord, rows: Sequence[Row]) -> None:
        """Report a running trial's score."""
        from optuna.exceptions import UpdateFinishedTrialError

        done, total, now = len(rows), len(self.search.splits.dev), time.monotonic()
        which = f" of {self.search.spec.trials - 1}" if record.number else " (baseline)"
        self._tell(f"{record.name}{which}, {record.arm.technique}", done)
        if done % max(1, total // LOOKS) or now - self._last < LOOK_SECONDS:
            return
        self._last = now
        scores = self.search.objectives[0].scores(Evaluation(record.name, tuple(rows), 0.0))
        with contextlib.suppress(UpdateFinishedTrialError):  # another worker ended the trial
            trial.set_user_attr(MET, live_arm(record.name, "running", [*scores.values()], total, done))
        self.looked()

    def _tried(self, record: TrialRecord, arm: ArmConfig, finished: Sequence[TrialRecord], trial: Any) -> TrialRecord:
        search, before = self.search, self.search.total
        program = search.program(arm)
        record = replace(record, prompt_spent=search.spent_since(before))
        rivals = [one for one in finished if one.state == "complete"] if search.spec.pruner == "paired" else []
        questions, name = search.splits.dev, record.name
        failures = Failures(name, len(questions), search.spec.max_failures)
        size = max(SMALLEST_BLOCK, -(-len(questions) // BLOCKS)) if rivals else max(1, len(questions))
        dev, rows = Evaluation(name, (), 0.0), list[Row]()

        def told(row: Row) -> None:
            rows.append(row)
            self._met(trial, record, rows)

        for start in range(0, len(questions), size):
            block = questions[start : start + size]
            met = search.evaluate(program, block, name, failures=failures, progress=None, met=told)
            dev = Evaluation(name, (*dev.rows, *met.rows), dev.seconds + met.seconds)
            better = worse_than(dev, rivals, search.objectives) if len(dev.rows) < len(questions) else None
            if better is not None:
                message = f"worse than trial {better.number} on {len(dev.rows)} questions"
                return replace(record, state="pruned", dev=dev, message=message)
        values = {objective.name: objective.value(dev) for objective in search.objectives}
        if any(value != value for value in values.values()):
            why = " because the passages have no labels" if any(row.unjudged for row in dev.rows) else ""
            message = f"no question could be scored{why}"
            if self._is_baseline(arm):
                raise DataError(
                    [f"{name}: {message}, so no program can be compared with the baseline; label the passages"]
                )
            return replace(record, state="failed", dev=dev, message=message)
        return replace(record, state="complete", dev=dev, values=values)


def run_search(search: Search) -> Worker:
    """Run all trials of a search in memory, and return the worker, which has the records and Optuna's study.

    Raises:
        QuerywrightError: Same as for ``Worker.work``.
    """
    worker = Worker(search, optuna_study(search.spec))
    aim, total = search.objectives[0], len(search.splits.dev)

    def shown(one: TrialRecord) -> TrialRecord:
        return replace(one, arm=replace(one.arm, engine=search.engine_shown(one.arm)))

    with quiet_optuna():
        worker.looked = lambda: stands(search.progress, partial(standing, [*map(shown, worker.records())], aim, total))
        worker.work()
    return worker
