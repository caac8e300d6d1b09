"""Records of passages made by processes of Ray, in place of threads of this one; needs the extra ``querywright[ray]``.

The processes are on this machine, unless ``RAY_ADDRESS`` names a cluster. Each makes its LMs by name once. A record
comes back as soon as it is done, so that the caller can keep it; the passages of a process that died are made again by
another. What travels is JSON text, and of a failure its kind and message. Ray's dashboard and usage reports are off.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from querywright import errors
from querywright.data.types import Passage
from querywright.errors import InputError, OutageError, QuerywrightError
from querywright.models.usage import Cost, Ledger, metered
from querywright.optimize.failures import FailedElsewhereError, failure_kind
from querywright.retrieval.question_records import PassageRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RecordOf = Callable[[Passage], PassageRecord]

ADDRESS = "RAY_ADDRESS"
MOST_BLOCKS = 10_000
"""Tasks that Ray is given at most; the passages of one are made one after another."""
REACHED_SECONDS = 10.0
"""Seconds in which a cluster that is named must answer."""
TRIES = 3
"""Times that a passage is made again after its process died; once more, and the run is given up."""


def records_by_ray(
    make: Callable[[], RecordOf],
    passages: Sequence[Passage],
    *,
    workers: int,
    threads: int = 4,
    ledger: Ledger | None = None,
) -> Generator[tuple[int, PassageRecord | Exception], None, None]:
    """Make the record of each passage in processes of Ray.

    Close the generator (``contextlib.closing``), so that Ray ends when what is done with a record fails.

    Args:
        make: Called once in each process; gives what makes a record. It is sent there as code, so it holds names of
            LMs and of variables with keys, and neither LMs nor keys.
        passages: What records are made of.
        workers: Processes, 1 or more.
        threads: Passages under way at a time in each of them, 1 or more. Default 4.
        ledger: Takes what the processes spent. Default none; meters that are open here take it anyway. What a process
            that died spent on passages that it had not done is known to neither.

    Yields:
        Position and record, or failure, of each passage as it is done.

    Raises:
        InputError: Ray is not installed, cannot be reached, or a number is out of range.
        OutageError: Processes died again and again.
        QuerywrightError: What stops the whole run, such as an outage or the limit of calls, as a process met it.
    """
    if workers < 1 or threads < 1:
        raise InputError(f"workers and threads must be 1 or more, but got {workers} and {threads}")
    if not passages:
        return
    book = ledger or Ledger()
    with _ray(workers) as ray:
        strategy = ray.data.ActorPoolStrategy(
            size=workers,
            max_tasks_in_flight_per_actor=2 * threads,
            max_concurrent_calls_per_actor=threads,
            enable_true_multi_threading=True,
        )
        rows = [{"position": n, "passage": json.dumps(asdict(one))} for n, one in enumerate(passages)]
        given = ray.data.from_items(rows, override_num_blocks=min(len(rows), MOST_BLOCKS))
        with warnings.catch_warnings():
            # Nothing else bounds the retries, and Ray 2.64, which has it no more, is not allowed.
            warnings.simplefilter("ignore", DeprecationWarning)
            done = given.map_batches(
                _Worker,
                fn_constructor_args=(make,),
                batch_size=None,
                batch_format="numpy",
                compute=strategy,
                ray_remote_args_fn=_retries,
            )
        try:
            for row in done.iter_rows():
                outcome = json.loads(row["outcome"])
                book.add(Cost.from_json(outcome["cost"]))
                yield int(row["position"]), _result(outcome)
        except ray.exceptions.RayError as error:
            raise OutageError(
                f"processes of Ray ended before their passages were done ({type(error).__name__}: "
                f"{str(error).strip().splitlines()[0]}); what was done is kept, the same command goes on from there"
            ) from error


def _retries() -> dict[str, int]:
    return {"max_restarts": -1, "max_task_retries": TRIES}


class _Worker:
    """What stands in a process of Ray. It is called from several threads."""

    def __init__(self, make: Callable[[], RecordOf]) -> None:
        try:
            self._record_of = make()
        except Exception as error:  # noqa: BLE001 - told with a passage; Ray would tell that the process ended
            self._record_of = partial(_refuse, error)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The outcomes of some passages, as JSON texts beside their positions."""
        return {"position": batch["position"], "outcome": [self._outcome(text) for text in batch["passage"]]}

    def _outcome(self, text: str) -> str:
        with metered() as meter:
            try:
                outcome: dict[str, Any] = {"record": self._record_of(Passage(**json.loads(text))).to_json()}
            except Exception as error:  # noqa: BLE001 - the caller decides, as with threads
                outcome = {"kind": failure_kind(error), "error": type(error).__name__, "message": str(error)}
        return json.dumps({**outcome, "cost": asdict(meter.total)})


def _refuse(error: Exception, _: Passage) -> PassageRecord:
    raise error


def _result(outcome: Mapping[str, Any]) -> PassageRecord | Exception:
    if "record" in outcome:
        return PassageRecord.from_json(outcome["record"])
    if outcome["kind"] is not None:
        return FailedElsewhereError(outcome["kind"], outcome["message"])
    stops = {one.__name__: one for one in (errors.OutageError, errors.BudgetError, errors.ModelError, InputError)}
    return stops.get(outcome["error"], QuerywrightError)(outcome["message"])


def _knock(address: str) -> None:
    """Looks whether anything listens at an address ``HOST:PORT`` or ``ray://HOST:PORT``; Ray itself waits for minutes.

    Raises:
        OSError: Nothing does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACHED_SECONDS).close()
        except OSError as error:
            raise OSError(f"nothing answers at {address} ({error})") from error


@contextmanager
def _ray(workers: int) -> Iterator[Any]:
    """Ray, ready: as the caller has started it, or started here and ended with this block."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what goes wrong comes as an exception
    try:
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.data")
    except ImportError as error:
        raise InputError(
            "the engine ray needs the package ray; install it with pip install 'querywright[ray]', or use threads"
        ) from error
    started = not ray.is_initialized()
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if started:
        quiet: dict[str, Any] = {"configure_logging": False, "log_to_driver": False}
        local: dict[str, Any] = {"address": "local", "num_cpus": workers, "include_dashboard": False}
        address = os.environ.get(ADDRESS, "")
        try:
            _knock(address)
            ray.init(**quiet, **({} if address else local))
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise InputError(
                f"Ray could not be started or reached: {str(error).splitlines()[0]}; see {ADDRESS}, or use threads"
            ) from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()
