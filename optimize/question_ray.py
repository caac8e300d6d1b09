"""Write questions and embed passages in Ray processes; requires the ``querywright[ray]`` extra.

The processes run on this machine unless ``RAY_ADDRESS`` names a cluster. Each process creates its LMs from their names
and opens the workspace's store, which must be at the same path on every machine. A process receives passages, the names
of LMs, their addresses, and the names of the environment variables with API keys. It returns records, or the kind and
message of a failure. Ray's dashboard and usage reports are off.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import dspy

from querywright.data.types import Passage
from querywright.errors import InputError, OutageError
from querywright.models.budget import Budget
from querywright.models.circuit_breaker import Limits
from querywright.models.embedder import Progress, Vectors, resolve_embedder
from querywright.models.keys import api_key
from querywright.models.lm import resolve_lm
from querywright.models.store import Store, open_store
from querywright.models.usage import Cost, Ledger, metered
from querywright.optimize.failures import FailedElsewhereError, failure_kind, failure_message
from querywright.optimize.question_build import Done, RecordMaker, Runner
from querywright.programs.question_writer import QuestionWriter
from querywright.retrieval.generated_questions import PassageRecord

T = TypeVar("T")
R = TypeVar("R")

ADDRESS = "RAY_ADDRESS"
TRIES = 3
"""Number of times to retry an item whose process died; after that, the run ends."""
GGUF = "gguf:"
EMBEDDED_AT_ONCE = 256
"""Number of texts in a batch."""
REACHED_SECONDS = 5.0
"""Timeout for connecting to a cluster."""


@dataclass(frozen=True, slots=True)
class LMName:
    """An LM's name, its address, and the environment variable with its API key."""

    name: str
    api_base: str | None = None
    key_variable: str | None = None


@dataclass(frozen=True, slots=True)
class RayBuild:
    """The settings that a process uses to make records.

    Args:
        home: The workspace.
        lm: The LM that writes.
        judge_lm: The LM that judges; None for the LM that writes.
        num_questions: Maximum number of questions per passage.
        batch_size: Questions requested in one call.
        threads: Number of LM calls to run at a time in each process, 1 or more.
        max_calls: Maximum number of calls to each of the two LMs, over all processes. Default: no limit.
        settings: Digest of the writer's and the judge's settings.
        budget: Name under which the processes count their calls, if there is a limit.
        limits: Timeouts and retries for the LMs.
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

    def record_maker(self) -> Callable[[Passage], PassageRecord]:
        """Open the store, create this process's LMs, and return the function that makes a record."""
        os.environ["QUERYWRIGHT_HOME"] = self.home
        store = open_store(Path(self.home))
        lm = self._lm(self.lm, store, "writer")
        judge_lm = None if self.judge_lm is None else self._lm(self.judge_lm, store, "judge")
        writer = QuestionWriter(self.num_questions, self.batch_size)
        maker = RecordMaker(lm, judge_lm, writer, threads=self.threads)
        if maker.settings != self.settings:
            raise InputError(
                f"a Ray worker's question-writing settings ({maker.settings[:12]}) do not match this process's "
                f"settings ({self.settings[:12]}): its querywright version or an LM address in its environment "
                "differs; install the same version on every machine, and set LM addresses with --api-base"
            )
        return maker

    def calls(self, whose: str, store: Store) -> Budget | None:
        """Return the budget that all processes share for ``writer`` or ``judge``; None without a limit."""
        return None if self.max_calls is None else Budget(store, f"{self.budget} {whose}", calls=self.max_calls)

    def _lm(self, lm: LMName, store: Store, whose: str) -> dspy.LM:
        key = api_key(lm.key_variable)
        common: dict[str, Any] = {"store": store, "budget": self.calls(whose, store), "limits": self.limits}
        return resolve_lm(lm.name, api_base=lm.api_base, api_key=key, **common)


def in_ray(build: RayBuild, *, workers: int, ledger: Ledger | None = None) -> Runner:
    """Return a runner that makes the same records in Ray processes as the default runner makes in threads.

    Args:
        build: The settings of the processes.
        workers: Number of processes, 1 or more.
        ledger: Receives the cost of the LM calls. Default None.
    """
    home = Path(build.home).resolve()
    judge_lm = build.judge_lm and _located(build.judge_lm)
    located = replace(build, home=str(home), lm=_located(build.lm), judge_lm=judge_lm)

    def run(passages: Sequence[Passage], settings: str) -> Done:
        named = replace(located, settings=settings, budget=f"questions {secrets.token_hex(8)}")
        try:
            yield from ray_each(named.record_maker, passages, workers=workers, threads=named.threads, ledger=ledger)
        finally:
            for whose in ("writer", "judge"):
                if (budget := named.calls(whose, open_store(home))) is not None:
                    budget.forget()

    return run


