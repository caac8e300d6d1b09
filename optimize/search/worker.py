"""A worker: takes trials, new or of a worker that died, tries their arms on dev, and keeps what came of them."""

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
"""Times that a trial is looked at before it has met all questions."""

SMALLEST_BLOCK = 8
"""Questions between two looks at least."""

LOOKS = 100
"""Reports of how a trial stands while it runs, at most."""

LOOK_SECONDS = 1.0
"""Between two reports, at least."""

LOCK_SECONDS = 0.1
"""Between two looks at whether a lock is free."""

IDLE_SECONDS = 0.2
"""Between two looks of a worker that has nothing to do."""

MOST_FAILED = 5
"""Failed trials, more than the others, that end a study: something is wrong with all of them."""


class Locks:
    """The locks of a search that one worker runs, which nobody else takes."""

    def take(self, name: str) -> contextlib.ExitStack | None:
        """Take the lock of a name, which its ``with`` block releases; None if another worker has it."""
        return contextlib.ExitStack()

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold the lock of a name, after waiting for it."""
        while (held := self.take(name)) is None:
            time.sleep(LOCK_SECONDS)
        with held:
            yield


@dataclass(slots=True)
class Worker:
    """Runs the trials of a search, alone or next to others that share Optuna's storage and the locks.

    A trial that is run twice, because its first worker was killed, finds all that was answered, and the same.

    Args:
        search: What is searched.
        study: Optuna's study of the search.
        locks: Locks that all its workers share.
        name: Of the worker.
        check: Called before a trial is taken; it may end this run.
        looked: Called after each trial, now and then within it, and while there is nothing to do.
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
        """Try arms until every trial has ended, this worker's and the others'; after an error it goes on when resumed.

        Raises:
            BudgetError: The budget is spent.
            TooManyFailuresError: The baseline failed.
            QuerywrightError: Most trials fail, another run gave the study more trials, or the LM is out of reach.
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
                self._tell("other workers are at work", 0)
                time.sleep(IDLE_SECONDS)
            else:
                with taken[1]:
                    self.run(taken[0])
                ended = self.finished()
                failed = [one for one in ended if one.state == "failed"]
                if len(failed) >= MOST_FAILED and 2 * len(failed) > len(ended):
                    last = failed[-1].message
                    raise QuerywrightError(f"{len(failed)} of {len(ended)} trials failed; the last: {last}")
            self.looked()

    def _tell(self, what: str, done: int) -> None:
        """So many questions of a trial are done, beside those of all trials that ended."""
        if self.search.progress is not None:
            total = len(self.search.splits.dev)
            self.search.progress(what, len(self._ended) * total + done, self.search.spec.trials * total)

    def finished(self) -> list[TrialRecord]:
        """The records of all trials that ended, each read once."""
        for one in self.study.get_trials(deepcopy=False):
            if one.number not in self._ended and one.state.is_finished():
                self._ended[one.number] = TrialRecord.of(one)
        return [self._ended[number] for number in sorted(self._ended)]

    def records(self) -> list[TrialRecord]:
        """The records of all trials whose arm is settled, those under way among them."""
        under_way = [one for one in self.study.get_trials(deepcopy=False) if not one.state.is_finished()]
        found = [*self.finished(), *(TrialRecord.of(one) for one in under_way if ARM in one.user_attrs)]
        return sorted(found, key=lambda one: one.number)

    def run(self, trial: Any) -> TrialRecord:
        """Try what a trial proposes, which is running and this worker's, and keep what came of it."""
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
                    raise  # so it is tried again when the study goes on
                record = replace(record, state="failed", message=str(error)[:500])
        record = replace(record, ended=time.time(), spent=search.spent_since(before), judged=search.judged - judged)
        complete = record.state == "complete"
        values = [record.values[objective.name] for objective in search.objectives] if complete else None
        # Optuna forgets failed trials and would propose them again; pruned ones it counts among the worst.
        state = TrialState.COMPLETE if complete else TrialState.PRUNED
        with contextlib.suppress(UpdateFinishedTrialError):  # another took it up, and came to the same
            trial.set_user_attr(RESULT, record.to_text())
            self.study.tell(trial, values, state=state, skip_if_finished=True)
        if complete and not finished and self._is_baseline(arm) and (line := ceiling(record.dev, search.objectives[0])):
            search.tell(line)
        return record

    def _is_baseline(self, arm: ArmConfig) -> bool:
        """Return whether this arm is the baseline."""
        return arm == self.search.space.untuned(PLAIN)

    def _take(self) -> tuple[Any, contextlib.ExitStack] | None:
        """A trial and its lock, of a worker that died or a new one; None while others are at work at all there are."""
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
                    lock.close()  # its worker ended it since
            if len(trials) >= self.search.spec.trials:
                return None
            trial = self.study.ask()
            lock = self.locks.take(f"trial-{trial.number}")
            assert lock is not None
            return trial, lock

    def _met(self, trial: Any, record: TrialRecord, rows: Sequence[Row]) -> None:
        """Report how a trial stands with these results."""
        from optuna.exceptions import UpdateFinishedTrialError

        done, total, now = len(rows), len(self.search.splits.dev), time.monotonic()
        self._tell(f"{record.name} of {self.search.spec.trials}, {record.arm.technique}", done)
        if done % max(1, total // LOOKS) or now - self._last < LOOK_SECONDS:
            return
        self._last = now
        scores = self.search.objectives[0].scores(Evaluation(record.name, tuple(rows), 0.0))
        with contextlib.suppress(UpdateFinishedTrialError):  # another took it up
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
            why = " because nobody labelled what it found" if any(row.unjudged for row in dev.rows) else ""
            message = f"no question could be scored{why}"
            if self._is_baseline(arm):
                raise DataError([f"{name}: {message}, so nothing can be compared with it; label its passages"])
            return replace(record, state="failed", dev=dev, message=message)
        return replace(record, state="complete", dev=dev, values=values)


def run_search(search: Search) -> Worker:
    """Run all trials of a search in memory; return the worker that ran them, with its records and Optuna's study.

    Raises:
        QuerywrightError: As ``Worker.work``.
    """
    worker = Worker(search, optuna_study(search.spec))
    aim, total = search.objectives[0], len(search.splits.dev)
    with quiet_optuna():
        worker.looked = lambda: stands(search.progress, partial(standing, worker.records(), aim, total))
        worker.work()
    return worker
