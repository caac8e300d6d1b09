"""Questions written and judged, and passages embedded, in processes of Ray; needs ``querywright[ray]``.

The processes are on this machine, unless ``RAY_ADDRESS`` names a cluster. Each makes its LMs by name once and opens the
store of the working folder, the one that threads would use; on other machines that is the folder of the same path. What
is sent to a process is names, of LMs, addresses and variables with keys, and passages; what comes back is a record, or
a failure's kind and message, as soon as a passage is done. Ray's dashboard and usage reports are off.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from querywright.data.types import Passage
from querywright.errors import InputError, OutageError
from querywright.models.budget import Budget
from querywright.models.circuit_breaker import Limits
from querywright.models.embedder import Embedder, Progress, resolve_embedder
from querywright.models.keys import api_key
from querywright.models.lm import resolve_lm
from querywright.models.store import Store, open_store
from querywright.models.usage import Cost, Ledger, metered
from querywright.optimize.failures import FailedElsewhereError, failure_kind
from querywright.optimize.question_build import Done, RecordMaker, Runner
from querywright.programs.question_writer import QuestionWriter
from querywright.retrieval.generated_questions import PassageRecord

RecordOf = Callable[[Passage], PassageRecord]

ADDRESS = "RAY_ADDRESS"
TRIES = 3
"""Times that a passage is made again after its process died; once more, and the run is given up."""
GGUF = "gguf:"
EMBEDDED_AT_ONCE = 256
"""Texts in a batch of Ray Data."""
REACHED_SECONDS = 5.0
"""How long a cluster may take to accept a connection."""


@dataclass(frozen=True, slots=True)
class LMName:
    """What a process makes an LM of: name, address, and the environment variable with its key."""

    name: str
    api_base: str | None = None
    key_variable: str | None = None


@dataclass(frozen=True, slots=True)
class RayBuild:
    """What a process needs to make records.

    Args:
        home: The working folder.
        lm: The LM that writes.
        judge_lm: The LM that judges; None for the one that writes.
        num_questions: Questions a passage at most.
        batch_size: Questions asked for in one call.
        threads: LM calls under way at a time in a process, 1 or more.
        max_calls: Calls that each of the two LMs may make at most, in all processes together. Default no limit.
        settings: Digest of how the questions are to be written and judged.
        budget: The name under which the processes count their calls, where there is a limit.
        limits: How patient the LMs are asked.
    """

    home: str
    lm: LMName
    judge_lm: LMName | None
    num_questions: int
    batch_size: int
    threads: int
    max_calls: int | None = None
    settings: str = ""
    budget: str = ""
    limits: Limits | None = None

    def record_maker(self) -> RecordOf:
        """Opens the store and makes the LMs, writer and judge of this process; gives what makes a record with them."""
        os.environ["QUERYWRIGHT_HOME"] = self.home
        store = open_store(Path(self.home))
        lm = self._lm(self.lm, store, "writer")
        judge_lm = None if self.judge_lm is None else self._lm(self.judge_lm, store, "judge")
        writer = QuestionWriter(self.num_questions, self.batch_size)
        maker = RecordMaker(lm, judge_lm, writer, threads=self.threads)
        if maker.settings != self.settings:
            raise InputError(
                f"a process of Ray would write questions under the settings {maker.settings[:12]}, but "
                f"{self.settings[:12]} are asked for: its version of querywright, or the address of an LM in its "
                "environment, is another one. Install the same version everywhere and give addresses with --api-base"
            )
        return maker

    def calls(self, whose: str, store: Store) -> Budget | None:
        """The budget of ``writer`` or ``judge``, for all processes together; None without a limit."""
        return None if self.max_calls is None else Budget(store, f"{self.budget} {whose}", calls=self.max_calls)

    def _lm(self, lm: LMName, store: Store, whose: str) -> dspy.LM:
        key = api_key(lm.key_variable)
        common: dict[str, Any] = {"store": store, "budget": self.calls(whose, store), "limits": self.limits}
        return resolve_lm(lm.name, api_base=lm.api_base, api_key=key, **common)


def in_ray(build: RayBuild, *, workers: int, ledger: Ledger | None = None) -> Runner:
    """Makes records in processes of Ray, the same as ``in_threads`` makes; ``ledger`` takes what they spent."""
    home = Path(build.home).resolve()
    judge_lm = build.judge_lm and _located(build.judge_lm)
    located = replace(build, home=str(home), lm=_located(build.lm), judge_lm=judge_lm)

    def run(passages: Sequence[Passage], settings: str) -> Done:
        named = replace(located, settings=settings, budget=f"questions {secrets.token_hex(8)}")
        try:
            yield from records_by_ray(
                named.record_maker, passages, workers=workers, threads=named.threads, ledger=ledger
            )
        finally:
            for whose in ("writer", "judge"):
                if (budget := named.calls(whose, open_store(home))) is not None:
                    budget.forget()

    return run


def records_by_ray(
    make: Callable[[], RecordOf],
    passages: Sequence[Passage],
    *,
    workers: int,
    threads: int = 4,
    ledger: Ledger | None = None,
) -> Done:
    """Make the record of each passage in processes of Ray; gives position and record, or failure, as each is done.

    Close the generator (``contextlib.closing``), so that Ray ends when what is done with a record fails. ``make`` is
    called once in each process and is sent there as code, so it holds names of LMs and of variables with keys, and
    neither LMs nor keys. What a process that died spent on passages that it had not done is known to nobody.

    Raises:
        InputError: Ray is not installed, or cannot be reached.
        OutageError: Processes died again and again.
    """
    if not passages:
        return
    book = ledger or Ledger()
    with _ray(workers) as ray:
        worker = ray.remote(_Worker).options(max_restarts=-1, max_task_retries=TRIES, max_concurrency=threads)
        actors = [worker.remote(make) for _ in range(workers)]
        pool = ray.util.ActorPool([actor for _ in range(threads) for actor in actors])
        try:
            for position, made, cost in pool.map_unordered(
                lambda actor, one: actor.outcome.remote(*one), enumerate(passages)
            ):
                book.add(cost)
                yield position, made
        except ray.exceptions.RayError as error:
            raise _ended("what the LMs answered is kept", error) from error
        finally:
            for actor in actors:
                ray.kill(actor)


def embed_in_ray(
    passages: Sequence[Passage], embedder: str, store: Store, *, workers: int, progress: Progress | None = None
) -> int:
    """Embed passages by actors of Ray Data and put their vectors into the store, where a build finds them.

    No more batches are under way than the actors take; each has a GPU where there are some. This process alone writes
    to the store, so that other machines need none; what is there is left out, so a run that was killed goes on. Ray
    starts an actor that dies again, with its batch.

    Args:
        passages: Any number.
        embedder: Its name, as ``resolve_embedder`` takes it.
        store: Of the working folder.
        workers: Actors, 1 or more.
        progress: Called with texts done and in all. Default none.

    Returns:
        Texts that were embedded.

    Raises:
        InputError: Ray is not installed, or cannot be reached.
        OutageError: The embedder cannot be had there.
    """
    kept = resolve_embedder(embedder, store=store)
    texts, done = kept.missing([one.content for one in passages]), 0
    if not texts:
        return 0
    folder = Path(embedder).expanduser()
    name = str(folder.resolve()) if folder.is_dir() else embedder
    with _ray(workers) as ray:
        data: Any = importlib.import_module("ray.data")
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        data.DataContext.get_current().enable_progress_bars = False
        embedded = data.from_items([{"text": text} for text in texts]).map_batches(
            _Embedding, fn_constructor_args=(name, kept.id), batch_size=EMBEDDED_AT_ONCE, concurrency=workers,
            num_gpus=1 if ray.cluster_resources().get("GPU") else None,
        )  # fmt: skip
        try:
            for batch in embedded.iter_batches(batch_size=None):
                kept.keep(list(batch["text"]), batch["vector"])
                done += len(batch["text"])
                if progress is not None:
                    progress(done, len(texts))
        except ray.exceptions.RayError as error:
            raise _ended("what is embedded is kept", error) from error
    return done


class _Embedding:
    """An embedder in a process of Ray."""

    def __init__(self, name: str, identifier: str) -> None:
        self._embedder: Embedder = resolve_embedder(name)
        if self._embedder.id != identifier:
            raise InputError(f"{name!r} is {self._embedder.id!r} there, but {identifier!r} is asked for")

    def __call__(self, batch: Any) -> Any:
        return {"text": batch["text"], "vector": self._embedder.encode(list(batch["text"]))}


def _ended(kept: str, error: Exception) -> OutageError:
    why = str(error).strip().splitlines()
    said = why[0] if len(why) == 1 else f"{why[0]} ... {why[-1]}"
    return OutageError(
        f"processes of Ray ended before their passages were done ({type(error).__name__}: {said}); {kept}, the same "
        "command goes on"
    )


class _Worker:
    """What stands in a process of Ray. It is called from several threads."""

    def __init__(self, make: Callable[[], RecordOf]) -> None:
        try:
            self._record_of = make()
        except Exception as error:  # noqa: BLE001 - told with a passage; Ray would tell that the process ended
            self._record_of = partial(_refuse, error)

    def outcome(self, position: int, passage: Passage) -> tuple[int, PassageRecord | Exception, Cost]:
        """What became of a passage: an error by its kind and message, or as what stops the whole run."""
        with metered() as meter:
            try:
                made: PassageRecord | Exception = self._record_of(passage)
            except Exception as error:  # noqa: BLE001 - the caller decides, as with threads
                kind = failure_kind(error)
                made = FailedElsewhereError(kind, str(error)) if kind else type(error)(str(error))
        return position, made, meter.total


def _refuse(error: Exception, _: Passage) -> PassageRecord:
    raise error


def _located(lm: LMName) -> LMName:
    """With the whole path of a file, since processes stand in folders of their own."""
    if not lm.name.startswith(GGUF):
        return lm
    return replace(lm, name=f"{GGUF}{Path(lm.name.removeprefix(GGUF)).expanduser().resolve()}")


def _check_reachable(address: str) -> None:
    """Refuse an address (``host:port``, ``ray://host:port``) where nobody listens; Ray tries for a minute or more."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACHED_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise InputError(
                f"no Ray answers at {address!r} ({error}); start it there, correct {ADDRESS}, or unset it to start Ray "
                "on this machine"
            ) from error


@contextmanager
def _ray(workers: int) -> Iterator[Any]:
    """Ray, ready: as the caller has started it, or started here and ended with this block."""
    address = os.environ.get(ADDRESS, "")
    _check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what goes wrong comes as an exception
    try:
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.util")
    except ImportError as error:
        raise InputError(
            "workers need the package ray; install it with pip install 'querywright[ray]', or leave --workers out"
        ) from error
    started = not ray.is_initialized()
    if started:
        local: dict[str, Any] = {"address": "local", "num_cpus": workers, "include_dashboard": False}
        try:
            ray.init(
                configure_logging=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else local),
            )
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise InputError(
                f"Ray could not be started or reached: {why}; see {ADDRESS}, or leave --workers out"
            ) from error
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()