def ray_each(
    make: Callable[[], Callable[[T], R]],
    items: Sequence[T],
    *,
    workers: int,
    threads: int = 4,
    ledger: Ledger | None = None,
    on_gpu: bool = False,
) -> Generator[tuple[int, R | Exception], None, None]:
    """Apply a function to items in Ray processes, and yield each item's position with its result or error.

    Ray restarts a process that dies, and retries its items. The cost of the LM calls that the process made for
    unfinished items is not counted. Close the generator (``contextlib.closing``), so that Ray stops even if the caller
    fails.

    Args:
        make: Returns the function; called once in each process. Ray sends ``make`` to the processes as code, so it may
            contain the names of LMs and of environment variables with API keys, but not LMs or API keys.
        items: Any number of items.
        workers: Number of processes, 1 or more.
        threads: Number of items to run at a time in each process, 1 or more. Default 4.
        ledger: Receives the cost of the LM calls. Default None.
        on_gpu: Whether each process gets a GPU if any are available. Default False.

    Raises:
        InputError: Ray is not installed or cannot be reached.
        OutageError: Processes kept dying.
    """
    if not items:
        return
    book = ledger or Ledger()
    with _ray(workers) as ray:
        gpus = 1 if on_gpu and ray.cluster_resources().get("GPU") else 0
        options = {"max_restarts": -1, "max_task_retries": TRIES, "max_concurrency": threads, "num_gpus": gpus}
        actors = [ray.remote(_Worker).options(**options).remote(make) for _ in range(workers)]
        pool = ray.util.ActorPool([actor for _ in range(threads) for actor in actors])
        try:
            for position, made, cost in pool.map_unordered(
                lambda actor, one: actor.outcome.remote(*one), enumerate(items)
            ):
                book.add(cost)
                yield position, made
        except ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()
            said = why[0] if len(why) == 1 else f"{why[0]} ... {why[-1]}"
            raise OutageError(
                f"Ray workers ended before they were done ({type(error).__name__}: {said}); rerun the same command, "
                "which keeps the results so far"
            ) from error
        finally:
            for actor in actors:
                ray.kill(actor)


def embed_in_ray(
    passages: Sequence[Passage], embedder: str, store: Store, *, workers: int, progress: Progress | None = None
) -> int:
    """Embed passages in Ray processes, put their vectors into the store, and return the number of embedded texts.

    Each process gets a GPU if any are available. Only the calling process writes to the store, so other machines do not
    need one. Texts whose vectors are already in the store are skipped, so a run that was killed can resume.

    Args:
        passages: Any number of passages.
        embedder: Name of the embedder (see ``resolve_embedder``).
        store: The workspace's store.
        workers: Number of processes, 1 or more.
        progress: Called with the number of embedded texts and the total number of texts. Default None.

    Raises:
        InputError: Ray is not installed or cannot be reached, or the processes have a different embedder with this
            name.
        OutageError: Processes kept dying.
    """
    kept = resolve_embedder(embedder, store=store)
    texts, done = kept.missing([one.content for one in passages]), 0
    batches = [texts[start : start + EMBEDDED_AT_ONCE] for start in range(0, len(texts), EMBEDDED_AT_ONCE)]
    folder = Path(embedder).expanduser()
    make = partial(_encoder, str(folder.resolve()) if folder.is_dir() else embedder, kept.id)
    with closing(ray_each(make, batches, workers=workers, threads=1, on_gpu=True)) as made:
        for position, vectors in made:
            if isinstance(vectors, Exception):
                raise vectors
            kept.keep(batches[position], vectors)
            done += len(batches[position])
            if progress is not None:
                progress(done, len(texts))
    return done


def _encoder(name: str, identifier: str) -> Callable[[Sequence[str]], Vectors]:
    """Return the function that embeds texts in a Ray process."""
    embedder = resolve_embedder(name)
    if embedder.id != identifier:
        raise InputError(
            f"a Ray worker loaded {embedder.id!r} as the embedder {name!r}, but this run requires {identifier!r}; use "
            "the same files on all machines"
        )
    return embedder.encode


class _Worker:
    """A Ray process, called by several threads."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        try:
            self._work = make()
        except Exception as error:  # noqa: BLE001 - reported with its item; Ray would report only a dead process
            self._work = partial(_refuse, error)

    def outcome(self, position: int, item: Any) -> tuple[int, Any, Cost]:
        """Return an item's position, result, and cost; the result may be an error."""
        with metered() as meter:
            try:
                made = self._work(item)
            except Exception as error:  # noqa: BLE001 - the caller decides, as with threads
                kind = failure_kind(error)
                made = FailedElsewhereError(kind, failure_message(error)) if kind else type(error)(str(error))
        return position, made, meter.total


def _refuse(error: Exception, _: Any) -> Any:
    raise error


def _located(lm: LMName) -> LMName:
    """Return the name with the absolute path of a GGUF file, because a Ray process has its own working directory."""
    if not lm.name.startswith(GGUF):
        return lm
    return replace(lm, name=f"{GGUF}{Path(lm.name.removeprefix(GGUF)).expanduser().resolve()}")


def _check_reachable(address: str) -> None:
    """Reject an address (``host:port``, ``ray://host:port``) where nothing is listening, because Ray would retry for
    minutes.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACHED_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise InputError(
                f"no Ray cluster answers at {address!r} ({error}); start Ray there, correct {ADDRESS}, or unset "
                f"{ADDRESS} to start Ray on this machine"
            ) from error


@contextmanager
def _ray(workers: int) -> Iterator[Any]:
    """Connect to Ray or start it; stop it at the end of the block if it was started here."""
    address = os.environ.get(ADDRESS, "")
    _check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors arrive as exceptions
    try:
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.util")
    except ImportError as error:
        raise InputError(
            "workers require the package ray; install ray with pip install 'querywright[ray]', or remove --workers"
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
            raise InputError(f"could not start or reach Ray: {why}; check {ADDRESS}, or remove --workers") from error
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()
