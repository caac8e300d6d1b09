"""The programs that are served, and how another state of an artifact takes the place of the one before."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from querywright.errors import QuerywrightError
from querywright.serving.failures import NOT_RELOADED, RequestError
from querywright.serving.logging import log_event, log_failure
from querywright.serving.metrics import ServerMetrics
from querywright.serving.settings import ServeSettings

if TYPE_CHECKING:
    from querywright.optimize.artifacts.files import ArtifactManifest
    from querywright.optimize.artifacts.loaded import LoadedProgram

Load = Callable[[str, "LoadedProgram | None"], "LoadedProgram"]
"""Loads the artifact of a name; given is the program that it is to replace, if there is one."""


@dataclass(frozen=True, slots=True)
class Served:
    """A program under its name.

    Args:
        name: Under which it is asked.
        program: The program.
        loaded: When, ISO 8601.
    """

    name: str
    program: LoadedProgram
    loaded: str

    @property
    def version(self) -> str:
        """Tells states of an artifact apart."""
        return self.program.id

    def told(self) -> dict[str, Any]:
        """What ``/health`` tells of it."""
        manifest = self.program.manifest
        return {
            "name": self.name, "version": self.version, "technique": manifest.technique, "reader": manifest.reader,
            "loaded": self.loaded,
        }  # fmt: skip

    @property
    def needs_options(self) -> bool:
        """Whether its reader chooses between options."""
        return self.program.manifest.reader == "multiple_choice"


class Programs:
    """Programs by name. Who took one keeps it until the end of its question, whatever is loaded meanwhile.

    Args:
        programs: The first states, in order.
        load: Loads one again, in a thread; None where nothing can be loaded again.
        metrics: Counts reloads.
        log_questions: Whether messages of unexpected failures are logged.
    """

    def __init__(
        self,
        programs: Mapping[str, LoadedProgram],
        load: Load | None,
        metrics: ServerMetrics,
        *,
        log_questions: bool = False,
    ) -> None:
        self._served = {name: _served(name, program) for name, program in programs.items()}
        self._load = load
        self._metrics = metrics
        self._log_questions = log_questions
        self._reloading = asyncio.Lock()
        self._next: asyncio.Task[list[dict[str, str]]] | None = None

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def named(self, name: str | None) -> Served:
        """The program of that name, or the first one."""
        found = next(iter(self._served.values())) if name is None else self._served.get(name)
        if found is None:
            raise RequestError(404, "artifact", f"there is no such artifact; there are: {', '.join(self._served)}")
        return found

    async def reload(self) -> list[dict[str, str]]:
        """Load every artifact again and put all of them in the places of those before, or none.

        Who asks while one is under way waits for the next one, together with all others who do. It is not given up
        when nobody waits for it any more.

        Returns:
            Name, and the versions before and after, of each.

        Raises:
            RequestError: One cannot be loaded; the programs before go on.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._in_turn())
            self._next.add_done_callback(_heard)
        return await asyncio.shield(self._next)

    async def _in_turn(self) -> list[dict[str, str]]:
        async with self._reloading:
            self._next = None  # who asks from now on may ask for a later state
            before = dict(self._served)
            try:
                made = {name: await self._again(name, old.program) for name, old in before.items()}
            except QuerywrightError as error:
                self._metrics.reloaded(False)
                log_event("reload", result="failed", why=str(error))
                raise RequestError(409, "reload", f"nothing was replaced: {error}") from None
            except Exception as error:  # noqa: BLE001 - the server goes on with what it has
                self._metrics.reloaded(False)
                log_failure(error, questions=self._log_questions, during="reload")
                raise RequestError(409, "reload", NOT_RELOADED) from None
            self._served = made
            self._metrics.reloaded(True)
            changes = [
                {"name": name, "before": before[name].version, "after": one.version} for name, one in made.items()
            ]
            log_event("reload", result="done", artifacts=changes)
            return changes

    async def _again(self, name: str, before: LoadedProgram) -> Served:
        if self._load is None:
            raise QuerywrightError("the programs of this server were given to it, so it cannot load them again")
        return _served(name, await asyncio.to_thread(self._load, name, before))


def _heard(task: asyncio.Task[Any]) -> None:
    """What went wrong is in the log, also where nobody waited to be told."""
    if not task.cancelled():
        task.exception()


def loader(settings: ServeSettings) -> Load:
    """Loads the artifacts of these settings; an LM that is asked for again is shared."""
    import dspy

    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.load import load

    paths = settings.names()
    digests = dict(zip(paths, settings.digests, strict=False))
    made: dict[str, Any] = {}

    def lm_for(manifest: ArtifactManifest, before: LoadedProgram | None) -> Any:
        lm = settings.lm
        if lm is None and before is not None and manifest.lm == before.manifest.lm:
            return before.lm  # a model in this process would be there twice
        if not callable(lm) or isinstance(lm, dspy.BaseLM):
            return lm
        if manifest.lm not in made:
            made[manifest.lm] = lm(manifest)
        return made[manifest.lm]

    def rewriter_for(manifest: ArtifactManifest, before: LoadedProgram | None) -> Any:
        """The rewriter of the program before where it is the same, or that of the settings, or None to look for it."""
        if before is not None and manifest.rewriter == before.manifest.rewriter:
            return before.program.technique.own_lm
        return settings.rewriter

    def one(name: str, before: LoadedProgram | None) -> LoadedProgram:
        artifact = read_artifact(paths[name], digest=digests.get(name))
        program = load(
            artifact, lm=lm_for(artifact.manifest, before), reranker=settings.reranker,
            rewriter=rewriter_for(artifact.manifest, before), home=settings.home,
            verify=settings.verify, watchers=settings.watchers,
        )  # fmt: skip
        _warm(program)
        return program

    return one


def _warm(program: LoadedProgram) -> None:
    """Search once, for what nobody searched for, so that the first question does not wait for models.

    One that is missing is found out now.
    """
    if program.manifest.collection is not None:
        program.program.technique.searched.search([f"ready {uuid.uuid4().hex}"], 1)


def _served(name: str, program: LoadedProgram) -> Served:
    return Served(name, program, datetime.now(UTC).isoformat(timespec="seconds"))
