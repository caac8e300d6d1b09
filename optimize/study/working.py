"""Workers: each takes a trial, new or of a worker that has died, until all have ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from querywright.errors import QuerywrightError
from querywright.models.memo import remembering
from querywright.models.usage import Cost
from querywright.optimize.study.account import Account
from querywright.optimize.study.claims import ClaimLostError
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.select import surviving
from querywright.optimize.study.settling import (
    TAKE_SECONDS,
    see_trials,
)
from querywright.optimize.study.space import seeded_sampler
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.storage import StudyStorage, with_plain_failures
from querywright.optimize.study.trial import Progress, Worker

IDLE_SECONDS = 0.2
"""Between two looks of a worker that has nothing to do."""

TICK_SECONDS = 5.0
"""Between two entries of working time in the account."""

MOST_FAILED = 5
"""Failed trials, more than the others, that end a study: something is wrong with all of them."""


def work(bench: Bench, store: StudyStorage, name: str, progress: Progress | None = None) -> None:
    """Try arms until every trial has ended, this worker's and the others'.

    Args:
        bench: What is open.
        store: Where trials are kept.
        name: How this worker is called.
        progress: Called as work proceeds.
    """
    spec = bench.spec
    study = store.study(
        [objective.direction for objective in bench.objectives],
        seeded_sampler(spec.sampler, spec.seed, bench.space),
    )
    account = store.account(spec.budget)
    worker = Worker(bench, store, study, name, progress)
    with remembering(bench.memo), ticking(account):
        while True:
            taken = _take(worker, store, spec)
            if taken is None:
                if len(worker.finished()) >= spec.trials:
                    return
                time.sleep(IDLE_SECONDS)
                continue
            trial, claim, survivors = taken
            with claim, contextlib.suppress(ClaimLostError):  # whoever takes it up next finds all that was answered
                if spec.budget.minutes is not None:  # the others are looked at before every call
                    account.check()
                with settling(bench, account):
                    worker.run(trial, survivors, claim.check)
            _see_failures(worker)


@contextlib.contextmanager
def settling(bench: Bench, account: Account) -> Iterator[None]:
    """Enter the calls that are saved in the ``with`` block, however it ends; those made enter themselves."""
    before = bench.ledger.total
    try:
        yield
    finally:
        spent = bench.spent_since(before)
        account.settle(Cost(saved=spent.saved, saved_tokens=spent.saved_tokens))


def _take(worker: Worker, store: StudyStorage, spec: StudySpec) -> tuple[Any, Any, list[str]] | None:
    """A trial to work at, whose worker has died or a new one; None while others are at work at all there are."""
    import optuna

    study, space = worker.study, worker.bench.space
    with store.claims.wait("take", TAKE_SECONDS):
        see_trials(store, spec)
        trials = study.get_trials(deepcopy=False)
        for one in trials:
            claim = None if one.state.is_finished() else store.claims.take(f"trial-{one.number}")
            if claim is None:
                continue
            if not study._storage.get_trial(one._trial_id).state.is_finished():
                return optuna.trial.Trial(study, one._trial_id), claim, _survivors(worker, trials, one.number)
            claim.release()  # its worker ended it since
        number = len(trials)
        if number >= spec.trials:
            return None
        early = [one for one in trials if not space.is_late(one.number)]
        if space.is_late(number) and any(not one.state.is_finished() for one in early):
            return None  # who survives is known when the first phase has ended
        survivors = _survivors(worker, trials, number)
        trial = study.ask()
        claim = store.claims.take(f"trial-{trial.number}")
        if claim is None:
            raise QuerywrightError(f"trial {trial.number} is new, but another process holds it; run the study again")
        return trial, claim, survivors


def _survivors(worker: Worker, trials: Sequence[Any], number: int) -> list[str]:
    """The techniques that a trial may have; none where it is no late one, which has them all."""
    bench = worker.bench
    if not bench.space.is_late(number):
        return []
    early = [one for one in worker.finished(trials) if not bench.space.is_late(one.number)]
    return surviving(early, bench.objectives, bench.spec.survivors) or list(bench.space.chosen)


def _see_failures(worker: Worker) -> None:
    """End a study most of whose trials fail.

    Raises:
        QuerywrightError: They do.
    """
    ended = worker.finished()
    failed = [one for one in ended if one.state == "failed"]
    if len(failed) >= MOST_FAILED and 2 * len(failed) > len(ended):
        raise QuerywrightError(f"{len(failed)} of {len(ended)} trials failed; the last: {failed[-1].message}")


@contextlib.contextmanager
def repeating(work: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do something now and then, beside the ``with`` block and once after it."""
    work = with_plain_failures(work)
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            with contextlib.suppress(QuerywrightError, OSError):
                work()

    thread = threading.Thread(target=repeat, daemon=True, name="querywright-study")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(QuerywrightError, OSError):
            work()


def ticking(account: Account) -> contextlib.AbstractContextManager[None]:
    """Enter, all through the ``with`` block, that this worker runs."""
    return repeating(account.tick, TICK_SECONDS)
