"""A worker: takes trials, new or of a worker that died, tries their arms on dev, and keeps what came of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from querywright.errors import BudgetError, DataError, QuerywrightError
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.failures import Failures, TooManyFailuresError
from querywright.optimize.hints import ceiling, hints, repeats
from querywright.optimize.live import live_arm
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.sampling import make_sampler
from querywright.optimize.study.select import surviving, worse_than
from querywright.optimize.study.status import minutes_busy
from querywright.optimize.study.storage import StudyStorage
from querywright.optimize.study.types import ARM, MET, RESULT, ArmConfig, TrialRecord

SPEC = "spec"
"""The attribute of a study that holds what it was begun with."""

BLOCKS = 5
"""Times that a trial is looked at before it has met all questions."""

SMALLEST_BLOCK = 8
"""Questions between two looks at least."""

LOOKS = 100
"""Reports of how a trial stands while it runs, at most."""

LOOK_SECONDS = 1.0
"""Between two reports, at least."""

IDLE_SECONDS = 0.2
"""Between two looks of a worker that has nothing to do."""

MOST_FAILED = 5
"""Failed trials, more than the others, that end a study: something is wrong with all of them."""


@dataclass(slots=True)
class Worker:
    """Runs the trials of a study, beside any number of others.

    A trial that is run twice, because its first worker was killed, finds all that was answered, and the same.
    ``looked`` is called after each trial, now and then within it, and while there is nothing to do.
    """

    bench: Bench
    storage: StudyStorage
    name: str = "1"
    looked: Callable[[], None] = lambda: None
    study: Any = field(init=False)
    _ended: dict[int, TrialRecord] = field(default_factory=dict)
    _last: float = 0.0

    def __post_init__(self) -> None:
        """Open Optuna's study."""
        spec = self.bench.spec
        sampler = make_sampler(spec.sampler.name, spec.sampler.arguments, spec.seed)
        self.study = self.storage.study([objective.direction for objective in self.bench.objectives], sampler)

    def work(self) -> None:
        """Try arms until every trial has ended, this worker's and the others'; after an error it goes on when resumed.

        Raises:
            BudgetError: The budget is spent.
            TooManyFailuresError: No rewriting failed.
            QuerywrightError: Most trials fail, another run gave the study more trials, or the LM is out of reach.
        """
        spec, splits = self.bench.spec, self.bench.splits
        aims = [metric for one in self.bench.objectives for metric in one.metrics]
        asked = min(len(splits.dev), len(splits.test))
        for line in () if self.finished() else (*repeats(splits), *hints(splits.dev, aims, asked=asked)):
            self.bench.tell(line)
        while True:
            ended = self.finished()
            if len(ended) < spec.trials:
                self._check_minutes(ended)
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
        if self.bench.progress is not None:
            total = len(self.bench.splits.dev)
            self.bench.progress(what, len(self._ended) * total + done, self.bench.spec.trials * total)

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

    def see_trials(self) -> None:
        """End this run when another was given more trials: who is late and what is tested follows from their number."""
        mine = self.bench.spec.trials
        trials = self.storage.attribute(SPEC, {}).get("trials", mine)
        if trials != mine:
            raise QuerywrightError(
                f"another run gave this study {trials} trials, and goes on with them; this one knew of {mine}"
            )

    def run(self, trial: Any) -> TrialRecord:
        """Try what a trial proposes, which is running and this worker's, and keep what came of it."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        bench, number, finished = self.bench, trial.number, self.finished()
        began, before, judged = time.time(), bench.total, bench.judged
        late = bench.space.is_late(number)
        survivors: list[str] = []
        if late:
            early = [one for one in finished if not one.late]
            survivors = surviving(early, bench.objectives[0], bench.spec.survivors) or list(bench.space.chosen)
        arm = bench.space.suggest(trial, number, survivors)
        trial.set_user_attr(ARM, arm.to_json())
        record = TrialRecord(number, "running", arm, late=late, began=began, worker=self.name)
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
        record = replace(record, ended=time.time(), spent=bench.spent_since(before), judged=bench.judged - judged)
        complete = record.state == "complete"
        values = [record.values[objective.name] for objective in bench.objectives] if complete else None
        # Optuna forgets failed trials and would propose them again; pruned ones it counts among the worst.
        state = TrialState.COMPLETE if complete else TrialState.PRUNED
        with contextlib.suppress(UpdateFinishedTrialError):  # another took it up, and came to the same
            trial.set_user_attr(RESULT, record.to_text())
            self.study.tell(trial, values, state=state, skip_if_finished=True)
        if complete and not finished and self._is_baseline(arm) and (line := ceiling(record.dev, bench.objectives[0])):
            bench.tell(line)
        return record

    def _is_baseline(self, arm: ArmConfig) -> bool:
        """Whether every arm is held against it."""
        return arm.is_plain and arm.knobs == self.bench.space.as_written(arm.technique).knobs

    def _check_minutes(self, trials: Sequence[TrialRecord]) -> None:
        """End this run when its time is over; a trial that has begun goes on when the study is resumed."""
        most = self.bench.spec.budget.minutes
        if most is not None and minutes_busy(trials) >= most:
            raise BudgetError(
                f"the study's budget of {most:g} minutes is spent; what was answered so far is kept. Raise "
                "budget.minutes in its file, or resume it with --budget-minutes"
            )

    def _take(self) -> tuple[Any, contextlib.ExitStack] | None:
        """A trial and its lock, of a worker that died or a new one; None while others are at work at all there are."""
        import optuna

        space, most = self.bench.space, self.bench.spec.trials
        with self.storage.hold("ask"):
            self.see_trials()
            trials = self.study.get_trials(deepcopy=False)
            under_way = [one for one in trials if one.state == optuna.trial.TrialState.RUNNING]
            for one in under_way:
                lock = self.storage.take(f"trial-{one.number}")
                if lock is not None:
                    if not self.storage.trials.get_trial(one._trial_id).state.is_finished():
                        return optuna.trial.Trial(self.study, one._trial_id), lock
                    lock.close()  # its worker ended it since
            number = len(trials)
            unfinished = any(not one.state.is_finished() for one in trials if not space.is_late(one.number))
            if number >= most or (space.is_late(number) and unfinished):
                return None  # who survives is known when the first phase has ended
            trial = self.study.ask()
            lock = self.storage.take(f"trial-{trial.number}")
            assert lock is not None
            return trial, lock

    def _met(self, trial: Any, record: TrialRecord, rows: Sequence[Row]) -> None:
        """Report how a trial stands with these results."""
        from optuna.exceptions import UpdateFinishedTrialError

        done, total, now = len(rows), len(self.bench.splits.dev), time.monotonic()
        self._tell(f"{record.name} of {self.bench.spec.trials}, {record.arm.technique}", done)
        if done % max(1, total // LOOKS) or now - self._last < LOOK_SECONDS:
            return
        self._last = now
        scores = self.bench.objectives[0].scores(Evaluation(record.name, tuple(rows), 0.0))
        with contextlib.suppress(UpdateFinishedTrialError):  # another took it up
            trial.set_user_attr(MET, live_arm(record.name, "running", [*scores.values()], total, done))
        self.looked()

    def _tried(self, record: TrialRecord, arm: ArmConfig, finished: Sequence[TrialRecord], trial: Any) -> TrialRecord:
        bench, before = self.bench, self.bench.total
        program = bench.program(arm)
        record = replace(record, prompt_spent=bench.spent_since(before))
        rivals = [one for one in finished if one.state == "complete"] if bench.spec.pruner == "paired" else []
        questions, name = bench.splits.dev, record.name
        failures = Failures(name, len(questions), bench.spec.max_failures)
        looked_at = rivals or bench.spec.budget.minutes is not None
        size = max(SMALLEST_BLOCK, -(-len(questions) // BLOCKS)) if looked_at else max(1, len(questions))
        dev, rows = Evaluation(name, (), 0.0), list[Row]()

        def told(row: Row) -> None:
            rows.append(row)
            self._met(trial, record, rows)

        for start in range(0, len(questions), size):
            self._check_minutes([*finished, replace(record, ended=time.time())])
            block = questions[start : start + size]
            met = bench.evaluated(program, block, name, failures=failures, progress=None, met=told)
            dev = Evaluation(name, (*dev.rows, *met.rows), dev.seconds + met.seconds)
            better = worse_than(dev, rivals, bench.objectives) if len(dev.rows) < len(questions) else None
            if better is not None:
                message = f"worse than trial {better.number} on {len(dev.rows)} questions"
                return replace(record, state="pruned", dev=dev, message=message)
        values = {objective.name: objective.value(dev) for objective in bench.objectives}
        if any(value != value for value in values.values()):
            why = " because nobody labelled what it found" if any(row.unjudged for row in dev.rows) else ""
            message = f"no question could be scored{why}"
            if self._is_baseline(arm):
                raise DataError([f"{name}: {message}, so nothing can be held against it; label what it finds"])
            return replace(record, state="failed", dev=dev, message=message)
        return replace(record, state="complete", dev=dev, values=values)
