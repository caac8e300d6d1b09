"""A worker: takes trials, new or of a worker that died, tries their arms on dev, and keeps what came of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from querywright.errors import BudgetError, DataError, InputError, QuerywrightError
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.failures import Failures, TooManyFailuresError
from querywright.optimize.hints import ceiling, hints, repeats
from querywright.optimize.live import Control, live_arm
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.sampling import make_sampler
from querywright.optimize.study.select import surviving, worse_than
from querywright.optimize.study.status import minutes_busy
from querywright.optimize.study.storage import StudyStorage
from querywright.optimize.study.types import ARM, ASKED, MET, RESULT, STOPPED, ArmConfig, TrialRecord
from querywright.programs.hyperparameters import Value

SPEC = "spec"
"""The attribute of a study that holds what it was begun with."""

BLOCKS = 5
"""Times that a trial is looked at before it has met all questions."""

SMALLEST_BLOCK = 8
"""Questions between two looks at least."""

LOOKS = 100
"""Times within a trial that it is told how it stands, and looked at what a person asks, at most."""

LOOK_SECONDS = 1.0
"""Between two of them at least."""

IDLE_SECONDS = 0.2
"""Between two looks of a worker that has nothing to do."""

MOST_FAILED = 5
"""Failed trials, more than the others, that end a study: something is wrong with all of them."""


@dataclass(slots=True)
class Worker:
    """Runs the trials of a study, beside any number of others.

    A trial that is run twice, because its first worker was killed, finds all that was answered, and the same.
    ``looked`` is called after each trial, now and then within it, and while there is nothing to do. People stop and add
    trials by ``control``; one that was added comes on top of the study's own.
    """

    bench: Bench
    storage: StudyStorage
    name: str = "1"
    looked: Callable[[], None] = lambda: None
    study: Any = field(init=False)
    control: Control[tuple[ArmConfig, dict[str, Value]]] = field(init=False)
    _ended: dict[int, TrialRecord] = field(default_factory=dict)
    _added: int = 0
    _last: float = 0.0

    def __post_init__(self) -> None:
        """Open Optuna's study."""
        spec, self.control = self.bench.spec, Control(None, self.clone)
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
            if taken is None and len(ended) >= self._planned:
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

    @property
    def _planned(self) -> int:
        return self.bench.spec.trials + self._added

    def _tell(self, what: str, done: int) -> None:
        """So many questions of a trial are done, beside those of all trials that ended."""
        if self.bench.progress is not None:
            total = len(self.bench.splits.dev)
            self.bench.progress(what, len(self._ended) * total + done, self._planned * total)

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

    def clone(self, text: str) -> tuple[ArmConfig, dict[str, Value]]:
        """What ``trial N:NAME=VALUE,...`` stands for: the arm of that trial with these values, and its parameters.

        Raises:
            InputError: There is no such trial yet, or what ``Space.clone`` raises.
        """
        name, colon, values = text.partition(":")
        arms = {one.name: one.arm for one in self.records()}
        if not colon or name not in arms:
            raise InputError("give the values in which it differs from a trial, as trial N:NAME=VALUE,...")
        given = (one.partition("=") for one in values.split(",") if one.strip())
        return self.bench.space.clone(arms[name], {key.strip(): value.strip() for key, _, value in given})

    def _asked(self, trials: Sequence[Any]) -> tuple[set[str], dict[str, tuple[ArmConfig, dict[str, Value]]]]:
        """The names of trials that a person stops, and the trials that one adds which are not there yet."""
        known = [f"trial {one.number}" for one in trials]
        known += [one.user_attrs[ASKED] for one in trials if ASKED in one.user_attrs]
        return self.control.read(dict.fromkeys(known), known[0] if known else "")

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

        bench, number, finished, asked = self.bench, trial.number, self.finished(), trial.user_attrs.get(ASKED, "")
        place = sum(ASKED not in one.user_attrs for one in self.study.get_trials(deepcopy=False)[:number])
        began, before, judged = time.time(), bench.total, bench.judged
        late = not asked and bench.space.is_late(place)
        survivors: list[str] = []
        if late:
            early = [one for one in finished if not one.late]
            survivors = surviving(early, bench.objectives[0], bench.spec.survivors) or list(bench.space.chosen)
        added = ArmConfig.from_json(trial.user_attrs[ARM]) if asked else None
        arm = bench.space.suggest(trial, place, survivors, added)
        trial.set_user_attr(ARM, arm.to_json())
        record = TrialRecord(number, "running", arm, late=late, began=began, worker=self.name, asked=asked)
        # What a person stopped is tried again where one asks for it, and where nobody does it stays as it is.
        known = [one for one in finished if one.arm == arm and not (asked and one.stopped)]
        same = min(known, key=lambda one: one.stopped, default=None)
        if same is not None:
            first = same.number if same.same_as is None else same.same_as
            taken = {name: getattr(same, name) for name in ("state", "values", "dev", "message", "stopped")}
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
            if record.stopped:
                trial.set_user_attr(STOPPED, True)
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
            for text, (arm, params) in self._asked(self.study.get_trials(deepcopy=False))[1].items():
                self.study.enqueue_trial(params, {ASKED: text, ARM: arm.to_json()})
            trials = self.study.get_trials(deepcopy=False)
            under_way = [one for one in trials if one.state == optuna.trial.TrialState.RUNNING]
            waits = any(one.state == optuna.trial.TrialState.WAITING for one in trials)
            for one in under_way:
                lock = self.storage.take(f"trial-{one.number}")
                if lock is not None:
                    if not self.storage.trials.get_trial(one._trial_id).state.is_finished():
                        return optuna.trial.Trial(self.study, one._trial_id), lock
                    lock.close()  # its worker ended it since
            own = [one for one in trials if ASKED not in one.user_attrs]
            self._added, number = len(trials) - len(own), len(own)
            unfinished = any(not one.state.is_finished() for place, one in enumerate(own) if not space.is_late(place))
            if not waits and (number >= most or (space.is_late(number) and unfinished)):
                return None  # who survives is known when the first phase has ended
            trial = self.study.ask()  # the first of those that wait, or a new one
            lock = self.storage.take(f"trial-{trial.number}")
            assert lock is not None
            return trial, lock

    def _met(self, trial: Any, record: TrialRecord, rows: Sequence[Row], done: int) -> None:
        """So many questions of a trial are done, with these results: tell it, and see whether a person stops it.

        Raises:
            TrialPruned: One does.
        """
        from optuna.exceptions import TrialPruned, UpdateFinishedTrialError

        total, now = len(self.bench.splits.dev), time.monotonic()
        self._tell(f"{record.name} of {self._planned}, {record.arm.technique}", done)
        if done % max(1, total // LOOKS) or now - self._last < LOOK_SECONDS:
            return
        self._last = now
        if done < total and record.name in self._asked(self.study.get_trials(deepcopy=False))[0]:
            raise TrialPruned(f"stopped by a person after {done} of {total} questions")
        scores = self.bench.objectives[0].scores(Evaluation(record.name, tuple(rows), 0.0))
        with contextlib.suppress(UpdateFinishedTrialError):  # another took it up
            trial.set_user_attr(MET, live_arm(record.name, "running", [*scores.values()], total, done))
        self.looked()

    def _tried(self, record: TrialRecord, arm: ArmConfig, finished: Sequence[TrialRecord], trial: Any) -> TrialRecord:
        from optuna.exceptions import TrialPruned

        bench, before = self.bench, self.bench.total
        program = bench.program(arm)
        record = replace(record, prompt_spent=bench.spent_since(before))
        rivals = [one for one in finished if one.state == "complete"] if bench.spec.pruner == "paired" else []
        questions, name = bench.splits.dev, record.name
        failures = Failures(name, len(questions), bench.spec.max_failures)
        looked_at = rivals or bench.spec.budget.minutes is not None
        size = max(SMALLEST_BLOCK, -(-len(questions) // BLOCKS)) if looked_at else max(1, len(questions))
        dev, rows = Evaluation(name, (), 0.0), list[Row]()
        for start in range(0, len(questions), size):
            self._check_minutes([*finished, replace(record, ended=time.time())])
            block = questions[start : start + size]

            def told(_: str, done: int, __: int, at: int = start) -> None:
                self._met(trial, record, rows, at + done)

            try:
                met = bench.evaluated(program, block, name, failures=failures, progress=told, met=rows.append)
            except TrialPruned as stop:
                dev = Evaluation(name, tuple(rows), time.time() - (record.began or 0.0))
                return replace(record, state="pruned", stopped=True, dev=dev, message=str(stop))
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
